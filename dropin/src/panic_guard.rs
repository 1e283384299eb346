//! Boundary to C. A panic of this library does not unwind into frames of the program, and a
//! cancellation of a thread does not unwind frames of this library.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cancel::Deferred;
use crate::errno;

/// Runs an entry point. After a panic, returns `failed` and sets `errno` to `EIO`. A panic is a bug
/// of this library; Rust has already printed it on standard error.
///
/// A cancellation of the thread (`pthread_cancel`) waits until `run` has returned, because a
/// cancellation unwinds the frames and must not be caught. Calls that block do so outside of this
/// function (`cancel.rs`).
pub(crate) fn entry<R>(failed: R, run: impl FnOnce() -> R) -> R {
    let _deferred = Deferred::new();
    quick(failed, run)
}

/// As [`entry`], but does not defer a cancellation: on the data path, the two C library calls for
/// deferring it would cost too much. So `run` must not call functions of the C library that are
/// cancellation points. `uncancelled.rs` replaces those that the standard library calls.
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
        // The panic is printed on standard error, as every panic.
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
