//! Table of objects by number. Controllers refer to objects by these numbers.

use crate::refusal::Refusal;

/// Table of at most `limit` objects of one kind.
pub(crate) struct Numbers<T> {
    slots: Vec<Option<T>>,
    /// Number at which the search for a free number starts. All other numbers are used before a
    /// number is used again, so that a late event of a removed object is not attributed to a new
    /// object.
    next: usize,
    limit: usize,
    /// Name of one object in error messages.
    singular: &'static str,
    /// Name of several objects in error messages.
    plural: &'static str,
}

impl<T> Numbers<T> {
    pub(crate) fn new(limit: usize, singular: &'static str, plural: &'static str) -> Numbers<T> {
        Numbers {
            slots: Vec::new(),
            next: 0,
            limit,
            singular,
            plural,
        }
    }

    /// Returns the number for the next object. Refuses if the table is full.
    pub(crate) fn free(&self) -> Result<u64, Refusal> {
        let is_free = |at: &usize| self.slots.get(*at).is_none_or(Option::is_none);
        let in_turn = (self.next..self.limit).chain(0..self.next);
        let found = in_turn.into_iter().find(is_free);
        found.map(|at| at as u64).ok_or_else(|| {
            let (limit, plural) = (self.limit, self.plural);
            Refusal::agent(format!("all {limit} {plural} are in use"))
        })
    }

    /// Stores an object under a number that `free` returned.
    pub(crate) fn put(&mut self, number: u64, thing: T) {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if self.slots.len() <= at && at < self.limit {
            self.slots.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some(thing);
            self.next = (at + 1) % self.limit;
        }
    }

    pub(crate) fn get(&self, number: u64) -> Result<&T, Refusal> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let found = self.slots.get(at).and_then(Option::as_ref);
        found.ok_or_else(|| self.unknown(number))
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Result<&mut T, Refusal> {
        let unknown = self.unknown(number);
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let found = self.slots.get_mut(at).and_then(Option::as_mut);
        found.ok_or(unknown)
    }

    pub(crate) fn take(&mut self, number: u64) -> Result<T, Refusal> {
        let unknown = self.unknown(number);
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let found = self.slots.get_mut(at).and_then(Option::take);
        found.ok_or(unknown)
    }

    fn unknown(&self, number: u64) -> Refusal {
        Refusal::agent(format!("there is no {} {number}", self.singular))
    }

    /// Returns all objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let there = self.slots.iter().enumerate();
        there.filter_map(|(at, slot)| Some((at as u64, slot.as_ref()?)))
    }

    /// Drops all objects for which `gone` returns true.
    pub(crate) fn clear(&mut self, gone: impl Fn(&T) -> bool) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(&gone) {
                *slot = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_in_turn_and_run_out() {
        let mut things = Numbers::new(2, "thing", "things");
        let add = |things: &mut Numbers<&str>, thing| {
            let number = things.free().unwrap();
            things.put(number, thing);
            number
        };
        assert_eq!(add(&mut things, "a"), 0);
        things.take(0).unwrap();
        assert_eq!(add(&mut things, "b"), 1);
        assert_eq!(add(&mut things, "c"), 0);
        let full = things.free().unwrap_err().to_string();
        assert_eq!(full, "all 2 things are in use");
        assert_eq!(things.get(1).unwrap(), &"b");
        assert_eq!(
            things.get(2).unwrap_err().to_string(),
            "there is no thing 2"
        );
        things.clear(|thing| *thing == "b");
        assert_eq!(things.iter().collect::<Vec<_>>(), [(0, &"c")]);
    }
}
