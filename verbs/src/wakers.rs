//! List of tasks that wait for the same event.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Wakers of tasks that check a state again after each change. A waker is called once and then
/// removed.
#[derive(Default)]
pub(crate) struct Wakers {
    list: Mutex<Vec<Waker>>,
    /// True if the list may be non-empty. Read first, because changes are frequent and waiting is
    /// rare.
    any: AtomicBool,
}

impl Wakers {
    /// Registers a task to be woken after the next change. Register before checking the state, or a
    /// change in between is missed.
    pub(crate) fn register(&self, waker: &Waker) {
        // Wakers are cloned and dropped outside the lock, because they run foreign code.
        let waker = waker.clone();
        let mut list = self.list.lock();
        if list.iter().any(|old| old.will_wake(&waker)) {
            drop(list);
            return;
        }
        list.push(waker);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Wakes all registered tasks. The caller holds no lock.
    pub(crate) fn wake(&self) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let woken = {
            let mut list = self.list.lock();
            self.any.store(false, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}
