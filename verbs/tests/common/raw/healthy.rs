//! A healthy connection, which must not be affected by the misbehaving peer.

use uwarp_testkit::filler;
use uwarp_verbs::{
    AcceptOptions, Access, ConnectOptions, Cq, Device, Listener, MemoryRegion, Pd, Qp, QpCaps,
    QpState, RecvWr, RemoteBuffer, SendWr, Status, WcOpcode,
};

use crate::peer::{PATIENCE, eventually};

/// One end of the healthy connection.
pub(crate) struct End {
    pub(crate) qp: Qp,
    cq: Cq,
    region: MemoryRegion,
}

/// Two QPs of the device, connected to each other.
pub(crate) struct Healthy {
    pub(crate) a: End,
    pub(crate) b: End,
    turn: usize,
}

impl End {
    fn new(device: &Device, pd: &Pd) -> Self {
        let cq = device.create_cq(16).unwrap();
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        let region = pd
            .register(vec![0; 256], Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .unwrap();
        End { qp, cq, region }
    }

    fn completes(&self, opcode: WcOpcode, wr_id: u64) {
        let done = self
            .cq
            .wait(Some(PATIENCE))
            .expect("the healthy connection works");
        assert_eq!(
            (done.wr_id, done.status, done.opcode),
            (wr_id, Status::Success, opcode)
        );
    }
}

/// Tries once to connect. Returns true on success.
fn connect(a: &End, b: &End, listener: &Listener) -> bool {
    std::thread::scope(|scope| {
        let to = listener.local_addr();
        let connecting = scope.spawn(move || a.qp.connect(to, &ConnectOptions::default()));
        let request = eventually("a request, or a failure", || {
            match listener.poll_request() {
                None if connecting.is_finished() => Some(None),
                request => request.map(Some),
            }
        });
        let accepted =
            request.is_some_and(|request| request.accept(&b.qp, &AcceptOptions::default()).is_ok());
        connecting.join().unwrap().is_ok() && accepted
    })
}

impl Healthy {
    pub(crate) fn new(device: &Device, pd: &Pd, listener: &Listener) -> Self {
        let (a, b) = (End::new(device, pd), End::new(device, pd));
        // Tests of timeouts make the timeouts so short that a busy machine may need several
        // attempts.
        eventually("a healthy connection", || {
            let connected = connect(&a, &b, listener);
            if !connected {
                eventually("idle QPs", || {
                    [&a, &b].iter().all(|end| end.qp.reset()).then_some(())
                });
            }
            connected.then_some(())
        });
        while device.poll_event().is_some() || listener.poll_failure().is_some() {}
        let mut healthy = Healthy { a, b, turn: 0 };
        healthy.works();
        healthy
    }

    /// Checks that a Write and a Send arrive, each with new bytes.
    pub(crate) fn works(&mut self) {
        let Healthy { a, b, turn } = self;
        *turn += 1;
        let bytes = filler(*turn * 17, 64);
        a.region.write_at(0, &bytes).unwrap();
        b.qp.post_recv(&RecvWr::new(1, &[b.region.sge(128, 24)]))
            .unwrap();
        let target = b.region.remote();
        a.qp.post_send(&SendWr::write(
            2,
            &[a.region.sge(0, 40)],
            RemoteBuffer::at(target.addr, target.rkey),
        ))
        .unwrap();
        a.qp.post_send(&SendWr::send(3, &[a.region.sge(40, 24)]))
            .unwrap();
        b.completes(WcOpcode::Recv, 1);
        a.completes(WcOpcode::RdmaWrite, 2);
        a.completes(WcOpcode::Send, 3);
        let mut found = [0; 64];
        b.region.read_at(0, &mut found[..40]).unwrap();
        b.region.read_at(128, &mut found[40..]).unwrap();
        assert_eq!(found[..], bytes);
        for end in [a, b] {
            assert_eq!(end.qp.state(), QpState::Rts);
            assert!(end.qp.end_reason().is_none());
        }
    }

    /// Checks that a region of the same domain still takes Writes. Writes the bytes that the region
    /// already has.
    pub(crate) fn writes_into(&mut self, region: &MemoryRegion) {
        let mut bytes = [0; 8];
        region.read_at(0, &mut bytes).unwrap();
        let target = region.remote();
        self.a
            .qp
            .post_send(&SendWr::write_inline(
                4,
                &bytes,
                RemoteBuffer::at(target.addr, target.rkey),
            ))
            .unwrap();
        self.a.completes(WcOpcode::RdmaWrite, 4);
        self.works();
    }

    /// Returns true if the QP is one of the two ends.
    pub(crate) fn has(&self, qp_num: u32) -> bool {
        [&self.a, &self.b]
            .iter()
            .any(|end| end.qp.qp_num() == qp_num)
    }
}
