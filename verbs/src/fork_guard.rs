//! Detection of use after a fork.
//!
//! Threads do not survive a fork, and descriptors are shared after one. Objects that a process
//! created before it forked are therefore unusable in the child. There every call fails with
//! [`Inherited`] before it takes a lock, which a vanished thread may hold. A drop in the child does
//! nothing that the parent could notice: no FIN, no `epoll_ctl`, no change of an eventfd's count,
//! no join. The parent continues, and the child may open devices of its own.
//!
//! No call is needed before a fork. Regions need no `MADV_DONTFORK`, because no hardware writes to
//! them. In the terms of libibverbs this is `IBV_FORK_UNNEEDED`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::mem::wiped_on_fork;

/// The object was created before a `fork()`, and this is the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this object was created before a fork() and belongs to the parent process, where it still works; open a new device in this process"
)]
pub struct Inherited;

/// Identifies the process that created an object. A check costs one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard {
    /// A word that the kernel zeroes in the child. `None` if the kernel cannot do so: `number` is
    /// then the process id.
    word: Option<&'static AtomicU32>,
    number: u32,
}

/// Last number given to a process. A fork copies it, so each process has a larger number than its
/// ancestors.
static LAST: AtomicU32 = AtomicU32::new(0);

impl ForkGuard {
    /// Returns a guard for the current process.
    pub(crate) fn here() -> Self {
        let Some(word) = wiped_on_fork() else {
            return ForkGuard {
                word: None,
                number: std::process::id(),
            };
        };
        let number = match word.load(Ordering::Acquire) {
            0 => {
                let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                match word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => new,
                    Err(other) => other,
                }
            }
            number => number,
        };
        ForkGuard {
            word: Some(word),
            number,
        }
    }

    /// Returns true in the process for which the guard was created.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        match self.word {
            Some(word) => word.load(Ordering::Relaxed) == self.number,
            None => std::process::id() == self.number,
        }
    }

    /// Checks that the guard was created in the current process.
    ///
    /// # Errors
    /// [`Inherited`] in a child process that was forked after the guard was created.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Inherited> {
        if self.is_here() {
            Ok(())
        } else {
            Err(Inherited)
        }
    }
}

/// Number of times that a thread which waits for a [`ForkLock`] only yields the processor.
const YIELDS: u32 = 100;
/// Pause between its further attempts.
const PAUSE: Duration = Duration::from_micros(50);

/// Lock of a static, for short work. A thread of the parent may hold it at a fork. The child, which
/// does not have this thread, takes the lock over.
pub(crate) struct ForkLock {
    /// Number of the process whose thread holds the lock, or 0.
    holder: AtomicU32,
}

/// The lock is held until this is dropped.
pub(crate) struct ForkLockHeld<'a>(&'a ForkLock);

impl ForkLock {
    pub(crate) const fn new() -> Self {
        ForkLock {
            holder: AtomicU32::new(0),
        }
    }

    /// Waits while another thread of this process holds the lock, and takes it.
    pub(crate) fn lock(&self) -> ForkLockHeld<'_> {
        let here = ForkGuard::here().number;
        let take = |holder| (holder != here).then_some(here);
        let mut yields = YIELDS;
        while self
            .holder
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
            .is_err()
        {
            // A yield alone lets no thread of a lower real-time priority run, which may be the
            // holder.
            if yields == 0 {
                std::thread::sleep(PAUSE);
            } else {
                yields -= 1;
                std::thread::yield_now();
            }
        }
        ForkLockHeld(self)
    }
}

impl Drop for ForkLockHeld<'_> {
    fn drop(&mut self) {
        self.0.holder.store(0, Ordering::Release);
    }
}

/// Forks, and returns true if `act` returns true in the child. Fails if the child has not ended
/// after 5 minutes.
///
/// `act` must only call functions that the child of a process with threads may call.
#[cfg(all(test, not(miri)))]
#[expect(unsafe_code, reason = "see the safety comments")]
pub(crate) fn ends_in_child(act: impl FnOnce() -> bool) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_at_home_where_it_began() {
        let (one, other) = (ForkGuard::here(), ForkGuard::here());
        assert_eq!(one.number, other.number);
        assert!(one.is_here() && other.check().is_ok());
    }

    #[test]
    fn one_thread_of_a_process_holds_a_lock_at_a_time() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 2000 };
        static LOCK: ForkLock = ForkLock::new();
        let sum = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _held = LOCK.lock();
                        // Not atomic as a whole.
                        let before = sum.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        sum.store(before + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * ROUNDS);
    }

    #[test]
    fn a_lock_that_another_process_holds_is_taken_over() {
        let lock = ForkLock::new();
        lock.holder.store(u32::MAX, Ordering::Relaxed);
        drop(lock.lock());
        assert_eq!(lock.holder.load(Ordering::Relaxed), 0);
    }
}
