//! What a link may do to packets on purpose.

/// How often a link damages what it carries; nothing by default. The same seed makes the same
/// choices.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultSettings {
    /// Where the choices begin.
    pub seed: u64,
    /// The probability, 0 to 1, that a packet is lost.
    pub loss: f64,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The probability that a packet is overtaken by later ones.
    pub reorder: f64,
    /// The probability that an octet of a packet is changed.
    pub corrupt: f64,
}
