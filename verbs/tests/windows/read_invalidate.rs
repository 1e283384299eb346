//! RDMA Reads that invalidate the STag of their sink.

use uwarp_verbs::{Buffer, LocalFaultKind, PostErrorKind, RemoteBuffer, WindowKind, inc_rkey};

use super::*;
use crate::common::{FILL, slice};

/// Asserts that the program can no longer use the region in a work request.
#[track_caller]
fn assert_no_lkey(side: &Side, region: &MemoryRegion) {
    let sges = [region.sge(0, 1)];
    let error = side.qp.post_send(&SendWr::send(70, &sges)).unwrap_err();
    let PostErrorKind::Memory(fault) = error.kind else {
        panic!("{error}")
    };
    let lkey = region.lkey();
    assert_eq!(fault.kind, LocalFaultKind::InvalidKey { lkey });
}

#[test]
fn a_read_ends_the_stag_of_its_sink_when_all_of_it_is_placed() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (lent, sink) = (b.filled(1, 200_000), a.blank(200_000));
        let remote = lent.remote();
        let sges = [sink.sge(0, 200_000)];
        let read = SendWr::read(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
        a.qp.post_send(&read.invalidate_sink()).unwrap();
        let done = a.send_cq.success(1);
        assert_eq!(
            (done.opcode, done.byte_len, done.invalidated),
            (WcOpcode::RdmaRead, 200_000, Some(sink.rkey()))
        );
        assert_eq!(content(&sink), pattern(1, 200_000));
        assert_no_lkey(&a, &sink);
        // The peer had all rights to this STag, which it learned from the Read Request.
        write_refused(&b, &a, sink.addr(), sink.rkey(), "invalid STag");
        assert_eq!(content(&sink), pattern(1, 200_000));
        sink.deregister().unwrap();
    }
}

#[test]
fn a_read_into_several_elements_ends_their_stag_when_the_last_is_placed() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (lent, sink) = (b.filled(1, 100_000), a.blank(100_000));
        let remote = lent.remote();
        // The elements are in the reverse order of their addresses.
        let sges = [
            sink.sge(70_000, 30_000),
            sink.sge(0, 0),
            sink.sge(30_000, 40_000),
            sink.sge(0, 30_000),
        ];
        let read = SendWr::read(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
        a.qp.post_send(&read.invalidate_sink()).unwrap();
        let done = a.send_cq.success(1);
        assert_eq!(
            (done.byte_len, done.invalidated),
            (100_000, Some(sink.rkey()))
        );
        let bytes = pattern(1, 100_000);
        assert_eq!(slice(&sink, 70_000, 30_000), bytes[..30_000]);
        assert_eq!(slice(&sink, 30_000, 40_000), bytes[30_000..70_000]);
        assert_eq!(slice(&sink, 0, 30_000), bytes[70_000..]);
        assert_no_lkey(&a, &sink);
    }
}

#[test]
fn a_read_without_it_tells_no_invalidated_stag() {
    let (a, b) = pair(Wire::Kernel);
    let (lent, sink) = (b.filled(1, 100), a.blank(100));
    let remote = lent.remote();
    a.qp.post_send(&SendWr::read(
        1,
        &[sink.sge(0, 100)],
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    assert_eq!(a.send_cq.success(1).invalidated, None);
    // The sink must still be valid.
    a.post_whole(4, &sink);
}

#[test]
fn unsignaled_it_invalidates_all_the_same() {
    let (a, b) = pair(Wire::Kernel);
    let (lent, sink) = (b.filled(1, 5000), a.blank(5000));
    let remote = lent.remote();
    let sges = [sink.sge(0, 5000)];
    let read = SendWr::read(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
    a.qp.post_send_list(&[
        read.invalidate_sink().unsignaled(),
        SendWr::write_inline(2, &[], RemoteBuffer::at(0, 0)),
    ])
    .unwrap();
    a.send_cq.success(2);
    assert_eq!(content(&sink), pattern(1, 5000));
    assert_no_lkey(&a, &sink);
}

#[test]
fn behind_a_fence_a_fast_region_finds_itself_invalidated_by_the_read() {
    let (a, b) = pair(Wire::MEMORY);
    let lent = b.filled(1, 100_000);
    let remote = lent.remote();
    let fast =
        a.pd.alloc_fast_region(Buffer::zeroed(100_000).unwrap())
            .unwrap();
    let first = fast.register(fast.stag(), 0, 100_000, Access::LOCAL_WRITE);
    done(&a, &SendWr::register(1, &first), WcOpcode::Register);
    let second = fast.register(inc_rkey(first.stag), 0, 10, Access::REMOTE_READ);
    let sges = [first.sge(0, 100_000)];
    let read = SendWr::read(2, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
    a.qp.post_send_list(&[
        read.fence().invalidate_sink(),
        SendWr::register(3, &second).fence(),
    ])
    .unwrap();
    assert_eq!(a.send_cq.success(2).invalidated, Some(first.stag));
    a.send_cq.success(3);
    assert_eq!((fast.stag(), fast.is_valid()), (second.stag, true));
}

#[test]
fn a_read_that_is_flushed_leaves_its_sink_valid() {
    let (side, _peer) = silent();
    let other = side.another_qp();
    let _far = raw_peer(&other);
    let sink = side.blank(100);
    let sges = [sink.sge(0, 100)];
    side.qp
        .post_send(&SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 0x77)).invalidate_sink())
        .unwrap();
    side.qp.abort();
    assert_eq!(side.send_cq.flushed(1).invalidated, None);
    other
        .post_send(&SendWr::write(2, &sges, RemoteBuffer::at(0, 0)))
        .unwrap();
    side.send_cq.success(2);
}

#[test]
fn a_read_that_the_peer_refuses_leaves_its_sink_valid() {
    let (a, b) = pair(Wire::Kernel);
    let secret = b.pd.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
    let sink = a.blank(8);
    let sges = [sink.sge(0, 8)];
    let read = SendWr::read(1, &sges, RemoteBuffer::at(secret.addr(), secret.rkey()));
    a.qp.post_send(&read.invalidate_sink()).unwrap();
    let failed = a.send_cq.next();
    assert_eq!(
        (failed.status, failed.invalidated),
        (Status::RemoteAccess, None)
    );
    // The post succeeds, because the lkey is valid. The request is flushed, because the connection
    // has ended.
    a.qp.post_send(&SendWr::send(2, &sges)).unwrap();
    a.send_cq.flushed(2);
}

#[test]
fn a_read_behind_it_into_the_same_sink_fails() {
    let (a, b) = pair(Wire::Kernel);
    let (lent, sink) = (b.filled(1, 8), a.blank(8));
    let remote = lent.remote();
    let sges = [sink.sge(0, 8)];
    let read = |wr_id| SendWr::read(wr_id, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
    a.qp.post_send_list(&[read(1).invalidate_sink(), read(2)])
        .unwrap();
    a.send_cq.success(1);
    assert_eq!(a.send_cq.next().status, Status::LocalProtection);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
}

#[test]
fn a_sink_with_a_window_bound_to_it_is_an_error_of_the_read() {
    let (a, b) = pair(Wire::Kernel);
    let lent = b.filled(1, 100);
    let remote = lent.remote();
    let sink = lender(&a, 100);
    let window = a.pd.alloc_window(WindowKind::Type2B).unwrap();
    let bind = sink.window(0, 100, Access::REMOTE_READ);
    let wr = SendWr::bind_window(1, inc_rkey(window.rkey()), &bind);
    done(&a, &wr, WcOpcode::BindWindow);
    let sges = [sink.sge(0, 100)];
    let read = SendWr::read(2, &sges, RemoteBuffer::at(remote.addr, remote.rkey));
    a.qp.post_send(&read.invalidate_sink()).unwrap();
    let failed = a.send_cq.next();
    assert_eq!(
        (failed.wr_id, failed.status, failed.invalidated),
        (2, Status::LocalQpOperation, None)
    );
    let cause = failed.cause.unwrap().to_string();
    assert!(
        cause.contains(
            "to read and then invalidate the STag of the sink failed: 1 memory window(s) are bound"
        ),
        "{cause}"
    );
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
    assert_eq!(slice(&sink, 0, 100), pattern(1, 100), "it was read");
}

#[test]
fn what_has_no_sink_or_none_of_this_qp_is_refused_when_it_is_posted() {
    let (a, b) = pair(Wire::Kernel);
    let (own, more, lent) = (a.blank(8), a.blank(8), b.blank(8));
    let remote = lent.remote();
    let sges = [own.sge(0, 8)];
    let different = [own.sge(0, 4), more.sge(0, 4)];
    let none = [own.sge(0, 0)];
    for (wr, words) in [
        (SendWr::send(1, &sges), "a Send has no sink"),
        (
            SendWr::write(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey)),
            "an RDMA Write has no sink",
        ),
        (
            SendWr::fetch_add(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey), 1),
            "an atomic operation has no sink",
        ),
        (SendWr::immediate(1, [0; 8]), "Immediate Data has no sink"),
        (
            SendWr::local_invalidate(1, own.lkey()),
            "a local request has no sink",
        ),
        (
            SendWr::read(1, &[], RemoteBuffer::at(remote.addr, remote.rkey)),
            "an empty RDMA Read has no sink",
        ),
        (
            SendWr::read(1, &none, RemoteBuffer::at(remote.addr, remote.rkey)),
            "an empty RDMA Read has no sink",
        ),
        (
            SendWr::read(1, &different, RemoteBuffer::at(remote.addr, remote.rkey)),
            "an RDMA Read into elements with different lkeys has no sink",
        ),
    ] {
        let error = a.qp.post_send(&wr.invalidate_sink()).unwrap_err();
        assert!(
            matches!(error.kind, PostErrorKind::NoSinkToInvalidate { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
    let other = a.another_qp();
    let builder = a.pd.region().access(Access::LOCAL_WRITE).for_qp(&other);
    let foreign = builder.vec(vec![FILL; 8]).unwrap();
    let sink = [foreign.sge(0, 8)];
    let read = SendWr::read(1, &sink, RemoteBuffer::at(remote.addr, remote.rkey));
    let error = a.qp.post_send(&read.invalidate_sink()).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
    // The connection keeps working.
    bell(&a, &b);
}
