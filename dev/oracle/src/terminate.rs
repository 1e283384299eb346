//! Terminate Messages (RFC 5040 section 4.8).

use crate::{READ_REQUEST, TERMINATE, Untagged};

/// Error code of a Terminate Message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// Layer: 0 is RDMAP, 1 is DDP, 2 is MPA.
    pub layer: u8,
    /// Error Type.
    pub etype: u8,
    /// Error Code.
    pub code: u8,
}

impl Code {
    /// Returns a code of RDMAP.
    #[must_use]
    pub const fn rdmap(etype: u8, code: u8) -> Self {
        Code {
            layer: 0,
            etype,
            code,
        }
    }

    /// Returns a code of DDP.
    #[must_use]
    pub const fn ddp(etype: u8, code: u8) -> Self {
        Code {
            layer: 1,
            etype,
            code,
        }
    }

    /// Returns a code of MPA.
    #[must_use]
    pub const fn mpa(code: u8) -> Self {
        Code {
            layer: 2,
            etype: 0,
            code,
        }
    }

    /// Returns the ULPDU of a Terminate about `offending`, with the headers that RFC 5040 Figure 10
    /// requires. All errors but LLP and catastrophic ones carry the DDP header. Remote Protection
    /// Errors also carry the header of a Read Request, because section 4.8 defines that part for
    /// Read Requests only.
    ///
    /// # Panics
    /// If `offending` has no whole header, or is longer than the DDP Segment Length can say.
    #[must_use]
    pub fn about(self, offending: &[u8]) -> Vec<u8> {
        if self.layer == 2 {
            return self.bare();
        }
        let ddp = self.layer == 1 || self.layer == 0 && self.etype != 0;
        let ddp_header = if offending[0] & 0x80 != 0 { 14 } else { 18 };
        let read = self.layer == 0 && self.etype == 1 && offending[1] & 0x0F == READ_REQUEST;
        let mut header = vec![self.layer << 4 | self.etype, self.code, 0, 0];
        if ddp {
            header[2] |= 0xC0; // M and D
            let len = crate::field("DDP Segment Length", offending.len());
            header.extend_from_slice(&len.to_be_bytes());
            header.extend_from_slice(&offending[..ddp_header]);
        }
        if read {
            header[2] |= 0x20; // R
            header.extend_from_slice(&offending[18..46]);
        }
        Untagged::new(TERMINATE, 2, 1, &header).bytes()
    }

    /// Returns the ULPDU of a Terminate without headers.
    #[must_use]
    pub fn bare(self) -> Vec<u8> {
        let header = [self.layer << 4 | self.etype, self.code, 0, 0];
        Untagged::new(TERMINATE, 2, 1, &header).bytes()
    }
}

/// Shows the code in the usual notation, for example `0/1/02`.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.layer, self.etype, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_request;

    #[test]
    fn a_protection_error_carries_both_headers_of_a_read_request() {
        let request = read_request(3, (0x1122_3344, 7), 64, (0x5566_7788, 8));
        let terminate = Code::rdmap(1, 2).about(&request);
        #[rustfmt::skip]
        let expected = [
            0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0,
            0x01, 0x02, 0xE0, 0, 0, 46,
        ];
        assert_eq!(terminate[..24], expected);
        assert_eq!(terminate[24..], request);
    }

    #[test]
    fn an_error_of_the_lower_layer_carries_no_header() {
        let terminate = Code::mpa(2).about(&[0xC1, 0x40]);
        assert_eq!(terminate[18..], [0x20, 2, 0, 0]);
    }
}
