//! Median and extremes of values, and their digits in tables.

use std::fmt;

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
        let finite = values.into_iter().filter(|value| value.is_finite());
        let mut values: Vec<f64> = finite.collect();
        let median = median(&mut values);
        Some(Spread {
            least: *values.first()?,
            median,
            most: *values.last()?,
        })
    }
}

/// Formats the median, followed by the least and the greatest value in parentheses.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(digits);
        write!(f, "{median} ({least} to {most})")
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

    #[test]
    fn what_failed_does_not_count() {
        let spread = Spread::of([f64::NAN, 3.0]);
        assert_eq!(spread.map(|spread| spread.median), Some(3.0));
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
