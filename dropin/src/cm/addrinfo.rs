//! Address lookup (`rdma_getaddrinfo`), with the C library's `getaddrinfo`.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_char, c_int, c_void};
use core::{mem, ptr};

use libc::{addrinfo, sockaddr, socklen_t};

use super::status;
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RAI_NUMERICHOST,
    RAI_PASSIVE, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
};
use crate::panic_guard::entry;

/// `AF_IB`, which the C library does not define.
const AF_IB: c_int = 27;

/// Copies bytes to memory from `malloc`, because some programs free this memory, or replace it by
/// their own. Returns NULL if there is no memory.
unsafe fn copied(from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the call takes only a number.
    let to = unsafe { libc::malloc(len.max(1)) };
    if !to.is_null() {
        // SAFETY: guaranteed by the caller for `from`; `to` was allocated with this length.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len) };
    }
    to
}

/// Copies an address to new memory. Does nothing if there is no address.
///
/// # Safety
/// `from` has `len` bytes.
unsafe fn copy_addr(
    from: *const sockaddr,
    len: socklen_t,
    to: &mut *mut sockaddr,
    to_len: &mut socklen_t,
) -> Result<(), c_int> {
    if from.is_null() || len == 0 {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    *to = unsafe { copied(from.cast(), len as usize) }.cast();
    if to.is_null() {
        return Err(libc::ENOMEM);
    }
    *to_len = len;
    Ok(())
}

/// Converts the hints to those of the C library.
fn asked(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut out: addrinfo = unsafe { mem::zeroed() };
    let flags = hints.ai_flags.cast_unsigned();
    if flags & RAI_PASSIVE != 0 {
        out.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        out.ai_flags |= libc::AI_NUMERICHOST;
    }
    // `AF_IB` is InfiniBand's own family. IP addresses of any family are returned for it.
    out.ai_family = match hints.ai_family {
        AF_IB => libc::AF_UNSPEC,
        family => family,
    };
    out.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    out.ai_protocol = match hints.ai_port_space.cast_unsigned() {
        RDMA_PS_TCP => libc::IPPROTO_TCP,
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    out
}

/// Stores the address that the C library found, and the attributes. Attributes that the hints leave
/// open follow from the type of the socket.
///
/// # Safety
/// `found` is a result of `getaddrinfo`.
unsafe fn take(
    found: &addrinfo,
    hints: &rdma_addrinfo,
    out: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let given = |hint: c_int, stream: u32, datagram: u32| match (hint, found.ai_socktype) {
        (hint, _) if hint != 0 => hint,
        (_, libc::SOCK_STREAM) => stream.cast_signed(),
        (_, libc::SOCK_DGRAM) => datagram.cast_signed(),
        _ => 0,
    };
    out.ai_qp_type = given(hints.ai_qp_type, IBV_QPT_RC, IBV_QPT_UD);
    out.ai_port_space = given(hints.ai_port_space, RDMA_PS_TCP, RDMA_PS_UDP);
    out.ai_family = found.ai_family;
    let passive = hints.ai_flags.cast_unsigned() & RAI_PASSIVE != 0;
    let (addr, len, name) = if passive {
        out.ai_flags = RAI_PASSIVE.cast_signed();
        (
            &mut out.ai_src_addr,
            &mut out.ai_src_len,
            &mut out.ai_src_canonname,
        )
    } else {
        (
            &mut out.ai_dst_addr,
            &mut out.ai_dst_len,
            &mut out.ai_dst_canonname,
        )
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !found.ai_canonname.is_null() {
            *name = libc::strdup(found.ai_canonname);
        }
        copy_addr(found.ai_addr, found.ai_addrlen, addr, len)
    }
}

/// Reason of a failed call.
enum Failed {
    /// Error code of the C library's `getaddrinfo`, which the call returns.
    Lookup(c_int),
    /// Value for `errno`; the call returns -1.
    Errno(c_int),
}

/// Looks up an address and fills `out`.
///
/// # Safety
/// As for `rdma_getaddrinfo`.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    hinted: bool,
    out: &mut rdma_addrinfo,
) -> Result<(), Failed> {
    if node.is_null() && service.is_null() {
        out.ai_flags = hints.ai_flags;
        out.ai_family = hints.ai_family;
        out.ai_qp_type = hints.ai_qp_type;
        out.ai_port_space = hints.ai_port_space;
        let (from, len) = (hints.ai_dst_addr, hints.ai_dst_len);
        // SAFETY: guaranteed by the caller.
        unsafe { copy_addr(from, len, &mut out.ai_dst_addr, &mut out.ai_dst_len) }
            .map_err(Failed::Errno)?;
    } else {
        let asked = asked(hints);
        let asked = if hinted {
            &raw const asked
        } else {
            ptr::null()
        };
        let mut found = ptr::null_mut();
        // SAFETY: guaranteed by the caller.
        let failed = unsafe { libc::getaddrinfo(node, service, asked, &raw mut found) };
        if failed != 0 {
            return Err(Failed::Lookup(failed));
        }
        // SAFETY: the call succeeded, so that there is a result.
        let taken = unsafe { take(&*found, hints, out) };
        // SAFETY: as above, and the result is not used any more.
        unsafe { libc::freeaddrinfo(found) };
        taken.map_err(Failed::Errno)?;
    }
    if out.ai_src_len == 0 {
        let (from, len) = (hints.ai_src_addr, hints.ai_src_len);
        // SAFETY: guaranteed by the caller.
        unsafe { copy_addr(from, len, &mut out.ai_src_addr, &mut out.ai_src_len) }
            .map_err(Failed::Errno)?;
    }
    Ok(())
}

/// `rdma_getaddrinfo`
pub(crate) unsafe extern "C-unwind" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    entry(-1, || {
        if node.is_null() && service.is_null() && hints.is_null() {
            return status(Err(libc::EINVAL));
        }
        // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
        let none: rdma_addrinfo = unsafe { mem::zeroed() };
        // SAFETY: the program passes hints, if any.
        let given = unsafe { hints.as_ref() };
        // SAFETY: the call takes numbers. The zeroed memory is a valid structure, which has only
        // numbers and pointers.
        let made: *mut rdma_addrinfo =
            unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
        if made.is_null() {
            return status(Err(libc::ENOMEM));
        }
        let hints = given.unwrap_or(&none);
        // SAFETY: the structure was just allocated; the names are the program's.
        match unsafe { look_up(node, service, hints, given.is_some(), &mut *made) } {
            Ok(()) => {
                // SAFETY: the program passes memory for a pointer.
                unsafe { out.write(made) };
                0
            }
            Err(failed) => {
                // SAFETY: the structure is not shared.
                unsafe { free(made) };
                match failed {
                    Failed::Lookup(number) => number,
                    Failed::Errno(errno) => status(Err(errno)),
                }
            }
        }
    })
}

/// Frees a list with all its parts.
///
/// # Safety
/// `list` is from [`getaddrinfo`]; the program may have replaced its pointers by memory from
/// `malloc`.
unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let one = list;
            list = (*one).ai_next;
            let parts: [*mut c_void; 6] = [
                (*one).ai_connect,
                (*one).ai_route,
                (*one).ai_src_canonname.cast(),
                (*one).ai_dst_canonname.cast(),
                (*one).ai_src_addr.cast(),
                (*one).ai_dst_addr.cast(),
            ];
            for part in parts {
                libc::free(part);
            }
            libc::free(one.cast());
        }
    }
}

/// `rdma_freeaddrinfo`
pub(crate) unsafe extern "C-unwind" fn freeaddrinfo(list: *mut rdma_addrinfo) {
    // SAFETY: the program passes a result of `rdma_getaddrinfo`, or NULL.
    unsafe { free(list) };
}
