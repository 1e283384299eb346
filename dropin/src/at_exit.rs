//! Functions that run when the process exits by `exit` or by the end of `main`.
#![expect(unsafe_code, reason = "a function of the C library")]

/// Runs a function at exit. Children of a fork inherit it. Without memory for the entry it does not
/// run.
pub(crate) fn at_exit(run: extern "C" fn()) {
    // SAFETY: this library is never unloaded, so the function exists at exit.
    unsafe { libc::atexit(run) };
}
