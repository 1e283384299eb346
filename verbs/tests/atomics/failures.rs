//! Atomics that are refused, by the post or by the peer.

use uwarp_verbs::{
    Access, Buffer, EndReason, MemoryRegion, PostErrorKind, RemoteBuffer, SendWr, Sge, Status,
    TerminateCode,
};

use crate::common::{FILL, Setup, Side, Wire, both_ways, pair};
use crate::{all_of, sink, word, words};

#[track_caller]
fn refused(side: &Side, wr: &SendWr<'_>) -> PostErrorKind {
    side.qp.post_send(wr).unwrap_err().kind
}

#[test]
fn a_sink_that_is_not_one_element_of_8_bytes_is_refused_at_post() {
    let (a, b) = pair(Wire::MEMORY);
    let sink = a.blank(64);
    let lists: [(&[Sge], usize, u64); 4] = [
        (&[], 0, 0),
        (&[sink.sge(0, 7)], 1, 7),
        (&[sink.sge(0, 16)], 1, 16),
        (&[sink.sge(0, 4), sink.sge(4, 4)], 2, 8),
    ];
    for (sges, elements, bytes) in lists {
        for wr in [
            SendWr::fetch_add(1, sges, RemoteBuffer::at(0x1000, 1), 1),
            SendWr::compare_swap(1, sges, RemoteBuffer::at(0x1000, 1), 1, 1),
        ] {
            let error = PostErrorKind::AtomicSink { elements, bytes };
            assert_eq!(refused(&a, &wr), error);
        }
    }
    both_ways(&a, &b);
}

#[test]
fn a_sink_needs_local_write() {
    let (a, _b) = pair(Wire::MEMORY);
    let sink = a.pd.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    let wr_sges = [sink.sge(0, 8)];
    let error = refused(
        &a,
        &SendWr::fetch_add(1, &wr_sges, RemoteBuffer::at(0x1000, 1), 1),
    );
    assert!(matches!(error, PostErrorKind::Memory(_)), "{error}");
    assert!(error.to_string().contains("local write"), "{error}");
}

/// Registers two words at an aligned address. Peers address them from `iova`.
fn words_at(side: &Side, iova: u64) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let cell = Buffer::zeroed(16).unwrap();
    assert_eq!(cell.addr() % 8, 0);
    let builder = side.pd.region().access(access).iova(iova);
    builder.buffer(cell).unwrap()
}

#[test]
fn the_to_may_be_any_where_the_memory_is_aligned() {
    // 7306-5.2.1-01.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        for iova in [0, 1, 0x1003, 0xFFFF_0007] {
            let cell = words_at(&b, iova);
            let rkey = cell.rkey();
            let before = crate::original(&a, 1, |sink| {
                SendWr::fetch_add(1, sink, RemoteBuffer::at(iova + 8, rkey), 5)
            });
            let between = crate::original(&a, 2, |sink| {
                SendWr::compare_swap(2, sink, RemoteBuffer::at(iova + 8, rkey), 5, 7)
            });
            assert_eq!((before, between), (0, 5));
            assert_eq!((word(&cell, 0), word(&cell, 1)), (0, 7));
        }
        both_ways(&a, &b);
    }
}

#[test]
fn memory_that_is_not_at_a_multiple_of_8_is_refused_by_the_peer_and_unchanged() {
    // 7306-5.1.1-01, 7306-5.1.2-02, 7306-8.2-04, 7306-8.2-05. The last two cases have an aligned
    // TO.
    for (wire, iova, off) in [
        (Wire::Kernel, 0x1000, 1),
        (Wire::MEMORY, 0x1000, 4),
        (Wire::Kernel, 0x1003, 5),
        (Wire::MEMORY, 0x1007, 1),
    ] {
        let (a, b) = pair(wire);
        let (cell, sink) = (words_at(&b, iova), sink(&a));
        let wr_sges = all_of(&sink);
        let wr = SendWr::swap(1, &wr_sges, RemoteBuffer::at(iova + off, cell.rkey()), 9);
        a.qp.post_send(&wr).unwrap();
        let done = a.send_cq.next();
        assert_eq!((done.wr_id, done.status), (1, Status::RemoteOperation));
        let code = TerminateCode {
            layer: 0,
            etype: 2,
            code: 0x07,
        };
        let EndReason::TerminateSent {
            terminate: Some(terminate),
            cause,
            ..
        } = b.wait_end()
        else {
            panic!("{:?}", b.qp.end_reason())
        };
        assert_eq!(terminate.reason(), code);
        let words = cause.to_string();
        assert!(
            words.contains("STag and TO stand for has an address that is not a multiple of 8"),
            "{words}"
        );
        let EndReason::TerminateReceived { terminate, .. } = a.wait_end() else {
            panic!("{:?}", a.qp.end_reason())
        };
        assert_eq!(terminate.reason(), code);
        let words = done.cause.unwrap().to_string();
        let to = iova + off;
        let place = format!(
            "this atomic operation of 8 bytes on STag {:#010x}, TO {to:#x}",
            cell.rkey()
        );
        assert!(words.contains(&place), "{words}");
        assert!(
            words.contains("the memory address at the peer is not a multiple of 8"),
            "{words}"
        );
        assert_eq!((word(&cell, 0), word(&cell, 1)), (0, 0));
        assert_eq!(word(&sink, 0), u64::from_ne_bytes([FILL; 8]));
    }
}

#[test]
fn without_ord_there_are_no_atomics() {
    let mut setup = Setup::new(Wire::MEMORY);
    setup.connect.ord = 0;
    let (a, _b) = setup.connected();
    let sink = sink(&a);
    let sges = all_of(&sink);
    let error = refused(
        &a,
        &SendWr::fetch_add(1, &sges, RemoteBuffer::at(0x1000, 1), 1),
    );
    assert_eq!(error, PostErrorKind::NoAtomics);
    assert!(error.to_string().contains("ORD"), "{error}");
    // The post is refused in the same way if the peer accepts no atomics.
    let mut setup = Setup::new(Wire::MEMORY);
    setup.accept.ird = 0;
    setup.settings[1].limits.max_ird = 0;
    let (a, _b) = setup.connected();
    let sink = crate::sink(&a);
    let sges = all_of(&sink);
    let error = refused(&a, &SendWr::swap(1, &sges, RemoteBuffer::at(0x1000, 1), 1));
    assert_eq!(error, PostErrorKind::NoAtomics);
}

#[test]
fn a_read_an_atomic_and_a_send_with_invalidate_carry_no_immediate_data() {
    let (a, b) = pair(Wire::MEMORY);
    let sink = sink(&a);
    let sges = all_of(&sink);
    for (wr, what) in [
        (
            SendWr::send(1, &sges).invalidate(1),
            "a Send with Invalidate carries",
        ),
        (
            SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 1)),
            "an RDMA Read carries",
        ),
        (
            SendWr::fetch_add(1, &sges, RemoteBuffer::at(0x1000, 1), 1),
            "an atomic operation carries",
        ),
    ] {
        let error = refused(&a, &wr.with_immediate([1; 8]));
        let words = error.to_string();
        assert!(
            matches!(error, PostErrorKind::ImmediateUnfit { .. }),
            "{words}"
        );
        assert!(words.starts_with(what), "{words}");
        assert!(
            words.contains("a message of its own (RFC 7306 section 6)"),
            "{words}"
        );
    }
    both_ways(&a, &b);
}

/// Checks that the peer carries out the first of three atomics, refuses the second, and ignores the
/// third.
fn peer_refuses(wr: impl Fn(&Side, &Side, &[Sge]) -> u64, words_of_it: &str) {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (good, out) = (words(&b, &[0]), a.blank(8));
        let (to, rkey, sges) = (good.remote().addr, good.remote().rkey, all_of(&out));
        a.qp.post_send(&SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1))
            .unwrap();
        a.send_cq.success(1);
        let wr_id = wr(&a, &b, &sges);
        a.qp.post_send(&SendWr::fetch_add(3, &sges, RemoteBuffer::at(to, rkey), 1).fence())
            .unwrap();
        let done = a.send_cq.next();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::RemoteAccess));
        a.send_cq.flushed(3);
        let reason = b.wait_end();
        assert!(
            matches!(reason, EndReason::TerminateSent { .. }),
            "{reason}"
        );
        assert!(reason.to_string().contains(words_of_it), "{reason}");
        let requester = a.wait_end();
        assert!(
            matches!(requester, EndReason::TerminateReceived { .. }),
            "{requester}"
        );
        assert!(
            requester
                .to_string()
                .contains("the peer refused this atomic operation of 8 bytes on STag"),
            "{requester}"
        );
        assert_eq!(word(&good, 0), 1);
    }
}

#[test]
fn an_unknown_key_is_a_remote_access_error() {
    let wr = |a: &Side, _: &Side, sges: &[Sge]| {
        a.qp.post_send(&SendWr::fetch_add(
            2,
            sges,
            RemoteBuffer::at(0x1000, 0x77),
            1,
        ))
        .unwrap();
        2
    };
    peer_refuses(wr, "invalid STag");
}

#[test]
fn memory_without_the_right_is_a_remote_access_error() {
    // REMOTE_WRITE and REMOTE_READ do not include the right to atomics.
    let wr = |a: &Side, b: &Side, sges: &[Sge]| {
        let cell = b.blank(8);
        let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
        a.qp.post_send(&SendWr::swap(2, sges, RemoteBuffer::at(to, rkey), 1))
            .unwrap();
        let _ =
            a.qp.post_send(&SendWr::read(4, sges, RemoteBuffer::at(to, rkey)));
        // The region must exist until the peer has refused the request.
        b.wait_end();
        let mut bytes = [0; 8];
        cell.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0xA5; 8]);
        2
    };
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let out = a.blank(8);
        let sges = all_of(&out);
        wr(&a, &b, &sges);
        let done = a.send_cq.next();
        assert_eq!((done.wr_id, done.status), (2, Status::RemoteAccess));
        a.send_cq.flushed(4);
        let reason = b.wait_end().to_string();
        assert!(reason.contains("access rights violation"), "{reason}");
        assert!(
            reason.contains("the peer attempted an atomic operation of 8 bytes at offset 0"),
            "{reason}"
        );
    }
}

#[test]
fn eight_bytes_that_reach_past_the_end_are_a_remote_access_error() {
    let (a, b) = pair(Wire::MEMORY);
    let cell = words(&b, &[1]);
    let out = a.blank(8);
    let sges = all_of(&out);
    let to = cell.remote().addr + 8;
    a.qp.post_send(&SendWr::fetch_add(
        1,
        &sges,
        RemoteBuffer::at(to, cell.remote().rkey),
        1,
    ))
    .unwrap();
    let done = a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (1, Status::RemoteAccess));
    let reason = b.wait_end().to_string();
    assert!(reason.contains("base or bounds"), "{reason}");
    assert_eq!(word(&cell, 0), 1);
}

#[test]
fn a_queue_pair_without_the_right_refuses_what_the_region_would_allow() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let qp = {
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let builder = ends.b.pd.qp().access(rights);
        builder.build(&ends.b.send_cq, &ends.b.recv_cq).unwrap()
    };
    crate::common::join(
        &ends.listener,
        &ends.a.qp,
        &qp,
        &ends.setup.connect,
        &ends.setup.accept,
    );
    let cell = words(&ends.b, &[1]);
    let out = ends.a.blank(8);
    let sges = all_of(&out);
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    ends.a
        .qp
        .post_send(&SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1))
        .unwrap();
    let done = ends.a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (1, Status::RemoteAccess));
    assert!(qp.wait_closed(crate::common::LIMIT));
    let reason = qp.end_reason().unwrap().to_string();
    assert!(
        reason.contains("allows this access, but the QP does not"),
        "{reason}"
    );
    assert_eq!(word(&cell, 0), 1);
}

#[test]
fn memory_that_is_deregistered_before_the_request_arrives_is_not_reached() {
    let (a, b) = pair(Wire::MEMORY);
    let cell = words(&b, &[1]);
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    drop(cell);
    let out = a.blank(8);
    let sges = all_of(&out);
    a.qp.post_send(&SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1))
        .unwrap();
    let done = a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (1, Status::RemoteAccess));
    b.wait_end();
}

#[test]
fn the_request_that_the_peer_refuses_gets_the_blame_and_not_an_older_one() {
    // A large Read is still being answered when the atomic after it is refused. The Read must not
    // be blamed.
    let (a, b) = pair(Wire::MEMORY);
    let (source, out, eight) = (b.filled(1, 4 << 20), a.blank(4 << 20), a.blank(8));
    let sges = [out.sge(0, 4 << 20)];
    let remote = source.remote();
    a.qp.post_send(&SendWr::read(
        1,
        &sges,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.qp.post_send(&SendWr::fetch_add(
        2,
        &all_of(&eight),
        RemoteBuffer::at(0x1000, 0x77),
        1,
    ))
    .unwrap();
    a.send_cq.flushed(1);
    let done = a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (2, Status::RemoteAccess));
}
