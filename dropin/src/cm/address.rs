//! Addresses of ids: own, peer's, and the way between.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
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

/// Shows the addresses that an id has, and the device, once it has an address of that.
///
/// # Errors
/// The `errno`, when there is no device.
///
/// # Safety
/// The id exists, and nobody else writes it.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    let kept = unsafe { id::of(id) };
    let local = kept.id.local_addr();
    if let Some(local) = local {
        // SAFETY: the promise of the caller; the place is that of the greatest address.
        unsafe {
            (&raw mut (*id).route.addr.__bindgen_anon_1)
                .cast::<libc::sockaddr_storage>()
                .write(address::write(shown(local)).0);
        }
    }
    if let Some(peer) = kept.id.peer_addr() {
        // SAFETY: as above.
        unsafe { show_peer(id, peer) };
    }
    // To the kernel a loopback address that is bound is as any (`cma_any_addr`), and libfabric counts on it: a server that names
    // "localhost" is one on every address. Where there is a peer, the device is known.
    let known = |local: SocketAddr| {
        let ip = local.ip().to_canonical();
        !ip.is_unspecified() && (!ip.is_loopback() || kept.id.peer_addr().is_some())
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

/// An address as the program knows it.
fn shown(addr: SocketAddr) -> SocketAddr {
    address::from_tcp(addr, rnic::port_offset())
}

/// The address that the program means.
fn meant(addr: SocketAddr) -> Result<SocketAddr, c_int> {
    address::into_tcp(addr, rnic::port_offset())
}

/// # Safety
/// As [`refresh`].
unsafe fn show_peer(id: *mut rdma_cm_id, peer: SocketAddr) {
    // SAFETY: the promise of the caller; the place is that of the greatest address.
    unsafe {
        (&raw mut (*id).route.addr.__bindgen_anon_2)
            .cast::<libc::sockaddr_storage>()
            .write(address::write(shown(peer)).0);
    }
}

/// Takes a local address.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// The id exists, and an address as its family says.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    unsafe {
        let addr = meant(address::read(addr)?)?;
        let kept = id::of(id);
        let bound = if kept.own.lock().one_family {
            kept.id.bind_addr_of_one_family(addr)
        } else {
            kept.id.bind_addr(addr)
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
    // SAFETY: an id, and an address.
    entry(-1, || status(unsafe { bind(id, addr) }))
}

/// # Safety
/// The id exists, and addresses as their families say; `from` may be NULL.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    from: *const sockaddr,
    to: *const sockaddr,
) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    let (from, to) = unsafe {
        let from = (!from.is_null()).then(|| address::read(from));
        (from.transpose()?.map(address::unmapped), address::read(to)?)
    };
    let to = address::destination(meant(to)?);
    // SAFETY: the promise of the caller.
    let kept = unsafe { id::of(id) };
    // One of all families is no address.
    let from = from.filter(|from| !from.ip().is_unspecified() || from.port() != 0);
    // The kernel binds what is not bound yet, and looks at the source for nothing else.
    let from = from.filter(|_| kept.id.state() == CmState::Idle);
    let from = from.map(meant).transpose()?;
    kept.id
        .resolve_addr(from, to)
        .map_err(|error| failure::errno(&error))?;
    // SAFETY: the promise of the caller.
    unsafe { show_peer(id, to) };
    Ok(())
}

/// `rdma_resolve_addr`: asks nobody, so that there is nothing to wait for.
pub(crate) unsafe extern "C-unwind" fn resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: an id, and addresses.
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
        // SAFETY: an id.
        let route = unsafe { id::of(id) }.id.resolve_route();
        status(route.map_err(|error| failure::errno(&error)))
    });
    // SAFETY: as above.
    unsafe { sync::complete(id, begun) }
}

/// The port of an address that an id shows, in network order; 0 where there is none.
///
/// # Safety
/// An address as its family says.
unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: the promise of the caller.
    unsafe { address::read(addr) }.map_or(0, |addr| addr.port().to_be())
}

/// `rdma_get_src_port`
pub(crate) unsafe extern "C-unwind" fn get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id; its address has a family, or 0.
    entry(0, || unsafe {
        port((&raw const (*id).route.addr.__bindgen_anon_1).cast())
    })
}

/// `rdma_get_dst_port`
pub(crate) unsafe extern "C-unwind" fn get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an id; its address has a family, or 0.
    entry(0, || unsafe {
        port((&raw const (*id).route.addr.__bindgen_anon_2).cast())
    })
}
