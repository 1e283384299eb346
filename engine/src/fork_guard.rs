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
pub struct ForkGuard {
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
    pub fn here() -> Self {
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
    pub fn is_here(&self) -> bool {
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
    pub fn check(&self) -> Result<(), Inherited> {
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
#[derive(Default)]
pub struct ForkLock {
    /// Number of the process whose thread holds the lock, or 0.
    holder: AtomicU32,
}

/// The lock is held until this is dropped.
pub struct ForkLockHeld<'a>(&'a ForkLock);

impl ForkLock {
    /// Creates a lock that nobody holds.
    pub const fn new() -> Self {
        ForkLock {
            holder: AtomicU32::new(0),
        }
    }

    /// Waits while another thread of this process holds the lock, and takes it.
    pub fn lock(&self) -> ForkLockHeld<'_> {
        let here = ForkGuard::here().number;
        let take = |holder| (holder != here).then_some(here);
        let mut yields = YIELDS;
        while self
            .holder
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
            .is_err()
        {
            if yields == 0 {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a yield alone lets no thread of a lower real-time priority run, \
                              which may be the holder"
                )]
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
