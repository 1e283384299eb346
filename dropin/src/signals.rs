//! Effect of a signal on a call that waits. After a handler with `SA_RESTART` the call continues,
//! as the system calls of rdma-core do. Any other handler ends the call with `EINTR`. `poll`, which
//! this library waits with, fails with `EINTR` in both cases.
#![expect(unsafe_code, reason = "functions of the C library")]

use core::ffi::c_int;
use core::mem;
use core::ptr;

use libc::sigaction;

/// Signals that result from an instruction of the thread itself, and so cannot interrupt a wait.
const FAULTS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// Returns true if every handler of the program has `SA_RESTART`. All handlers are checked, because
/// the system does not report which one has just run.
pub(crate) fn all_restart() -> bool {
    (1..=libc::SIGRTMAX())
        .filter(|signal| !FAULTS.contains(signal))
        .all(|signal| handler(signal).is_none_or(|action| restarts(&action)))
}

/// Returns the handler of a signal, or `None` if the program has set none.
fn handler(signal: c_int) -> Option<sigaction> {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut action: sigaction = unsafe { mem::zeroed() };
    // SAFETY: the call writes only the structure, and changes no handler. It refuses signals that
    // the C library reserves.
    let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
    let own = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    (known && own).then_some(action)
}

fn restarts(action: &sigaction) -> bool {
    action.sa_flags & libc::SA_RESTART != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_signal: c_int) {}

    /// Sets the handler of a signal that nothing else in this process uses.
    fn set(flags: c_int) {
        // SAFETY: the handler does nothing.
        unsafe {
            let mut action: sigaction = mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(
                libc::sigaction(libc::SIGRTMAX(), &raw const action, ptr::null_mut()),
                0
            );
        }
    }

    #[test]
    fn one_handler_that_does_not_restart_ends_calls() {
        assert!(all_restart());
        set(libc::SA_RESTART);
        assert!(handler(libc::SIGRTMAX()).is_some());
        assert!(all_restart());
        set(0);
        assert!(!all_restart());
        set(libc::SA_RESTART);
    }
}
