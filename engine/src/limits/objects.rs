//! Limit on the objects of one kind on a device, and their numbers.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Number, Numbers};

/// Error: a device has its maximum number of objects of one kind.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLimit {
    /// Kind of the objects, in the plural.
    pub what: &'static str,
    /// Maximum number of these objects.
    pub limit: u32,
}

/// Counts the objects of one kind on a device, and gives them numbers.
pub struct Objects {
    what: &'static str,
    live: Arc<AtomicU32>,
    numbers: Arc<Numbers>,
}

impl Objects {
    /// Creates the count of the objects that `what` names in the plural, with these numbers.
    pub fn new(what: &'static str, numbers: RangeInclusive<u32>) -> Self {
        Objects {
            what,
            live: Arc::default(),
            numbers: Numbers::new(numbers),
        }
    }

    /// Number of live objects.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }

    /// Takes a place and a number for a new object.
    pub fn take(&self, limit: u32) -> Result<(Place, Number), ObjectLimit> {
        let place = self.place(limit)?;
        let number = self.numbers.take().ok_or(ObjectLimit {
            what: self.what,
            limit,
        })?;
        Ok((place, number))
    }

    /// Takes a place for a new object with this number; `None` if the number is in use.
    pub fn take_this(
        &self,
        limit: u32,
        number: u32,
    ) -> Result<Option<(Place, Number)>, ObjectLimit> {
        let place = self.place(limit)?;
        Ok(self.numbers.take_this(number).map(|number| (place, number)))
    }

    fn place(&self, limit: u32) -> Result<Place, ObjectLimit> {
        let reached = || ObjectLimit {
            what: self.what,
            limit,
        };
        self.live
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |live| {
                (live < limit).then_some(live + 1)
            })
            .map_err(|_| reached())?;
        Ok(Place {
            live: Arc::clone(&self.live),
        })
    }

    /// Makes `next` the next number, if it is free.
    #[doc(hidden)]
    pub fn set_next(&self, next: u32) {
        self.numbers.set_next(next);
    }
}

/// Counts as one object of its kind until it is dropped.
pub struct Place {
    live: Arc<AtomicU32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }
}
