//! Error codes that MPA reports to the layers above.

use core::fmt;

/// An MPA error as a Terminate names it: Layer 2 (LLP), EType 0 (MPA), and this code.
///
/// RFC 5044 section 8 defines codes 1 to 4, RFC 6581 section 8 defines codes 5 to 7. The layers
/// above receive them (5044-8-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MpaErrorCode {
    /// 1: the TCP connection was closed, terminated or lost. No Terminate can follow.
    ConnectionLost = 1,
    /// 2: the CRC of an FPDU is wrong.
    Crc = 2,
    /// 3: a Marker and the `ULPDU_Length` fields disagree on where an FPDU starts.
    MarkerMismatch = 3,
    /// 4: an MPA Request or Reply Frame is not valid. The connection is closed at once, without a
    /// Terminate.
    InvalidStartupFrame = 4,
    /// 5: a local error that has no other code.
    LocalCatastrophic = 5,
    /// 6: the peer wants a deeper inbound RDMA Read queue (IRD) than the resources allow.
    InsufficientIrd = 6,
    /// 7: the two sides have no RTR indication, or no connection model, in common.
    NoMatchingRtr = 7,
}

impl MpaErrorCode {
    /// Every code, in order.
    pub const ALL: [Self; 7] = [
        Self::ConnectionLost,
        Self::Crc,
        Self::MarkerMismatch,
        Self::InvalidStartupFrame,
        Self::LocalCatastrophic,
        Self::InsufficientIrd,
        Self::NoMatchingRtr,
    ];

    /// Returns the number as a Terminate carries it.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the error with this number; `None` if no RFC assigns it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::ConnectionLost),
            2 => Some(Self::Crc),
            3 => Some(Self::MarkerMismatch),
            4 => Some(Self::InvalidStartupFrame),
            5 => Some(Self::LocalCatastrophic),
            6 => Some(Self::InsufficientIrd),
            7 => Some(Self::NoMatchingRtr),
            _ => None,
        }
    }
}

impl fmt::Display for MpaErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionLost => "TCP connection closed, terminated or lost",
            Self::Crc => "MPA CRC error",
            Self::MarkerMismatch => "MPA Marker and ULPDU_Length mismatch",
            Self::InvalidStartupFrame => "invalid MPA Request or Reply Frame",
            Self::LocalCatastrophic => "local catastrophic error",
            Self::InsufficientIrd => "insufficient IRD resources",
            Self::NoMatchingRtr => "no matching RTR option",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unassigned_ones_are_none() {
        for code in 0..=u8::MAX {
            match MpaErrorCode::from_code(code) {
                Some(error) => assert_eq!(error.code(), code),
                None => assert!(code == 0 || code > 7),
            }
        }
    }
}
