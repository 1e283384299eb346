//! Connections, through the connection manager or over a stream that the program has connected.

use core::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use uwarp_verbs::llp::Llp;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    AcceptOptions, CmEvent, CmEventKind, CmId, ConnectOptions, Device, EventChannel, Qp,
};

use crate::error::{failed, handle, status};

/// Object to which a `struct uw_cm_id *` points. The context of the inner id is this object's
/// address.
struct Id {
    id: CmId,
    context: u64,
}

/// Has the layout of `struct uw_cm_event`.
#[repr(C)]
struct Event {
    kind: c_int,
    id: *mut Id,
    listen_context: u64,
    private_data: [u8; 64],
    private_data_len: c_int,
    responder_resources: c_int,
    initiator_depth: c_int,
    /// Owned by the library; dropping it acknowledges the event.
    event: *mut CmEvent,
}

fn own(id: CmId, context: u64) -> *mut Id {
    let own = Box::into_raw(Box::new(Id { id, context }));
    // SAFETY: the object was just created.
    unsafe { &*own }
        .id
        .set_context(own.expose_provenance() as u64);
    own
}

fn owner(id: &CmId) -> *mut Id {
    core::ptr::with_exposed_provenance_mut(id.context() as usize)
}

fn number(kind: CmEventKind) -> c_int {
    match kind {
        CmEventKind::AddrResolved => 0,
        CmEventKind::AddrError => 1,
        CmEventKind::RouteResolved => 2,
        CmEventKind::RouteError => 3,
        CmEventKind::ConnectRequest => 4,
        CmEventKind::ConnectError => 6,
        CmEventKind::Unreachable => 7,
        CmEventKind::Rejected => 8,
        CmEventKind::Established => 9,
        CmEventKind::Disconnected => 10,
        CmEventKind::DeviceRemoval => 11,
        _ => -1,
    }
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_event_channel() -> *mut EventChannel {
    handle(EventChannel::new())
}

#[unsafe(no_mangle)]
extern "C" fn uw_cm_fd(channel: &EventChannel) -> c_int {
    channel.as_fd().as_raw_fd()
}

#[unsafe(no_mangle)]
extern "C" fn uw_destroy_event_channel(channel: Box<EventChannel>) {
    drop(channel);
}

#[unsafe(no_mangle)]
extern "C" fn uw_create_id(channel: &EventChannel, device: &Device, context: u64) -> *mut Id {
    own(channel.create_id(device, 0), context)
}

#[unsafe(no_mangle)]
extern "C" fn uw_destroy_id(id: Box<Id>) -> c_int {
    status(id.id.destroy(None), Errno::BUSY)
}

#[unsafe(no_mangle)]
extern "C" fn uw_id_context(id: &Id) -> u64 {
    id.context
}

#[unsafe(no_mangle)]
extern "C" fn uw_migrate_id(id: &Id, channel: &EventChannel) -> c_int {
    status(id.id.migrate(channel), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_listen(id: &Id, backlog: c_int, port: &mut u16) -> c_int {
    let listening = id
        .id
        .bind_addr((Ipv4Addr::LOCALHOST, 0).into())
        .and_then(|()| id.id.listen(backlog.unsigned_abs()));
    *port = id.id.local_addr().map_or(0, |addr| addr.port());
    status(listening, Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_resolve_addr(id: &Id, port: u16) -> c_int {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    status(id.id.resolve_addr(None, to), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_resolve_route(id: &Id) -> c_int {
    status(id.id.resolve_route(), Errno::INVAL)
}

/// Copies private data to a vector.
///
/// # Safety
/// `data` has `len` bytes.
unsafe fn bytes(data: *const c_void, len: c_int) -> Vec<u8> {
    let len = usize::try_from(len).unwrap_or(0);
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
}

fn depth(count: c_int) -> u16 {
    u16::try_from(count).unwrap_or(0)
}

/// # Safety
/// `data` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_connect(
    id: &Id,
    qp: &Qp,
    data: *const c_void,
    len: c_int,
    resources: c_int,
    initiator_depth: c_int,
) -> c_int {
    let options = ConnectOptions::default()
        // SAFETY: guaranteed by the caller.
        .private_data(unsafe { bytes(data, len) })
        .ird(depth(resources))
        .ord(depth(initiator_depth));
    status(id.id.connect(qp, &options), Errno::INVAL)
}

/// # Safety
/// `data` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_accept(
    id: &Id,
    qp: &Qp,
    data: *const c_void,
    len: c_int,
    resources: c_int,
    initiator_depth: c_int,
) -> c_int {
    let options = AcceptOptions::default()
        // SAFETY: guaranteed by the caller.
        .private_data(unsafe { bytes(data, len) })
        .ird(depth(resources))
        .ord(depth(initiator_depth));
    status(id.id.accept(qp, &options), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_disconnect(id: &Id) -> c_int {
    status(id.id.disconnect(), Errno::INVAL)
}

#[unsafe(no_mangle)]
extern "C" fn uw_get_cm_event(channel: &EventChannel, out: &mut Event) -> c_int {
    let event = match channel.get_event(None) {
        Ok(event) => event,
        Err(error) => return failed(Errno::AGAIN, &error),
    };
    if let Some(reason) = event.reason() {
        crate::error::say(reason);
    }
    let (id, listen_context) = match event.listen_id() {
        None => (owner(event.id()), 0),
        Some(listener) => {
            // SAFETY: the listening id is not destroyed before its events are acknowledged.
            let listener = unsafe { &*owner(listener) };
            (own(event.id().clone(), 0), listener.context)
        }
    };
    let mut private_data = [0; 64];
    let told = event.private_data();
    let len = told.len().min(private_data.len());
    private_data[..len].copy_from_slice(&told[..len]);
    *out = Event {
        kind: number(event.kind()),
        id,
        listen_context,
        private_data,
        // The length is at most 64.
        private_data_len: c_int::try_from(len).unwrap_or(0),
        responder_resources: event.responder_resources().into(),
        initiator_depth: event.initiator_depth().into(),
        event: Box::into_raw(Box::new(event)),
    };
    0
}

/// # Safety
/// The event is from `uw_get_cm_event`, and was not acknowledged before.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_ack_cm_event(event: &mut Event) -> c_int {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { Box::from_raw(event.event) });
    event.event = core::ptr::null_mut();
    0
}

/// Takes a connected socket as the transport of a connection.
///
/// # Safety
/// `fd` is a connected stream socket that has no other user.
unsafe fn adopt(fd: c_int) -> Result<Box<dyn Llp>, String> {
    // SAFETY: guaranteed by the caller.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    KernelNetwork::default()
        .adopt(TcpStream::from(fd))
        .map_err(|error| error.to_string())
}

/// # Safety
/// As for [`adopt`].
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_connect_stream(qp: &Qp, fd: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let connected = unsafe { adopt(fd) }.and_then(|stream| {
        qp.connect_over(stream, &ConnectOptions::default())
            .map_err(|error| error.to_string())
    });
    status(connected.map(|_| ()), Errno::CONNREFUSED)
}

/// # Safety
/// As for [`adopt`]; `read` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn uw_accept_stream(
    device: &Device,
    qp: &Qp,
    fd: c_int,
    read: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (stream, read) = unsafe {
        (
            adopt(fd),
            bytes(read, c_int::try_from(len).unwrap_or(c_int::MAX)),
        )
    };
    let accepted = stream.and_then(|stream| {
        let request = device
            .request_over(stream, &read)
            .map_err(|error| error.to_string())?;
        let options = AcceptOptions::default();
        request
            .accept(qp, &options)
            .map_err(|error| error.to_string())
    });
    status(accepted, Errno::CONNREFUSED)
}
