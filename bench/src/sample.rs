//! What came out of one measurement.

/// A value in the unit of what was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Octets or messages a second, or seconds.
    pub(crate) value: f64,
    /// Seconds of processor time for 10^9 octets, of both sides.
    pub(crate) cpu: Option<f64>,
}

impl Sample {
    /// It could not be measured.
    pub(crate) const NONE: Sample = Sample {
        value: f64::NAN,
        cpu: None,
    };
}
