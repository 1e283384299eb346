//! Requests whose lkey is registered by an earlier request of the same list. The send queue carries
//! out requests in order.

use uwarp_verbs::{
    Buffer, FastRegion, LocalFaultKind, PostErrorKind, RecvWr, RemoteBuffer, inc_rkey,
};

use super::*;
use crate::common::slice;

const LEN: u32 = 20_000;

fn fast(side: &Side) -> FastRegion {
    let memory = Buffer::zeroed(LEN as usize).unwrap();
    side.pd.alloc_fast_region(memory).unwrap()
}

/// Asserts that the request at this index of the list is refused. Returns the reason.
#[track_caller]
fn refused(side: &Side, list: &[SendWr<'_>], at: usize) -> LocalFaultKind {
    let error = side.qp.post_send_list(list).unwrap_err();
    assert_eq!(error.index, at, "{error}");
    match error.kind {
        PostErrorKind::Memory(fault) => fault.kind,
        other => panic!("{other}"),
    }
}

#[test]
fn a_list_registers_reads_invalidates_registers_anew_writes_and_sends() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let fast = fast(&a);
        let (lent, target, key_sink) = (b.filled(1, 20_000), b.blank(20_000), b.blank(4));
        let (from, to) = (lent.remote(), target.remote());
        let mut stag = fast.stag();
        for round in 0..50_u64 {
            b.post_whole(9, &key_sink);
            let sink = fast.register(inc_rkey(stag), 0, 20_000, Access::LOCAL_WRITE);
            stag = inc_rkey(sink.stag);
            let source = fast
                .register(stag, 0, 20_000, Access::NONE)
                .iova(round << 32);
            let (read, write) = ([sink.sge(0, LEN)], [source.sge(0, LEN)]);
            let send = [source.sge(7, 1), source.sge(100, 3)];
            a.qp.post_send_list(&[
                SendWr::register(1, &sink),
                SendWr::read(2, &read, RemoteBuffer::at(from.addr, from.rkey)).invalidate_sink(),
                SendWr::register(3, &source).fence(),
                SendWr::write(4, &write, RemoteBuffer::at(to.addr, to.rkey)),
                SendWr::send(5, &send),
                SendWr::local_invalidate(6, stag),
            ])
            .unwrap();
            a.send_cq.successes(1..=6);
            b.recv_cq.success(9);
            assert_eq!(content(&target), pattern(1, 20_000));
            let expected = [&pattern(1, 8)[7..], &pattern(1, 103)[100..]].concat();
            assert_eq!(content(&key_sink), expected);
            target.write_at(0, &[0; 20_000]).unwrap();
        }
        assert!(!fast.is_valid());
    }
}

#[test]
fn what_is_posted_behind_a_registration_that_waits_finds_it_in_the_queue() {
    let (a, _peer) = silent();
    let (sink, fast) = (a.blank(8), fast(&a));
    let part = fast.register(fast.stag(), 1000, 100, Access::NONE);
    let sges = [sink.sge(0, 8)];
    let own = [part.sge(0, 100), sink.sge(0, 8)];
    a.qp.post_send(&SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 0x77)))
        .unwrap();
    a.qp.post_send(&SendWr::register(2, &part).fence()).unwrap();
    a.qp.post_send(&SendWr::send(3, &own)).unwrap();
    // An error that no earlier request can cure is reported by the post.
    let beyond = [part.sge(1, 100)];
    let (addr, lkey) = (part.iova + 1, part.stag);
    assert_eq!(
        refused(&a, &[SendWr::send(4, &beyond)], 0),
        LocalFaultKind::OutOfBounds {
            lkey,
            addr,
            len: 100
        }
    );
    let below = [uwarp_verbs::Sge {
        addr: part.iova - 1,
        ..part.sge(0, 1)
    }];
    assert!(matches!(
        refused(&a, &[SendWr::send(4, &below)], 0),
        LocalFaultKind::OutOfBounds { .. }
    ));
    let write = [part.sge(0, 8)];
    assert_eq!(
        refused(
            &a,
            &[SendWr::read(4, &write, RemoteBuffer::at(0x1000, 0x77))],
            0
        ),
        LocalFaultKind::NotWritable { lkey }
    );
    let unknown = [fast.register(inc_rkey(lkey), 0, 1, Access::NONE).sge(0, 1)];
    let lkey = inc_rkey(lkey);
    assert_eq!(
        refused(&a, &[SendWr::send(4, &unknown)], 0),
        LocalFaultKind::InvalidKey { lkey }
    );
    // One element depends on an earlier request. All other elements are checked as usual.
    let mixed = [part.sge(0, 8), unknown[0]];
    let error = a.qp.post_send(&SendWr::send(4, &mixed)).unwrap_err();
    assert!(error.to_string().contains("element 1 of"), "{error}");
    // Empty elements are not checked.
    let none = [part.sge(0, 8), part.sge(101, 0)];
    a.qp.post_send(&SendWr::send(4, &none)).unwrap();
    // Requests of other queues are not ordered after the registration, so they are refused.
    let other = a.another_qp();
    let _far = raw_peer(&other);
    let error = other.post_send(&SendWr::send(5, &own)).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
    let error = a.qp.post_recv(&RecvWr::new(6, &own)).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
    a.qp.abort();
    for wr_id in 1..=4 {
        a.send_cq.flushed(wr_id);
    }
}

#[test]
fn an_stag_that_is_invalidated_before_the_turn_comes_is_an_error_of_the_request() {
    let (a, b) = pair(Wire::Kernel);
    let fast = fast(&a);
    let part = fast.register(fast.stag(), 0, 100, Access::NONE);
    let sges = [part.sge(0, 100)];
    b.post_empty(9);
    a.qp.post_send_list(&[
        SendWr::register(1, &part),
        SendWr::local_invalidate(2, part.stag),
        SendWr::send(3, &sges),
        SendWr::send(4, &[]),
    ])
    .unwrap();
    a.send_cq.successes([1, 2]);
    let failed = a.send_cq.next();
    assert_eq!((failed.wr_id, failed.status), (3, Status::LocalProtection));
    let cause = failed.cause.unwrap().to_string();
    assert!(
        cause.contains("when its turn came: element 0")
            && cause.contains("names no valid memory region"),
        "{cause}"
    );
    a.send_cq.flushed(4);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
}

#[test]
fn a_key_that_comes_round_again_in_the_queue_is_the_one_of_its_turn() {
    let (a, b) = pair(Wire::Kernel);
    let (fast, key_sink) = (fast(&a), b.blank(4));
    fast.write_at(0, b"old!new!").unwrap();
    let old = fast.register(fast.stag(), 0, 4, Access::NONE);
    let between = fast.register(inc_rkey(old.stag), 0, 4, Access::NONE);
    let new = fast.register(old.stag, 4, 4, Access::NONE).iova(old.iova);
    done(&a, &SendWr::register(1, &old), WcOpcode::Register);
    b.post_whole(9, &key_sink);
    let sges = [new.sge(0, 4)];
    a.qp.post_send_list(&[
        SendWr::local_invalidate(2, old.stag),
        SendWr::register(3, &between),
        SendWr::local_invalidate(4, between.stag),
        SendWr::register(5, &new),
        SendWr::send(6, &sges),
    ])
    .unwrap();
    a.send_cq.successes(2..=6);
    b.recv_cq.success(9);
    assert_eq!(slice(&key_sink, 0, 4), b"new!");
}

#[test]
fn a_list_that_comes_too_late_is_taken_and_flushed_whole() {
    let (a, b) = pair(Wire::Kernel);
    let fast = fast(&a);
    let part = fast.register(fast.stag(), 0, 100, Access::LOCAL_WRITE);
    a.qp.disconnect();
    b.qp.disconnect();
    a.wait_end();
    let sges = [part.sge(0, 100)];
    a.qp.post_send_list(&[
        SendWr::register(1, &part),
        SendWr::read(2, &sges, RemoteBuffer::at(0x1000, 0x77)).invalidate_sink(),
    ])
    .unwrap();
    a.send_cq.flushed(1);
    assert_eq!(a.send_cq.flushed(2).invalidated, None);
    // A request that can never be valid is still refused.
    let lkey = 1;
    let unknown = [uwarp_verbs::Sge {
        lkey,
        ..part.sge(0, 100)
    }];
    assert_eq!(
        refused(&a, &[SendWr::send(3, &unknown)], 0),
        LocalFaultKind::InvalidKey { lkey }
    );
}
