//! Address handles (`ibv_ah`): the way of a datagram to a host.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::{mem, ptr};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use uwarp_verbs::DatagramPath;

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_wc};
use crate::context::Context;
use crate::object::{Object, check_handle};
use crate::panic_guard::entry;
use crate::persona::Persona;
use crate::qp::pair::path;
use crate::rnic::warn;
use crate::users::User;
use crate::{errno, pd};

/// Number of bytes of a Global Route Header (`ibv_grh`).
const GRH: usize = 40;

/// Internal state of an `ibv_ah`, which programs do not see.
pub(crate) struct AhInner {
    handle: u32,
    pub(crate) path: DatagramPath,
    _in_pd: User,
}

type AhObject = Object<ibv_ah, AhInner>;

/// Number (`handle`) of the next address handle.
static HANDLE: AtomicU32 = AtomicU32::new(1);

/// Creates a handle.
///
/// # Errors
/// Returns an `errno` value: `EOPNOTSUPP` on an iWARP device, and `EINVAL` without a GRH, as on
/// RoCE.
///
/// # Safety
/// `pd` is an existing domain.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    // SAFETY: guaranteed by the caller; the program does not write this field.
    let (domain, pointer) = unsafe { (pd::by_handle(pd)?, (*pd).context) };
    // SAFETY: the context of a domain exists as long as the domain.
    let context = unsafe { Context::of(pointer) };
    if context.persona() == Persona::Iwarp {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.is_global == 0 {
        return Err(libc::EINVAL);
    }
    let found = path(context.gids(), attr);
    let (local, peer) = found.map_err(|(errno, words)| {
        warn(format_args!("ibv_create_ah was refused: {words}"));
        errno
    })?;
    let way = context.device().datagram_path(local, peer);
    let path = way.map_err(|error| {
        warn(format_args!("ibv_create_ah was refused: {error}"));
        libc::EHOSTUNREACH
    })?;
    let path = path.with_traffic_class(attr.grh.traffic_class);
    let handle = HANDLE.fetch_add(1, Ordering::Relaxed);
    let shown = ibv_ah {
        context: pointer,
        pd,
        handle,
    };
    let inner = AhInner {
        handle,
        path,
        _in_pd: domain.users.add(),
    };
    Ok(AhObject::allocate(shown, inner))
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Safety
/// `ah` is a handle that exists during the lifetime of the reference.
pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a AhInner {
    // SAFETY: guaranteed by the caller.
    unsafe { AhObject::inner(ah) }
}

/// Destroys a handle.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// As for [`of`]. After `Ok` the handle is not used any more.
unsafe fn destroy(ah: *mut ibv_ah) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (of(ah), (*ah).handle) };
    check_handle(shown, inner.handle)?;
    // SAFETY: guaranteed by the caller.
    drop(unsafe { AhObject::free(ah) });
    Ok(())
}

/// `ibv_create_ah`
pub(crate) unsafe extern "C-unwind" fn create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an existing domain, and a structure.
        errno::pointer(unsafe { create(pd, &*attr) })
    })
}

/// `ibv_destroy_ah`
pub(crate) unsafe extern "C-unwind" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    entry(libc::EIO, || {
        if ah.is_null() {
            // A device without handles has returned NULL for one.
            return errno::status(Err(libc::EOPNOTSUPP));
        }
        // SAFETY: the program passes a handle from `ibv_create_ah`.
        errno::status(unsafe { destroy(ah) })
    })
}

/// `ibv_init_ah_from_wc`
pub(crate) unsafe extern "C-unwind" fn init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH],
    attr: *mut ibv_ah_attr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an open context, and structures.
        let made = unsafe { answer(Context::of(context), port_num, &*wc, grh) };
        errno::status(made.map(|made| {
            // SAFETY: the program passes memory for a structure.
            unsafe { attr.write(made) };
        }))
    })
}

/// `ibv_create_ah_from_wc`
pub(crate) unsafe extern "C-unwind" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH],
    port_num: u8,
) -> *mut ibv_ah {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes an existing domain, whose context is open, and structures.
        let made = unsafe {
            answer(Context::of((*pd).context), port_num, &*wc, grh)
                .and_then(|attr| create(pd, &attr))
        };
        errno::pointer(made)
    })
}

/// Returns the attributes of a handle for an answer to the sender of a received datagram.
///
/// # Errors
/// Returns an `errno` value: `EINVAL` if the address that the datagram was sent to is not in the
/// GID table.
///
/// # Safety
/// If `wc` has the flag of a GRH, `grh` points to 40 bytes.
unsafe fn answer(
    context: &Context,
    port_num: u8,
    wc: &ibv_wc,
    grh: *const [u8; GRH],
) -> Result<ibv_ah_attr, c_int> {
    if context.persona() == Persona::Iwarp {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut attr: ibv_ah_attr = unsafe { mem::zeroed() };
    (attr.dlid, attr.sl) = (wc.slid, wc.sl);
    (attr.src_path_bits, attr.port_num) = (wc.dlid_path_bits, port_num);
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: guaranteed by the caller.
    let grh = Grh::parse(unsafe { &*grh }).ok_or(libc::EINVAL)?;
    let own = grh.to.octets();
    let index = context.gids().iter().position(|entry| entry.gid.0 == own);
    let index = index.and_then(|index| u8::try_from(index).ok());
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid {
        raw: grh.from.octets(),
    };
    attr.grh.sgid_index = index.ok_or(libc::EINVAL)?;
    attr.grh.hop_limit = grh.hop_limit;
    attr.grh.traffic_class = grh.traffic_class;
    attr.grh.flow_label = grh.flow_label;
    Ok(attr)
}

/// Fields of a Global Route Header.
#[derive(PartialEq, Eq, Debug)]
struct Grh {
    from: Ipv6Addr,
    to: Ipv6Addr,
    hop_limit: u8,
    traffic_class: u8,
    flow_label: u32,
}

impl Grh {
    /// Reads a header. As in libibverbs, bytes 20 to 39 with the checksum of an IPv4 header are
    /// one. `None` if it is of neither version.
    fn parse(grh: &[u8; GRH]) -> Option<Grh> {
        let (_, v4) = grh.split_at(20);
        if v4[0] == 0x45 && ones_complement_sum(v4) == 0xFFFF {
            let addr = |at: usize| {
                Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]).to_ipv6_mapped()
            };
            return Some(Grh {
                from: addr(12),
                to: addr(16),
                hop_limit: v4[8],
                traffic_class: v4[1],
                flow_label: 0,
            });
        }
        let first = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
        if first >> 28 != 6 {
            return None;
        }
        let addr = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&grh[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        Some(Grh {
            from: addr(8),
            to: addr(24),
            hop_limit: grh[7],
            // Eight bits after the version.
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0x000F_FFFF,
        })
    }
}

/// Returns the sum of an IPv4 header with its checksum, which is 0xFFFF if the checksum is right
/// (RFC 791 section 3.1).
fn ones_complement_sum(header: &[u8]) -> u32 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    (sum & 0xFFFF) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_the_checksum_of_ipv4_is_one_and_otherwise_its_version_counts() {
        let mut grh = [0; GRH];
        // The example of RFC 1071's algorithm: 192.0.2.1 to 192.0.2.2, 184 bytes.
        grh[20..].copy_from_slice(&[
            0x45, 7, 0, 184, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
        ]);
        let sum = ones_complement_sum(&grh[20..]);
        grh[30..32].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        let found = Grh::parse(&grh).unwrap();
        assert_eq!(found.from, "::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(found.to, "::ffff:192.0.2.2".parse::<Ipv6Addr>().unwrap());
        assert_eq!((found.hop_limit, found.traffic_class), (64, 7));
        // Another checksum, and no version 6 at the start.
        grh[30] ^= 1;
        assert_eq!(Grh::parse(&grh), None);
        // The bytes of an IPv6 header may look like an IPv4 header.
        grh[..4].copy_from_slice(&[0x6A, 0xB1, 0x23, 0x45]);
        grh[7] = 9;
        let found = Grh::parse(&grh).unwrap();
        assert_eq!(found.traffic_class, 0xAB);
        assert_eq!((found.flow_label, found.hop_limit), (0x12345, 9));
    }
}
