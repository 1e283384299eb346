//! Startup frames of MPA (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9).

use std::io::{self, Read};

use nom::bytes::streaming::{tag, take};
use nom::number::streaming::{be_u8, be_u16};
use nom::{IResult, Parser};

/// Key of an MPA Request.
pub const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// Key of an MPA Reply.
pub const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// Flag M: the sender wants Markers.
pub const MARKERS: u8 = 0x80;
/// Flag C: the sender wants CRCs.
pub const CRC: u8 = 0x40;
/// Flag R: the sender rejects the connection.
pub const REJECT: u8 = 0x20;
/// Flag S: the Private Data begins with IRD and ORD (RFC 6581 section 6).
pub const ENHANCED: u8 = 0x10;

/// Flag A, in the word of IRD: the peer-to-peer model.
pub const PEER_TO_PEER: u16 = 0x8000;
/// Flag B, in the word of IRD: a zero-length Send may be the RTR indication.
pub const RTR_SEND: u16 = 0x4000;
/// Flag C, in the word of ORD: a zero-length Write may be the RTR indication.
pub const RTR_WRITE: u16 = 0x8000;
/// Flag D, in the word of ORD: a zero-length Read may be the RTR indication.
pub const RTR_READ: u16 = 0x4000;
/// Value of IRD and ORD that means "not negotiated". Smaller values are depths.
pub const NO_DEPTH: u16 = 0x3FFF;

/// Builds a startup frame.
///
/// # Panics
/// If PD_Length cannot hold the length of `private_data`.
#[must_use]
pub fn startup(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let len = crate::field("PD_Length", private_data.len());
    startup_claiming(key, flags, revision, len, private_data)
}

/// Builds a startup frame with any PD_Length.
#[must_use]
pub fn startup_claiming(
    key: &[u8; 16],
    flags: u8,
    revision: u8,
    len: u16,
    private_data: &[u8],
) -> Vec<u8> {
    let fixed = [flags, revision];
    [&key[..], &fixed, &len.to_be_bytes(), private_data].concat()
}

/// Builds enhanced connection data. The first word contains IRD, and the second ORD.
#[must_use]
pub fn words(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}

/// Reads a startup frame with any key.
///
/// # Errors
/// Those of `stream`.
pub fn receive_startup(stream: &mut impl Read) -> io::Result<StartupFrame> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let mut private_data = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
    stream.read_exact(&mut private_data)?;
    let key = head.first_chunk().unwrap_or(REQUEST);
    Ok(StartupFrame::new(key, head[16], head[17], &private_data))
}

/// A startup frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupFrame {
    /// [`REQUEST`], [`REPLY`], or a wrong key.
    pub key: [u8; 16],
    /// Flags M, C, R and, with RFC 6581, S, from the highest bit down.
    pub flags: u8,
    /// Field Rev, the revision of the protocol.
    pub revision: u8,
    /// Private Data, including the enhanced connection data.
    pub private_data: Vec<u8>,
}

/// A startup frame begins with another key than the one that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a startup frame has a wrong key")]
pub struct WrongKey;

impl StartupFrame {
    /// Creates a frame with these fields.
    #[must_use]
    pub fn new(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Self {
        StartupFrame {
            key: *key,
            flags,
            revision,
            private_data: private_data.to_vec(),
        }
    }

    /// Creates a frame of revision 2 with IRD and ORD, both including their flags A to D.
    #[must_use]
    pub fn enhanced(key: &[u8; 16], flags: u8, ird: u16, ord: u16) -> Self {
        StartupFrame::new(key, flags | ENHANCED, 2, &words(ird, ord))
    }

    /// Returns the bytes of the frame.
    ///
    /// # Panics
    /// If PD_Length cannot hold the length of the Private Data.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        startup(&self.key, self.flags, self.revision, &self.private_data)
    }

    /// Parses the frame at the start of `bytes`. Returns it with its length, or `None` if it is
    /// incomplete.
    ///
    /// # Errors
    /// The frame has another key than `key`.
    pub fn parse(key: &[u8; 16], bytes: &[u8]) -> Result<Option<(Self, usize)>, WrongKey> {
        let parsed = crate::whole(frame(key, bytes)).map_err(|_| WrongKey)?;
        Ok(parsed.map(|(rest, frame)| (frame, bytes.len() - rest.len())))
    }

    /// Returns true if these flags are set.
    #[must_use]
    pub fn is(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the words of IRD and ORD, including their flags A to D. Returns `None` without flag
    /// S or without room for them.
    #[must_use]
    pub fn depths(&self) -> Option<(u16, u16)> {
        let &[a, b, c, d] = self.private_data.first_chunk()?;
        let words = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        self.is(ENHANCED).then_some(words)
    }
}

fn frame<'a>(key: &[u8; 16], input: &'a [u8]) -> IResult<&'a [u8], StartupFrame> {
    let (input, _) = tag(&key[..])(input)?;
    let (input, (flags, revision, len)) = (be_u8, be_u8, be_u16).parse(input)?;
    let (input, private_data) = take(len)(input)?;
    Ok((input, StartupFrame::new(key, flags, revision, private_data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_startup_frame_says_its_length() {
        let bytes = StartupFrame::enhanced(REQUEST, CRC, 4, 1).bytes();
        assert_eq!(&bytes[..16], b"MPA ID Req Frame");
        assert_eq!(bytes[16..], [0x50, 2, 0, 4, 0, 4, 0, 1]);
    }

    #[test]
    fn a_frame_is_parsed_when_it_is_whole() {
        let frame = StartupFrame::enhanced(REPLY, MARKERS, 4 | PEER_TO_PEER, 1);
        let bytes = frame.bytes();
        for len in 0..bytes.len() {
            assert_eq!(StartupFrame::parse(REPLY, &bytes[..len]), Ok(None));
        }
        let parsed = StartupFrame::parse(REPLY, &[&bytes[..], b"more"].concat());
        assert_eq!(parsed, Ok(Some((frame.clone(), bytes.len()))));
        assert_eq!(frame.depths(), Some((0x8004, 1)));
        assert_eq!(StartupFrame::parse(REQUEST, &bytes), Err(WrongKey));
    }
}
