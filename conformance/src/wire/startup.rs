//! MPA Request and Reply Frames (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9). The suite can
//! build frames with any value in any field.

use crate::words::many;
use std::fmt;

/// Key of a Request Frame.
pub(crate) const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// Key of a Reply Frame.
pub(crate) const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

/// Flag M: the sender asks its peer to send Markers.
pub(crate) const M: u8 = 0x80;
/// Flag C: the sender asks for CRCs.
pub(crate) const C: u8 = 0x40;
/// Flag R: the connection is rejected (Reply only).
pub(crate) const R: u8 = 0x20;
/// Flag S: the Private Data begins with enhanced connection data (RFC 6581).
pub(crate) const S: u8 = 0x10;

/// Enhanced connection data (RFC 6581 section 9), which is the first four bytes of the Private
/// Data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enhanced {
    /// Bit A: the peer-to-peer model.
    pub(crate) a: bool,
    /// Bit B: a zero-length Send may be the RTR indication.
    pub(crate) b: bool,
    /// Bit C: a zero-length RDMA Write may be the RTR indication.
    pub(crate) c: bool,
    /// Bit D: a zero-length RDMA Read may be the RTR indication.
    pub(crate) d: bool,
    /// IRD, a value of 14 bits.
    pub(crate) ird: u16,
    /// ORD, a value of 14 bits.
    pub(crate) ord: u16,
}

impl Enhanced {
    /// Creates data for the client-server model.
    pub(crate) fn client_server(ird: u16, ord: u16) -> Self {
        Enhanced {
            ird,
            ord,
            ..Enhanced::default()
        }
    }

    pub(crate) fn bytes(self) -> [u8; 4] {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let first = bit(self.a, 0x8000) | bit(self.b, 0x4000) | self.ird;
        let second = bit(self.c, 0x8000) | bit(self.d, 0x4000) | self.ord;
        let ([w, x], [y, z]) = (first.to_be_bytes(), second.to_be_bytes());
        [w, x, y, z]
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let [w, x, y, z] = *bytes.first_chunk()?;
        let (first, second) = (u16::from_be_bytes([w, x]), u16::from_be_bytes([y, z]));
        Some(Enhanced {
            a: first & 0x8000 != 0,
            b: first & 0x4000 != 0,
            c: second & 0x8000 != 0,
            d: second & 0x4000 != 0,
            ird: first & 0x3fff,
            ord: second & 0x3fff,
        })
    }
}

/// A startup frame, sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartupFrame {
    pub(crate) key: [u8; 16],
    pub(crate) flags: u8,
    pub(crate) rev: u8,
    /// Value of PD_Length, if it is not the length of `private_data`.
    pub(crate) pd_length: Option<u16>,
    /// Bytes after the header, including the enhanced connection data.
    pub(crate) private_data: Vec<u8>,
}

/// Returns a valid Request of revision 1 with C set and without Private Data.
pub(crate) fn request() -> StartupFrame {
    StartupFrame {
        key: REQUEST_KEY,
        flags: C,
        rev: 1,
        pd_length: None,
        private_data: Vec::new(),
    }
}

/// Returns a valid Reply of revision 1 with C set and without Private Data.
pub(crate) fn reply() -> StartupFrame {
    StartupFrame {
        key: REPLY_KEY,
        ..request()
    }
}

impl StartupFrame {
    /// Replaces the flags.
    pub(crate) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// Sets these flags in addition to the others.
    pub(crate) fn and_flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    pub(crate) fn rev(mut self, rev: u8) -> Self {
        self.rev = rev;
        self
    }

    /// Sets revision 2 and the flag S, and inserts this data before the Private Data.
    pub(crate) fn enhanced(mut self, enhanced: Enhanced) -> Self {
        self.rev = 2;
        self.flags |= S;
        self.private_data.splice(..0, enhanced.bytes());
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let claimed = self
            .pd_length
            .unwrap_or(u16::try_from(self.private_data.len()).unwrap_or(u16::MAX));
        let mut bytes = self.key.to_vec();
        bytes.extend_from_slice(&[self.flags, self.rev]);
        bytes.extend_from_slice(&claimed.to_be_bytes());
        bytes.extend_from_slice(&self.private_data);
        bytes
    }

    /// Parses a header. Returns the frame without Private Data, and the value of PD_Length.
    pub(crate) fn parse_header(header: &[u8; 20]) -> (Self, usize) {
        let mut key = [0; 16];
        key.copy_from_slice(&header[..16]);
        let claimed = u16::from_be_bytes([header[18], header[19]]);
        let frame = StartupFrame {
            key,
            flags: header[16],
            rev: header[17],
            pd_length: Some(claimed),
            private_data: Vec::new(),
        };
        (frame, usize::from(claimed))
    }

    /// Returns the enhanced connection data. Returns `None` if S is not set or there are fewer than
    /// four bytes.
    pub(crate) fn enhanced_data(&self) -> Option<Enhanced> {
        (self.flags & S != 0)
            .then(|| Enhanced::parse(&self.private_data))
            .flatten()
    }
}

impl fmt::Display for StartupFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.key {
            REQUEST_KEY => "MPA Request Frame",
            REPLY_KEY => "MPA Reply Frame",
            _ => "a frame with another Key",
        };
        let names = [(M, "M"), (C, "C"), (R, "R"), (S, "S")];
        let flags: Vec<&str> = names
            .iter()
            .filter(|(bit, _)| self.flags & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        write!(
            f,
            "{kind}, revision {}, flags {:#04x} ({}), {} of Private Data",
            self.rev,
            self.flags,
            flags.join(" "),
            many(self.private_data.len(), "byte")
        )?;
        if let Some(data) = self.enhanced_data() {
            write!(f, ", IRD {}, ORD {}", data.ird, data.ord)?;
            let bits = [(data.a, "A"), (data.b, "B"), (data.c, "C"), (data.d, "D")];
            for (_, name) in bits.iter().filter(|(set, _)| *set) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}
