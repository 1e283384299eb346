//! The boundary to C: no panic of this library goes through frames of the program, and no cancellation of a thread through ours.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cancel::Held;
use crate::errno;

/// Runs an entry. A panic, which is a fault of this library, has been told on standard error by then; the program gets `failed`, and
/// `EIO` as `errno`.
///
/// The thread is not cancelled in it (`pthread_cancel` unwinds the frames, which nobody may catch): calls that block do so outside
/// (`cancel.rs`).
pub(crate) fn entry<R>(failed: R, run: impl FnOnce() -> R) -> R {
    let _held = Held::new();
    quick(failed, run)
}

/// The same for the data path, where two calls more would be felt: for functions that make no system call of the C library at which
/// a thread could be cancelled (`uncancelled.rs` has those that others make for them).
pub(crate) fn quick<R>(failed: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        errno::set(libc::EIO);
        failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_an_entry_is_an_error_of_the_call() {
        // Told on standard error, as every panic is.
        let fault = || -> i32 { panic!("on purpose") };
        let errno = || std::io::Error::last_os_error().raw_os_error();
        errno::set(0);
        assert_eq!(entry(-1, fault), -1);
        assert_eq!(errno(), Some(libc::EIO));
        errno::set(0);
        assert_eq!(quick(-1, fault), -1);
        assert_eq!(errno(), Some(libc::EIO));
        assert_eq!((entry(-1, || 7), quick(-1, || 7)), (7, 7));
    }
}
