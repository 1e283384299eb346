//! Medians, and ratios of samples that were taken next to each other.

use std::fmt;

use crate::distance::{self, Distance};
use crate::sample::Sample;

/// Median and extremes of some values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Computes the spread of the values, or returns `None` if there are none. Ignores failed
    /// measurements, which are NaN.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        let median = median(&mut values);
        Some(Spread {
            least: *values.first()?,
            median,
            most: *values.last()?,
        })
    }
}

/// Ratios, one for each round, each with the distance of the processors.
#[derive(Clone, Debug)]
pub(crate) struct Ratios(Vec<(Option<Distance>, f64)>);

impl Ratios {
    /// Computes the ratios of samples to their neighbours in `to` ([`neighbour`]).
    pub(crate) fn of(samples: &[Sample], to: &[Sample]) -> Ratios {
        Ratios::to(samples, |round, sample| neighbour(to, round, sample))
    }

    /// Computes the ratios of samples to a value that depends on the round and on the sample.
    pub(crate) fn to(samples: &[Sample], base: impl Fn(usize, &Sample) -> f64) -> Ratios {
        let ratio = |(round, sample): (usize, &Sample)| {
            let ratio = sample.value / base(round, sample);
            (sample.apart, ratio)
        };
        let all = samples.iter().enumerate().map(ratio);
        Ratios(all.filter(|(_, ratio)| ratio.is_finite()).collect())
    }

    pub(crate) fn spread(&self) -> Option<Spread> {
        Spread::of(self.0.iter().map(|(_, ratio)| *ratio))
    }

    /// Formats the median at each distance of the processors, if there were several distances.
    pub(crate) fn by_distance(&self) -> String {
        let known = |(apart, ratio): &(Option<Distance>, f64)| apart.map(|apart| (apart, *ratio));
        let known: Vec<(Distance, f64)> = self.0.iter().filter_map(known).collect();
        distance::medians(&known)
    }
}

/// Returns the value with which a sample is compared. It is from the same round, or from the
/// nearest round with a similar distance of the processors. Returns NaN if there is none.
pub(crate) fn neighbour(all: &[Sample], round: usize, sample: &Sample) -> f64 {
    let fits = |(_, other): &(usize, &Sample)| other.value.is_finite() && other.is_like(sample);
    let like = all.iter().enumerate().filter(fits);
    let nearest = like.min_by_key(|(at, _)| at.abs_diff(round));
    nearest.map_or(f64::NAN, |(_, other)| other.value)
}

/// Formats the median, followed by the least and the greatest value in parentheses.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread {
            least,
            median,
            most,
        } = *self;
        write!(
            f,
            "{} ({} to {})",
            digits(median),
            digits(least),
            digits(most)
        )
    }
}

/// Formats a number: without decimals from 100, with one decimal from 10, with two from 0.1, and
/// with four below.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Returns the median: the middle value, or the mean of the two middle values. Sorts the values.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if !odd.is_multiple_of(2) => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_whatever_the_order() {
        assert!((median(&mut [5.0, 1.0, 3.0]) - 3.0).abs() < 1e-9);
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&mut []).is_nan());
    }

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().copied().map(Sample::of).collect()
    }

    fn ratios(values: &[f64], to: &[f64]) -> Ratios {
        Ratios::of(&samples(values), &samples(to))
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        // The ratio is 2 in each round, although one round was ten times slower.
        let spread = ratios(&[20.0, 2.0, 22.0], &[10.0, 1.0, 11.0]).spread();
        let due = Spread {
            least: 2.0,
            median: 2.0,
            most: 2.0,
        };
        assert_eq!(spread, Some(due));
    }

    #[test]
    fn ratios_are_of_the_same_distance() {
        let at = |nanoseconds, value| Sample {
            apart: Some(Distance::of_nanoseconds(nanoseconds)),
            ..Sample::of(value)
        };
        let ours = [at(265.0, 2.0), at(55.0, 4.0), at(55.0, 6.0), at(900.0, 1.0)];
        let raw = [at(55.0, 4.0), at(270.0, 1.0), at(50.0, 3.0), at(55.0, 5.0)];
        // The first sample is compared with round 2. The second is compared with round 1. Round 3
        // is equally near, but later. The last has no neighbour.
        let ratios = Ratios::of(&ours, &raw);
        let values: Vec<f64> = ratios.0.iter().map(|(_, ratio)| *ratio).collect();
        assert_eq!(values, [2.0, 1.0, 2.0]);
        assert_eq!(ratios.by_distance(), "1.50 at 55 ns, 2.00 at 265 ns");
    }

    #[test]
    fn what_failed_does_not_count() {
        let spread = ratios(&[f64::NAN, 3.0], &[1.0, 1.0]).spread();
        assert_eq!(spread.map(|spread| spread.median), Some(3.0));
        assert_eq!(ratios(&[1.0], &[f64::NAN]).spread(), None);
        assert_eq!(Spread::of([f64::NAN]), None);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn numbers_have_three_digits() {
        let said = [1234.5, 12.34, 1.234, 0.1234, 0.01234, f64::NAN].map(digits);
        assert_eq!(said, ["1234", "12.3", "1.23", "0.12", "0.0123", "-"]);
        let spread = Spread::of([1.0, 2.0, 4.0]).unwrap();
        assert_eq!(spread.to_string(), "2.00 (1.00 to 4.00)");
    }
}
