//! Tasks that wait for one and the same thing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// Wakers of tasks that look again when something has changed. Each is called once, then forgotten.
#[derive(Default)]
pub(crate) struct Wakers {
    list: Mutex<Vec<Waker>>,
    /// There are any: whoever changes something often looks here first.
    some: AtomicBool,
}

impl Wakers {
    /// Wakes this task after the next change. Register first and look then, or a change is missed.
    pub(crate) fn register(&self, waker: &Waker) {
        // Cloned, and an old one dropped, outside of the lock: a waker is somebody else's code.
        let waker = waker.clone();
        let mut list = self.list.lock();
        if list.iter().any(|old| old.will_wake(&waker)) {
            drop(list);
            return;
        }
        list.push(waker);
        self.some.store(true, Ordering::SeqCst);
    }

    /// Something has changed. Called without a lock.
    pub(crate) fn wake(&self) {
        if !self.some.load(Ordering::SeqCst) {
            return;
        }
        let woken = {
            let mut list = self.list.lock();
            self.some.store(false, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}
