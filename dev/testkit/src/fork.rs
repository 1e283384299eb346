//! Child processes.

use std::time::Duration;

/// Forks, and returns true if `act` returns true in the child.
///
/// `act` must only call functions that the child of a process with threads may call.
///
/// # Panics
/// If the child has not ended after 5 minutes.
#[expect(unsafe_code, reason = "see the safety comments")]
pub fn ends_in_child(act: impl FnOnce() -> bool) -> bool {
    /// Time after which the child hangs, in steps of 10 ms.
    const STEPS: u32 = 30_000;
    // SAFETY: the child calls only `act`, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = if act() { 7 } else { 8 };
        // SAFETY: as above.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: the child is one of this call, and `status` is valid.
    let ended = (0..STEPS).any(|_| unsafe {
        std::thread::sleep(Duration::from_millis(10));
        libc::waitpid(child, &raw mut status, libc::WNOHANG) == child
    });
    if !ended {
        // SAFETY: as above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }
    }
    assert!(ended, "the child waits for ever");
    libc::WEXITSTATUS(status) == 7
}
