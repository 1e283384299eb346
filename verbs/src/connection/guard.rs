//! Lock of a QP, and the notifications after its release.
//!
//! Any work done under the lock may complete work requests and change the connection's state. The
//! thread that did it wakes the waiting tasks, but only after it has released the lock, because a
//! waker runs foreign code.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;

use super::inner::Locked;

/// Observer that is notified after each release of a QP's lock.
pub(crate) trait Watcher: Send + Sync {
    /// Called while the thread holds no lock. `changed`: the state of the connection may have
    /// changed. The CQs may have new completions in any case.
    fn unlocked(&self, changed: bool);
}

/// Notifications that wait for the release of a QP's lock. A watcher is set only if tasks use the
/// QP.
#[derive(Default)]
pub(super) struct Notifications {
    watcher: OnceLock<Arc<dyn Watcher>>,
    changed: AtomicBool,
}

impl Notifications {
    /// Sets the watcher, of which a QP has at most one.
    pub(crate) fn set(&self, watcher: Arc<dyn Watcher>) {
        let _ = self.watcher.set(watcher);
    }

    /// Returns true if there is a watcher.
    pub(crate) fn is_set(&self) -> bool {
        self.watcher.get().is_some()
    }

    /// Records that the state of the connection may have changed. Called under the lock.
    pub(crate) fn changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    fn unlocked(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unlocked(self.changed.swap(false, Ordering::AcqRel));
        }
    }
}

/// Guard of a QP's lock. The thread may hold no other lock when it drops the guard, because
/// dropping it wakes tasks. The exceptions are the buffer of a port for datagrams and the list of
/// orphan polling, for which no thread waits.
pub(crate) struct QpGuard<'a> {
    // Fields are dropped in the order of their declaration.
    pub(crate) locked: MutexGuard<'a, Locked>,
    _after_unlock: AfterUnlock<'a>,
}

/// Runs the notifications when it is dropped, after the lock has been released.
struct AfterUnlock<'a>(&'a Notifications);

impl<'a> QpGuard<'a> {
    pub(super) fn new(locked: MutexGuard<'a, Locked>, notifications: &'a Notifications) -> Self {
        QpGuard {
            locked,
            _after_unlock: AfterUnlock(notifications),
        }
    }
}

impl Deref for QpGuard<'_> {
    type Target = Locked;

    fn deref(&self) -> &Locked {
        &self.locked
    }
}

impl DerefMut for QpGuard<'_> {
    fn deref_mut(&mut self) -> &mut Locked {
        &mut self.locked
    }
}

impl Drop for AfterUnlock<'_> {
    fn drop(&mut self) {
        self.0.unlocked();
    }
}
