//! Free entries of queues, compared with a model that knows only posts and polls. Whatever the
//! network does, a post succeeds exactly if its queue has a free entry. A CQ whose depth is the sum
//! of the depths of its queues never overflows.

use super::*;

use std::collections::VecDeque;

use uwarp_testkit::Random;
use uwarp_verbs::{Access, Cq, Device, Pd, PostError};

const PAIRS: usize = 3;
const STEPS: usize = 600;
const SRQ: usize = 5;

/// Model of one queue. It contains the posted requests that occupy an entry, oldest first.
#[derive(Default)]
struct Queue {
    depth: usize,
    open: VecDeque<(u64, bool)>,
}

impl Queue {
    fn of(depth: u32) -> Self {
        Queue {
            depth: depth as usize,
            open: VecDeque::new(),
        }
    }

    /// Records the result of a post. `signaled`: true if the request has a completion even if it
    /// succeeds.
    fn posted(&mut self, wr_id: u64, signaled: bool, said: Result<(), PostError>) {
        match said.map_err(|error| error.kind) {
            Ok(()) => {
                assert!(self.open.len() < self.depth, "the queue was full");
                self.open.push_back((wr_id, signaled));
            }
            Err(
                PostErrorKind::SendQueueFull { depth } | PostErrorKind::RecvQueueFull { depth },
            ) => {
                assert_eq!(depth, self.depth);
                assert_eq!(self.open.len(), depth, "the queue was not full");
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Records a polled completion. It frees the entry of its request and those of earlier
    /// unsignaled requests.
    fn polled(&mut self, completion: &Completion) {
        loop {
            let (wr_id, signaled) = self.open.pop_front().expect("an unexpected completion");
            if wr_id == completion.wr_id {
                assert!(signaled || completion.status != Status::Success);
                return;
            }
            assert!(!signaled, "{completion:?} comes before that of {wr_id}");
        }
    }
}

/// One end of a connection. `recvs` is not used if the receives are in an SRQ.
struct End {
    qp: Qp,
    sends: Queue,
    recvs: Queue,
}

/// One device. The depth of its only CQ is the sum of the depths of its queues.
struct Host {
    _device: Device,
    pd: Pd,
    cq: Cq,
    srq: Option<Srq>,
    ends: Vec<Option<End>>,
}

impl Host {
    fn new(side: Side, has_srq: bool) -> Self {
        let depth: u32 = (0..PAIRS).map(|at| depths(at).0 + depths(at).1).sum();
        let srq = has_srq.then(|| {
            let attr = SrqAttr::default().max_wr(SRQ as u32);
            side.pd.create_srq(attr).unwrap()
        });
        let sends: u32 = (0..PAIRS).map(|at| depths(at).0).sum();
        let depth = if has_srq { sends + SRQ as u32 } else { depth };
        Host {
            cq: side.device.create_cq(depth).unwrap(),
            pd: side.pd,
            _device: side.device,
            srq,
            ends: (0..PAIRS).map(|_| None).collect(),
        }
    }

    fn make(&mut self, at: usize) -> &Qp {
        let (sends, recvs) = depths(at);
        let caps = QpCaps::default().max_send_wr(sends).max_recv_wr(recvs);
        let builder = self.pd.qp().access(Access::ALL).caps(caps);
        let builder = match &self.srq {
            Some(srq) => builder.srq(srq),
            None => builder,
        };
        let end = End {
            qp: builder.build(&self.cq, &self.cq).unwrap(),
            sends: Queue::of(sends),
            recvs: Queue::of(recvs),
        };
        &self.ends[at].insert(end).qp
    }

    fn end(&mut self, at: usize) -> &mut End {
        self.ends[at].as_mut().unwrap()
    }
}

/// Returns the depths of the send queue and of the receive queue of this pair.
fn depths(at: usize) -> (u32, u32) {
    [(1, 2), (4, 3), (9, 1)][at]
}

struct World {
    hosts: [Host; 2],
    listener: Listener,
    random: Random,
    next: u64,
    /// Receives posted to the SRQ whose completions have not been polled.
    shared: Vec<u64>,
}

impl World {
    fn below(&mut self, most: usize) -> usize {
        (self.random.next() >> 16) as usize % most
    }

    fn step(&mut self) {
        let (host, at) = (self.below(2), self.below(PAIRS));
        self.next += 1;
        let wr_id = self.next;
        match self.below(40) {
            0..16 => {
                let signaled = self.below(3) > 0;
                let wr = match self.below(3) {
                    0 => SendWr::send(wr_id, &[]),
                    1 => SendWr::read(wr_id, &[], RemoteBuffer::at(0, 0)),
                    _ => SendWr::write(wr_id, &[], RemoteBuffer::at(0, 0)),
                };
                let wr = if signaled { wr } else { wr.unsignaled() };
                let end = self.hosts[host].end(at);
                end.sends.posted(wr_id, signaled, end.qp.post_send(&wr));
                assert_eq!(end.qp.send_room(), end.sends.depth - end.sends.open.len());
            }
            16..26 => self.receive(host, at, wr_id),
            26..38 => self.poll(host),
            38 => self.hosts[host].end(at).qp.disconnect(),
            _ => self.replace(at),
        }
        for host in &self.hosts {
            assert!(!host.cq.has_overflowed());
        }
    }

    fn receive(&mut self, host: usize, at: usize, wr_id: u64) {
        let wr = RecvWr::new(wr_id, &[]);
        let Some(srq) = &self.hosts[host].srq else {
            let end = self.hosts[host].end(at);
            end.recvs.posted(wr_id, true, end.qp.post_recv(&wr));
            return;
        };
        match srq.post_recv(&wr).map_err(|error| error.kind) {
            Ok(()) => self.shared.push(wr_id),
            // Receives that a destroyed QP had taken are free again. The model does not know which,
            // and still counts them.
            Err(PostErrorKind::SrqFull { depth: SRQ }) => assert!(self.shared.len() >= SRQ),
            Err(other) => panic!("{other}"),
        }
    }

    fn poll(&mut self, host: usize) {
        let most = 1 + self.below(6);
        let mut some = [Completion::default(); 6];
        let count = self.hosts[host].cq.poll(&mut some[..most]);
        for completion in &some[..count] {
            let Host { ends, srq, .. } = &mut self.hosts[host];
            let end = ends
                .iter_mut()
                .flatten()
                .find(|end| end.qp.qp_num() == completion.qp_num);
            let end = end.expect("a completion of a QP that is gone");
            if !completion.opcode.is_recv() {
                end.sends.polled(completion);
            } else if srq.is_none() {
                end.recvs.polled(completion);
            } else {
                let taken = self.shared.iter().position(|id| *id == completion.wr_id);
                self.shared.remove(taken.expect("an unexpected completion"));
            }
        }
    }

    /// Destroys the two QPs of a connection and connects new ones.
    fn replace(&mut self, at: usize) {
        for host in &mut self.hosts {
            if let Some(End { qp, .. }) = host.ends[at].take() {
                qp.destroy_with_completions(Some(LIMIT)).unwrap();
            }
        }
        self.connect(at);
    }

    fn connect(&mut self, at: usize) {
        let [here, there] = &mut self.hosts;
        let (client, server) = (here.make(at), there.make(at));
        let connect = ConnectOptions::default().peer_to_peer(true);
        join(
            &self.listener,
            client,
            server,
            &connect,
            &AcceptOptions::default(),
        );
    }

    /// Checks that no completion is left, and that all entries of the SRQ without a posted receive
    /// are free.
    fn end(mut self) {
        for host in &mut self.hosts {
            for End { qp, .. } in host.ends.drain(..).flatten() {
                qp.destroy_with_completions(Some(LIMIT)).unwrap();
            }
            assert_eq!(host.cq.poll_one(), None);
            if let Some(srq) = &host.srq {
                let room = SRQ - srq.posted();
                for wr_id in 0..room as u64 {
                    srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
                }
                assert!(srq.post_recv(&RecvWr::new(9, &[])).is_err());
            }
        }
    }
}

fn play(wire: Wire, seed: u64) {
    let mut setup = Setup::new(wire);
    for settings in &mut setup.settings {
        settings.on_no_receive = OnNoReceive::Hold(LIMIT);
    }
    let Ends { a, b, listener, .. } = setup.unconnected();
    let mut world = World {
        hosts: [Host::new(a, false), Host::new(b, true)],
        listener,
        random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        next: 0,
        shared: Vec::new(),
    };
    for at in 0..PAIRS {
        world.connect(at);
    }
    for _ in 0..STEPS {
        world.step();
    }
    world.end();
}

#[test]
fn a_post_is_taken_exactly_when_its_queue_has_a_place_and_no_cq_overflows() {
    for wire in Wire::BOTH {
        for seed in 1..=8 {
            let played = std::panic::catch_unwind(|| play(wire, seed));
            assert!(played.is_ok(), "{wire:?}, seed {seed}: it panicked before");
        }
    }
}
