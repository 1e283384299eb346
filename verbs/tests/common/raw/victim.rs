//! Our side: a device with a QP under test, memory, outstanding requests and a healthy connection.
//! This module also has the checks after the end of the connection.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_testkit::filler;
use uwarp_verbs::{
    Access, AsyncEvent, Cq, Device, Limits, Listener, MemoryRegion, Pd, Qp, QpCaps, QpState,
    RecvWr, RemoteBuffer, SendWr, Settings, Status, Timeouts,
};

use crate::consumer::Consumer;
use crate::healthy::Healthy;
use crate::memory::Memory;
use crate::peer::{PATIENCE, eventually};
use crate::wire::ReadHeader;

/// Work request id of our Read, which is outstanding when the bad input arrives.
pub(crate) const READ: u64 = 11;
/// Work request id of our fenced Send, which waits for the Read.
pub(crate) const FENCED_SEND: u64 = 12;
/// Work request id of our first receive after the warm-up.
pub(crate) const FIRST_RECV: u64 = 102;
/// Work request id of our second receive after the warm-up.
pub(crate) const SECOND_RECV: u64 = 103;
/// Work request id of the receive that the warm-up consumes.
pub(crate) const WARM_UP_RECV: u64 = 101;

/// Length of each receive in bytes.
pub(crate) const RECV_LEN: usize = 64;
/// Offset of the first receive in the local region.
pub(crate) const RECV_AT: usize = 128;
/// Length of the Read's sink in bytes.
pub(crate) const SINK_LEN: usize = 48;
/// Offset of the Read's sink in the local region.
pub(crate) const SINK_AT: usize = 512;

/// Returns settings with limits that the objects of a test use up, so that any leak makes a later
/// allocation fail.
pub(crate) fn settings() -> Settings {
    let limits = Limits::default()
        .max_qp(3)
        .max_cq(4)
        .max_mr(8)
        .max_startup(2);
    // Wake-ups are off, because tests with raw peers count the messages.
    Settings::default()
        .limits(limits)
        .timeouts(PATIENT)
        .wake_up(None)
}

/// Timeouts that are long enough for any machine. A test of one timeout shortens it.
pub(crate) const PATIENT: Timeouts = {
    let minute = Duration::from_secs(60);
    Timeouts::new()
        .connect(minute)
        .refused(Duration::ZERO)
        .reply(minute)
        .request(minute)
        .decision(minute)
        .rtr(minute)
        .first_fpdu(None)
        .close(minute)
        .stalled(Some(minute))
        .hold_after_close(minute)
};

/// All objects of our side: the QP under test and its surroundings.
pub(crate) struct Victim {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    /// Region with all rights that is bound to the QP under test.
    pub(crate) own: MemoryRegion,
    /// Region with all rights that is bound to another QP.
    pub(crate) theirs: MemoryRegion,
    pub(crate) memory: Memory,
    pub(crate) healthy: Healthy,
    pub(crate) listener: Listener,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    pub(crate) sends: Vec<u64>,
    pub(crate) receives: Vec<u64>,
    pub(crate) consumer: Option<Consumer>,
}

const FULL: [Access; 3] = [
    Access::LOCAL_WRITE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
];

impl Victim {
    pub(crate) fn new(settings: Settings) -> Self {
        let device = Device::tcp_with(settings, None).unwrap();
        let (pd, other) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let listener = device.listen(loopback()).unwrap();
        let healthy = Healthy::new(&device, &pd, &listener);
        let (send_cq, recv_cq) = (device.create_cq(16).unwrap(), device.create_cq(16).unwrap());
        let qp = pd.create_qp(&send_cq, &recv_cq, QpCaps::default()).unwrap();
        let all = FULL
            .into_iter()
            .fold(Access::NONE, |all, right| all | right);
        Victim {
            own: pd.register_for(&qp, filler(3, 256), all).unwrap(),
            theirs: pd.register_for(&healthy.a.qp, filler(4, 256), all).unwrap(),
            memory: Memory::new(&pd, &other),
            qp,
            send_cq,
            recv_cq,
            healthy,
            listener,
            pd,
            device,
            sends: Vec::new(),
            receives: Vec::new(),
            consumer: None,
        }
    }

    pub(crate) fn post_receives(&mut self) {
        for (nth, wr_id) in [WARM_UP_RECV, FIRST_RECV, SECOND_RECV]
            .into_iter()
            .enumerate()
        {
            let sge = self
                .memory
                .local
                .sge((RECV_AT + nth * RECV_LEN) as u64, RECV_LEN as u32);
            self.qp.post_recv(&RecvWr::new(wr_id, &[sge])).unwrap();
            self.receives.push(wr_id);
        }
    }

    /// Posts a Read that the peer does not answer, and a Send that waits for it.
    pub(crate) fn post_sends(&mut self) {
        self.post_sends_while_connecting();
        self.sends_were_posted_as(&[READ, FENCED_SEND]);
    }

    /// Does the posts of `post_sends` while another thread uses the QP. Call `sends_were_posted_as`
    /// afterwards.
    pub(crate) fn post_sends_while_connecting(&self) {
        let sink = self.memory.local.sge(SINK_AT as u64, SINK_LEN as u32);
        self.qp
            .post_send(&SendWr::read(
                READ,
                &[sink],
                RemoteBuffer::at(0x1122_3344_5566_7788, 0x99AA_BBCC),
            ))
            .unwrap();
        self.qp
            .post_send(&SendWr::send_inline(FENCED_SEND, b"too late").fence())
            .unwrap();
    }

    /// Records that these requests are outstanding in the send queue.
    pub(crate) fn sends_were_posted_as(&mut self, wr_ids: &[u64]) {
        self.sends.extend(wr_ids);
    }

    /// Returns the header of the Read Request that `post_sends` causes.
    pub(crate) fn read_header(&self) -> ReadHeader {
        ReadHeader {
            sink_stag: self.memory.local.rkey(),
            sink_to: self.memory.local.addr() + SINK_AT as u64,
            len: SINK_LEN as u32,
            source_stag: 0x99AA_BBCC,
            source_to: 0x1122_3344_5566_7788,
        }
    }

    /// Waits for the completion of the next receive, which must be successful and have this many
    /// bytes.
    pub(crate) fn receives(&mut self, len: usize) -> uwarp_verbs::Completion {
        let done = self
            .recv_cq
            .wait(Some(PATIENCE))
            .expect("a Send completes a receive");
        let expected = (self.receives.remove(0), Status::Success, len as u32);
        assert_eq!((done.wr_id, done.status, done.byte_len), expected);
        done
    }

    /// Waits for the completions of the Read and of the fenced Send.
    pub(crate) fn reads(&mut self) {
        for wr_id in [READ, FENCED_SEND] {
            let done = self
                .send_cq
                .wait(Some(PATIENCE))
                .expect("the Read completes, and the Send");
            assert_eq!(
                (done.wr_id, done.status, done.qp_num),
                (wr_id, Status::Success, self.qp.qp_num())
            );
        }
        self.sends.clear();
    }

    /// Checks the end of the connection on our side. Its reason must contain `words`. Outstanding
    /// requests complete once, as flushed, except for the `blamed` one. Nothing else may have
    /// changed, and nothing may leak.
    pub(crate) fn check_end(mut self, words: &str, blamed: Option<(u64, Status)>) {
        assert!(
            self.qp.wait_closed(PATIENCE),
            "the QP is still {}",
            self.qp.state()
        );
        assert_eq!(self.qp.state(), QpState::Error);
        let reason = self.qp.end_reason().expect("there is a reason").to_string();
        assert!(reason.contains(words), "the reason is: {reason}");
        self.posts_are_flushed();
        let num = self.qp.qp_num();
        let taken = self.consumer.take().map(|mut consumer| consumer.stop());
        let [sent, received] = taken.unwrap_or_default();
        for (taken, cq, due) in [
            (sent, &self.send_cq, &self.sends),
            (received, &self.recv_cq, &self.receives),
        ] {
            let found: Vec<_> = taken
                .into_iter()
                .chain(std::iter::from_fn(|| cq.poll_one()))
                .map(|c| (c.qp_num, c.wr_id, c.status))
                .collect();
            let status = |id| {
                blamed
                    .filter(|(blamed, _)| *blamed == id)
                    .map_or(Status::WrFlush, |(_, status)| status)
            };
            let expected: Vec<_> = due.iter().map(|id| (num, *id, status(*id))).collect();
            assert_eq!(found, expected);
        }
        assert_eq!(self.reasons(), [reason]);
        self.check_unharmed();
        self.leaves_nothing();
    }

    /// Posts requests after the end of the connection and records them as outstanding. They must
    /// complete as flushed.
    fn posts_are_flushed(&mut self) {
        self.qp
            .post_send(&SendWr::send_inline(90, b"after the end"))
            .unwrap();
        self.qp.post_recv(&RecvWr::new(91, &[])).unwrap();
        self.sends.push(90);
        self.receives.push(91);
    }

    /// Takes all pending `Ended` events and returns their reasons. Panics if an event is about
    /// another connection.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        while let Some(event) = self.device.poll_event() {
            match event {
                AsyncEvent::Ended { qp_num, reason } => {
                    assert!(
                        !self.healthy.has(qp_num),
                        "the healthy connection ended: {reason}"
                    );
                    reasons.push(reason.to_string());
                }
                AsyncEvent::Established { .. } => {}
                other => panic!("no such event was due: {other:?}"),
            }
        }
        reasons
    }

    /// Checks that the memory has its expected content and that the healthy connection works.
    pub(crate) fn check_unharmed(&mut self) {
        self.memory.check();
        for (region, seed) in [(&self.own, 3), (&self.theirs, 4)] {
            let mut found = [0; 256];
            region.read_at(0, &mut found).unwrap();
            assert_eq!(found[..], filler(seed, 256));
        }
        self.healthy.works();
        self.healthy.writes_into(&self.memory.writable);
        self.memory.check();
    }

    /// Takes the pending events and checks that none is an `Ended` event.
    pub(crate) fn nothing_ended(&self) {
        assert_eq!(self.reasons(), Vec::<String>::new());
    }

    /// Drops all objects and checks that the device has room for the same number of new ones.
    pub(crate) fn leaves_nothing(self) {
        let device = self.device.clone();
        drop(self);
        eventually("place for as many objects as at first", || {
            fill(&device).ok()
        });
        let (pd, listener) = (
            device.alloc_pd().unwrap(),
            device.listen(loopback()).unwrap(),
        );
        Healthy::new(&device, &pd, &listener).works();
    }
}

/// Creates as many objects as the limits allow.
fn fill(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    let limits = device.settings().limits;
    let pd = device.alloc_pd().unwrap();
    let cqs = (0..limits.max_cq)
        .map(|_| device.create_cq(1))
        .collect::<Result<Vec<_>, _>>()?;
    let _qps = (0..limits.max_qp)
        .map(|_| pd.create_qp(&cqs[0], &cqs[1], QpCaps::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let _regions = (0..limits.max_mr)
        .map(|_| pd.register(vec![0; 8], Access::NONE))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
