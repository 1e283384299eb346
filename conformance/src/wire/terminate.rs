//! Parser for a received Terminate Header (RFC 5040 section 4.8).

use std::fmt;

/// Fields of a Terminate Message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terminate {
    pub(crate) layer: u8,
    pub(crate) etype: u8,
    pub(crate) code: u8,
    /// The header control bits M, D and R, as the three low bits.
    pub(crate) hdrct: u8,
    /// The 13 reserved bits.
    pub(crate) reserved: u16,
    /// Bytes after the first four, which hold DDP Segment Length and the quoted headers.
    pub(crate) rest: Vec<u8>,
    /// Whole payload of the message.
    pub(crate) bytes: Vec<u8>,
}

/// Bit of `hdrct`: DDP Segment Length is valid.
pub(crate) const M: u8 = 4;
/// Bit of `hdrct`: the Terminated DDP Header is included.
pub(crate) const D: u8 = 2;
/// Bit of `hdrct`: the Terminated RDMA Header is included.
pub(crate) const R: u8 = 1;

impl Terminate {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let [kind, code, bits, low] = *payload.first_chunk()?;
        Some(Terminate {
            layer: kind >> 4,
            etype: kind & 15,
            code,
            hdrct: bits >> 5,
            reserved: u16::from(bits & 0x1f) << 8 | u16::from(low),
            rest: payload[4..].to_vec(),
            bytes: payload.to_vec(),
        })
    }

    /// Returns DDP Segment Length, if M or D is set.
    pub(crate) fn segment_length(&self) -> Option<u16> {
        if self.hdrct & (M | D) == 0 {
            return None;
        }
        Some(u16::from_be_bytes(*self.rest.first_chunk()?))
    }

    /// Returns the Terminated DDP and RDMA Headers, which follow DDP Segment Length.
    pub(crate) fn headers(&self) -> &[u8] {
        let skip = if self.hdrct & (M | D) == 0 { 0 } else { 2 };
        self.rest.get(skip..).unwrap_or_default()
    }

    /// Reads the Terminate as if its sender used a little-endian bit field, as Linux siw does. Then
    /// Layer and EType are swapped, and the order of the bits M, D and R is reversed. Returns
    /// `None` if the bytes do not fit this layout.
    pub(crate) fn swapped(&self) -> Option<Terminate> {
        let bits = self.bytes.get(2)?;
        if bits & 0xe0 != 0 || bits & 0x18 != 0 {
            return None;
        }
        let hdrct = (bits & 1) << 2 | bits & 2 | bits >> 2;
        Some(Terminate {
            layer: self.etype,
            etype: self.layer,
            hdrct,
            reserved: u16::from(self.bytes[3]),
            ..self.clone()
        })
    }
}

/// Returns the name of an error, from RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044 section 8
/// and RFC 6581.
fn name(layer: u8, etype: u8, code: u8) -> &'static str {
    match (layer, etype, code) {
        (0, 0, _) => "RDMAP local catastrophic error",
        (0, 1, 0) => "invalid STag",
        (0, 1, 1) => "base or bounds violation",
        (0, 1, 2) => "access rights violation",
        (0, 1, 3) => "STag not associated with RDMAP Stream",
        (0, 1, 4) => "TO wrap",
        (0, 1 | 2, 9) => "STag cannot be invalidated",
        (0, 1 | 2, 0xff) => "unspecified error",
        (0, 2, 5) => "invalid RDMAP version",
        (0, 2, 6) => "unexpected OpCode",
        (0, 2, 7) => "catastrophic error, localized to RDMAP Stream",
        (0, 2, 8) => "catastrophic error, global",
        (1, 0, 0) => "DDP local catastrophic error",
        (1, 1, 0) => "invalid STag",
        (1, 1, 1) => "base or bounds violation",
        (1, 1, 2) => "STag not associated with DDP Stream",
        (1, 1, 3) => "TO wrap",
        (1, 1, 4) => "invalid DDP version",
        (1, 2, 1) => "invalid QN",
        (1, 2, 2) => "invalid MSN, no buffer available",
        (1, 2, 3) => "invalid MSN, MSN range is not valid",
        (1, 2, 4) => "invalid MO",
        (1, 2, 5) => "DDP Message too long for available buffer",
        (1, 2, 6) => "invalid DDP version",
        (2, 0, 1) => "TCP connection closed, terminated or lost",
        (2, 0, 2) => "MPA CRC error",
        (2, 0, 3) => "Marker and ULPDU_Length mismatch",
        (2, 0, 4) => "invalid MPA Request or Reply Frame",
        (2, 0, 5) => "local catastrophic error",
        (2, 0, 6) => "insufficient IRD resources",
        (2, 0, 7) => "no matching RTR option",
        _ => "not registered",
    }
}

/// Formats an error for people: layer/etype/code and its name.
pub(crate) fn describe(layer: u8, etype: u8, code: u8) -> String {
    let name = name(layer, etype, code);
    let owner = match layer {
        0 => "RDMAP",
        1 => "DDP",
        2 => "MPA",
        _ => "no layer",
    };
    format!("{layer}/{etype}/{code:02x} ({owner}: {name})")
}

/// Returns true if this error is registered (RFC 6580, RFC 6581 section 11). An RDMAP local
/// catastrophic error may have any code.
pub(crate) fn is_registered(layer: u8, etype: u8, code: u8) -> bool {
    name(layer, etype, code) != "not registered"
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = describe(self.layer, self.etype, self.code);
        write!(f, "Terminate {code}")?;
        let bits = [(M, "M"), (D, "D"), (R, "R")];
        let set: Vec<&str> = bits
            .iter()
            .filter(|(bit, _)| self.hdrct & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        if set.is_empty() {
            write!(f, ", no headers")
        } else {
            write!(f, ", {}", set.join(" "))
        }
    }
}
