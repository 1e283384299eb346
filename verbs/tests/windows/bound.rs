//! Bound windows, and the memory that peers can access through them.

use uwarp_verbs::{BindWr, PostErrorKind, RemoteBuffer, Sge, WindowKind, inc_rkey};

use super::*;

#[test]
fn a_peer_writes_and_reads_through_a_window_of_type_2_what_it_shows() {
    for wire in Wire::BOTH {
        for kind in [WindowKind::Type2A, WindowKind::Type2B] {
            let (a, b) = pair(wire);
            let region = lender(&b, 10_000);
            let window = b.pd.alloc_window(kind).unwrap();
            assert!(!window.is_bound());
            let rkey = inc_rkey(window.rkey());
            let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let bind = region.window(1000, 5000, rights).zero_based();
            // The window is bound before the peer has sent anything.
            done(
                &b,
                &SendWr::bind_window(1, rkey, &bind),
                WcOpcode::BindWindow,
            );
            assert!(window.is_bound());
            assert_eq!(window.rkey(), rkey);
            let source = a.filled(3, 5000);
            let whole = [source.sge(0, 5000)];
            a.qp.post_send(&SendWr::write(2, &whole, RemoteBuffer::at(0, rkey)))
                .unwrap();
            a.send_cq.success(2);
            bell(&a, &b);
            placed_only(&region, 1000, &pattern(3, 5000), "through the window");
            let sink = a.blank(100);
            a.qp.post_send(&SendWr::read(
                3,
                &[sink.sge(0, 100)],
                RemoteBuffer::at(4900, rkey),
            ))
            .unwrap();
            a.send_cq.success(3);
            assert_eq!(content(&sink), pattern(3, 5000)[4900..]);
        }
    }
}

#[test]
fn without_zero_base_a_window_counts_as_its_region_does() {
    let (a, b) = pair(Wire::Kernel);
    let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region =
        b.pd.region()
            .access(rights)
            .iova(0x7000_0000)
            .vec(vec![0; 100])
            .unwrap();
    let window = b.pd.alloc_window(WindowKind::Type2B).unwrap();
    let rkey = inc_rkey(window.rkey());
    let bind = region.window(10, 20, Access::REMOTE_WRITE);
    assert_eq!(bind.addr, 0x7000_000A);
    done(
        &b,
        &SendWr::bind_window(1, rkey, &bind),
        WcOpcode::BindWindow,
    );
    a.qp.post_send(&SendWr::write_inline(
        2,
        b"here",
        RemoteBuffer::at(0x7000_000A, rkey),
    ))
    .unwrap();
    a.send_cq.success(2);
    bell(&a, &b);
    assert_eq!(&content(&region)[8..16], b"\0\0here\0\0");
    write_refused(&a, &b, 0x7000_0000, rkey, "memory window 0x");
}

#[test]
fn a_window_of_type_1_is_bound_by_a_call_for_every_qp_of_the_domain() {
    // 5041-8.3-01: the window shows one range of TOs, and later another range instead.
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let mut window = b.pd.alloc_window(WindowKind::Type1).unwrap();
    let other = b.another_qp();
    let bind = region.window(0, 50, Access::REMOTE_WRITE);
    // The QP is not connected, so the bind is refused and the window is unchanged.
    let before = window.rkey();
    let error = other.bind_mw(&mut window, 1, &bind).unwrap_err();
    assert!(
        matches!(error.kind, PostErrorKind::NotConnected { .. }),
        "{error}"
    );
    assert_eq!(window.rkey(), before);
    let first = b.qp.bind_mw(&mut window, 2, &bind).unwrap();
    assert_eq!(
        brief(&b.send_cq.next()),
        (2, Status::Success, WcOpcode::BindWindow, 0)
    );
    assert_eq!((window.rkey(), window.is_bound()), (first, true));
    a.qp.post_send(&SendWr::write_inline(
        3,
        b"one",
        RemoteBuffer::at(bind.addr, first),
    ))
    .unwrap();
    a.send_cq.success(3);
    bell(&a, &b);
    placed_only(&region, 0, b"one", "first binding");
    // The window is bound again. Its old STag is invalid, and the new one is valid.
    let second =
        b.qp.bind_mw(&mut window, 4, &region.window(50, 50, Access::REMOTE_WRITE))
            .unwrap();
    b.send_cq.success(4);
    assert_eq!(second, inc_rkey(first));
    a.qp.post_send(&SendWr::write_inline(
        5,
        b"two",
        RemoteBuffer::at(bind.addr + 50, second),
    ))
    .unwrap();
    a.send_cq.success(5);
    bell(&a, &b);
    assert_eq!(&content(&region)[50..53], b"two");
    write_refused(&a, &b, bind.addr, first, "invalid STag");
}

#[test]
fn a_window_is_bound_for_what_is_posted_behind_and_completes_in_order() {
    let (a, b) = pair(Wire::MEMORY);
    let (region, source) = (lender(&a, 4096), a.filled(1, 100_000));
    let window = a.pd.alloc_window(WindowKind::Type2A).unwrap();
    let target = b.blank(100_000);
    let (rkey, remote) = (inc_rkey(window.rkey()), target.remote());
    let bind = region.window(0, 4096, Access::REMOTE_READ).zero_based();
    let sink = b.blank(4);
    b.post_whole(9, &sink);
    a.qp.post_send_list(&[
        SendWr::write(
            1,
            &[source.sge(0, 100_000)],
            RemoteBuffer::at(remote.addr, remote.rkey),
        ),
        SendWr::bind_window(2, rkey, &bind),
        SendWr::send_inline(3, &rkey.to_be_bytes()),
        SendWr::local_invalidate(4, rkey).unsignaled(),
        SendWr::bind_window(5, inc_rkey(rkey), &bind),
    ])
    .unwrap();
    a.send_cq.successes([1, 2, 3, 5]);
    b.recv_cq.success(9);
    assert_eq!(content(&sink), rkey.to_be_bytes());
    let got = b.blank(4096);
    b.qp.post_send(&SendWr::read(
        6,
        &[got.sge(0, 4096)],
        RemoteBuffer::at(0, inc_rkey(rkey)),
    ))
    .unwrap();
    b.send_cq.success(6);
    assert_eq!(content(&got), content(&region));
}

#[test]
fn a_fence_holds_a_local_request_until_earlier_reads_have_completed() {
    // 5040-5.5: without the fence the sink could be invalidated while the Read uses it.
    let (a, b) = pair(Wire::MEMORY);
    let (lent, sink) = (b.filled(1, 200_000), a.blank(200_000));
    let remote = lent.remote();
    a.qp.post_send_list(&[
        SendWr::read(
            1,
            &[sink.sge(0, 200_000)],
            RemoteBuffer::at(remote.addr, remote.rkey),
        ),
        SendWr::local_invalidate(2, sink.rkey()).fence(),
    ])
    .unwrap();
    a.send_cq.successes([1, 2]);
    assert_eq!(content(&sink), pattern(1, 200_000));
}

#[test]
fn a_bind_by_call_is_fenced_and_unsignaled_as_any_request() {
    let (a, b) = pair(Wire::MEMORY);
    let (lent, sink) = (b.filled(1, 200_000), lender(&a, 200_000));
    let mut window = a.pd.alloc_window(WindowKind::Type1).unwrap();
    let remote = lent.remote();
    let read = [sink.sge(0, 200_000)];
    a.qp.post_send(&SendWr::read(
        1,
        &read,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    let bind = sink.window(0, 200_000, Access::REMOTE_READ);
    let key_sink = b.blank(4);
    b.post_whole(4, &key_sink);
    let wr = BindWr::new(2, &bind).fence().unsignaled();
    let rkey = a.qp.post_bind(&mut window, &wr).unwrap();
    a.qp.post_send(&SendWr::send_inline(3, &rkey.to_be_bytes()))
        .unwrap();
    a.send_cq.successes([1, 3]);
    assert_eq!((window.rkey(), window.is_bound()), (rkey, true));
    b.recv_cq.success(4);
    assert_eq!(content(&key_sink), rkey.to_be_bytes());
    // The window must show the bytes that the Read returned.
    let got = b.blank(200_000);
    b.qp.post_send(&SendWr::read(
        5,
        &[got.sge(0, 200_000)],
        RemoteBuffer::at(bind.addr, rkey),
    ))
    .unwrap();
    b.send_cq.success(5);
    assert_eq!(content(&got), pattern(1, 200_000));
}

#[test]
fn a_fenced_bind_by_call_waits_for_a_read_that_is_not_answered() {
    let (a, peer) = silent();
    let (sink, region) = (a.blank(8), lender(&a, 100));
    let mut window = a.pd.alloc_window(WindowKind::Type1).unwrap();
    let bind = region.window(0, 100, Access::REMOTE_READ);
    a.qp.post_send(&SendWr::read(
        1,
        &[sink.sge(0, 8)],
        RemoteBuffer::at(0x1000, 0x77),
    ))
    .unwrap();
    let wr = BindWr::new(2, &bind).fence();
    a.qp.post_bind(&mut window, &wr).unwrap();
    a.send_cq.assert_empty();
    assert!(!window.is_bound());
    drop(peer);
    a.send_cq.flushed(1);
    a.send_cq.flushed(2);
    assert!(!window.is_bound());
    // An unsignaled request that is flushed has a completion.
    let wr = BindWr::new(3, &bind).unsignaled();
    a.qp.post_bind(&mut window, &wr).unwrap();
    a.send_cq.flushed(3);
}

#[test]
fn bind_mw_is_for_type_1_and_a_window_is_no_lkey() {
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let mut window = b.pd.alloc_window(WindowKind::Type2B).unwrap();
    let bind = region.window(0, 50, Access::REMOTE_WRITE);
    let error = b.qp.bind_mw(&mut window, 1, &bind).unwrap_err();
    let kind = WindowKind::Type2B;
    assert_eq!(error.kind, PostErrorKind::WindowKind { kind });
    let lkey = inc_rkey(window.rkey());
    done(
        &b,
        &SendWr::bind_window(2, lkey, &bind),
        WcOpcode::BindWindow,
    );
    let sge = Sge {
        addr: bind.addr,
        len: 1,
        lkey,
    };
    let error = b.qp.post_send(&SendWr::send(3, &[sge])).unwrap_err();
    assert!(
        error.to_string().contains("is that of a memory window"),
        "{error}"
    );
}
