//! Numbers of objects, unique among the live ones.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fork_guard::ForkGuard;

/// Hands out ascending numbers. After the last one it starts again and skips those in use.
pub struct Numbers {
    fork_guard: ForkGuard,
    range: RangeInclusive<u32>,
    state: Mutex<State>,
}

struct State {
    next: u32,
    used: HashSet<u32>,
}

impl Numbers {
    /// Creates the numbers of `range`. The first one given is the smallest.
    pub(crate) fn new(range: RangeInclusive<u32>) -> Arc<Self> {
        Arc::new(Numbers {
            fork_guard: ForkGuard::here(),
            state: Mutex::new(State {
                next: *range.start(),
                used: HashSet::new(),
            }),
            range,
        })
    }

    /// Takes an unused number; `None` if all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Number> {
        let mut state = self.state.lock();
        let (first, last) = (*self.range.start(), *self.range.end());
        if state.used.len() > (last - first) as usize {
            return None;
        }
        loop {
            let value = state.next;
            state.next = if value == last { first } else { value + 1 };
            if state.used.insert(value) {
                return Some(Number {
                    numbers: Arc::clone(self),
                    value,
                });
            }
        }
    }

    /// Takes this number; `None` if it is in use.
    pub(crate) fn take_this(self: &Arc<Self>, value: u32) -> Option<Number> {
        self.state.lock().used.insert(value).then(|| Number {
            numbers: Arc::clone(self),
            value,
        })
    }

    /// Makes `next` the next number, if it is free.
    #[doc(hidden)]
    pub fn set_next(&self, next: u32) {
        self.state.lock().next = next;
    }
}

/// Number that is in use until this is dropped.
pub struct Number {
    numbers: Arc<Numbers>,
    value: u32,
}

impl Number {
    /// The number.
    pub fn get(&self) -> u32 {
        self.value
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // In the child of a fork, a thread that does not exist there may hold the lock.
        if self.numbers.fork_guard.is_here() {
            self.numbers.state.lock().used.remove(&self.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_use_are_passed_over_when_the_last_was_given() {
        let numbers = Numbers::new(2..=6);
        let take = || numbers.take().unwrap();
        let (two, three, four) = (take(), take(), take());
        assert_eq!([two.get(), three.get(), four.get()], [2, 3, 4]);
        drop(three);
        // A freed number is given again only when the counter reaches it.
        let (five, six) = (take(), take());
        assert_eq!([five.get(), six.get()], [5, 6]);
        let three = take();
        assert_eq!(three.get(), 3);
        assert!(numbers.take().is_none());
        drop(six);
        assert_eq!(take().get(), 6);
    }

    #[test]
    fn all_numbers_of_32_bits_can_be_given() {
        let numbers = Numbers::new(1..=u32::MAX);
        numbers.set_next(u32::MAX);
        let (last, first) = (numbers.take().unwrap(), numbers.take().unwrap());
        assert_eq!((last.get(), first.get()), (u32::MAX, 1));
    }
}
