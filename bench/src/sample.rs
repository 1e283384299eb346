//! Result of one measurement.

use crate::distance::Distance;

/// Value of a measurement, with its processor time and the distance of the processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes per second, messages per second, or seconds.
    pub(crate) value: f64,
    /// Processor time of both sides in seconds per 10^9 bytes.
    pub(crate) cpu: Option<f64>,
    /// Distance of the two processors during the measurement, if known.
    pub(crate) apart: Option<Distance>,
}

impl Sample {
    /// Sample of a failed measurement.
    pub(crate) const NONE: Sample = Sample::of(f64::NAN);

    pub(crate) const fn of(value: f64) -> Self {
        Sample {
            value,
            cpu: None,
            apart: None,
        }
    }

    /// Returns true if the ratio of both samples is meaningful, because they were taken at similar
    /// distances.
    pub(crate) fn is_like(&self, other: &Sample) -> bool {
        match (self.apart, other.apart) {
            (Some(one), Some(another)) => one.is_like(another),
            _ => true,
        }
    }
}
