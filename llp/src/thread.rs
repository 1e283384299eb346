//! Threads that this library starts. The program's signals are never delivered to them.
#![expect(
    unsafe_code,
    reason = "calls of the C library that have no safe wrapper"
)]

use std::io;
use std::mem::MaybeUninit;
use std::thread::JoinHandle;

/// Signals that a thread raises by its own faults. If they were blocked, the kernel would end the
/// process without calling the program's handler.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Starts a thread that blocks all signals except those of its own faults.
///
/// Signals to the process are for the program's threads. A program may block a signal in all its
/// own threads, to read it from a descriptor (`signalfd`) or to wait for it. If a thread of this
/// library did not block it, the kernel would deliver the signal there, and its default action
/// could end the process.
///
/// # Errors
/// Errors of the system.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut blocked = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the first call fills the set. The others change it by signal numbers, and write the
    // previous mask. They fail only for invalid numbers.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
    }
    // The new thread inherits the mask of the calling thread.
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    // SAFETY: `pthread_sigmask` wrote `before` above; a null pointer requests no previous mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signals that the calling thread blocks, as bits.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_of_the_library_takes_no_signals_but_faults_and_its_starter_has_those_it_had() {
        let before = blocked();
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn("one-of-ours", move || send.send(blocked()).unwrap()).unwrap();
        let is_blocked = |mask: u64, signal: libc::c_int| mask >> (signal - 1) & 1 == 1;
        let mask = receive.recv().unwrap();
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGUSR2,
            libc::SIGCHLD,
            libc::SIGRTMAX(),
        ] {
            assert!(is_blocked(mask, signal), "{signal} in {mask:x}");
        }
        for fault in FAULTS {
            assert!(!is_blocked(mask, fault), "{fault} in {mask:x}");
        }
        assert_eq!(blocked(), before);
        thread.join().unwrap();
    }
}
