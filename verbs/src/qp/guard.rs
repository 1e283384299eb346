//! The lock of a QP, and what follows when it is released.
//!
//! Whatever is done under the lock may complete work requests and change the connection's state. Tasks that wait
//! for that are woken by whoever did it, after the lock is gone: a waker is somebody else's code.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::inner::Locked;
use crate::trace;

/// Told whenever the lock of a QP was released.
pub(crate) trait Watcher: Send + Sync {
    /// No lock is held. `changed`: the state of the connection may be another one. Look at the CQs, too.
    fn unlocked(&self, changed: bool);
}

/// Who watches a QP; nobody does unless it is used by tasks.
#[derive(Default)]
pub(super) struct Watched {
    watcher: OnceLock<Arc<dyn Watcher>>,
    changed: AtomicBool,
    /// What standard error did not take at once, of a trace. There is one end for a connection.
    unsaid: Mutex<Option<String>>,
    has_unsaid: AtomicBool,
}

impl Watched {
    /// From now on `watcher` is told. There is one for a QP.
    pub(super) fn set(&self, watcher: Arc<dyn Watcher>) {
        let _ = self.watcher.set(watcher);
    }

    /// Whether there is somebody to tell.
    pub(super) fn is_set(&self) -> bool {
        self.watcher.get().is_some()
    }

    /// The state of the connection may have changed. Called under the lock.
    pub(super) fn changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// Has whoever releases the lock write this to standard error, which may block.
    pub(super) fn tell_unlocked(&self, text: Option<String>) {
        if text.is_some() {
            *self.unsaid.lock() = text;
            self.has_unsaid.store(true, Ordering::Release);
        }
    }

    fn unlocked(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unlocked(self.changed.swap(false, Ordering::AcqRel));
        }
        if self.has_unsaid.load(Ordering::Relaxed) && self.has_unsaid.swap(false, Ordering::AcqRel)
        {
            let text = self.unsaid.lock().take();
            if let Some(text) = text {
                trace::say(&text);
            }
        }
    }
}

/// The lock of a QP. Do not hold another lock when it is dropped: tasks are woken then.
pub(crate) struct QpGuard<'a> {
    // The order of the fields is the order in which they are dropped.
    pub(super) locked: MutexGuard<'a, Locked>,
    _then: Then<'a>,
}

/// Dropped after the lock.
struct Then<'a>(&'a Watched);

impl<'a> QpGuard<'a> {
    pub(super) fn new(locked: MutexGuard<'a, Locked>, watched: &'a Watched) -> Self {
        QpGuard {
            locked,
            _then: Then(watched),
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

impl Drop for Then<'_> {
    fn drop(&mut self) {
        self.0.unlocked();
    }
}
