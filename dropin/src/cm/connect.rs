//! Connections: connect, accept, reject and disconnect.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_void};
use core::slice;

use uwarp_verbs::{
    AcceptOptions, CmError, CmState, ConnectOptions, Device, Peer, RejectOptions, Revision,
};

use super::failure;
use super::{address, id, status, sync};
use crate::abi::{
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, ibv_event_type, rdma_cm_id, rdma_conn_param,
};
use crate::panic_guard::entry;
use crate::qp::QpInner;
use crate::registry::QPS;
use crate::rnic;

/// Parameters of a connection (`rdma_conn_param`) that exist on iWARP.
struct Param<'a> {
    private_data: &'a [u8],
    /// Maximum number of outstanding RDMA Reads as responder; `None` if the program leaves it open.
    responder_resources: Option<u8>,
    /// Maximum number of outstanding RDMA Reads as initiator; `None` if the program leaves it open.
    initiator_depth: Option<u8>,
    /// Number of the queue pair to use if the id has none.
    qp_num: u32,
}

impl<'a> Param<'a> {
    /// Reads the parameters of the program; `None` for NULL.
    ///
    /// # Safety
    /// `param` is NULL, or a structure with `private_data_len` bytes of private data, which exist
    /// during the lifetime `'a`.
    unsafe fn read(param: *const rdma_conn_param) -> Option<Self> {
        // SAFETY: guaranteed by the caller.
        let param = unsafe { param.as_ref() }?;
        let wanted = |number: u8, max| (u32::from(number) != max).then_some(number);
        Some(Param {
            // SAFETY: guaranteed by the caller.
            private_data: unsafe { bytes(param.private_data, param.private_data_len) },
            responder_resources: wanted(param.responder_resources, RDMA_MAX_RESP_RES),
            initiator_depth: wanted(param.initiator_depth, RDMA_MAX_INIT_DEPTH),
            qp_num: param.qp_num,
        })
    }
}

/// Returns private data as a slice.
///
/// # Safety
/// `data` is NULL, or has `len` bytes, which exist during the lifetime `'a`.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(data.cast(), len.into()) }
}

/// Returns the maximum numbers of outstanding RDMA Reads of a connection of this device: as
/// responder, and as initiator.
pub(super) fn most(device: &Device) -> (u8, u8) {
    let attr = device.query();
    let small = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    (small(attr.max_qp_rd_atom), small(attr.max_qp_init_rd_atom))
}

/// Returns the numbers of RDMA Reads for a connection, as responder and as initiator. `default`,
/// limited to what the device supports, replaces numbers that the program leaves open.
///
/// # Errors
/// `EINVAL` if the program asks for more than the device supports, `ENODEV` without a device.
fn depths(param: Option<&Param<'_>>, default: (u8, u8)) -> Result<(u8, u8), c_int> {
    let device = rnic::device().ok_or(libc::ENODEV)?;
    let most = most(&device);
    let chosen = |wanted: Option<u8>, default: u8, most: u8| match wanted {
        Some(wanted) if wanted > most => Err(libc::EINVAL),
        Some(wanted) => Ok(wanted),
        None => Ok(default.min(most)),
    };
    let resources = param.and_then(|param| param.responder_resources);
    let depth = param.and_then(|param| param.initiator_depth);
    Ok((
        chosen(resources, default.0, most.0)?,
        chosen(depth, default.1, most.1)?,
    ))
}

/// Calls `act` with the queue pair of an id. If the id has none, takes the number of the queue pair
/// from `param`. Also allows a new warning about the end of the queue pair's connection.
///
/// # Errors
/// `EINVAL` without a queue pair, or the error of `act`.
///
/// # Safety
/// The id exists.
unsafe fn with_qp(
    id: *mut rdma_cm_id,
    param: Option<&Param<'_>>,
    act: impl FnOnce(&QpInner) -> Result<(), CmError>,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller; the field is set by this library, or by the program to a
    // queue pair of its own.
    let own = unsafe { (*id).qp.as_ref() }.map(|qp| qp.qp_num);
    let number = own
        .or(param.map(|param| param.qp_num))
        .ok_or(libc::EINVAL)?;
    let acted = QPS.with(number, |_, qp| {
        qp.end_warning.rearm();
        act(qp)
    });
    let acted = acted.ok_or(libc::EINVAL)?;
    acted.map_err(|error| failure::errno(&error))
}

/// Starts to connect an id.
///
/// # Safety
/// The id exists.
unsafe fn connect_to(id: *mut rdma_cm_id, param: Option<&Param<'_>>) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { id::of(id) };
    let (responder_resources, initiator_depth) = depths(param, (u8::MAX, u8::MAX))?;
    let mut own = inner.state.lock();
    let mut private_data = own.connect.clone();
    private_data.extend_from_slice(param.map_or(&[], |param| param.private_data));
    // The length in the peer's event is a `u8`.
    if private_data.len() > usize::from(u8::MAX) {
        return Err(libc::EINVAL);
    }
    own.connect_called = true;
    drop(own);
    let device = rnic::device().ok_or(libc::ENODEV)?;
    let settings = device.settings();
    let options = ConnectOptions::default()
        .private_data(private_data)
        .ird(responder_resources.into())
        .ord(initiator_depth.into())
        // The peer-to-peer model allows the server to send first, as on InfiniBand and on most
        // RNICs. A siw server does not wait for the client in any model.
        .peer_to_peer(settings.revision == Revision::Two && settings.peer == Peer::Rfc);
    // SAFETY: guaranteed by the caller.
    unsafe {
        with_qp(id, param, |qp| inner.id.connect(&qp.qp, &options))?;
        // The bytes of `ai_connect` are for one connection only.
        inner.state.lock().connect.clear();
        address::refresh(id)
    }
}

/// `rdma_connect`
pub(crate) unsafe extern "C-unwind" fn connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    let begun = entry(-1, || {
        // SAFETY: the program passes an id, and a structure or NULL.
        status(unsafe { connect_to(id, Param::read(param).as_ref()) })
    });
    // SAFETY: as above.
    unsafe { sync::complete(id, begun) }
}

/// Accepts the connection request to which an id belongs.
///
/// # Safety
/// The id exists.
unsafe fn accept_request(id: *mut rdma_cm_id, param: Option<&Param<'_>>) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { id::of(id) };
    let own = inner.state.lock();
    let asked = (own.responder_resources, own.initiator_depth);
    drop(own);
    let (responder_resources, initiator_depth) = depths(param, asked)?;
    let options = AcceptOptions::default()
        .private_data(param.map_or(&[][..], |param| param.private_data).to_vec())
        .ird(responder_resources.into())
        .ord(initiator_depth.into());
    // SAFETY: guaranteed by the caller.
    unsafe { with_qp(id, param, |qp| inner.id.accept(&qp.qp, &options)) }
}

/// `rdma_accept`
pub(crate) unsafe extern "C-unwind" fn accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    let begun = entry(-1, || {
        // SAFETY: the program passes an id, and a structure or NULL.
        status(unsafe { accept_request(id, Param::read(param).as_ref()) })
    });
    // SAFETY: as above.
    unsafe { sync::complete(id, begun) }
}

/// `rdma_reject`
pub(crate) unsafe extern "C-unwind" fn reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    len: u8,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an id, and `len` bytes or NULL.
        let (inner, private_data) = unsafe { (id::of(id), bytes(private_data, len)) };
        let options = RejectOptions::default()
            .private_data(private_data.to_vec())
            .ord_needed(None);
        let rejected = inner.id.reject(&options);
        status(rejected.map_err(|error| failure::errno(&error)))
    })
}

/// `rdma_establish`: for programs with their own queue pair that get `CONNECT_RESPONSE`. That event
/// does not exist on iWARP, so the call only checks its arguments.
pub(crate) unsafe extern "C-unwind" fn establish(id: *mut rdma_cm_id) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an id.
        let (inner, has_qp) = unsafe { (id::of(id), !(*id).qp.is_null()) };
        if has_qp || inner.id.state() != CmState::Connected {
            return status(Err(libc::EINVAL));
        }
        0
    })
}

/// Event to expect after a disconnect.
enum Ending {
    /// An event will arrive, or has arrived and was not taken yet.
    Event,
    /// The connection has already ended, and no event will arrive.
    Nothing,
}

/// Disconnects an id.
///
/// # Safety
/// The id exists.
unsafe fn disconnect_id(id: *mut rdma_cm_id) -> Result<Ending, c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { id::of(id) };
    let before = inner.id.state();
    match inner.id.disconnect() {
        Ok(()) => {}
        // A connection that was rejected or failed has already ended.
        Err(CmError::WrongState(_))
            if inner.state.lock().connect_called || before == CmState::Rejected => {}
        Err(error) => return Err(failure::errno(&error)),
    }
    let under_way = matches!(
        before,
        CmState::Connecting | CmState::Accepting | CmState::Connected
    );
    let waits = inner
        .id
        .channel()
        .is_ok_and(|channel| channel.waiting() > 0);
    Ok(if under_way || waits {
        Ending::Event
    } else {
        Ending::Nothing
    })
}

/// `rdma_disconnect`: closes the connection gracefully, as the kernel does for iWARP.
pub(crate) unsafe extern "C-unwind" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes an id.
    let ended = entry(Err(libc::EIO), || unsafe { disconnect_id(id) });
    match ended {
        // SAFETY: as above.
        Ok(Ending::Event) => unsafe { sync::complete(id, 0) },
        Ok(Ending::Nothing) => 0,
        Err(errno) => status(Err(errno)),
    }
}

/// `rdma_notify`: reports events of a queue pair to InfiniBand's connection manager. Has no effect
/// on iWARP.
pub(crate) unsafe extern "C-unwind" fn notify(
    _id: *mut rdma_cm_id,
    _event: ibv_event_type,
) -> c_int {
    0
}
