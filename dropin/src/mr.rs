//! Memory regions (`ibv_mr`), registered in place.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_verbs::{Access, DeregisterError, MemoryRegion, ReregisterError};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_FIRST, IBV_ACCESS_RELAXED_ORDERING,
    IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr, ibv_pd,
};
use crate::object::{Object, check_handle};
use crate::panic_guard::entry;
use crate::users::User;
use crate::{errno, pd};

/// Internal state of an `ibv_mr`, which programs do not see.
pub(crate) struct MrInner {
    handle: u32,
    state: Mutex<State>,
}

struct State {
    /// `None` only during deregistration.
    region: Option<MemoryRegion>,
    access: Access,
    in_pd: User,
}

type MrObject = Object<ibv_mr, MrInner>;

/// Maximum time that deregistration waits until TCP has accepted the region's bytes that are still
/// to be sent, for example while the peer's window is full. (A network card does not wait: requests
/// that are not sent yet fail.)
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two attempts to deregister a busy region.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);

/// Value of `enum ibv_rereg_mr_err_code`: the arguments are invalid.
const IBV_REREG_MR_ERR_INPUT: c_int = -1;
/// Value of `enum ibv_rereg_mr_err_code`: the device refused the change.
const IBV_REREG_MR_ERR_CMD: c_int = -4;

/// Converts access flags; the second result is true for a zero-based region.
///
/// # Errors
/// `EOPNOTSUPP` for flags that this device does not support (on-demand paging, flushing), except
/// those that any device may ignore.
fn rights(access: c_uint) -> Result<(Access, bool), c_int> {
    // Flags that any device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`, bits 20 to 29). The check
    // below also ignores `IBV_ACCESS_HUGETLB`, a hint about pages.
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
/// Returns an `errno` value.
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
    check_mapped(base, length, rights.contains(Access::LOCAL_WRITE))?;
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { pd::by_handle(pd) }?;
    let iova = if zero_based { 0 } else { iova };
    let region = domain.pd.region().access(rights).iova(iova);
    // SAFETY: guaranteed by the caller. Memory of the program has no Rust references to it.
    let region = unsafe { region.in_place(base, length) };
    let region = region.map_err(|error| errno::of_register(&error))?;
    let handle = region.lkey() >> 8;
    let shown = ibv_mr {
        // SAFETY: the domain exists, and the program does not write this field.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle,
        lkey: region.lkey(),
        rkey: region.rkey(),
    };
    let inner = MrInner {
        handle,
        state: Mutex::new(State {
            region: Some(region),
            access: rights,
            in_pd: domain.users.add(),
        }),
    };
    Ok(Object::allocate(shown, inner))
}

/// Checks that memory can be registered, and populates its pages, as a network card's driver does.
/// Without this check a peer could crash the process by an access to pages that are not mapped, or
/// not writable.
///
/// # Errors
/// `EFAULT`, as for `ibv_reg_mr`.
fn check_mapped(base: NonNull<u8>, length: usize, writes: bool) -> Result<(), c_int> {
    /// False on kernels before 5.14, which do not support `MADV_POPULATE_*`.
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let advice = if writes {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    if length == 0 || !*KNOWN.get_or_init(|| populate(NonNull::from(&mut 0_u8), 1, advice)) {
        return Ok(());
    }
    populate(base, length, advice)
        .then_some(())
        .ok_or(libc::EFAULT)
}

/// Asks the kernel to populate the pages of a range. Returns false if it cannot.
fn populate(base: NonNull<u8>, length: usize, advice: c_int) -> bool {
    // SAFETY: no pointers are passed.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let before = base.addr().get() % page;
    let Some(length) = length.checked_add(before) else {
        return false;
    };
    let start = base.as_ptr().wrapping_sub(before).cast();
    loop {
        // SAFETY: the advice changes no byte, and fails for addresses that are not mapped.
        if unsafe { libc::madvise(start, length, advice) } == 0 {
            return true;
        }
        match errno::get() {
            libc::EAGAIN | libc::EINTR => thread::yield_now(),
            _ => return false,
        }
    }
}

/// Returns the internal state of the object to which the program's pointer points.
///
/// # Errors
/// As for [`check_handle`].
///
/// # Safety
/// `mr` is a region that exists during the lifetime of the reference.
unsafe fn by_handle<'a>(mr: *mut ibv_mr) -> Result<&'a MrInner, c_int> {
    // SAFETY: guaranteed by the caller.
    let (inner, shown) = unsafe { (MrObject::inner(mr), (*mr).handle) };
    check_handle(shown, inner.handle).map(|()| inner)
}

/// Destroys a region.
///
/// # Errors
/// As for [`by_handle`]. `EBUSY` while windows are bound to the region, or if TCP does not accept
/// the region's bytes in time. In the second case, peers can no longer access the region, but the
/// connection still reads bytes from it to send them.
///
/// # Safety
/// `mr` is an existing region. After `Ok` it is not used any more.
pub(crate) unsafe fn deregister(mr: *mut ibv_mr) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { by_handle(mr) }?;
    let mut state = inner.state.lock();
    let begun = Instant::now();
    // Revoke the peers' access first. A peer that continues to access the region then cannot delay
    // the call, and has no access even if the program ignores `EBUSY`.
    if let Some(region) = &state.region
        && region.revoke().is_err()
    {
        return Err(libc::EBUSY);
    }
    while let Some(region) = state.region.take() {
        let Err((region, error)) = region.deregister() else {
            break;
        };
        state.region = Some(region);
        if !is_worth_waiting(error, begun) {
            return Err(libc::EBUSY);
        }
        thread::sleep(BUSY_INTERVAL);
    }
    drop(state);
    // SAFETY: guaranteed by the caller.
    drop(unsafe { MrObject::free(mr) });
    Ok(())
}

/// Returns true if the region is busy, and [`BUSY_TIMEOUT`] has not passed since `begun`.
fn is_worth_waiting(error: DeregisterError, begun: Instant) -> bool {
    matches!(error, DeregisterError::Busy { .. }) && begun.elapsed() < BUSY_TIMEOUT
}

/// Attributes that [`reregister`] changes; `None` keeps the old value.
struct Change {
    pd: Option<*mut ibv_pd>,
    memory: Option<(NonNull<u8>, usize)>,
    access: Option<(Access, bool)>,
}

/// Changes attributes of a region. The region gets a new key.
///
/// # Errors
/// As for [`deregister`] and [`register`]; the region is then unchanged.
///
/// # Safety
/// As for [`deregister`] and [`register`].
unsafe fn reregister(mr: *mut ibv_mr, change: &Change) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller.
    let inner = unsafe { by_handle(mr) }?;
    let mut state = inner.state.lock();
    let access = change.access.map_or(state.access, |(access, _)| access);
    // SAFETY: the region exists, and only this call changes its structure.
    let (addr, length) = unsafe { ((*mr).addr, (*mr).length) };
    let old = NonNull::new(addr.cast::<u8>()).map(|base| (base, length));
    if let Some((base, length)) = change.memory.or(old) {
        check_mapped(base, length, access.contains(Access::LOCAL_WRITE))?;
    }
    let begun = Instant::now();
    // SAFETY: guaranteed by the caller.
    let domain = change.pd.map(|pd| unsafe { pd::by_handle(pd) });
    let domain = domain.transpose()?;
    let region = state.region.as_mut().ok_or(libc::EINVAL)?;
    loop {
        let mut anew = region.reregister();
        if let Some((access, zero_based)) = change.access {
            anew = anew.access(access);
            if zero_based {
                anew = anew.zero_based();
            }
        }
        if let Some(domain) = domain {
            anew = anew.pd(&domain.pd);
        }
        let result = match change.memory {
            // SAFETY: guaranteed by the caller.
            Some((base, length)) => unsafe { anew.in_place(base, length) },
            None => anew.apply(),
        };
        match result {
            Ok(()) => break,
            Err(ReregisterError::Old(error)) if is_worth_waiting(error, begun) => {
                thread::sleep(BUSY_INTERVAL);
            }
            Err(ReregisterError::Old(_)) => return Err(libc::EBUSY),
            Err(ReregisterError::New(error)) => return Err(errno::of_register(&error)),
            Err(_) => return Err(libc::EINVAL),
        }
    }
    let key = region.lkey();
    state.access = access;
    if let Some(domain) = domain {
        state.in_pd = domain.users.add();
    }
    // SAFETY: the region exists, and only this call changes its structure.
    unsafe {
        ((*mr).lkey, (*mr).rkey) = (key, key);
        if let Some(pd) = change.pd {
            ((*mr).pd, (*mr).context) = (pd, (*pd).context);
        }
        if let Some((base, length)) = change.memory {
            ((*mr).addr, (*mr).length) = (base.as_ptr().cast(), length);
        }
    }
    Ok(())
}

/// `ibv_rereg_mr`: returns 0, or a negative code that tells the program how far the change got. In
/// this implementation the region is unchanged after every error.
pub(crate) unsafe extern "C-unwind" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    entry(IBV_REREG_MR_ERR_CMD, || {
        let flags = flags.cast_unsigned();
        let bad = |errno| {
            errno::set(errno);
            IBV_REREG_MR_ERR_INPUT
        };
        if flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
            return bad(libc::EINVAL);
        }
        let mut change = Change {
            pd: (flags & IBV_REREG_MR_CHANGE_PD != 0).then_some(pd),
            memory: None,
            access: None,
        };
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            let Some(base) = NonNull::new(addr.cast::<u8>()) else {
                return bad(libc::EINVAL);
            };
            base.as_ptr().expose_provenance();
            change.memory = Some((base, length));
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            match rights(access.cast_unsigned()) {
                Ok(rights) => change.access = Some(rights),
                Err(errno) => return bad(errno),
            }
        }
        if change.pd.is_some_and(<*mut ibv_pd>::is_null) {
            return bad(libc::EINVAL);
        }
        // SAFETY: the program passes existing objects, and memory that stays mapped until
        // `ibv_dereg_mr`.
        match unsafe { reregister(mr, &change) } {
            Ok(()) => 0,
            Err(errno) => {
                errno::set(errno);
                IBV_REREG_MR_ERR_CMD
            }
        }
    })
}

/// `ibv_reg_mr`
pub(crate) unsafe extern "C-unwind" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.expose_provenance() as u64;
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
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
        // SAFETY: the program passes a domain, and memory that stays mapped until `ibv_dereg_mr`.
        errno::pointer(unsafe { register(pd, addr, length, iova, access) })
    })
}

/// `ibv_dereg_mr`
pub(crate) unsafe extern "C-unwind" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a region from one of the functions above.
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
