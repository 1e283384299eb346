//! Layer, Error Type and Error Code of a Terminate Message, and their names (RFC 5040 Figure 9,
//! RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8).

use core::fmt;

use crate::error::Blame;
use crate::requirement::{self as demand, Requirement};

/// Reason why a stream was terminated, as numbers. A peer can send any numbers.
/// [`name`](Self::name) describes the numbers that an RFC defines.
///
/// Its `Display` form is `layer/type/code` in hexadecimal: `1/1/01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TerminateCode {
    /// Layer that found the error, 4 bits. 0 is RDMAP, 1 is DDP, 2 is the LLP.
    pub layer: u8,
    /// Error Type, 4 bits.
    pub etype: u8,
    /// Error Code.
    pub code: u8,
}

impl TerminateCode {
    pub(crate) const fn new(layer: u8, etype: u8, code: u8) -> Self {
        TerminateCode { layer, etype, code }
    }

    /// Returns true if an RFC defines this code.
    #[must_use]
    pub const fn is_defined(&self) -> bool {
        match (self.layer, self.etype, self.code) {
            (0, 0, _) => true, // "any value in this field is acceptable"
            (0, 1, 0x00..=0x04 | 0x09 | 0xFF) => true,
            (0, 2, 0x05..=0x09 | 0xFF) => true,
            (1, 0, 0x00) | (1, 1, 0x00..=0x04) | (1, 2, 0x01..=0x06) => true,
            (1, 3, _) => true, // defined by the LLP
            (2, 0, 0x01..=0x07) => true,
            _ => false,
        }
    }

    /// Returns the layer and the Error Type in words.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match (self.layer, self.etype) {
            (0, 0) => "RDMAP local catastrophic error",
            (0, 1) => "RDMAP remote protection error",
            (0, 2) => "RDMAP remote operation error",
            (0, _) => "RDMAP error of an unknown type",
            (1, 0) => "DDP local catastrophic error",
            (1, 1) => "DDP tagged buffer error",
            (1, 2) => "DDP untagged buffer error",
            (1, 3) => "DDP error reserved for the LLP",
            (1, _) => "DDP error of an unknown type",
            (2, 0) => "LLP error, MPA",
            (2, _) => "LLP error of an unknown type",
            _ => "error of an unknown layer",
        }
    }

    /// Returns the error in words.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.layer, self.etype, self.code) {
            (0, 0, _) => "a local error at the sender, without details",
            (0, 1, 0x00) => "invalid STag",
            (0, 1, 0x01) => "base or bounds violation",
            (0, 1, 0x02) => "access rights violation",
            (0, 1, 0x03) => "STag not associated with the RDMAP stream",
            (0, 1, 0x04) => "TO wrap",
            // 5040-5.3-12: Figure 9 lists this code under both types.
            (0, 1 | 2, 0x09) => "STag cannot be invalidated",
            (0, 1 | 2, 0xFF) => "unspecified error",
            (0, 2, 0x05) => "invalid RDMAP version",
            (0, 2, 0x06) => "unexpected opcode",
            (0, 2, 0x07) => "catastrophic error, localized to the RDMAP stream",
            (0, 2, 0x08) => "catastrophic error, global",
            (1, 0, _) => "a local error of DDP at the sender, without details",
            (1, 1, 0x00) => "invalid STag",
            (1, 1, 0x01) => "base or bounds violation",
            (1, 1, 0x02) => "STag not associated with the DDP stream",
            (1, 1, 0x03) => "TO wrap",
            (1, 1, 0x04) | (1, 2, 0x06) => "invalid DDP version",
            (1, 2, 0x01) => "invalid Queue Number",
            (1, 2, 0x02) => "no buffer available for the message",
            (1, 2, 0x03) => "Message Sequence Number out of range",
            (1, 2, 0x04) => "invalid Message Offset",
            (1, 2, 0x05) => "message too long for the buffer",
            (2, 0, 0x01) => "TCP connection closed, terminated or lost",
            (2, 0, 0x02) => "CRC error",
            (2, 0, 0x03) => "Marker and ULPDU Length do not agree",
            (2, 0, 0x04) => "invalid MPA Request or Reply",
            (2, 0, 0x05) => "MPA at the sender could not go on",
            (2, 0, 0x06) => "IRD too small for what the other side wants",
            (2, 0, 0x07) => "no RTR indication in common",
            _ => "a code without a name",
        }
    }

    /// Returns the requirement of the RFCs that was violated, if the code identifies it.
    #[must_use]
    pub const fn requirement(&self) -> Option<Requirement> {
        Some(match (self.layer, self.etype, self.code) {
            (0, 0, _) | (1, 0, 0x00) => demand::LOCAL_ERROR,
            (0, 1, 0x00) => demand::SOURCE_VALID,
            (0, 1, 0x01) => demand::SOURCE_BOUNDS,
            (0, 1, 0x02) => demand::SOURCE_READABLE,
            (0, 1, 0x03) => demand::SOURCE_ASSOCIATED,
            (0, 1, 0x04) => demand::SOURCE_WRAP,
            (0, 1 | 2, 0x09) => demand::INVALIDATE,
            (0, 2, 0x05) => demand::VERSION,
            (0, 2, 0x06) => demand::OPCODE,
            (0, 2, 0x07) => demand::ALIGNED,
            (1, 1, 0x00) => demand::STAG_VALID,
            (1, 1, 0x01) => demand::STAG_BOUNDS,
            (1, 1, 0x02) => demand::STAG_ASSOCIATED,
            (1, 1, 0x03) => demand::STAG_WRAP,
            (1, 1, 0x04) => demand::TAGGED_VERSION,
            (1, 2, 0x01) => demand::QUEUE,
            (1, 2, 0x02) => demand::BUFFER_POSTED,
            (1, 2, 0x03) => demand::MSN_RANGE,
            (1, 2, 0x04) => demand::MESSAGE_OFFSET,
            (1, 2, 0x05) => demand::MESSAGE_FITS,
            (1, 2, 0x06) => demand::UNTAGGED_VERSION,
            (2, 0, 0x01) => demand::TCP_STANDS,
            (2, 0, 0x02) => demand::CRC,
            (2, 0, 0x03) => demand::MARKERS,
            (2, 0, 0x04) => demand::STARTUP_FRAME,
            (2, 0, 0x05) => demand::SETUP,
            (2, 0, 0x06) => demand::ENOUGH_IRD,
            (2, 0, 0x07) => demand::COMMON_RTR,
            // 0/1/ff, 0/2/08, 0/2/ff, and codes that no RFC defines.
            _ => return None,
        })
    }

    /// Returns the side at fault, as seen by the side that received the Terminate Message with this
    /// code. [`Blame::Local`] is that side, because it sent the refused segment.
    #[must_use]
    pub const fn blame(&self) -> Blame {
        match (self.layer, self.etype, self.code) {
            // The sender of the Terminate cannot continue, or lacks a resource.
            (0 | 1, 0, _) | (0, 2, 0x08) | (2, 0, 0x05..=0x07) => Blame::Peer,
            // 5041-7.1-02: the receiver has to post buffers.
            (1, 2, 0x02) => Blame::Peer,
            (2, 0, 0x01..=0x03) => Blame::Lower,
            _ => Blame::Local,
        }
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.layer, self.etype, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use core::fmt::Write as _;

    #[test]
    fn every_number_of_the_rfcs_has_a_name() {
        let mut table = String::new();
        for layer in 0..4 {
            for etype in 0..5 {
                let unnamed = TerminateCode::new(layer, etype, 0xEE);
                let _ = writeln!(table, "{layer:x}/{etype:x}     {}", unnamed.kind());
                for code in 0..=u8::MAX {
                    let named = TerminateCode::new(layer, etype, code);
                    if named.name() != unnamed.name() {
                        let id = named.requirement().map_or("-", |demand| demand.id());
                        let (blame, name) = (named.blame(), named.name());
                        let _ = writeln!(table, "  {named}  {blame:?}  {id}  {name}");
                    }
                }
            }
        }
        insta::assert_snapshot!(table);
    }
}
