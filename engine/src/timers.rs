//! Timers of a connection: one table, and the earliest time in it.
//!
//! A turn of a connection usually finds that no timer is due. That costs one comparison, because
//! the table knows its earliest time.

use std::time::Instant;

/// Timer of a connection. Each one is set to a time, or not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// Time limit of the stage: of TCP's connect, of the MPA Reply, of the peer's first FPDU, or of
    /// the close.
    Stage,
    /// No FPDU is sent before this time.
    ///
    /// An initiator waits for `Settings::first_fpdu_delay`; a Terminate is exempt. A responder that
    /// may send first (`Settings::send_first`) waits until this time or until the first FPDU
    /// arrives.
    Hold,
    /// Time at which the peer's next message stops waiting for a receive. The LLP is not read while
    /// it waits. Not set: no message waits.
    Receive,
    /// The second FPDU of an initiator is due, unless the peer has answered the first one.
    WakeUp,
    /// Time to try again to receive, after the memory limits left no room for another FPDU of this
    /// peer, or there was no memory for a buffer.
    MemoryRetry,
    /// Time to check whether the peer has closed, while a message waits for a receive.
    CloseCheck,
    /// Time to check whether unfinished transfers have made progress.
    Stall,
    /// Time to check an incomplete FPDU that holds memory which others may need.
    Pressed,
}

impl Timer {
    const COUNT: usize = Timer::Pressed as usize + 1;
}

/// The timers of one connection.
#[derive(Clone, Debug, Default)]
pub struct Timers {
    due: [Option<Instant>; Timer::COUNT],
    /// Earliest time in `due`.
    next: Option<Instant>,
}

impl Timers {
    /// Returns the earliest time to which a timer is set.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Returns true if a timer is due.
    #[inline]
    #[must_use]
    pub fn is_any_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Returns the time to which `timer` is set.
    #[inline]
    #[must_use]
    pub fn get(&self, timer: Timer) -> Option<Instant> {
        self.due[timer as usize]
    }

    /// Returns true if `timer` is set.
    #[inline]
    #[must_use]
    pub fn is_set(&self, timer: Timer) -> bool {
        self.get(timer).is_some()
    }

    /// Returns true if `timer` is set to a time that has come.
    #[inline]
    #[must_use]
    pub fn is_due(&self, timer: Timer, now: Instant) -> bool {
        self.get(timer).is_some_and(|due| due <= now)
    }

    /// Sets `timer` to `due`.
    pub fn set(&mut self, timer: Timer, due: Instant) {
        let before = self.due[timer as usize].replace(due);
        if before.is_some() && before == self.next {
            self.renew();
        } else {
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
        }
    }

    /// Sets `timer` to `due`, or clears it if there is no time.
    #[inline]
    pub fn set_or_clear(&mut self, timer: Timer, due: Option<Instant>) {
        match due {
            Some(due) => self.set(timer, due),
            None => self.clear(timer),
        }
    }

    /// Clears `timer`.
    #[inline]
    pub fn clear(&mut self, timer: Timer) {
        if self.is_set(timer) {
            self.due[timer as usize] = None;
            self.renew();
        }
    }

    /// Clears the timers of a stream that has ended: those of its stage and of its messages.
    pub fn clear_stream(&mut self) {
        self.clear_each(&[Timer::Stage, Timer::Hold, Timer::Receive, Timer::WakeUp]);
    }

    /// Clears the timers of the driver, which no longer has a stream.
    pub fn clear_driver(&mut self) {
        self.clear_each(&[
            Timer::MemoryRetry,
            Timer::CloseCheck,
            Timer::Stall,
            Timer::Pressed,
        ]);
    }

    fn clear_each(&mut self, timers: &[Timer]) {
        for timer in timers {
            self.due[*timer as usize] = None;
        }
        self.renew();
    }

    /// Clears `timer` and returns true, if it is due.
    #[inline]
    pub fn take_due(&mut self, timer: Timer, now: Instant) -> bool {
        let is_due = self.is_due(timer, now);
        if is_due {
            self.clear(timer);
        }
        is_due
    }

    fn renew(&mut self) {
        self.next = self.due.iter().flatten().min().copied();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const ALL: [Timer; Timer::COUNT] = [
        Timer::Stage,
        Timer::Hold,
        Timer::Receive,
        Timer::WakeUp,
        Timer::MemoryRetry,
        Timer::CloseCheck,
        Timer::Stall,
        Timer::Pressed,
    ];

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Set(usize, u64),
        Clear(usize),
        TakeDue(usize, u64),
        ClearStream,
        ClearDriver,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (timer, time) = (0..Timer::COUNT, 0..20_u64);
        prop_oneof![
            4 => (timer.clone(), time.clone()).prop_map(|(timer, at)| Step::Set(timer, at)),
            2 => timer.clone().prop_map(Step::Clear),
            2 => (timer, time).prop_map(|(timer, now)| Step::TakeDue(timer, now)),
            1 => Just(Step::ClearStream),
            1 => Just(Step::ClearDriver),
        ]
    }

    proptest! {
        #[test]
        fn the_table_acts_like_a_list_of_times(steps in prop::collection::vec(step(), 0..60)) {
            let origin = Instant::now();
            let at = |time: u64| origin + Duration::from_secs(time);
            let (mut timers, mut model) = (Timers::default(), [None; Timer::COUNT]);
            for step in steps {
                match step {
                    Step::Set(timer, time) => {
                        timers.set(ALL[timer], at(time));
                        model[timer] = Some(time);
                    }
                    Step::Clear(timer) => {
                        timers.clear(ALL[timer]);
                        model[timer] = None;
                    }
                    Step::TakeDue(timer, now) => {
                        let taken = model[timer].take_if(|due| *due <= now);
                        prop_assert_eq!(timers.take_due(ALL[timer], at(now)), taken.is_some());
                    }
                    Step::ClearStream => {
                        timers.clear_stream();
                        model[..4].fill(None);
                    }
                    Step::ClearDriver => {
                        timers.clear_driver();
                        model[4..].fill(None);
                    }
                }
                for (timer, due) in ALL.iter().zip(model) {
                    prop_assert_eq!(timers.get(*timer), due.map(at));
                }
                let next = model.iter().flatten().min().copied();
                prop_assert_eq!(timers.next(), next.map(at));
                for now in [0, 7, 19] {
                    let is_due = next.is_some_and(|next| next <= now);
                    prop_assert_eq!(timers.is_any_due(at(now)), is_due);
                }
            }
        }
    }
}
