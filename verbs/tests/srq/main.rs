//! Shared receive queues, from which several QPs take their receives.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod many_threads;
mod stress;
mod takes;

use common::{
    CqHandle, LIMIT, Setup, Side, Wire, content, join, pattern, placed_only, same, until,
};
use uwarp_verbs::{
    Access, AsyncEvent, EndReason, Listener, OnNoReceive, PostErrorKind, Qp, QpCaps, QpState,
    RecvWr, SendWr, Srq, SrqAttr, SrqModify, Status, WcOpcode,
};

/// Clients, each connected to its own QP of the server. The server's QPs share one SRQ.
struct Shared {
    a: Side,
    clients: Vec<Qp>,
    b: Side,
    servers: Vec<Qp>,
    recv_cq: CqHandle,
    srq: Srq,
    _listener: Listener,
}

/// Creates `count` connections over `wire`. The SRQ has room for `max_wr` receives.
fn shared(wire: Wire, count: usize, max_wr: u32) -> Shared {
    shared_with(wire, count, max_wr, OnNoReceive::Terminate)
}

/// Does the same as [`shared`]. `without` is the policy of the server's QPs for messages without a
/// receive.
fn shared_with(wire: Wire, count: usize, max_wr: u32, without: OnNoReceive) -> Shared {
    let mut setup = Setup::new(wire);
    setup.settings[1].on_no_receive = without;
    // The depth of the CQ is the sum of the depths of all clients' send queues.
    let sends = QpCaps::default().max_send_wr * u32::try_from(count).unwrap();
    setup.cq_depth = setup.cq_depth.max(sends);
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let attr = SrqAttr::default().max_wr(max_wr);
    let srq = b.pd.create_srq(attr).unwrap();
    let recv_cq = b.device.create_cq(4096).unwrap();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..count {
        let client = a.another_qp();
        let server = b.pd.qp().srq(&srq).build(&b.send_cq, &recv_cq).unwrap();
        join(&listener, &client, &server, &setup.connect, &setup.accept);
        clients.push(client);
        servers.push(server);
    }
    Shared {
        a,
        clients,
        b,
        servers,
        recv_cq: CqHandle(recv_cq),
        srq,
        _listener: listener,
    }
}

impl Shared {
    fn post_empty(&self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            self.srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        }
    }

    /// Posts an empty Send of one client, and waits until it has completed.
    #[track_caller]
    fn send(&self, client: usize) {
        self.clients[client]
            .post_send(&SendWr::send(1, &[]))
            .unwrap();
        self.a.send_cq.success(1);
    }

    /// Returns the next event of the server's device that concerns its queues.
    #[track_caller]
    fn queue_event(&self) -> AsyncEvent {
        loop {
            match self
                .b
                .device
                .wait_event(Some(LIMIT))
                .expect("no event came")
            {
                AsyncEvent::Established { .. } | AsyncEvent::Ended { .. } => {}
                event => return event,
            }
        }
    }
}
