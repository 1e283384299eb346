//! Detection of use after a fork.
//!
//! Threads do not survive a fork, and descriptors are shared after one. Objects that a process
//! created before it forked are therefore unusable in the child. There every call fails with
//! [`Inherited`] before it takes a lock, which a vanished thread may hold. A drop in the child does
//! nothing that the parent could notice: no FIN, no `epoll_ctl`, no change of an eventfd's count,
//! no join. The parent continues, and the child may open devices of its own on networks of its own.
//!
//! No call is needed before a fork. Regions need no `MADV_DONTFORK`, because no hardware writes to
//! them. In the terms of libibverbs this is `IBV_FORK_UNNEEDED`.

mod wiped;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::short_wait::ShortWait;
use wiped::wiped_on_fork;

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

/// A value that belongs to the process in which it was wrapped. The accessor is the check, so a
/// method of a handle that forgets the check cannot reach what the handle is for.
///
/// A handle holds its shared part in one of these, checks once a call, and passes the plain
/// reference on.
///
/// ```
/// use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
///
/// struct Counter {
///     shared: ForkGuarded<Vec<u64>>,
/// }
///
/// impl Counter {
///     fn total(&self) -> Result<u64, Inherited> {
///         Ok(self.shared.get()?.iter().sum())
///     }
/// }
///
/// let counter = Counter { shared: ForkGuarded::new(vec![1, 2]) };
/// assert_eq!(counter.total(), Ok(3));
/// ```
///
/// There is no way around the check by accident:
///
/// ```compile_fail,E0599
/// # use uwarp_engine::fork_guard::ForkGuarded;
/// let shared = ForkGuarded::new(vec![1, 2]);
/// let total: u64 = shared.iter().sum();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ForkGuarded<T> {
    value: T,
    guard: ForkGuard,
}

impl<T> ForkGuarded<T> {
    /// Wraps a value of the current process.
    pub fn new(value: T) -> Self {
        ForkGuarded {
            value,
            guard: ForkGuard::here(),
        }
    }

    /// Wraps another value of the process that this one belongs to.
    pub fn with<U>(&self, value: U) -> ForkGuarded<U> {
        ForkGuarded {
            value,
            guard: self.guard,
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// [`Inherited`] in a child process that was forked after the value was wrapped.
    #[inline]
    pub fn get(&self) -> Result<&T, Inherited> {
        self.guard.check()?;
        Ok(&self.value)
    }

    /// Returns the value, or `None` in a child process that was forked after it was wrapped. For
    /// drops, and for calls that do nothing there.
    #[inline]
    pub fn here(&self) -> Option<&T> {
        self.get().ok()
    }

    /// Returns the value without a check. Only for what a child may do with an inherited object:
    /// read what never changes (a number, a setting, a descriptor), compare, and drop. It must take
    /// no lock.
    #[inline]
    pub fn unguarded(&self) -> &T {
        &self.value
    }
}

impl<T> ForkGuarded<Arc<T>> {
    /// Returns the value like [`here`](Self::here), for a drop. In the child it leaks a reference,
    /// so that the value, which the parent still uses, is never dropped there.
    pub fn here_or_leak(&self) -> Option<&Arc<T>> {
        let here = self.here();
        if here.is_none() {
            std::mem::forget(Arc::clone(&self.value));
        }
        here
    }
}

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
        let mut wait = ShortWait::default();
        while self
            .holder
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
            .is_err()
        {
            wait.pause();
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
    use std::sync::LazyLock;

    use super::*;

    #[test]
    fn a_process_is_at_home_where_it_began() {
        let (one, other) = (ForkGuard::here(), ForkGuard::here());
        assert_eq!(one.number, other.number);
        assert!(one.is_here() && other.check().is_ok());
    }

    #[test]
    fn a_guarded_value_is_reached_only_in_its_process_and_not_dropped_elsewhere() {
        // In a static, so that the leaked reference is no leak to Miri.
        static VALUE: LazyLock<Arc<u32>> = LazyLock::new(|| Arc::new(7));
        let here = ForkGuarded::new(Arc::clone(&VALUE));
        assert_eq!(here.get(), Ok(&*VALUE));
        assert!(here.here().is_some() && here.here_or_leak().is_some());
        let inherited = ForkGuarded {
            guard: ForkGuard {
                number: here.guard.number + 1,
                ..here.guard
            },
            ..here
        };
        assert_eq!(inherited.get(), Err(Inherited));
        assert_eq!(inherited.with(8).here(), None);
        assert_eq!(inherited.unguarded(), &*VALUE);
        assert_eq!(Arc::strong_count(&VALUE), 2);
        assert_eq!(inherited.here_or_leak(), None);
        drop(inherited);
        assert_eq!(Arc::strong_count(&VALUE), 2);
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
