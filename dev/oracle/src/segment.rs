//! DDP segments with the control byte of RDMAP (RFC 5041 section 4, RFC 5040 section 4.1).

use nom::number::complete::{be_u8, be_u32, be_u64};
use nom::{IResult, Parser};

/// Opcode of an RDMA Write.
pub const WRITE: u8 = 0;
/// Opcode of an RDMA Read Request.
pub const READ_REQUEST: u8 = 1;
/// Opcode of an RDMA Read Response.
pub const READ_RESPONSE: u8 = 2;
/// Opcode of a Send.
pub const SEND: u8 = 3;
/// Opcode of a Send with Invalidate.
pub const SEND_INVALIDATE: u8 = 4;
/// Opcode of a Send with Solicited Event.
pub const SEND_SOLICITED: u8 = 5;
/// Opcode of a Send with Solicited Event and Invalidate.
pub const SEND_SOLICITED_INVALIDATE: u8 = 6;
/// Opcode of a Terminate.
pub const TERMINATE: u8 = 7;
/// Opcode of Immediate Data (RFC 7306).
pub const IMMEDIATE: u8 = 8;
/// Opcode of Immediate Data with Solicited Event (RFC 7306).
pub const IMMEDIATE_SOLICITED: u8 = 9;
/// Opcode of an Atomic Request (RFC 7306).
pub const ATOMIC_REQUEST: u8 = 10;
/// Opcode of an Atomic Response (RFC 7306).
pub const ATOMIC_RESPONSE: u8 = 11;

/// A tagged segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// Flag L: the last segment of its message.
    pub last: bool,
    /// Flag T on the wire.
    pub t: bool,
    /// DDP version, with the reserved bits above it.
    pub ddp_version: u8,
    /// RDMAP version.
    pub rdmap_version: u8,
    /// Opcode, with the reserved bits above it.
    pub opcode: u8,
    /// STag.
    pub stag: u32,
    /// Tagged Offset.
    pub to: u64,
    /// Bytes after the header.
    pub payload: Vec<u8>,
}

impl Tagged {
    /// Creates a message of one segment.
    #[must_use]
    pub fn new(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Self {
        Tagged {
            last: true,
            t: true,
            ddp_version: 1,
            rdmap_version: 1,
            opcode,
            stag,
            to,
            payload: payload.to_vec(),
        }
    }

    /// Creates an empty Write of one segment.
    #[must_use]
    pub fn write(stag: u32, to: u64) -> Self {
        Tagged::new(WRITE, stag, to, &[])
    }

    /// Creates an empty Read Response of one segment.
    #[must_use]
    pub fn read_response(stag: u32, to: u64) -> Self {
        Tagged::new(READ_RESPONSE, stag, to, &[])
    }

    /// Returns the ULPDU.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.with(&self.payload)
    }

    /// Returns the ULPDU with another payload.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let versions = (self.ddp_version, self.rdmap_version);
        let head = control(self.t, self.last, versions, self.opcode);
        let address = (self.stag.to_be_bytes(), self.to.to_be_bytes());
        [&head[..], &address.0, &address.1, payload].concat()
    }
}

/// An untagged segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Untagged {
    /// Flag L: the last segment of its message.
    pub last: bool,
    /// Flag T on the wire.
    pub t: bool,
    /// DDP version, with the reserved bits above it.
    pub ddp_version: u8,
    /// RDMAP version.
    pub rdmap_version: u8,
    /// Opcode, with the reserved bits above it.
    pub opcode: u8,
    /// STag to invalidate, or 0.
    pub word: u32,
    /// Queue Number.
    pub qn: u32,
    /// Message Sequence Number.
    pub msn: u32,
    /// Message Offset.
    pub mo: u32,
    /// Bytes after the header.
    pub payload: Vec<u8>,
}

impl Untagged {
    /// Creates a message of one segment.
    #[must_use]
    pub fn new(opcode: u8, qn: u32, msn: u32, payload: &[u8]) -> Self {
        Untagged {
            last: true,
            t: false,
            ddp_version: 1,
            rdmap_version: 1,
            opcode,
            word: 0,
            qn,
            msn,
            mo: 0,
            payload: payload.to_vec(),
        }
    }

    /// Creates an empty Send of one segment.
    #[must_use]
    pub fn send(msn: u32) -> Self {
        Untagged::new(SEND, 0, msn, &[])
    }

    /// Returns the ULPDU.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.with(&self.payload)
    }

    /// Returns the ULPDU with another payload.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let versions = (self.ddp_version, self.rdmap_version);
        let head = control(self.t, self.last, versions, self.opcode);
        let words = [self.word, self.qn, self.msn, self.mo].map(u32::to_be_bytes);
        [&head[..], &words.concat(), payload].concat()
    }
}

fn control(t: bool, last: bool, (ddp, rdmap): (u8, u8), opcode: u8) -> [u8; 2] {
    [
        u8::from(t) << 7 | u8::from(last) << 6 | ddp,
        rdmap << 6 | opcode,
    ]
}

/// A parsed segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Segment {
    /// Flag T is set.
    Tagged(Tagged),
    /// Flag T is not set.
    Untagged(Untagged),
}

/// A ULPDU of this length ends inside its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ULPDU of {0} bytes ends inside its header")]
pub struct ShortSegment(pub usize);

impl Segment {
    /// Parses the segment in a ULPDU, whatever its versions and its opcode are.
    ///
    /// # Errors
    /// The header is incomplete.
    pub fn parse(ulpdu: &[u8]) -> Result<Segment, ShortSegment> {
        let parsed = segment(ulpdu).map_err(|_| ShortSegment(ulpdu.len()))?;
        Ok(parsed.1)
    }
}

fn segment(input: &[u8]) -> IResult<&[u8], Segment> {
    let (input, (ddp, rdmap)) = (be_u8, be_u8).parse(input)?;
    let (t, last) = (ddp & 0x80 != 0, ddp & 0x40 != 0);
    let (ddp_version, rdmap_version, opcode) = (ddp & 0x3F, rdmap >> 6, rdmap & 0x3F);
    let segment = if t {
        let (payload, (stag, to)) = (be_u32, be_u64).parse(input)?;
        Segment::Tagged(Tagged {
            last,
            t,
            ddp_version,
            rdmap_version,
            ..Tagged::new(opcode, stag, to, payload)
        })
    } else {
        let (payload, (word, qn, msn, mo)) = (be_u32, be_u32, be_u32, be_u32).parse(input)?;
        Segment::Untagged(Untagged {
            last,
            t,
            ddp_version,
            rdmap_version,
            word,
            mo,
            ..Untagged::new(opcode, qn, msn, payload)
        })
    };
    Ok((&[], segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_parsed_to_what_they_were_built_from() {
        let tagged = Tagged {
            last: false,
            ddp_version: 0x3D,
            rdmap_version: 3,
            ..Tagged::new(0x3F, 0x0102_0304, 0x0506_0708_090A_0B0C, b"payload")
        };
        let untagged = Untagged {
            ddp_version: 0,
            word: 9,
            mo: 7,
            ..Untagged::new(SEND_INVALIDATE, 1, 2, b"")
        };
        let (one, other) = (tagged.bytes(), untagged.bytes());
        assert_eq!(one[..4], [0xBD, 0xFF, 1, 2]);
        assert_eq!(other.len(), 18);
        for len in 0..14 {
            assert_eq!(Segment::parse(&one[..len]), Err(ShortSegment(len)));
        }
        assert_eq!(Segment::parse(&other[..17]), Err(ShortSegment(17)));
        assert_eq!(Segment::parse(&one), Ok(Segment::Tagged(tagged)));
        assert_eq!(Segment::parse(&other), Ok(Segment::Untagged(untagged)));
    }
}
