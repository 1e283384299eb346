//! Result of one measurement.

use crate::distance::Distance;

/// A value in the measured unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes or messages per second, or seconds.
    pub(crate) value: f64,
    /// Processor time of both sides in seconds per 10^9 bytes.
    pub(crate) cpu: Option<f64>,
    /// Distance of the two processors during the measurement, if it is known.
    pub(crate) apart: Option<Distance>,
}

impl Sample {
    /// The measurement failed.
    pub(crate) const NONE: Sample = Sample::of(f64::NAN);

    pub(crate) const fn of(value: f64) -> Self {
        Sample {
            value,
            cpu: None,
            apart: None,
        }
    }

    /// Returns true if both were taken at a similar distance, so that their ratio is meaningful.
    pub(crate) fn is_like(&self, other: &Sample) -> bool {
        match (self.apart, other.apart) {
            (Some(one), Some(another)) => one.is_like(another),
            _ => true,
        }
    }
}
