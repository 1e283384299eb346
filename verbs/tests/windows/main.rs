//! Memory windows, fast registration and local invalidation over real connections.

mod bound;
mod chain;
#[path = "../common/mod.rs"]
mod common;
mod ended;
mod fast;
mod overlap;
mod read_invalidate;
mod refused;

use std::sync::Arc;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    Access, Device, EndReason, MemoryRegion, QpCaps, RemoteBuffer, SendWr, Status, WcOpcode,
};

use common::{
    RawPeer, Side, Wire, bell, brief, content, pair, pattern, peers, placed_only, raw_peer,
    raw_settings,
};

/// Registers a region of `len` bytes that windows may be bound to.
fn lender(side: &Side, len: usize) -> MemoryRegion {
    let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    side.pd.register(vec![common::FILL; len], rights).unwrap()
}

/// Creates a side whose peer answers nothing.
fn silent() -> (Side, RawPeer) {
    let device = Device::open(Arc::new(KernelNetwork::default()), raw_settings()).unwrap();
    let side = Side::new(device, QpCaps::default(), 64);
    let peer = raw_peer(&side.qp);
    (side, peer)
}

/// Posts a single request of `side`, which must complete successfully.
#[track_caller]
fn done(side: &Side, wr: &SendWr<'_>, opcode: WcOpcode) {
    side.qp.post_send(wr).unwrap();
    let expected = (wr.wr_id(), Status::Success, opcode, 0);
    assert_eq!(brief(&side.send_cq.next()), expected);
}

/// Posts a single request of `side`. It must fail with these words and end the connection.
#[track_caller]
fn fails(side: &Side, wr: &SendWr<'_>, status: Status, words: &str) {
    side.qp.post_send(wr).unwrap();
    let behind = SendWr::send(99, &[]);
    side.qp.post_send(&behind).unwrap();
    let completion = side.send_cq.next();
    assert_eq!((completion.wr_id, completion.status), (wr.wr_id(), status));
    side.send_cq.flushed(99);
    let reason = side.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
    assert!(reason.to_string().contains(words), "{reason}");
}

/// Posts a Write of `from` to memory of `to`. It must be refused with these words.
#[track_caller]
fn write_refused(from: &Side, to: &Side, addr: u64, rkey: u32, words: &str) {
    from.qp
        .post_send(&SendWr::write_inline(
            77,
            b"no",
            RemoteBuffer::at(addr, rkey),
        ))
        .unwrap();
    let _ = from.send_cq.next();
    let reason = to.wait_end();
    assert!(
        matches!(reason, EndReason::TerminateSent { .. }),
        "{reason:?}"
    );
    assert!(reason.to_string().contains(words), "{reason}");
    let reason = from.wait_end();
    assert!(
        matches!(reason, EndReason::TerminateReceived { .. }),
        "{reason:?}"
    );
}
