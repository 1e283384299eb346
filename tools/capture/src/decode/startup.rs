//! Parses MPA Request and Reply Frames as they were sent, and checks them (RFC 5044 section 7.1,
//! RFC 6581).
//!
//! This module has its own parser, because `uwarp-mpa` rejects the invalid frames that a dump has
//! to show.

use std::fmt;

use uwarp_mpa::{MAX_PRIVATE_DATA, NO_AUTO};

use super::finding::Findings;
use super::words::many;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
/// Length in bytes of a frame without Private Data.
const FIXED: usize = 20;
/// Length in bytes of the enhanced connection data.
pub(super) const ENHANCED: usize = 4;

/// An MPA Request or Reply Frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Startup {
    /// True if the Key is that of a Reply.
    pub reply: bool,
    /// The flags M, C, R and S, and the reserved bits.
    pub flags: u8,
    /// Value of the Rev field.
    pub revision: u8,
    /// Value of the PD_Length field.
    pub pd_length: u16,
    /// Enhanced connection data. `None` if the frame is not enhanced or its Private Data is too
    /// short.
    pub enhanced: Option<Enhanced>,
}

/// Enhanced connection data (RFC 6581 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enhanced {
    /// A and B in the high bits, and IRD.
    first: u16,
    /// C and D in the high bits, and ORD.
    second: u16,
}

/// Result of reading the first bytes of a direction as a startup frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// The bytes are the beginning of a startup frame.
    More,
    /// The bytes begin with a startup frame of this length.
    Frame(Startup, usize),
    /// The bytes are not a startup frame.
    Other,
}

impl Enhanced {
    /// Returns A: the peer-to-peer model.
    pub fn peer_to_peer(&self) -> bool {
        self.first & 0x8000 != 0
    }

    /// Returns B, C and D: whether a Send, Write or Read may be the RTR indication.
    pub fn rtr(&self) -> [bool; 3] {
        [
            self.first & 0x4000 != 0,
            self.second & 0x8000 != 0,
            self.second & 0x4000 != 0,
        ]
    }

    /// Returns IRD. 0x3FFF means that it is not negotiated.
    pub fn ird(&self) -> u16 {
        self.first & NO_AUTO
    }

    /// Returns ORD. 0x3FFF means that it is not negotiated.
    pub fn ord(&self) -> u16 {
        self.second & NO_AUTO
    }
}

impl Startup {
    pub(super) fn read(bytes: &[u8]) -> Opening {
        let key = bytes.get(..REQUEST_KEY.len()).unwrap_or(bytes);
        let reply = REPLY_KEY.starts_with(key);
        if !reply && !REQUEST_KEY.starts_with(key) {
            return Opening::Other;
        }
        let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED>() else {
            return Opening::More;
        };
        let [.., flags, revision, high, low] = *fixed;
        let pd_length = u16::from_be_bytes([high, low]);
        let len = FIXED + usize::from(pd_length);
        if bytes.len() < len {
            return Opening::More;
        }
        let mut frame = Self {
            reply,
            flags,
            revision,
            pd_length,
            enhanced: None,
        };
        if frame.is_enhanced()
            && usize::from(pd_length) >= ENHANCED
            && let Some([a, b, c, d]) = rest.first_chunk()
        {
            frame.enhanced = Some(Enhanced {
                first: u16::from_be_bytes([*a, *b]),
                second: u16::from_be_bytes([*c, *d]),
            });
        }
        Opening::Frame(frame, len)
    }

    /// Returns M: the sender asks its peer to send Markers.
    pub fn markers(&self) -> bool {
        self.flags & 0x80 != 0
    }

    /// Returns C: the sender asks for CRCs.
    pub fn crc(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// Returns R: the connection is rejected.
    pub fn rejected(&self) -> bool {
        self.flags & 0x20 != 0
    }

    /// Returns S. Before revision 2, S is a reserved bit, and the result is false.
    pub fn is_enhanced(&self) -> bool {
        self.revision >= 2 && self.flags & 0x10 != 0
    }

    fn reserved(&self) -> u8 {
        self.flags & if self.revision >= 2 { 0x0F } else { 0x1F }
    }

    /// Checks the rules that concern a single frame.
    pub(super) fn judge(&self, findings: &mut Findings) {
        let (reserved, revision, pd_length) = (self.reserved(), self.revision, self.pd_length);
        findings.demand(reserved == 0, "5044-7.1.1-10", || {
            format!("reserved flags {reserved:#04x}: must be zero in revision {revision}")
        });
        findings.demand(
            revision != 0,
            "5044-7.1.1-12",
            || "Rev 0: must be 1, or 2 for an enhanced frame",
        );
        findings.demand(
            usize::from(pd_length) <= MAX_PRIVATE_DATA,
            "5044-7.1.1-17",
            || format!("PD_Length {pd_length}: the maximum is {MAX_PRIVATE_DATA}"),
        );
        if !self.is_enhanced() {
            return;
        }
        match self.enhanced {
            None => findings.demand(false, "6581-6-04", || {
                let len = many(pd_length, "byte");
                format!("S with {len} of Private Data: it must begin with 4 bytes of IRD and ORD")
            }),
            Some(data) => findings.demand(
                data.peer_to_peer() || data.rtr() == [false; 3],
                "6581-9.2-13",
                || "B, C or D without A: must be zero",
            ),
        }
    }

    /// Checks the rules that concern a Reply and the Request before it.
    pub(super) fn judge_reply(&self, request: &Startup, findings: &mut Findings) {
        let (asked, answered) = (request.is_enhanced(), self.is_enhanced());
        findings.demand(
            answered || !asked,
            "6581-10-01",
            || "not enhanced, in answer to an enhanced Request",
        );
        findings.demand(
            asked || !answered,
            "6581-10-02",
            || "enhanced, in answer to a Request that is not",
        );
        let (Some(request), Some(reply)) = (request.enhanced, self.enhanced) else {
            return;
        };
        if self.rejected() {
            return;
        }
        match (request.peer_to_peer(), reply.peer_to_peer()) {
            (true, false) => findings.demand(false, "6581-9.2-04", || "A is 0, but the Request has 1"),
            (false, true) => findings.demand(false, "6581-9.2-12", || "A is 1, but the Request has 0"),
            (true, true) => findings.demand(reply.rtr() != [false; 3], "6581-9.2-08", || {
                "none of B, C and D is set: one of them must tell the initiator its RTR indication"
            }),
            (false, false) => {}
        }
        let (ird, ord) = (reply.ird(), reply.ord());
        match request.ird() {
            NO_AUTO => findings.demand(ord == NO_AUTO, "6581-9.1-12", || {
                format!("ORD {ord}: must be 0x3FFF in answer to an IRD of 0x3FFF")
            }),
            most => findings.demand(ord <= most, "6581-9.1-04", || {
                format!("ORD {ord}, but the initiator's IRD is {most}")
            }),
        }
        if request.ord() == NO_AUTO {
            findings.demand(ird == NO_AUTO, "6581-9.1-10", || {
                format!("IRD {ird}: must be 0x3FFF in answer to an ORD of 0x3FFF")
            });
        }
    }
}

impl fmt::Display for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.reply { "Reply" } else { "Request" };
        write!(f, "MPA {what} rev {}", self.revision)?;
        for (set, name) in [
            (self.markers(), " M"),
            (self.crc(), " C"),
            (self.rejected(), " R"),
            (self.is_enhanced(), " S"),
        ] {
            f.write_str(if set { name } else { "" })?;
        }
        if let Some(data) = self.enhanced {
            write!(f, " {data}")?;
        }
        write!(f, " pd {}", self.pd_length)
    }
}

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [b, c, d] = self.rtr();
        for (set, name) in [(self.peer_to_peer(), "A "), (b, "B "), (c, "C "), (d, "D ")] {
            f.write_str(if set { name } else { "" })?;
        }
        write!(f, "IRD {} ORD {}", self.ird(), self.ord())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Finding;
    use uwarp_testkit::frames::{reply, request};

    fn frame(bytes: &[u8]) -> Startup {
        match Startup::read(bytes) {
            Opening::Frame(frame, len) if len == bytes.len() => frame,
            other => panic!("{other:?}"),
        }
    }

    fn ids(reply: Option<&[u8]>, request: &[u8]) -> Vec<&'static str> {
        let mut findings = Findings::default();
        let request = frame(request);
        match reply {
            Some(reply) => frame(reply).judge_reply(&request, &mut findings),
            None => request.judge(&mut findings),
        }
        findings.0.iter().map(Finding::id).collect()
    }

    #[test]
    fn a_frame_is_told_from_other_bytes_with_the_first_one_that_differs() {
        let whole = request(0x50, 2, &[0x80, 4, 0x80, 8, b'x']);
        for len in 0..whole.len() {
            assert_eq!(Startup::read(&whole[..len]), Opening::More, "{len}");
        }
        assert_eq!(
            frame(&whole).to_string(),
            "MPA Request rev 2 C S A C IRD 4 ORD 8 pd 5"
        );
        assert_eq!(Startup::read(b"MPB"), Opening::Other);
    }

    #[test]
    fn each_fault_of_a_frame_has_its_rule() {
        assert_eq!(ids(None, &request(0x50, 2, &[0, 4, 0, 4])), [""; 0]);
        assert_eq!(ids(None, &request(0x50, 1, &[])), ["5044-7.1.1-10"]);
        assert_eq!(ids(None, &request(0x40, 0, &[])), ["5044-7.1.1-12"]);
        assert_eq!(ids(None, &request(0x40, 1, &[0; 513])), ["5044-7.1.1-17"]);
        assert_eq!(ids(None, &request(0x50, 2, &[0; 3])), ["6581-6-04"]);
        let without_a = request(0x50, 2, &[0x40, 0, 0, 0]);
        assert_eq!(ids(None, &without_a), ["6581-9.2-13"]);
    }

    #[test]
    fn each_fault_of_a_reply_has_its_rule() {
        let client = request(0x50, 2, &[0, 4, 0, 8]);
        let peer = request(0x50, 2, &[0x80, 4, 0x80, 8]);
        let own_way = request(0x50, 2, &[0x3F, 0xFF, 0x3F, 0xFF]);
        let plain = request(0x40, 2, &[]);
        for (request, bytes, id) in [
            (&client, &[0, 8, 0, 4][..], ""),
            (&client, &[0, 8, 0, 5], "6581-9.1-04"),
            (&client, &[0x80, 8, 0x80, 4], "6581-9.2-12"),
            (&peer, &[0, 8, 0, 4], "6581-9.2-04"),
            (&peer, &[0x80, 8, 0, 4], "6581-9.2-08"),
            (&own_way, &[0, 8, 0x3F, 0xFF], "6581-9.1-10"),
            (&own_way, &[0x3F, 0xFF, 0, 1], "6581-9.1-12"),
            (&plain, &[0, 8, 0, 4], "6581-10-02"),
        ] {
            let found = ids(Some(&reply(0x50, 2, bytes)), request);
            assert_eq!(found.first().copied().unwrap_or(""), id, "{bytes:02x?}");
        }
        assert_eq!(ids(Some(&reply(0x40, 1, &[])), &client), ["6581-10-01"]);
    }
}
