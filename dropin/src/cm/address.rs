//! Addresses of ids: local address, peer's address and route.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use std::net::SocketAddr;

use libc::sockaddr;
use uwarp_verbs::CmState;

use super::failure;
use super::{common, id, sockaddr as address, status, sync};
use crate::abi::rdma_cm_id;
use crate::panic_guard::entry;
use crate::rnic;

/// Writes the current addresses of an id to its C structure. Also writes its device as soon as a
/// local address determines the device.
///
/// # Errors
/// Returns an `errno` value if there is no device.
///
/// # Safety
/// The id exists, and nothing else writes it.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { id::of(id) };
    let local = inner.id.local_addr();
    if let Some(local) = local {
        // SAFETY: guaranteed by the caller; the field has room for every type of address.
        unsafe {
            (&raw mut (*id).route.addr.__bindgen_anon_1)
                .cast::<libc::sockaddr_storage>()
                .write(address::write(to_program(local)).0);
        }
    }
    if let Some(peer) = inner.id.peer_addr() {
        // SAFETY: as above.
        unsafe { show_peer(id, peer) };
    }
    // The kernel does not choose a device for an id that is bound to a loopback address
    // (`cma_any_addr`). libfabric relies on that: a server that names "localhost" listens on every
    // address. If the id has a peer, its device is known.
    let known = |local: SocketAddr| {
        let ip = local.ip().to_canonical();
        !ip.is_unspecified() && (!ip.is_loopback() || inner.id.peer_addr().is_some())
    };
    // SAFETY: as above.
    if local.is_some_and(known) && unsafe { (*id).verbs.is_null() } {
        let common = common::get()?;
        // SAFETY: as above.
        unsafe {
            (*id).verbs = common.verbs;
            if (*id).pd.is_null() {
                (*id).pd = common.pd;
            }
            (*id).port_num = 1;
        }
    }
    Ok(())
}

/// Converts an address that TCP uses to the one that the program sees (`UWARP_PORT_OFFSET`).
fn to_program(addr: SocketAddr) -> SocketAddr {
    address::from_tcp(addr, rnic::port_offset())
}

/// Converts an address that the program passes to the one that TCP uses (`UWARP_PORT_OFFSET`).
fn to_tcp(addr: SocketAddr) -> Result<SocketAddr, c_int> {
    address::into_tcp(addr, rnic::port_offset())
}

/// Writes the peer's address to the C structure.
///
/// # Safety
/// As for [`refresh`].
unsafe fn show_peer(id: *mut rdma_cm_id, peer: SocketAddr) {
    // SAFETY: guaranteed by the caller; the field has room for every type of address.
    unsafe {
        (&raw mut (*id).route.addr.__bindgen_anon_2)
            .cast::<libc::sockaddr_storage>()
            .write(address::write(to_program(peer)).0);
    }
}

/// Binds an id to a local address.
///
/// # Errors
/// Returns an `errno` value.
///
/// # Safety
/// The id exists, and `addr` has the type for its address family.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let addr = to_tcp(address::read(addr)?)?;
        let inner = id::of(id);
        let bound = if inner.state.lock().one_family {
            inner.id.bind_addr_of_one_family(addr)
        } else {
            inner.id.bind_addr(addr)
        };
        bound.map_err(|error| failure::errno(&error))?;
        refresh(id)
    }
}

/// `rdma_bind_addr`
pub(crate) unsafe extern "C-unwind" fn bind_addr(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
) -> c_int {
    // SAFETY: the program passes an id, and an address.
    entry(-1, || status(unsafe { bind(id, addr) }))
}

/// Resolves the address `to`.
///
/// # Safety
/// The id exists, and addresses have the types for their address families; `from` may be NULL.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    from: *const sockaddr,
    to: *const sockaddr,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let (from, to) = unsafe {
        let from = (!from.is_null()).then(|| address::read(from));
        (from.transpose()?.map(address::unmapped), address::read(to)?)
    };
    let to = address::destination(to_tcp(to)?);
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { id::of(id) };
    // An unspecified address with port 0 means no source address.
    let from = from.filter(|from| !from.ip().is_unspecified() || from.port() != 0);
    // As in the kernel, the source address binds an id that is not bound yet, and is ignored
    // otherwise.
    let from = from.filter(|_| inner.id.state() == CmState::Idle);
    let from = from.map(to_tcp).transpose()?;
    inner
        .id
        .resolve_addr(from, to)
        .map_err(|error| failure::errno(&error))?;
    // SAFETY: guaranteed by the caller.
    unsafe { show_peer(id, to) };
    Ok(())
}

/// `rdma_resolve_addr`: sends no packets, so its event is available immediately.
pub(crate) unsafe extern "C-unwind" fn resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program passes an id, and addresses.
    let begun = entry(-1, || status(unsafe { resolve(id, from, to) }));
    // SAFETY: as above.
    unsafe { sync::complete(id, begun) }
}

/// `rdma_resolve_route`
pub(crate) unsafe extern "C-unwind" fn resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    let begun = entry(-1, || {
        // SAFETY: the program passes an id.
        let route = unsafe { id::of(id) }.id.resolve_route();
        status(route.map_err(|error| failure::errno(&error)))
    });
    // SAFETY: as above.
    unsafe { sync::complete(id, begun) }
}

/// Returns the port of an address in the C structure, in network byte order. Returns 0 if there is
/// no address.
///
/// # Safety
/// `addr` has the type for its address family.
unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: guaranteed by the caller.
    unsafe { address::read(addr) }.map_or(0, |addr| addr.port().to_be())
}

/// `rdma_get_src_port`
pub(crate) unsafe extern "C-unwind" fn get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes an id; its address has the type for its family, or has family 0.
    entry(0, || unsafe {
        port((&raw const (*id).route.addr.__bindgen_anon_1).cast())
    })
}

/// `rdma_get_dst_port`
pub(crate) unsafe extern "C-unwind" fn get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes an id; its address has the type for its family, or has family 0.
    entry(0, || unsafe {
        port((&raw const (*id).route.addr.__bindgen_anon_2).cast())
    })
}
