//! Requests that cannot be carried out: the status, the words, and the end of the connection.

use uwarp_verbs::{Buffer, WindowBind, WindowKind, inc_rkey};

use super::*;

/// Tries a bind of a window of `kind` as `change` makes it of a good one.
fn bind_fails(kind: WindowKind, change: impl Fn(&Side, WindowBind) -> WindowBind, words: &str) {
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = b.pd.alloc_window(kind).unwrap();
    let bind = change(&b, region.window(0, 100, Access::REMOTE_WRITE));
    let wr = SendWr::bind_window(1, inc_rkey(window.rkey()), &bind);
    fails(&b, &wr, Status::WindowBind, words);
    assert!(!window.is_bound());
    a.wait_end();
}

#[test]
fn a_bind_beyond_the_region() {
    let beyond = |_: &Side, bind| WindowBind { len: 101, ..bind };
    bind_fails(WindowKind::Type2A, beyond, "101 octets at");
}

#[test]
fn a_bind_to_a_region_without_the_right() {
    let strict = |side: &Side, bind| {
        let region = side.blank(100);
        let bind = WindowBind {
            lkey: region.lkey(),
            addr: region.addr(),
            ..bind
        };
        std::mem::forget(region);
        bind
    };
    bind_fails(
        WindowKind::Type2B,
        strict,
        "not registered for binding windows",
    );
}

#[test]
fn a_bind_with_remote_write_to_a_region_without_local_write() {
    let constant = |side: &Side, bind| {
        let region = side.pd.register(vec![0; 100], Access::WINDOW_BIND).unwrap();
        let bind = WindowBind {
            lkey: region.lkey(),
            addr: region.addr(),
            ..bind
        };
        std::mem::forget(region);
        bind
    };
    bind_fails(
        WindowKind::Type2A,
        constant,
        "needs local write on its region",
    );
}

#[test]
fn a_bind_of_no_octets_of_type_2() {
    let none = |_: &Side, bind| WindowBind { len: 0, ..bind };
    bind_fails(WindowKind::Type2A, none, "0 octets");
}

#[test]
fn a_bind_of_type_1_by_a_work_request() {
    bind_fails(
        WindowKind::Type1,
        |_, bind| bind,
        "type 1 is bound with Qp::bind_mw",
    );
}

#[test]
fn a_bind_to_a_region_that_is_gone() {
    bind_fails(
        WindowKind::Type2A,
        |_, bind| WindowBind { lkey: 1, ..bind },
        "names no valid memory region",
    );
}

#[test]
fn a_window_of_another_protection_domain() {
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = b
        .device
        .alloc_pd()
        .unwrap()
        .alloc_window(WindowKind::Type2B)
        .unwrap();
    let bind = region.window(0, 100, Access::REMOTE_READ);
    let wr = SendWr::bind_window(1, inc_rkey(window.rkey()), &bind);
    fails(&b, &wr, Status::WindowBind, "another protection domain");
}

#[test]
fn a_window_of_type_2_that_is_still_bound() {
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = b.pd.alloc_window(WindowKind::Type2B).unwrap();
    let bind = region.window(0, 100, Access::REMOTE_READ);
    let rkey = inc_rkey(window.rkey());
    done(
        &b,
        &SendWr::bind_window(1, rkey, &bind),
        WcOpcode::BindWindow,
    );
    let again = SendWr::bind_window(2, inc_rkey(rkey), &bind);
    fails(&b, &again, Status::WindowBind, "still valid");
}

#[test]
fn a_bind_with_the_key_of_the_last_one() {
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = b.pd.alloc_window(WindowKind::Type2B).unwrap();
    let bind = region.window(0, 100, Access::REMOTE_READ);
    let rkey = inc_rkey(window.rkey());
    done(
        &b,
        &SendWr::bind_window(1, rkey, &bind),
        WcOpcode::BindWindow,
    );
    done(
        &b,
        &SendWr::local_invalidate(2, rkey),
        WcOpcode::LocalInvalidate,
    );
    let again = SendWr::bind_window(3, rkey, &bind);
    fails(&b, &again, Status::WindowBind, "take the next one");
}

#[test]
fn a_fast_registration_of_what_is_valid_or_beyond_the_memory() {
    for (valid, status, words) in [
        (true, Status::LocalQpOperation, "still valid"),
        (false, Status::LocalProtection, "are not inside the memory"),
    ] {
        let (_a, b) = pair(Wire::Kernel);
        let fast =
            b.pd.alloc_fast_region(Buffer::zeroed(100).unwrap())
                .unwrap();
        let mut stag = fast.stag();
        if valid {
            let part = fast.register(stag, 0, 100, Access::REMOTE_READ);
            done(&b, &SendWr::register(1, &part), WcOpcode::Register);
            stag = inc_rkey(stag);
        }
        let len = if valid { 100 } else { 101 };
        let part = fast.register(stag, 0, len, Access::REMOTE_READ);
        fails(&b, &SendWr::register(2, &part), status, words);
    }
}

#[test]
fn a_local_invalidation_of_what_is_not_valid_or_not_ours() {
    let (_a, b) = pair(Wire::Kernel);
    fails(
        &b,
        &SendWr::local_invalidate(1, 0x1234),
        Status::LocalQpOperation,
        "is not valid",
    );
    let (_a, b) = pair(Wire::Kernel);
    let foreign = b
        .device
        .alloc_pd()
        .unwrap()
        .register(vec![0; 8], Access::REMOTE_READ)
        .unwrap();
    let wr = SendWr::local_invalidate(1, foreign.rkey());
    fails(
        &b,
        &wr,
        Status::LocalProtection,
        "another protection domain",
    );
    let (_a, b) = pair(Wire::Kernel);
    let region = lender(&b, 8);
    let mut window = b.pd.alloc_window(WindowKind::Type1).unwrap();
    let bind = region.window(0, 8, Access::REMOTE_READ);
    let rkey = b.qp.bind_mw(&mut window, 1, &bind).unwrap();
    b.send_cq.success(1);
    let wr = SendWr::local_invalidate(2, rkey);
    fails(&b, &wr, Status::LocalQpOperation, "window of type 1");
}

#[test]
fn local_requests_of_a_connection_that_has_ended_are_flushed() {
    let (a, b) = pair(Wire::Kernel);
    let region = lender(&b, 100);
    let window = b.pd.alloc_window(WindowKind::Type2B).unwrap();
    a.qp.disconnect();
    b.qp.disconnect();
    b.wait_end();
    let bind = region.window(0, 100, Access::REMOTE_READ);
    let rkey = inc_rkey(window.rkey());
    b.qp.post_send(&SendWr::bind_window(1, rkey, &bind))
        .unwrap();
    assert_eq!(b.send_cq.flushed(1).opcode, WcOpcode::BindWindow);
    assert!(!window.is_bound());
}
