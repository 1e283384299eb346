//! Ids without a channel, and endpoints.

use std::ffi::CString;
use std::thread;

use super::*;
use crate::abi::{RAI_NUMERICHOST, RAI_PASSIVE, rdma_addrinfo};
use crate::cm::{addrinfo, endpoint};

/// Returns the result of `rdma_getaddrinfo` for a port of this host.
fn resolved(port: u16, flags: u32) -> *mut rdma_addrinfo {
    let (host, service) = (c"127.0.0.1", CString::new(port.to_string()).unwrap());
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut hints: rdma_addrinfo = unsafe { mem::zeroed() };
    hints.ai_flags = (flags | RAI_NUMERICHOST).cast_signed();
    hints.ai_port_space = RDMA_PS_TCP.cast_signed();
    let mut out = ptr::null_mut();
    // SAFETY: the test passes names, hints, and memory for a pointer.
    let failed = unsafe {
        addrinfo::getaddrinfo(
            host.as_ptr(),
            service.as_ptr(),
            &raw const hints,
            &raw mut out,
        )
    };
    assert_eq!(failed, 0);
    out
}

/// Creates an endpoint with a queue pair. With `RAI_PASSIVE`, each request to it gets a queue pair.
fn endpoint(port: u16, flags: u32) -> (c_int, Id) {
    let list = resolved(port, flags);
    let (mut made, mut attr) = (ptr::null_mut(), attributes());
    // SAFETY: the test passes memory for a pointer, a list, and a structure.
    unsafe {
        let status = endpoint::create_ep(&raw mut made, list, ptr::null_mut(), &raw mut attr);
        addrinfo::freeaddrinfo(list);
        (status, Id(made))
    }
}

/// Waits for a request.
fn request(listener: Id) -> Id {
    let mut out = ptr::null_mut();
    // SAFETY: the test passes an id, and memory for a pointer.
    assert_eq!(unsafe { listen::get_request(listener.0, &raw mut out) }, 0);
    Id(out)
}

fn end(endpoint: Id) {
    // SAFETY: the object is not used any more.
    unsafe { endpoint::destroy_ep(endpoint.0) };
}

#[test]
fn endpoints_connect_with_calls_that_wait() {
    let (status, listener) = endpoint(0, RAI_PASSIVE);
    assert_eq!(status, 0);
    assert_eq!(listener.listen(), 0);
    let port = listener.local().port();
    let serving = thread::spawn(move || {
        let theirs = request(listener);
        let event = Event(theirs.shown().event);
        assert_eq!(event.private_data(), b"hello");
        // The request's id has its own channel.
        assert_ne!(theirs.shown().channel, listener.shown().channel);
        assert!(!theirs.shown().qp.is_null());
        // SAFETY: the test passes an id. Without parameters, the numbers of RDMA Reads are those of
        // the request.
        assert_eq!(unsafe { connect::accept(theirs.0, ptr::null_mut()) }, 0);
        assert_eq!(theirs.disconnect(), 0);
        end(theirs);
    });
    let (status, ours) = endpoint(port, 0);
    assert_eq!(status, 0);
    assert_eq!(ours.connect(b"hello"), 0);
    let conn = Event(ours.shown().event).conn();
    assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 5));
    assert_eq!(ours.disconnect(), 0);
    // A second disconnect returns 0 without an event: the connection has already ended.
    assert_eq!(ours.disconnect(), 0);
    serving.join().unwrap();
    end(ours);
    end(listener);
}

#[test]
fn a_synchronous_call_says_what_its_event_says() {
    let (status, listener) = endpoint(0, RAI_PASSIVE);
    assert_eq!(status, 0);
    assert_eq!(listener.listen(), 0);
    let port = listener.local().port();
    let rejecting = thread::spawn(move || {
        let theirs = request(listener);
        // SAFETY: the test passes an id, and bytes.
        unsafe { assert_eq!(connect::reject(theirs.0, b"no".as_ptr().cast(), 2), 0) };
        end(theirs);
    });
    let (_, ours) = endpoint(port, 0);
    assert_eq!(failed(ours.connect(b"")), libc::ECONNREFUSED);
    assert_eq!(Event(ours.shown().event).private_data(), b"no");
    assert_eq!(ours.disconnect(), 0);
    rejecting.join().unwrap();
    end(ours);
    end(listener);
}

#[test]
fn an_id_with_a_channel_waits_for_no_request() {
    let channel = Channel::new();
    let listener = listening(channel);
    let mut out = ptr::null_mut();
    // SAFETY: the test passes an id, and memory for a pointer.
    let status = unsafe { listen::get_request(listener.0, &raw mut out) };
    assert_eq!(failed(status), libc::EINVAL);
    listener.end();
    channel.end();
}

#[test]
fn an_endpoint_that_cannot_be_made_leaves_nothing() {
    let (_, taken) = endpoint(0, RAI_PASSIVE);
    let port = taken.local().port();
    let (status, _) = endpoint(port, RAI_PASSIVE);
    assert_eq!(failed(status), libc::EADDRINUSE);
    end(taken);
}
