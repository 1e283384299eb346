//! Many queue pairs on one SRQ that is far too small for them. Messages have any length, and some
//! queue pairs end meanwhile.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use super::*;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use uwarp_testkit::Random;
use uwarp_verbs::{Completion, MemoryRegion};

const CONNECTIONS: u32 = 24;
const CLIENT_THREADS: u32 = 4;
/// Number of messages of a client that is not aborted.
const MESSAGES: u32 = 50;
/// Length in bytes of the longest payload.
const LONGEST: u32 = 20_000;
/// Depth of the SRQ, and of the CQ for its receives.
const RECEIVES: u32 = 7;
/// Depth of a client's send queue.
const SENDS: u32 = 5;
/// Length in bytes of the header before the payload: client, number and length.
const HEAD: u32 = 12;
/// Maximum time without a completion.
const PATIENCE: Duration = Duration::from_secs(300);
const SLOT: u64 = (HEAD + LONGEST) as u64;

fn random(seed: u64, what: u32) -> Random {
    let mut random = Random(seed << 32 | u64::from(what) << 1 | 1);
    // Skips the first numbers, because those of neighbouring seeds are similar.
    for _ in 0..8 {
        random.next();
    }
    random
}

fn below(random: &mut Random, most: u32) -> u32 {
    (random.next() >> 32) as u32 % most
}

fn message(client: u32, number: u32, len: u32) -> Vec<u8> {
    let head = [client, number, len];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend((0..len).map(|at| (client * 31 + number * 7 + at) as u8));
    bytes
}

/// Returns true for one client in four, which is aborted after some messages.
fn is_torn(client: u32) -> bool {
    client % 4 == 3
}

struct Client {
    number: u32,
    qp: Qp,
    /// One buffer for each entry of the send queue. It is reused when the entry is free.
    messages: MemoryRegion,
    sent: u32,
    due: u32,
}

impl Client {
    fn send(&mut self, random: &mut Random) {
        let at = u64::from(self.sent % SENDS) * SLOT;
        let len = match below(random, 3) {
            0 => below(random, 64),
            _ => below(random, LONGEST),
        };
        let bytes = message(self.number, self.sent, len);
        self.messages.write_at(at as usize, &bytes).unwrap();
        let sges = [self.messages.sge(at, bytes.len() as u32)];
        let wr = SendWr::send(u64::from(self.sent), &sges);
        self.qp.post_send(&wr).unwrap();
        self.sent += 1;
    }
}

/// Sends all messages of these clients, which take turns in random order. Aborts the clients that
/// [`is_torn`] selects. Waits until all connections have ended.
fn send_all(cq: &CqHandle, seed: u64, mut clients: Vec<Client>) {
    let mut random = random(seed, clients[0].number);
    let mut outstanding = 0;
    while clients.iter().any(|client| client.sent < client.due) || outstanding > 0 {
        let at = below(&mut random, clients.len() as u32) as usize;
        let client = &mut clients[at];
        if client.sent < client.due && client.qp.send_room() > 0 {
            client.send(&mut random);
            outstanding += 1;
            if client.sent == client.due && is_torn(client.number) {
                client.qp.abort();
            }
            continue;
        }
        if outstanding == 0 {
            // Another client may have something to send.
            continue;
        }
        let mut some = [Completion::default(); 3];
        let count = cq.wait_into(&mut some, Some(PATIENCE));
        assert!(count > 0, "no completion came");
        for completion in &some[..count] {
            outstanding -= 1;
            let client = clients
                .iter()
                .find(|client| client.qp.qp_num() == completion.qp_num);
            let torn = is_torn(client.unwrap().number);
            assert!(
                torn || completion.status == Status::Success,
                "{completion:?}"
            );
        }
    }
    for client in &clients {
        assert!(client.qp.wait_closed(PATIENCE));
    }
    assert!(!cq.has_overflowed());
}

/// The side with the SRQ, with the messages that it received and the receives that are not posted.
struct Server<'a> {
    srq: &'a Srq,
    cq: CqHandle,
    buffer: MemoryRegion,
    free: Vec<u64>,
    client_of: HashMap<u32, u32>,
    came: Vec<u32>,
}

impl Server<'_> {
    /// Takes some completions. Posts some of the free receives, for each of which the SRQ must have
    /// room.
    fn turn(&mut self, random: &mut Random) -> usize {
        let most = 1 + below(random, 4) as usize;
        let mut some = [Completion::default(); 4];
        let count = self.cq.poll(&mut some[..most]);
        for completion in &some[..count] {
            self.take(completion);
        }
        for _ in 0..below(random, self.free.len() as u32 + 1) {
            let slot = self
                .free
                .swap_remove(below(random, self.free.len() as u32) as usize);
            let sges = [self.buffer.sge(slot * SLOT, SLOT as u32)];
            self.srq.post_recv(&RecvWr::new(slot, &sges)).unwrap();
        }
        count
    }

    fn take(&mut self, completion: &Completion) {
        let client = self.client_of[&completion.qp_num];
        self.free.push(completion.wr_id);
        if completion.status != Status::Success {
            // This is the receive of a message that arrived only in part.
            assert!(is_torn(client), "{completion:?}");
            return;
        }
        let came = &mut self.came[client as usize];
        let len = completion.byte_len - HEAD;
        let mut bytes = vec![0; completion.byte_len as usize];
        let at = completion.wr_id * SLOT;
        self.buffer.read_at(at as usize, &mut bytes).unwrap();
        let expected = message(client, *came, len);
        same(
            &bytes,
            &expected,
            &format!("message {came} of client {client}"),
        );
        *came += 1;
    }
}

fn stress(wire: Wire, seed: u64) {
    let mut setup = Setup::new(wire);
    setup.settings[1].on_no_receive = OnNoReceive::Hold(PATIENCE);
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let attr = SrqAttr::default().max_wr(RECEIVES);
    let srq = b.pd.create_srq(attr).unwrap();
    let recv_cq = CqHandle(b.device.create_cq(RECEIVES).unwrap());
    let caps = QpCaps::default().max_send_wr(SENDS);
    let each = CONNECTIONS / CLIENT_THREADS;
    let mut servers = Vec::new();
    let mut threads = Vec::new();
    let mut plans = random(seed, 1000);
    for numbers in (0..CONNECTIONS).collect::<Vec<_>>().chunks(each as usize) {
        // The clients receive no messages, so this CQ needs room for their Sends only.
        let cq = CqHandle(a.device.create_cq(SENDS * each).unwrap());
        let connect = |&number: &u32| {
            let qp = a.pd.create_qp(&cq, &a.recv_cq, caps).unwrap();
            let server = b.pd.qp().srq(&srq).build(&b.send_cq, &recv_cq).unwrap();
            join(&listener, &qp, &server, &setup.connect, &setup.accept);
            servers.push(server);
            Client {
                number,
                qp,
                messages: a.blank(SENDS as usize * SLOT as usize),
                sent: 0,
                due: match is_torn(number) {
                    true => 1 + below(&mut plans, MESSAGES),
                    false => MESSAGES,
                },
            }
        };
        threads.push((numbers.iter().map(connect).collect::<Vec<_>>(), cq.clone()));
    }
    let due: Vec<u32> = threads
        .iter()
        .flat_map(|(clients, _)| clients.iter().map(|client| client.due))
        .collect();
    let mut server = Server {
        srq: &srq,
        cq: recv_cq,
        buffer: b.blank(RECEIVES as usize * SLOT as usize),
        free: (0..RECEIVES.into()).collect(),
        client_of: servers.iter().map(Qp::qp_num).zip(0..).collect(),
        came: vec![0; CONNECTIONS as usize],
    };
    let mut random = random(seed, 1001);
    std::thread::scope(|scope| {
        for (clients, cq) in threads {
            scope.spawn(move || send_all(&cq, seed, clients));
        }
        let mut progress = Instant::now();
        while servers.iter().any(|qp| !qp.wait_closed(Duration::ZERO)) {
            if server.turn(&mut random) > 0 {
                progress = Instant::now();
                for (qp, came) in servers.iter().zip(&server.came) {
                    if *came == MESSAGES && qp.state() == QpState::Rts {
                        qp.disconnect();
                    }
                }
            }
            assert!(progress.elapsed() < PATIENCE, "it hangs: {:?}", server.came);
            assert!(!server.cq.has_overflowed());
        }
    });
    while server.turn(&mut random) > 0 {}
    for (client, (came, due)) in (0..).zip(server.came.iter().zip(&due)) {
        assert!(
            came == due || is_torn(client) && came < due,
            "client {client}"
        );
    }
    assert_eq!(srq.posted() + server.free.len(), RECEIVES as usize);
}

#[test]
fn many_queue_pairs_share_few_receives_while_some_of_them_end() {
    for wire in Wire::BOTH {
        for seed in 1..=2 {
            let played = std::panic::catch_unwind(|| stress(wire, seed));
            assert!(played.is_ok(), "{wire:?}, seed {seed}: it panicked before");
        }
    }
}
