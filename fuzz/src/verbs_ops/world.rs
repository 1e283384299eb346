//! A device connected to itself, and all objects that the program has created on it. Checks at the
//! end that none is left.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_verbs::llp::smol::{Carrier, Clock, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    Access, AsyncEvent, Cq, Device, EventChannel, Limits, Pd, Progress, Qp, QpCaps, QpModify,
    QpState, Settings, Srq, SrqAttr, TimeSource, UnackedEvent,
};

use super::cm::Ids;
use super::memory::Memory;
use super::work::{Owner, Work};
use crate::input::Input;
use crate::live::settle;

/// Limit of protection domains.
pub(super) const MAX_PD: usize = 3;
/// Limit of CQs.
pub(super) const MAX_CQ: usize = 4;
/// Limit of QPs.
pub(super) const MAX_QP: usize = 6;
/// Limit of SRQs.
pub(super) const MAX_SRQ: usize = 2;
/// Limit of memory regions and windows together.
pub(super) const MAX_MR: usize = 8;
/// The only address of the host.
pub(super) const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Maximum number of rounds in which everything must end. Each round advances the clock, because
/// closing connections wait for their timers.
const ROUNDS: usize = 200;

pub(super) const CAPS: QpCaps = QpCaps::new()
    .max_send_wr(8)
    .max_recv_wr(8)
    .max_send_sge(2)
    .max_recv_sge(2)
    .max_inline_data(32);

/// Carrier of a network without other hosts.
struct Alone;

impl Carrier for Alone {
    fn carry(&self, _: &[u8]) {}

    fn reaches(&self, _: IpAddr) -> bool {
        false
    }
}

/// A QP, and the numbers of the objects that it uses.
pub(super) struct Queue {
    pub(super) qp: Qp,
    pub(super) num: u32,
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
}

/// A device, and all handles that the program holds.
pub(super) struct World {
    pub(super) clock: Arc<ManualClock>,
    /// Time at which the device was opened.
    pub(super) began: Instant,
    network: MemoryNetwork,
    pub(super) device: Device,
    pub(super) pds: Vec<(u32, Pd)>,
    pub(super) cqs: Vec<Cq>,
    pub(super) queues: Vec<Queue>,
    pub(super) srqs: Vec<(u32, Srq)>,
    /// Number of each SRQ's domain, by SRQ number.
    pub(super) srq_pds: BTreeMap<u32, u32>,
    pub(super) memory: Memory,
    pub(super) channel: EventChannel,
    pub(super) ids: Ids,
    /// Asynchronous events that the program has not acknowledged.
    pub(super) held: Vec<UnackedEvent>,
    pub(super) work: Work,
    pub(super) pd_numbers: u32,
    /// True if something was dropped or destroyed. Such an object may still exist.
    pub(super) dropped: bool,
}

impl World {
    pub(super) fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let link = MemorySettings::default()
            .receive_buffer(16 << 10)
            .send_buffer(16 << 10)
            .inbox(32)
            .addresses([vec![HOST], Vec::new()])
            .clock(Arc::<ManualClock>::clone(&clock))
            .seed(Some(5));
        let network = MemoryNetwork::host(&link, Arc::new(Alone)).expect("the settings are valid");
        let settings = Settings::default()
            .progress(Progress::Manual)
            .clock(TimeSource::Given(Arc::<ManualClock>::clone(&clock)))
            .seed(Some(9))
            .limits(
                Limits::default()
                    .max_pd(MAX_PD as u32)
                    .max_cq(MAX_CQ as u32)
                    .max_qp(MAX_QP as u32)
                    .max_srq(MAX_SRQ as u32)
                    .max_mr(MAX_MR as u32),
            );
        let device =
            Device::open(Arc::new(network.clone()), settings).expect("the device can be opened");
        Self {
            began: clock.now(),
            clock,
            network,
            device,
            pds: Vec::new(),
            cqs: Vec::new(),
            queues: Vec::new(),
            srqs: Vec::new(),
            srq_pds: BTreeMap::new(),
            memory: Memory::default(),
            channel: EventChannel::new().expect("there are descriptors"),
            ids: Ids::default(),
            held: Vec::new(),
            work: Work::default(),
            pd_numbers: 0,
            dropped: false,
        }
    }

    /// Runs the device at the current time. With `time`, also advances the clock to its next timer
    /// and runs it again. Returns true if there was a timer.
    pub(super) fn progress(&mut self, time: bool) -> bool {
        let due = settle(&self.device, &self.clock);
        if let Some(due) = due.filter(|_| time) {
            self.clock.set(due);
            settle(&self.device, &self.clock);
        }
        due.is_some()
    }

    /// Returns true if the program has unacknowledged events.
    pub(super) fn holds_events(&self) -> bool {
        !self.held.is_empty() || self.ids.holds_events()
    }

    /// Records that a CQ or some of its completions are lost. Requests that complete there need not
    /// complete any more.
    pub(super) fn lose(&mut self, cq: u32) {
        for queue in &self.queues {
            if queue.send_cq == cq {
                self.work.give_up(Owner::Send(queue.num));
            }
            if queue.recv_cq == cq {
                self.work.give_up(Owner::Recv(queue.num));
                if let Some(srq) = queue.srq {
                    self.work.give_up(Owner::Srq(srq));
                }
            }
        }
    }

    /// Polls and checks all completions of a CQ.
    pub(super) fn poll(&mut self, at: usize) {
        let Some(cq) = self.cqs.get(at).cloned() else {
            return;
        };
        if cq.has_overflowed() {
            self.lose(cq.cq_num());
        }
        while let Some(completion) = cq.poll_one() {
            let queue = self
                .queues
                .iter()
                .find(|queue| queue.num == completion.qp_num);
            if let Some(queue) = queue {
                let own = if completion.opcode.is_recv() {
                    queue.recv_cq
                } else {
                    queue.send_cq
                };
                assert_eq!(own, cq.cq_num(), "in the wrong queue: {completion:?}");
            }
            let srq = queue.map(|queue| queue.srq);
            self.work.completed(&completion, srq);
            assert_eq!(
                completion.cause.is_none(),
                completion.status.is_success(),
                "{completion:?}"
            );
        }
    }

    /// Reads and checks the next asynchronous event. With `hold`, leaves it unacknowledged.
    pub(super) fn event(&mut self, hold: bool) {
        let Some(event) = self.device.get_event(Some(Duration::ZERO)) else {
            return;
        };
        match event.event() {
            AsyncEvent::DeviceFatal { error } => panic!("the network cannot fail: {error}"),
            AsyncEvent::CqOverflow { cq_num, .. } => {
                let cq = self.cqs.iter().find(|cq| cq.cq_num() == *cq_num);
                assert!(cq.is_none_or(Cq::has_overflowed));
            }
            AsyncEvent::Ended { reason, .. } => assert!(!reason.to_string().is_empty()),
            other => assert!(!other.cause().to_string().is_empty()),
        }
        if hold {
            self.held.push(event);
        }
    }

    /// Moves every QP to Error. Then checks that everything posted has completed and that memory is
    /// as expected.
    pub(super) fn quiesce(&mut self) {
        for queue in &self.queues {
            let over = QpModify::new().state(QpState::Error);
            queue.qp.modify(&over).expect("it is legal in every state");
        }
        self.progress(false);
        (0..self.cqs.len()).for_each(|at| self.poll(at));
        // A CQ whose handle was dropped cannot be polled.
        let used = (self.queues.iter()).flat_map(|queue| [queue.send_cq, queue.recv_cq]);
        for num in used.collect::<Vec<u32>>() {
            if self.cqs.iter().all(|cq| cq.cq_num() != num) {
                self.lose(num);
            }
        }
        for queue in &self.queues {
            assert_eq!(queue.qp.state(), QpState::Error);
            self.work.ended(Owner::Send(queue.num));
            self.work.ended(Owner::Recv(queue.num));
        }
        for (num, srq) in &self.srqs {
            // All QPs of this SRQ are in Error, so none takes receives from it.
            let (sure, unsure) = self.work.certain(Owner::Srq(*num));
            let posted = srq.posted();
            assert!(
                (sure..=sure + unsure).contains(&posted),
                "{posted} in SRQ {num}"
            );
        }
        self.memory.check();
    }

    /// Drops everything in the order that the input chooses, and checks that nothing is left.
    pub(super) fn end(mut self, input: &mut Input<'_>) {
        self.quiesce();
        while self.drop_one(input.choice(8)) {
            if input.u8() & 1 == 1 {
                self.progress(true);
            }
        }
        let rounds = (0..ROUNDS).take_while(|_| self.progress(true)).count();
        assert!(rounds < ROUNDS, "the device always has another event");
        assert_eq!(self.network.connections(), 0, "connections are left");
        self.memory.check();
        self.full();
        let Self {
            clock,
            network,
            device,
            channel,
            ..
        } = self;
        drop((network, device, channel));
        assert_eq!(Arc::strong_count(&clock), 1, "the device still exists");
    }

    /// Drops one object, trying kind `first` first. Returns true if there was one.
    fn drop_one(&mut self, first: usize) -> bool {
        (first..first + 8).any(|kind| match kind % 8 {
            0 => self.pds.pop().is_some(),
            1 => self.cqs.pop().is_some(),
            2 => self.queues.pop().is_some(),
            3 => self.srqs.pop().is_some(),
            4 if !self.memory.regions.is_empty() => {
                self.memory.deregister(0, true, true);
                true
            }
            5 => self.memory.windows.pop().is_some(),
            6 => self.ids.drop_one(),
            7 => self.held.pop().is_some(),
            _ => false,
        })
    }

    /// Creates as many objects of each kind as the limits allow. This shows that no earlier object
    /// is left.
    fn full(&self) {
        let pds: Vec<Pd> = (0..MAX_PD)
            .map(|_| self.device.alloc_pd().expect("the others are gone"))
            .collect();
        let cqs: Vec<Cq> = (0..MAX_CQ)
            .map(|_| self.device.create_cq(4).expect("the others are gone"))
            .collect();
        let qps: Vec<Qp> = (0..MAX_QP)
            .map(|_| {
                let qp = pds[0].create_qp(&cqs[0], &cqs[1], CAPS);
                qp.expect("the others are gone")
            })
            .collect();
        let srqs: Vec<Srq> = (0..MAX_SRQ)
            .map(|_| {
                let srq = pds[1].create_srq(SrqAttr::default());
                srq.expect("the others are gone")
            })
            .collect();
        let regions: Vec<_> = (0..MAX_MR)
            .map(|_| {
                let region = pds[2].register(vec![0; 8], Access::NONE);
                region.expect("the others are gone")
            })
            .collect();
        assert!(self.device.alloc_pd().is_err() && self.device.create_cq(4).is_err());
        assert!(pds[0].create_qp(&cqs[0], &cqs[0], CAPS).is_err());
        assert!(pds[0].register(vec![0; 8], Access::NONE).is_err());
        drop((pds, cqs, qps, srqs, regions));
    }

    /// Returns the address of the host with this port.
    pub(super) fn address(port: u16) -> SocketAddr {
        SocketAddr::new(HOST, port)
    }
}
