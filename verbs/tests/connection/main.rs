//! Connections from the MPA Request to the last FIN: startup, negotiation, refusals, and ends.

mod addresses;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod many;
mod memory;
mod negotiation;
mod over;
mod peers;
mod startup;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{
    LIMIT, Setup, Side, Wire, bell, beside_idle_peer, both_ways, content, join, pair, pattern,
    peers, placed_only, same, until,
};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{
    AcceptError, AcceptOptions, Access, AsyncEvent, ConnectError, ConnectOptions, DeregisterError,
    Device, EndReason, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, Revision, RtrKinds, SendWr,
    StartupError, Status,
};

/// MPA revisions, each with the maximum length of its private data in bytes.
const REVISIONS: [(Revision, usize); 2] = [(Revision::One, 512), (Revision::Two, 508)];

fn revision(wire: Wire, revision: Revision) -> Setup {
    let mut setup = Setup::new(wire);
    setup.settings[0].revision = revision;
    setup
}

/// Transfers bytes each way by one-sided and two-sided operations, small and large.
fn exchange(a: &Side, b: &Side) {
    both_ways(a, b);
    for (from, to) in [(a, b), (b, a)] {
        for len in [1, 4000, 150_000] {
            let (source, sink, back) =
                (from.filled(len as u64, len), to.blank(len), from.blank(len));
            let remote = sink.remote();
            let sges = [source.sge(0, len as u32)];
            from.qp
                .post_send(&SendWr::write(
                    1,
                    &sges,
                    RemoteBuffer::at(remote.addr, remote.rkey),
                ))
                .unwrap();
            from.qp
                .post_send(&SendWr::read(
                    2,
                    &[back.sge(0, len as u32)],
                    RemoteBuffer::at(remote.addr, remote.rkey),
                ))
                .unwrap();
            from.send_cq.successes([1, 2]);
            same(&content(&back), &content(&source), "read back");
            let sink = to.blank(len);
            to.post_whole(3, &sink);
            from.qp.post_send(&SendWr::send(4, &sges)).unwrap();
            from.send_cq.success(4);
            to.recv_cq.success(3);
            same(&content(&sink), &content(&source), "sent");
        }
    }
}
