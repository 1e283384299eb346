//! Values that every process makes for itself at first use. A forked child inherits the value of
//! its parent, and replaces it by its own.
//!
//! No mutex protects the value: a child that is forked while another thread holds a mutex finds it
//! locked for ever, because it does not have that thread.
#![expect(unsafe_code, reason = "a pointer that is replaced atomically")]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::process;
use std::thread;
use std::time::Duration;

/// Time between two looks of a thread that waits for another one to make the value.
const INTERVAL: Duration = Duration::from_millis(1);

/// Value of the process. It is never freed: a child must not drop what belongs to its parent.
pub(crate) struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
    /// Id of the process while one of its threads makes the value, and 0 otherwise.
    making: AtomicU32,
}

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess {
            made: AtomicPtr::new(ptr::null_mut()),
            making: AtomicU32::new(0),
        }
    }

    /// Returns the value of this process. If there is none, `make` makes it, with the value of the
    /// parent process if that has one. After an error the next call tries again.
    pub(crate) fn get_or_make<E>(
        &self,
        make: impl FnOnce(Option<&'static T>) -> Result<T, E>,
    ) -> Result<&'static T, E> {
        self.get_or_make_in(process::id(), make)
    }

    /// Returns the value of this process, if it has been made.
    pub(crate) fn get(&self) -> Option<&'static T> {
        let process = process::id();
        let made = self.made().filter(|made| made.process == process);
        made.map(|made| &made.value)
    }

    fn get_or_make_in<E>(
        &self,
        process: u32,
        make: impl FnOnce(Option<&'static T>) -> Result<T, E>,
    ) -> Result<&'static T, E> {
        if let Some(made) = self.made().filter(|made| made.process == process) {
            return Ok(&made.value);
        }
        let _turn = Turn::take(&self.making, process);
        let found = self.made();
        if let Some(made) = found.filter(|made| made.process == process) {
            return Ok(&made.value);
        }
        let value = make(found.map(|inherited| &inherited.value))?;
        let made = Box::leak(Box::new(Made { process, value }));
        self.made.store(made, Ordering::Release);
        Ok(&made.value)
    }

    fn made(&self) -> Option<&'static Made<T>> {
        // SAFETY: the pointer is null, or came from a box that is never freed.
        unsafe { self.made.load(Ordering::Acquire).as_ref() }
    }
}

/// Right to make the value, which one thread of a process has at a time.
struct Turn<'a>(&'a AtomicU32);

impl<'a> Turn<'a> {
    /// Waits until no other thread of the process has it. A child takes it from the thread of its
    /// parent.
    fn take(owner: &'a AtomicU32, process: u32) -> Self {
        loop {
            let before = owner.load(Ordering::Relaxed);
            if before == process {
                thread::sleep(INTERVAL);
                continue;
            }
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            let taken = owner.compare_exchange(before, process, success, failure);
            if taken.is_ok() {
                return Turn(owner);
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_get_the_value_that_one_has_made() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        let made = AtomicU32::new(0);
        let make = |_: Option<&u32>| Ok::<_, ()>(made.fetch_add(1, Ordering::Relaxed));
        let get = || VALUE.get_or_make(make);
        let found = thread::scope(|scope| {
            let threads = [0; 8].map(|_| scope.spawn(get));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(found, [Ok(&0); 8]);
    }

    #[test]
    fn after_an_error_the_next_call_tries_again() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(VALUE.get_or_make(|_| Err("no")), Err("no"));
        assert_eq!(VALUE.get_or_make(|_| Ok::<_, ()>(7)), Ok(&7));
    }

    #[test]
    fn a_child_makes_its_own_value_with_that_of_its_parent() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        let make = |inherited: Option<&u32>| Ok::<_, ()>(inherited.map_or(1, |value| value + 1));
        assert_eq!(VALUE.get_or_make_in(10, make), Ok(&1));
        assert_eq!(VALUE.get_or_make_in(10, make), Ok(&1));
        assert_eq!(VALUE.get_or_make_in(11, make), Ok(&2));
    }

    #[test]
    fn a_child_that_was_forked_while_its_parent_made_the_value_does_not_wait_for_it() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        VALUE.making.store(10, Ordering::Relaxed);
        assert_eq!(VALUE.get_or_make_in(11, |_| Ok::<_, ()>(5)), Ok(&5));
    }
}
