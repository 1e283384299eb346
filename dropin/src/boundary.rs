//! The boundary to C: no panic of this library goes through frames of the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno;

/// Runs an entry. A panic, which is a fault of this library, has been told on standard error by then; the program gets `failed`, and
/// `EIO` as `errno`.
///
/// Nothing in it may be a point where a thread is cancelled (`pthread_cancel` unwinds the frames, which nobody may catch): calls
/// that block do so outside (`cancel.rs`).
pub(crate) fn entry<R>(failed: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        errno::set(libc::EIO);
        failed
    })
}
