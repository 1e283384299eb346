//! Requests that cannot be carried out: their status, their message, and the end of the connection.

use uwarp_verbs::{Buffer, MemoryWindow, WindowBind, WindowKind, inc_rkey};

use super::*;

/// A connection, and arguments with which the second side can bind a window.
struct Scene {
    a: Side,
    b: Side,
    window: MemoryWindow,
    /// A valid bind of the whole `_region`.
    bind: WindowBind,
    /// Next valid STag of the window.
    rkey: u32,
    _region: MemoryRegion,
}

fn scene(kind: WindowKind) -> Scene {
    let (a, b) = pair(Wire::Kernel);
    let window = b.pd.alloc_window(kind).unwrap();
    of_window(a, b, window)
}

fn of_window(a: Side, b: Side, window: MemoryWindow) -> Scene {
    let region = lender(&b, 100);
    Scene {
        bind: region.window(0, 100, Access::REMOTE_WRITE),
        rkey: inc_rkey(window.rkey()),
        _region: region,
        a,
        b,
        window,
    }
}

impl Scene {
    fn binds(&self, wr_id: u64, rkey: u32) {
        let wr = SendWr::bind_window(wr_id, rkey, &self.bind);
        done(&self.b, &wr, WcOpcode::BindWindow);
    }

    fn bind_fails(&self, wr_id: u64, rkey: u32, words: &str) {
        let wr = SendWr::bind_window(wr_id, rkey, &self.bind);
        fails(&self.b, &wr, Status::WindowBind, words);
        self.a.wait_end();
    }
}

/// Checks that a bind of a window of `kind` fails after `change` has made it invalid.
fn bind_fails(kind: WindowKind, change: impl Fn(WindowBind) -> WindowBind, words: &str) {
    let mut s = scene(kind);
    s.bind = change(s.bind);
    s.bind_fails(1, s.rkey, words);
    assert!(!s.window.is_bound());
}

/// Checks that a bind to a region of the second side fails. `register` creates the region.
fn bind_to_fails(kind: WindowKind, register: impl Fn(&Side) -> MemoryRegion, words: &str) {
    let mut s = scene(kind);
    let region = register(&s.b);
    s.bind = WindowBind {
        lkey: region.lkey(),
        addr: region.addr(),
        ..s.bind
    };
    s.bind_fails(1, s.rkey, words);
    assert!(!s.window.is_bound());
}

#[test]
fn a_bind_beyond_the_region() {
    let beyond = |bind| WindowBind { len: 101, ..bind };
    bind_fails(WindowKind::Type2A, beyond, "101 bytes at");
}

#[test]
fn a_bind_to_a_region_without_the_right() {
    bind_to_fails(
        WindowKind::Type2B,
        |side| side.blank(100),
        "not registered for binding windows",
    );
}

#[test]
fn a_bind_with_remote_write_to_a_region_without_local_write() {
    let constant = |side: &Side| side.pd.register(vec![0; 100], Access::WINDOW_BIND).unwrap();
    bind_to_fails(WindowKind::Type2A, constant, "its region needs local write");
}

#[test]
fn a_bind_of_no_bytes_of_type_2() {
    let none = |bind| WindowBind { len: 0, ..bind };
    bind_fails(WindowKind::Type2A, none, "0 bytes");
}

#[test]
fn a_bind_of_type_1_by_a_work_request() {
    bind_fails(
        WindowKind::Type1,
        |bind| bind,
        "type 1 is bound with Qp::bind_mw",
    );
}

#[test]
fn a_bind_to_a_region_that_is_gone() {
    bind_fails(
        WindowKind::Type2A,
        |bind| WindowBind { lkey: 1, ..bind },
        "names no valid memory region",
    );
}

#[test]
fn a_window_of_another_protection_domain() {
    let (a, b) = pair(Wire::Kernel);
    let foreign = b.device.alloc_pd().unwrap();
    let window = foreign.alloc_window(WindowKind::Type2B).unwrap();
    let s = of_window(a, b, window);
    s.bind_fails(1, s.rkey, "another protection domain");
}

#[test]
fn a_window_of_type_2_that_is_still_bound() {
    let s = scene(WindowKind::Type2B);
    s.binds(1, s.rkey);
    s.bind_fails(2, inc_rkey(s.rkey), "still valid");
}

#[test]
fn a_bind_with_the_key_of_the_last_one() {
    let s = scene(WindowKind::Type2B);
    s.binds(1, s.rkey);
    let wr = SendWr::local_invalidate(2, s.rkey);
    done(&s.b, &wr, WcOpcode::LocalInvalidate);
    s.bind_fails(3, s.rkey, "use the next key");
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
    let s = scene(WindowKind::Type2B);
    s.a.qp.disconnect();
    s.b.qp.disconnect();
    s.b.wait_end();
    let wr = SendWr::bind_window(1, s.rkey, &s.bind);
    s.b.qp.post_send(&wr).unwrap();
    assert_eq!(s.b.send_cq.flushed(1).opcode, WcOpcode::BindWindow);
    assert!(!s.window.is_bound());
}
