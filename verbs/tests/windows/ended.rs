//! Operations that end the binding of a window, and operations that must not.

use uwarp_verbs::{DeregisterError, RecvWr, RemoteBuffer, WindowKind, inc_rkey};

use super::*;

/// Binds a type 2 window of `side` to all of `region`.
fn bound(side: &Side, region: &MemoryRegion) -> uwarp_verbs::MemoryWindow {
    let window = side.pd.alloc_window(WindowKind::Type2B).unwrap();
    let bind = region.window(0, region.len() as u64, Access::REMOTE_WRITE);
    let wr = SendWr::bind_window(50, inc_rkey(window.rkey()), &bind);
    done(side, &wr, WcOpcode::BindWindow);
    window
}

#[test]
fn after_local_invalidation_the_peer_is_refused_and_the_window_can_be_bound_again() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let region = lender(&b, 100);
        let window = bound(&b, &region);
        let old = window.rkey();
        done(
            &b,
            &SendWr::local_invalidate(1, old),
            WcOpcode::LocalInvalidate,
        );
        assert!(!window.is_bound());
        let bind = region.window(0, 100, Access::REMOTE_WRITE);
        done(
            &b,
            &SendWr::bind_window(2, inc_rkey(old), &bind),
            WcOpcode::BindWindow,
        );
        a.qp.post_send(&SendWr::write_inline(
            3,
            b"anew",
            RemoteBuffer::at(region.addr(), inc_rkey(old)),
        ))
        .unwrap();
        a.send_cq.success(3);
        bell(&a, &b);
        placed_only(&region, 0, b"anew", "the new binding");
        write_refused(&a, &b, region.addr(), old, "invalid STag");
        placed_only(&region, 0, b"anew", "nothing by the old STag");
    }
}

#[test]
fn a_peer_invalidates_a_window_of_type_2_with_a_send() {
    // 5040-5.3-10, 5040-5.3-11.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let region = lender(&b, 100);
        let window = bound(&b, &region);
        let rkey = window.rkey();
        b.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        a.qp.post_send(&SendWr::send(2, &[]).invalidate(rkey))
            .unwrap();
        a.send_cq.success(2);
        assert_eq!(b.recv_cq.success(1).invalidated, Some(rkey));
        assert!(!window.is_bound());
        region.deregister().unwrap();
    }
}

#[test]
fn no_peer_invalidates_a_window_of_type_1_or_one_of_another_qp() {
    // 5040-8.1.1-04.
    for type_1 in [false, true] {
        let (a, b) = pair(Wire::Kernel);
        let region = lender(&b, 100);
        let bind = region.window(0, 100, Access::REMOTE_WRITE);
        let mut window = b.pd.alloc_window(WindowKind::Type1).unwrap();
        let (other_a, other_b) = (a.another_qp(), b.another_qp());
        let listener = b.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (connect, accept) = Default::default();
        common::join(&listener, &other_a, &other_b, &connect, &accept);
        let rkey = if type_1 {
            b.qp.bind_mw(&mut window, 1, &bind).unwrap()
        } else {
            window = b.pd.alloc_window(WindowKind::Type2A).unwrap();
            let rkey = inc_rkey(window.rkey());
            other_b
                .post_send(&SendWr::bind_window(1, rkey, &bind))
                .unwrap();
            rkey
        };
        b.send_cq.success(1);
        b.qp.post_recv(&RecvWr::new(2, &[])).unwrap();
        a.qp.post_send(&SendWr::send(3, &[]).invalidate(rkey))
            .unwrap();
        assert_eq!(b.recv_cq.next().status, Status::RemoteInvalidRequest);
        let reason = b.wait_end();
        assert!(
            reason.to_string().contains("cannot be invalidated"),
            "{reason}"
        );
        assert!(window.is_bound());
    }
}

#[test]
fn a_window_of_type_2_is_out_of_reach_of_other_connections() {
    // 5041-8.2-02, 5040-8.1.1-02.
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = bound(&b, &region);
    let (other_a, other_b) = (a.another_qp(), b.another_qp());
    let listener = b.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (connect, accept) = Default::default();
    common::join(&listener, &other_a, &other_b, &connect, &accept);
    let wr = SendWr::write_inline(1, b"no", RemoteBuffer::at(region.addr(), window.rkey()));
    other_a.post_send(&wr).unwrap();
    assert!(other_b.wait_closed(common::LIMIT));
    let reason = other_b.end_reason().unwrap();
    assert!(reason.to_string().contains("not associated"), "{reason}");
    placed_only(&region, 0, b"", "nothing by the other connection");
    let _ = a.send_cq.next();
    bell(&a, &b);
}

#[test]
fn a_region_with_windows_is_not_deregistered_until_they_have_ended() {
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let (first, second) = (bound(&b, &region), bound(&b, &region));
    let (mut region, error) = region.deregister().unwrap_err();
    assert_eq!(error, DeregisterError::WindowsBound { count: 2 });
    assert!(
        error.to_string().contains("2 memory window(s) are bound"),
        "{error}"
    );
    let key = region.rkey();
    let error = region
        .reregister()
        .access(Access::NONE)
        .apply()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        DeregisterError::WindowsBound { count: 2 }.to_string()
    );
    assert_eq!(region.rkey(), key);
    // A window may be deallocated while it is bound.
    drop(first);
    let (region, error) = region.deregister().unwrap_err();
    assert_eq!(error, DeregisterError::WindowsBound { count: 1 });
    done(
        &b,
        &SendWr::local_invalidate(1, second.rkey()),
        WcOpcode::LocalInvalidate,
    );
    region.deregister().unwrap();
}

#[test]
fn a_deallocated_window_is_out_of_reach() {
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = bound(&b, &region);
    let rkey = window.rkey();
    drop(window);
    write_refused(&a, &b, region.addr(), rkey, "no region is registered now");
}

#[test]
fn a_bind_of_no_bytes_unbinds_a_window_of_type_1() {
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let mut window = b.pd.alloc_window(WindowKind::Type1).unwrap();
    let old =
        b.qp.bind_mw(&mut window, 1, &region.window(0, 100, Access::REMOTE_WRITE))
            .unwrap();
    b.qp.bind_mw(&mut window, 2, &region.window(0, 0, Access::NONE))
        .unwrap();
    b.send_cq.successes([1, 2]);
    assert!(!window.is_bound());
    write_refused(&a, &b, region.addr(), old, "invalid STag");
    region.deregister().unwrap();
}

#[test]
fn the_windows_of_a_qp_end_with_it_and_with_its_reset() {
    for reset in [false, true] {
        let (a, b) = peers(Wire::Kernel);
        let region = lender(&b, 100);
        let window = bound(&b, &region);
        a.qp.disconnect();
        b.qp.disconnect();
        b.wait_end();
        assert!(window.is_bound());
        if reset {
            assert!(b.qp.reset());
        } else {
            drop(b.qp);
        }
        assert!(!window.is_bound());
        region.deregister().unwrap();
    }
}
