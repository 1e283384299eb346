//! Memory regions (`ibv_mr`): registration in place.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_verbs::{Access, DeregisterError, MemoryRegion};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_FIRST, IBV_ACCESS_RELAXED_ORDERING,
    IBV_ACCESS_ZERO_BASED, ibv_mr, ibv_pd,
};
use crate::boundary::entry;
use crate::object::Object;
use crate::users::User;
use crate::{errno, pd};

/// What is behind an `ibv_mr`.
pub(crate) struct MrKept {
    /// `None` only while it is being registered anew or deregistered.
    region: Mutex<Option<MemoryRegion>>,
    _in_pd: User,
}

type MrObject = Object<ibv_mr, MrKept>;

/// How long deregistration waits for octets that the network still has to take out of the region. A network card takes them at
/// once; here the peer has to make room for them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);

/// Rights as the verbs have them, and whether the region counts from 0.
///
/// # Errors
/// `EOPNOTSUPP` for what this device has not (on-demand paging, flushing), unless the flag is one that any device may ignore.
fn rights(access: c_uint) -> Result<(Access, bool), c_int> {
    // Flags that any device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`, 20 to 29), and a hint about pages.
    const OPTIONAL: u32 = 0x3FF0_0000;
    const _: () = assert!(OPTIONAL & IBV_ACCESS_RELAXED_ORDERING == IBV_ACCESS_OPTIONAL_FIRST);
    let (rights, rest) = Access::from_bits(access);
    if rest & !(OPTIONAL | IBV_ACCESS_HUGETLB | IBV_ACCESS_ZERO_BASED) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok((rights, rest & IBV_ACCESS_ZERO_BASED != 0))
}

/// Registers memory.
///
/// # Errors
/// The `errno`.
///
/// # Safety
/// `pd` is a domain; the memory stays mapped until the region is deregistered.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    let (rights, zero_based) = rights(access)?;
    let base = NonNull::new(addr.cast::<u8>()).ok_or(libc::EINVAL)?;
    // SAFETY: the promise of the caller.
    let domain = unsafe { pd::of(pd) };
    let iova = if zero_based { 0 } else { iova };
    let region = domain.pd.region().access(rights).iova(iova);
    // SAFETY: the promise of the caller. The program's side has no references of Rust into it.
    let region = unsafe { region.in_place(base, length) };
    let region = region.map_err(|error| errno::of_register(&error))?;
    let shown = ibv_mr {
        // SAFETY: the domain's structure, which the program does not write.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: region.lkey() >> 8,
        lkey: region.lkey(),
        rkey: region.rkey(),
    };
    let kept = MrKept {
        region: Mutex::new(Some(region)),
        _in_pd: domain.users.add(),
    };
    Ok(Object::begin(shown, kept))
}

/// Ends a region.
///
/// # Errors
/// `EBUSY` while windows are bound to it, or the network does not take octets out of it in time.
///
/// # Safety
/// `mr` is a region that exists, and is not used any more with `Ok`.
pub(crate) unsafe fn deregister(mr: *mut ibv_mr) -> Result<(), c_int> {
    // SAFETY: the promise of the caller.
    let kept = unsafe { MrObject::kept(mr) };
    let mut held = kept.region.lock();
    let begun = Instant::now();
    while let Some(region) = held.take() {
        let Err((region, error)) = region.deregister() else {
            break;
        };
        *held = Some(region);
        let waits = matches!(error, DeregisterError::Busy { .. }) && begun.elapsed() < PATIENCE;
        if !waits {
            return Err(libc::EBUSY);
        }
        thread::sleep(LOOK);
    }
    drop(held);
    // SAFETY: the promise of the caller.
    drop(unsafe { MrObject::end(mr) });
    Ok(())
}

/// `ibv_reg_mr`
pub(crate) unsafe extern "C-unwind" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.expose_provenance() as u64;
    // SAFETY: the caller's promises.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova`
pub(crate) unsafe extern "C-unwind" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promises.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova2`
pub(crate) unsafe extern "C-unwind" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    entry(ptr::null_mut(), || {
        // SAFETY: a domain, and memory that stays until `ibv_dereg_mr`.
        errno::pointer(unsafe { register(pd, addr, length, iova, access) })
    })
}

/// `ibv_dereg_mr`
pub(crate) unsafe extern "C-unwind" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: a region that one of the functions above gave.
        errno::status(unsafe { deregister(mr) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ON_DEMAND};

    #[test]
    fn rights_that_any_device_may_ignore_are_ignored_and_others_refused() {
        let optional = IBV_ACCESS_RELAXED_ORDERING | 1 << 29;
        let all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
        assert_eq!(rights(all | optional), Ok((Access::LOCAL_WRITE, true)));
        assert_eq!(rights(IBV_ACCESS_ON_DEMAND), Err(libc::EOPNOTSUPP));
        assert_eq!(rights(1 << 30), Err(libc::EOPNOTSUPP));
    }
}
