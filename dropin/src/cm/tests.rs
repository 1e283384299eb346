//! Tests that call librdmacm's functions as a C program does. Both ends of a connection are in this
//! process.
#![expect(
    unsafe_code,
    reason = "the tests call what C programs call; every pointer comes from the library"
)]

mod connections;
mod ids;
mod options;
mod synchronous;

use core::ffi::{c_int, c_void};
use core::{mem, ptr};
use std::net::SocketAddr;

use libc::sockaddr;

use super::{address, channel, connect, event, id, listen, queues, sockaddr as addresses};
use crate::abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_PS_TCP, ibv_qp_init_attr,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use crate::errno;

/// Event channel, as a program holds it.
#[derive(Clone, Copy)]
pub(super) struct Channel(pub(super) *mut rdma_event_channel);

// SAFETY: programs use channels in any thread.
unsafe impl Send for Channel {}

/// Id, as a program holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Id(pub(super) *mut rdma_cm_id);

// SAFETY: programs use ids in any thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// Event that the program has taken and not acknowledged.
#[derive(Clone, Copy)]
pub(super) struct Event(*mut rdma_cm_event);

// SAFETY: programs acknowledge events in any thread.
unsafe impl Send for Event {}

impl Channel {
    pub(super) fn new() -> Self {
        // SAFETY: the call takes no arguments.
        let channel = unsafe { channel::create_event_channel() };
        assert!(!channel.is_null());
        Channel(channel)
    }

    pub(super) fn id(self, context: usize) -> Id {
        create(self.0, context)
    }

    /// Waits for the next event, which must be of this kind. The caller acknowledges it.
    #[track_caller]
    pub(super) fn next(self, kind: rdma_cm_event_type) -> Event {
        let mut event = ptr::null_mut();
        // SAFETY: the test passes a channel, and memory for a pointer.
        assert_eq!(unsafe { event::get_cm_event(self.0, &raw mut event) }, 0);
        let event = Event(event);
        assert_eq!(event.kind(), kind, "status {}", event.status());
        event
    }

    /// Waits for the next event, which must be of this kind, and acknowledges it.
    #[track_caller]
    pub(super) fn passes(self, kind: rdma_cm_event_type) {
        self.next(kind).ack();
    }

    pub(super) fn end(self) {
        // SAFETY: the object is not used any more.
        unsafe { channel::destroy_event_channel(self.0) };
    }

    pub(super) fn set_nonblocking(self) {
        // SAFETY: the descriptor is that of a channel.
        let set = unsafe { libc::fcntl((*self.0).fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(set, 0);
    }
}

impl Event {
    // SAFETY (for all functions): the event is not acknowledged yet.
    pub(super) fn kind(self) -> rdma_cm_event_type {
        // SAFETY: as argued above.
        unsafe { (*self.0).event }
    }

    pub(super) fn status(self) -> c_int {
        // SAFETY: as argued above.
        unsafe { (*self.0).status }
    }

    pub(super) fn id(self) -> Id {
        // SAFETY: as argued above.
        Id(unsafe { (*self.0).id })
    }

    pub(super) fn listener(self) -> Id {
        // SAFETY: as argued above.
        Id(unsafe { (*self.0).listen_id })
    }

    pub(super) fn conn(self) -> rdma_conn_param {
        // SAFETY: as argued above; the event is one of a connection.
        unsafe { (*self.0).param.conn }
    }

    pub(super) fn private_data(self) -> Vec<u8> {
        let conn = self.conn();
        if conn.private_data_len == 0 {
            return Vec::new();
        }
        let (data, len) = (conn.private_data.cast::<u8>(), conn.private_data_len);
        // SAFETY: the event has this many bytes.
        unsafe { core::slice::from_raw_parts(data, len.into()) }.to_vec()
    }

    pub(super) fn ack(self) {
        // SAFETY: the object is not used any more.
        assert_eq!(unsafe { event::ack_cm_event(self.0) }, 0);
    }
}

pub(super) fn create(channel: *mut rdma_event_channel, context: usize) -> Id {
    let mut made = ptr::null_mut();
    let context = ptr::without_provenance_mut::<c_void>(context);
    // SAFETY: the test passes a channel or NULL, and memory for a pointer.
    let status = unsafe { id::create_id(channel, &raw mut made, context, RDMA_PS_TCP) };
    assert_eq!(status, 0);
    Id(made)
}

impl Id {
    /// Returns the structure that the program sees.
    pub(super) fn shown(&self) -> &rdma_cm_id {
        // SAFETY: nothing writes the structure while the reference exists.
        unsafe { &*self.0 }
    }

    pub(super) fn bind(self, addr: &str) -> c_int {
        let (mut storage, _) = addresses::write(addr.parse().unwrap());
        // SAFETY: the test passes an id and an address.
        unsafe { address::bind_addr(self.0, (&raw mut storage).cast()) }
    }

    pub(super) fn resolve(self, to: SocketAddr) -> c_int {
        let (mut storage, _) = addresses::write(to);
        let to: *mut sockaddr = (&raw mut storage).cast();
        // SAFETY: the test passes an id and an address.
        unsafe { address::resolve_addr(self.0, ptr::null_mut(), to, 1000) }
    }

    pub(super) fn local(self) -> SocketAddr {
        let shown = &raw const self.shown().route.addr.__bindgen_anon_1;
        // SAFETY: the test passes an address that the library has written.
        unsafe { addresses::read(shown.cast()) }.unwrap()
    }

    /// Creates a queue pair with completion queues of the id.
    pub(super) fn create_qp(self) -> c_int {
        let mut attr = attributes();
        // SAFETY: the test passes an id, and a structure.
        unsafe { queues::create_qp(self.0, ptr::null_mut(), &raw mut attr) }
    }

    pub(super) fn connect(self, private_data: &[u8]) -> c_int {
        let mut param = param(private_data);
        // SAFETY: the test passes an id, and a structure.
        unsafe { connect::connect(self.0, &raw mut param) }
    }

    pub(super) fn accept(self, private_data: &[u8]) -> c_int {
        let mut param = param(private_data);
        // SAFETY: the test passes an id, and a structure.
        unsafe { connect::accept(self.0, &raw mut param) }
    }

    pub(super) fn disconnect(self) -> c_int {
        // SAFETY: the test passes an id.
        unsafe { connect::disconnect(self.0) }
    }

    pub(super) fn listen(self) -> c_int {
        // SAFETY: the test passes an id.
        unsafe { listen::listen(self.0, 8) }
    }

    /// Destroys the id, with its queue pair if it has one.
    pub(super) fn end(self) {
        // SAFETY: the object is not used any more.
        unsafe {
            if !self.shown().qp.is_null() {
                queues::destroy_qp(self.0);
            }
            assert_eq!(id::destroy_id(self.0), 0);
        }
    }
}

pub(super) fn attributes() -> ibv_qp_init_attr {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut attr: ibv_qp_init_attr = unsafe { mem::zeroed() };
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = 4;
    attr.cap.max_recv_wr = 4;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    attr
}

pub(super) fn param(private_data: &[u8]) -> rdma_conn_param {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut param: rdma_conn_param = unsafe { mem::zeroed() };
    param.private_data = private_data.as_ptr().cast();
    param.private_data_len = u8::try_from(private_data.len()).unwrap();
    param.responder_resources = 3;
    param.initiator_depth = 5;
    param
}

/// Creates an id that listens on a free port.
pub(super) fn listening(channel: Channel) -> Id {
    let listener = channel.id(LISTENER);
    assert_eq!(listener.bind("127.0.0.1:0"), 0);
    assert_eq!(listener.listen(), 0);
    listener
}

/// Creates an id that can connect: its route is resolved, and it has a queue pair.
pub(super) fn ready(channel: Channel, to: SocketAddr) -> Id {
    let id = channel.id(CLIENT);
    assert_eq!(id.resolve(to), 0);
    channel.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: the test passes an id.
    assert_eq!(unsafe { address::resolve_route(id.0, 1000) }, 0);
    channel.passes(RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(id.create_qp(), 0);
    id
}

/// Returns two connected ids, the client's and the server's, on separate channels.
pub(super) fn connected(client: Channel, server: Channel) -> (Id, Id) {
    let listener = listening(server);
    let ours = ready(client, listener.local());
    assert_eq!(ours.connect(b""), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let theirs = request.id();
    request.ack();
    assert_eq!(theirs.create_qp(), 0);
    assert_eq!(theirs.accept(b""), 0);
    server.passes(RDMA_CM_EVENT_ESTABLISHED);
    client.passes(RDMA_CM_EVENT_ESTABLISHED);
    listener.end();
    (ours, theirs)
}

pub(super) const LISTENER: usize = 0x1150;
pub(super) const CLIENT: usize = 0xC11E;

/// Asserts that a call returned -1, and returns its `errno`.
#[track_caller]
pub(super) fn failed(status: c_int) -> c_int {
    assert_eq!(status, -1);
    errno::get()
}
