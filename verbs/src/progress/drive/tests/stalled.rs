//! Tests of peers that stall one direction (`Timeouts::stalled`), in virtual time.
//!
//! They check which connections are ended, and how much memory a message costs while it waits for a
//! receive.

use std::time::Duration;
use uwarp_engine::mem::RemoteBuffer;

use parking_lot::Mutex;

use super::line::{Line, over_line};
use super::*;
use crate::progress::drive::Driven;
use uwarp_engine::limits::{Accounts, PeerAccount, What};
use uwarp_engine::settings::{Limits, OnNoReceive, PeerLimits, Timeouts};

const LIMIT: Duration = Duration::from_secs(120);
const MOMENT: Duration = Duration::from_secs(1);
/// Maximum number of received bytes that a connection keeps.
const BUFFER: usize = 256 * 1024;

/// A connection with a scripted LLP and virtual time.
struct Timed {
    driven: Driven,
    line: Arc<Mutex<Line>>,
    cq: Arc<Ring>,
    memory: Arc<Memory>,
    pool: BufferPool,
    now: Instant,
}

impl Timed {
    fn new(end: End, peer: Option<Arc<PeerAccount>>) -> Self {
        let (cq, memory) = (Arc::clone(&end.cq), Arc::clone(&end.memory));
        let now = end.conn.now;
        let (driven, line) = over_line(end, 0);
        Timed {
            driven: Driven { peer, ..driven },
            line,
            cq,
            memory,
            pool: BufferPool::default(),
            now,
        }
    }

    /// Lets bytes of the peer arrive, and runs a turn.
    fn arrives(&mut self, bytes: &[u8]) {
        self.line.lock().arrived.extend(bytes);
        self.turn();
    }

    /// Lets the LLP take `bytes` bytes, and runs a turn.
    fn takes(&mut self, bytes: usize) {
        self.line.lock().room = bytes;
        self.turn();
    }

    fn turn(&mut self) {
        self.driven.turn(&self.pool, self.now);
    }

    /// Advances the time, and runs a turn whenever one is due. Nothing arrives meanwhile.
    fn passes(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.driven.deadline().filter(|due| *due <= until) {
            self.now = due.max(self.now);
            self.turn();
            if self.driven.llp.is_some() && self.driven.deadline() == Some(due) {
                panic!("{due:?} stays due");
            }
            if self.ended() {
                return;
            }
        }
        self.now = until;
    }

    fn ended(&self) -> bool {
        self.driven.conn.end.is_some()
    }

    /// Checks that the connection was reset because the peer stalled this direction.
    #[track_caller]
    fn was_cut(&self, what: &str) {
        let Some(reason @ EndReason::Stalled { .. }) = &self.driven.conn.end else {
            panic!("{:?}", self.driven.conn.end)
        };
        assert!(reason.to_string().contains(what), "{reason}");
        assert!(self.line.lock().reset);
    }

    fn post_receive(&mut self, wr_id: u64) {
        let sges = self.memory.receive(0);
        let receive = RecvWr::new(wr_id, &sges);
        self.driven.conn.post_recv(&receive).unwrap();
        self.turn();
    }
}

fn settings(on_no_receive: OnNoReceive) -> Settings {
    Settings {
        on_no_receive,
        timeouts: Timeouts::default().stalled(Some(LIMIT)),
        ..Settings::default()
    }
}

/// Returns a client that produces bytes for a test, and a server in virtual time.
fn pair(settings: &Settings, peer: Option<Arc<PeerAccount>>) -> (End, Timed) {
    let (mut client, mut server, pool) = connected(settings, &Memory::new());
    // Delivers the first FPDU, so that the server may send.
    client
        .conn
        .post_send(&SendWr::write_inline(0, b"", RemoteBuffer::at(0, 0)))
        .unwrap();
    server.deliver(&client.bytes(), &pool);
    client.numbers();
    (client, Timed::new(server, peer))
}

/// Returns the bytes of a Send.
fn send(client: &mut End) -> Vec<u8> {
    client
        .conn
        .post_send(&SendWr::send_inline(1, b"message"))
        .unwrap();
    client.bytes()
}

/// Posts a Write, whose bytes the peer has to read.
fn owes(server: &mut Timed) {
    let sges = [Sge {
        addr: server.memory.open.to_base(),
        len: PAGE as u32,
        lkey: server.memory.open.stag().0,
    }];
    let write = SendWr::write(7, &sges, RemoteBuffer::at(0x1000, 0x77));
    server.driven.conn.post_send(&write).unwrap();
    server.turn();
}

#[test]
fn a_peer_that_takes_bytes_slowly_is_kept_and_one_that_takes_none_is_cut() {
    let (_client, mut server) = pair(&settings(OnNoReceive::Terminate), None);
    owes(&mut server);
    // For an hour, the peer reads one byte shortly before each time limit.
    for _ in 0..30 {
        server.passes(LIMIT - MOMENT);
        server.takes(1);
        assert!(!server.ended());
    }
    let last = server.now;
    server.passes(3 * LIMIT);
    server.was_cut("did not read");
    let after = server.now - last;
    assert!(after >= LIMIT && after <= 2 * LIMIT, "{after:?}");
    let done = server.cq.poll().unwrap();
    assert_eq!((done.wr_id, done.status), (7, Status::WrFlush));
}

#[test]
fn a_slow_peer_that_has_taken_all_may_then_be_silent_for_ever() {
    let (_client, mut server) = pair(&settings(OnNoReceive::Terminate), None);
    owes(&mut server);
    server.takes(100);
    server.passes(LIMIT - MOMENT);
    server.takes(PAGE * 2);
    server.passes(100 * LIMIT);
    assert!(!server.ended());
    assert_eq!(server.driven.deadline(), None);
    let done = server.cq.poll().unwrap();
    assert_eq!((done.wr_id, done.status), (7, Status::Success));
}

#[test]
fn a_peer_whose_fpdus_come_slowly_is_kept_and_one_that_never_finishes_one_is_cut() {
    let (mut client, mut server) = pair(&settings(OnNoReceive::Terminate), None);
    for wr_id in 0..20 {
        server.post_receive(wr_id);
        // Each FPDU arrives in three parts. The next FPDU begins to arrive after the previous one
        // is complete.
        let fpdu = send(&mut client);
        for part in fpdu.chunks(fpdu.len().div_ceil(3)) {
            server.arrives(part);
            server.passes(LIMIT / 4);
        }
        assert!(!server.ended());
        assert_eq!(server.cq.poll().unwrap().wr_id, wr_id);
    }
    let fpdu = send(&mut client);
    let (last, rest) = fpdu.split_last().unwrap();
    // The FPDU may arrive byte by byte, but must be complete in time.
    let begun = server.now;
    for byte in rest {
        server.arrives(&[*byte]);
        server.passes(LIMIT / 8);
        if server.ended() {
            break;
        }
    }
    server.was_cut("began an FPDU and did not finish it");
    let after = server.now - begun;
    assert!(after >= LIMIT && after <= 2 * LIMIT, "{after:?}");
    server.arrives(&[*last]);
    assert!(server.cq.poll().is_none());
}

#[test]
fn without_the_limit_a_peer_may_take_nothing_for_ever() {
    let settings = Settings {
        timeouts: Timeouts::default().stalled(None),
        ..Settings::default()
    };
    let (_client, mut server) = pair(&settings, None);
    owes(&mut server);
    server.passes(1000 * LIMIT);
    assert!(!server.ended());
    assert_eq!(server.driven.deadline(), None);
}

#[test]
fn a_message_that_waits_for_a_receive_is_no_stalled_peer() {
    let hold = 10 * LIMIT;
    for begun_before in [false, true] {
        let (mut client, mut server) = pair(&settings(OnNoReceive::Hold(hold)), None);
        let bytes = [send(&mut client), send(&mut client)].concat();
        // A part of the FPDU arrives first, so that its time limit is checked while the message
        // waits.
        let (first, rest) = bytes.split_at(if begun_before { 10 } else { 0 });
        server.arrives(first);
        server.passes(LIMIT / 2);
        server.arrives(rest);
        assert!(server.driven.conn.is_starving());
        server.passes(hold - MOMENT);
        assert!(!server.ended(), "{:?}", server.driven.conn.end);
        server.post_receive(1);
        assert_eq!(server.cq.poll().unwrap().wr_id, 1);
        // The next message may wait for the whole time as well.
        server.passes(hold - MOMENT);
        assert!(server.driven.conn.is_starving() && !server.ended());
        server.passes(2 * MOMENT);
        let end = &server.driven.conn.end;
        assert!(
            matches!(end, Some(EndReason::TerminateSent { .. })),
            "{end:?}"
        );
    }
}

#[test]
fn what_the_peer_does_not_take_counts_also_while_its_message_waits() {
    let (mut client, mut server) = pair(&settings(OnNoReceive::Hold(10 * LIMIT)), None);
    server.arrives(&send(&mut client));
    assert!(server.driven.conn.is_starving());
    owes(&mut server);
    server.passes(3 * LIMIT);
    server.was_cut("did not read");
}

/// Returns the account of a peer that may use this many bytes of receive memory.
fn peer(bytes: u64) -> Arc<PeerAccount> {
    let per_peer = PeerLimits::default().max_receive_memory(bytes);
    let accounts = Accounts::new(&Limits::default().per_peer(per_peer));
    accounts.peer(([192, 0, 2, 2], 2).into())
}

#[test]
fn a_connection_on_hold_keeps_one_buffer_and_leaves_the_rest_to_tcp() {
    const ALL: u64 = 1 << 20;
    let peer = peer(ALL);
    let free = |bytes: usize| peer.has_room(What::ReceiveMemory, bytes as u64, 1);
    let (mut client, mut server) =
        pair(&settings(OnNoReceive::Hold(LIMIT)), Some(Arc::clone(&peer)));
    let message = send(&mut client);
    server.arrives(&message);
    for _ in 0..100 {
        server.arrives(&[0x55; 10_000]);
    }
    let kept = server.driven.rx.filled().len();
    assert!(kept <= BUFFER, "{kept}");
    assert_eq!(
        kept + server.line.lock().arrived.len(),
        message.len() + 1_000_000,
        "the rest stays in the LLP"
    );
    // The bytes are charged to the peer.
    let all = ALL as usize;
    assert!(free(all - BUFFER) && !free(all - BUFFER + 1));
    server.passes(LIMIT);
    assert!(server.ended());
    drop(server);
    assert!(free(all), "the charge is released");
}

#[test]
fn many_connections_on_hold_shrink_to_what_they_keep_and_stay_within_the_limit_of_their_peer() {
    let message_len = send(&mut pair(&settings(OnNoReceive::Terminate), None).0).len() as u64;
    // A turn needs 68 KiB of room, of which the message that waits then keeps its own length. Four
    // are read within the limit, and one with the reserve.
    let all = 68 * 1024 + 3 * message_len;
    let peer = peer(all);
    let mut ends: Vec<(End, Timed)> = (0..8)
        .map(|_| {
            let hold = OnNoReceive::Hold(10 * LIMIT);
            pair(&settings(hold), Some(Arc::clone(&peer)))
        })
        .collect();
    for (client, server) in &mut ends {
        let message = send(client);
        server.arrives(&message);
    }
    let waits: Vec<bool> = ends
        .iter()
        .map(|(_, server)| server.driven.conn.is_starving())
        .collect();
    assert_eq!(waits, [true, true, true, true, true, false, false, false]);
    // Connections without room have not read their message. It is not lost.
    for (waits, (_, server)) in waits.iter().zip(&ends) {
        assert_eq!(server.line.lock().arrived.is_empty(), *waits);
    }
    // All connections continue when each has a receive. Connections that wait for memory continue
    // as it is released.
    for (_, server) in &mut ends {
        server.post_receive(1);
        server.passes(MOMENT);
        assert_eq!(server.cq.poll().map(|done| done.wr_id), Some(1));
    }
    assert!(peer.has_room(What::ReceiveMemory, all, 1));
}

/// Begins an FPDU of 600 bytes on each of `count` connections of the peer.
fn begun(count: usize, peer: &Arc<PeerAccount>) -> Vec<(End, Timed)> {
    let mut ends: Vec<(End, Timed)> = (0..count)
        .map(|_| pair(&settings(OnNoReceive::Terminate), Some(Arc::clone(peer))))
        .collect();
    for (client, server) in &mut ends {
        server.post_receive(1);
        let message = send(client);
        server.arrives(&message[..message.len() - 1]);
    }
    ends
}

#[test]
fn an_unfinished_fpdu_ends_its_connection_soon_only_at_the_memory_limit() {
    for at_limit in [false, true] {
        let peer = peer(4 * BUFFER as u64);
        let used = 4 * BUFFER as u64 - 68 * 1024;
        // More than half of the limit is in use when the FPDU begins.
        let others = peer.take_in_any_case(What::ReceiveMemory, used - 5000);
        let mut ends = begun(1, &peer);
        let server = &mut ends[0].1;
        let _more = at_limit.then(|| peer.take_in_any_case(What::ReceiveMemory, 10_000));
        server.passes(Duration::from_secs(1));
        assert!(!server.ended());
        server.passes(Duration::from_secs(2));
        assert_eq!(server.ended(), at_limit);
        if at_limit {
            server.was_cut("did not finish it");
        }
        drop((others, ends));
    }
}

#[test]
fn an_fpdu_begun_with_plenty_of_memory_may_take_its_time() {
    let peer = peer(4 * BUFFER as u64);
    let mut ends = begun(1, &peer);
    let _others = peer.take_in_any_case(What::ReceiveMemory, 1 << 40);
    let server = &mut ends[0].1;
    server.passes(LIMIT - MOMENT);
    assert!(!server.ended());
}
