//! Distance between the two processors on which the sides run.
//!
//! A hypervisor moves virtual processors. They may share a cache in one minute and not in the next.
//! Without a shared cache, any transfer between them takes several times longer, for raw TCP and
//! for uwarp. So a ratio of two figures is meaningful only if both were measured at the same
//! distance. The distance is the time that a cache line takes from one processor to the other.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::process::Pinning;
use crate::progress;
use crate::sample::Sample;
use crate::stats::{digits, median};

/// Seconds that a cache line takes from one processor to the other.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub(crate) struct Distance(f64);

/// Maximum ratio of two distances at the same placement of the processors. Within one placement,
/// the times differ by up to a quarter. Between processors that share a core, a cache, or neither,
/// they differ by factors of two to five.
const SAME: f64 = 1.5;
/// Number of round trips of a cache line in a batch.
const LINES: u64 = 200;
/// Number of batches.
const BATCHES: u64 = 15;
/// Maximum time to wait for a processor that does not run.
const PATIENCE: Duration = Duration::from_millis(100);
/// Maximum number of attempts to measure a figure while the processors move.
const AGAIN: usize = 3;

impl Distance {
    pub(crate) fn is_like(self, other: Distance) -> bool {
        self.0.max(other.0) <= SAME * self.0.min(other.0)
    }

    #[cfg(test)]
    pub(crate) const fn of_nanoseconds(nanoseconds: f64) -> Self {
        Distance(nanoseconds / 1e9)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ns", self.0 * 1e9)
    }
}

/// Groups values by distance, with the smallest distance first. Values in a group were measured at
/// similar distances.
pub(crate) fn by_distance(values: &[(Distance, f64)]) -> Vec<(Distance, Vec<f64>)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|one, other| one.0.0.total_cmp(&other.0.0));
    let mut groups: Vec<Vec<(Distance, f64)>> = Vec::new();
    for pair in sorted {
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|(last, _)| last.is_like(pair.0)) => {
                group.push(pair);
            }
            _ => groups.push(vec![pair]),
        }
    }
    let told = |group: Vec<(Distance, f64)>| {
        let mut distances: Vec<f64> = group.iter().map(|(distance, _)| distance.0).collect();
        let values = group.iter().map(|(_, value)| *value).collect();
        (Distance(median(&mut distances)), values)
    };
    groups.into_iter().map(told).collect()
}

/// Runs measurements and detects whether the hypervisor has moved the processors.
pub(crate) struct Processors {
    pinned: Option<(usize, usize)>,
    seen: RefCell<Vec<(Distance, f64)>>,
    moved: Cell<usize>,
}

impl Processors {
    pub(crate) fn new(pinning: &Pinning) -> Self {
        Processors {
            pinned: pinning.processors,
            seen: RefCell::default(),
            moved: Cell::default(),
        }
    }

    /// Runs `measure` and returns its result with the distance of the processors. Repeats the
    /// measurement if the distances before and after it differ. Returns `None` if they differed in
    /// every attempt.
    fn steadily<T>(
        &self,
        mut measure: impl FnMut() -> io::Result<T>,
    ) -> io::Result<Option<(T, Option<Distance>)>> {
        let Some(pair) = self.pinned else {
            return Ok(Some((measure()?, None)));
        };
        for _ in 0..AGAIN {
            let before = between(pair);
            let value = measure()?;
            match (before, between(pair)) {
                (Some(before), Some(after)) if !before.is_like(after) => {
                    self.moved.set(self.moved.get() + 1);
                }
                (Some(before), Some(after)) => {
                    let apart = Distance(f64::midpoint(before.0, after.0));
                    self.seen.borrow_mut().push((apart, 1.0));
                    return Ok(Some((value, Some(apart))));
                }
                _ => return Ok(Some((value, None))),
            }
        }
        Ok(None)
    }

    /// Takes a sample and adds the distance of the processors to it. If they moved in every
    /// attempt, returns `Sample::NONE` instead of an error.
    pub(crate) fn sample(&self, measure: impl FnMut() -> io::Result<Sample>) -> io::Result<Sample> {
        let Some((sample, apart)) = self.steadily(measure)? else {
            progress::tell(format_args!(
                "no figure: the hypervisor moved the processors each of {AGAIN} times that it was measured"
            ));
            return Ok(Sample::NONE);
        };
        Ok(Sample { apart, ..sample })
    }

    /// Formats the distances of all measurements.
    pub(crate) fn told(&self) -> String {
        let seen = self.seen.borrow();
        let groups = by_distance(&seen);
        if groups.is_empty() {
            return "not measured".to_owned();
        }
        let told = |(distance, of): &(Distance, Vec<f64>)| {
            let part = of.len() as f64 * 100.0 / seen.len() as f64;
            format!("{distance} for {part:.0} % of the figures")
        };
        let places: Vec<String> = groups.iter().map(told).collect();
        let mut text = places.join(", ");
        if self.moved.get() > 0 {
            text.push_str(&format!(
                "; {} measured again since it changed meanwhile",
                self.moved.get()
            ));
        }
        text
    }
}

/// Formats the median of ratios at each distance. Returns an empty string if there was only one
/// distance.
pub(crate) fn medians(ratios: &[(Distance, f64)]) -> String {
    let groups = by_distance(ratios);
    if groups.len() < 2 {
        return String::new();
    }
    let told = |(distance, mut values): (Distance, Vec<f64>)| {
        format!("{} at {distance}", digits(median(&mut values)))
    };
    groups.into_iter().map(told).collect::<Vec<_>>().join(", ")
}

/// A counter that fills two cache lines, because processors fetch the neighbouring line as well.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the time that a cache line takes from one processor to the other. Returns `None` if one
/// of them does not run or cannot be used.
fn between((one, other): (usize, usize)) -> Option<Distance> {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let deadline = Instant::now() + PATIENCE;
    let last = LINES * BATCHES;
    let answer = || {
        on(other)?;
        for line in 1..=last {
            wait(&there, line, deadline)?;
            back.0.store(line, Ordering::Release);
        }
        Some(())
    };
    let ask = || {
        on(one)?;
        let mut batches = Vec::new();
        for batch in 0..BATCHES {
            let began = Instant::now();
            for line in batch * LINES + 1..=(batch + 1) * LINES {
                there.0.store(line, Ordering::Release);
                wait(&back, line, deadline)?;
            }
            batches.push(began.elapsed().as_secs_f64() / (2 * LINES) as f64);
        }
        Some(Distance(median(&mut batches)))
    };
    thread::scope(|scope| {
        scope.spawn(answer);
        scope.spawn(ask).join().ok().flatten()
    })
}

fn on(processor: usize) -> Option<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).ok()
}

fn wait(line: &Line, value: u64, deadline: Instant) -> Option<()> {
    let mut turns = 0u32;
    while line.0.load(Ordering::Acquire) != value {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1024) && Instant::now() > deadline {
            return None;
        }
        std::hint::spin_loop();
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Distance = Distance::of_nanoseconds(55.0);
    const FAR: Distance = Distance::of_nanoseconds(265.0);

    #[test]
    fn places_are_told_apart_and_not_the_noise_of_one() {
        assert!(NEAR.is_like(Distance::of_nanoseconds(62.0)));
        assert!(!NEAR.is_like(FAR) && !FAR.is_like(NEAR));
    }

    #[test]
    fn values_are_grouped_by_the_distance_at_which_they_were_taken() {
        let near = Distance::of_nanoseconds(60.0);
        let values = [(FAR, 1.0), (NEAR, 2.0), (FAR, 3.0), (near, 4.0)];
        assert_eq!(medians(&values), "3.00 at 58 ns, 2.00 at 265 ns");
        assert_eq!(medians(&values[1..2]), "", "one place is not told");
    }

    #[test]
    fn without_processors_of_their_own_nothing_is_said_of_them() {
        let free = Processors::new(&Pinning { processors: None });
        assert_eq!(free.steadily(|| Ok(7)).unwrap(), Some((7, None)));
        assert_eq!(free.told(), "not measured");
    }

    #[test]
    fn a_line_between_two_processors_takes_a_time_that_is_told() {
        let Some(pair) = Pinning::usual().processors else {
            return;
        };
        let processors = Processors::new(&Pinning {
            processors: Some(pair),
        });
        let mut count = 0;
        let measured = processors.steadily(|| {
            count += 1;
            Ok(())
        });
        match measured.unwrap() {
            Some(((), Some(apart))) => {
                assert!(apart.0 > 0.0);
                assert!(processors.told().contains("ns for 100 % of the figures"));
            }
            // The distance could not be measured, because the machine was busy.
            Some(((), None)) => assert_eq!(count, 1),
            None => assert_eq!(count, AGAIN),
        }
    }
}
