//! FPDUs with and without Markers (RFC 5044 section 4).

use std::io::{self, Read};

use nom::IResult;
use nom::bytes::streaming::take;
use nom::number::streaming::{be_u32, le_u32};

use crate::{crc32c, field};

/// Distance in bytes from the start of one Marker to the start of the next.
pub const INTERVAL: usize = 512;
/// Longest ULPDU (RFC 5044 section 3).
pub const MAX_ULPDU: usize = 64_768;

/// FPDU encoder of one direction of a connection.
#[derive(Clone, Debug)]
pub struct Fpdus {
    /// CRCs are in use. Without them the CRC field is zero.
    pub crc: bool,
    /// Markers are in use.
    pub markers: bool,
    /// Number of bytes since Full Operation began.
    pub position: usize,
    /// Error that is added to every FPDUPTR. It is 0 in a correct encoder.
    pub marker_lie: u16,
}

impl Fpdus {
    /// Creates an encoder at the start of Full Operation.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Fpdus {
            crc,
            markers,
            position: 0,
            marker_lie: 0,
        }
    }

    /// Returns the FPDU for `ulpdu`.
    ///
    /// # Panics
    /// If ULPDU_Length cannot hold the length of `ulpdu`.
    pub fn seal(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        self.seal_claiming(field("ULPDU_Length", ulpdu.len()), ulpdu)
    }

    /// Returns an FPDU for `ulpdu` with any ULPDU_Length. PAD and CRC fit the actual bytes, not the
    /// length field.
    ///
    /// # Panics
    /// If FPDUPTR cannot hold the distance from a Marker back to ULPDU_Length.
    pub fn seal_claiming(&mut self, len: u16, ulpdu: &[u8]) -> Vec<u8> {
        let mut body = [&len.to_be_bytes()[..], ulpdu].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        let mut out = Vec::new();
        let mut begin = None;
        for word in body.chunks(4) {
            self.marker(&mut out, begin);
            begin.get_or_insert(out.len());
            out.extend_from_slice(word);
        }
        self.marker(&mut out, begin);
        let crc = if self.crc { crc32c(&out) } else { 0 };
        out.extend_from_slice(&crc.to_le_bytes());
        self.position += out.len();
        out
    }

    /// Appends a Marker if one is due. `begin` is the offset of ULPDU_Length in `out`.
    fn marker(&self, out: &mut Vec<u8>, begin: Option<usize>) {
        if self.markers && (self.position + out.len()).is_multiple_of(INTERVAL) {
            let pointer = field("FPDUPTR", begin.map_or(0, |begin| out.len() - begin));
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&(pointer + self.marker_lie).to_be_bytes());
        }
    }
}

/// Content of the CRC field of an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crc {
    /// Correct CRC (RFC 5044 section 4.4).
    Right,
    /// Correct CRC with one bit inverted.
    Wrong,
    /// Zero, for connections without CRC.
    Zero,
}

/// Builds an FPDU without Markers.
///
/// # Panics
/// If ULPDU_Length cannot hold the length of `ulpdu`.
#[must_use]
pub fn fpdu(ulpdu: &[u8], crc: Crc) -> Vec<u8> {
    let mut bytes = Fpdus::new(crc != Crc::Zero, false).seal(ulpdu);
    let field = bytes.len() - 4;
    bytes[field] ^= u8::from(crc == Crc::Wrong);
    bytes
}

/// Reads an FPDU without Markers. Does not judge PAD and CRC.
///
/// # Errors
/// Those of `stream`, and ULPDU_Length is too large.
pub fn receive_fpdu(stream: &mut impl Read) -> io::Result<Fpdu> {
    let mut bytes = vec![0; 2];
    stream.read_exact(&mut bytes)?;
    let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes.resize((2 + len).next_multiple_of(4) + 4, 0);
    stream.read_exact(&mut bytes[2..])?;
    let framing = Framing {
        markers: false,
        crc: false,
    };
    let fpdu = framing.read(&bytes, 0).map_err(io::Error::other)?;
    fpdu.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// A Marker in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// Offset in the bytes of its FPDU.
    pub at: usize,
    /// Its four bytes: reserved bits and FPDUPTR.
    pub value: u32,
    /// Correct FPDUPTR: the distance back to ULPDU_Length, or 0 if the Marker precedes that field.
    pub pointer: u32,
}

impl Marker {
    /// Returns true if a receiver must accept the Marker. A receiver ignores the reserved bits and
    /// the low two bits of FPDUPTR.
    #[must_use]
    pub fn is_acceptable(&self) -> bool {
        self.value & 0xFFFC == self.pointer
    }
}

/// An FPDU as it lies in a stream, right or wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fpdu {
    /// The ULPDU.
    pub ulpdu: Vec<u8>,
    /// Bytes between the ULPDU and the CRC field.
    pub pad: Vec<u8>,
    /// Content of the CRC field.
    pub crc: u32,
    /// Correct content of the CRC field if CRCs are in use.
    pub right_crc: u32,
    /// Markers before and in the FPDU.
    pub markers: Vec<Marker>,
    /// Length on the wire.
    pub len: usize,
}

/// Violation of RFC 5044 by an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FpduError {
    /// ULPDU_Length exceeds the maximum.
    #[error("a ULPDU_Length is {0}, more than {MAX_ULPDU}")]
    Length(u16),
    /// A Marker does not point to ULPDU_Length.
    #[error("a Marker's FPDUPTR is {:x}, expected {:x}", .0.value, .0.pointer)]
    Marker(Marker),
    /// A PAD is not zero.
    #[error("a byte of a PAD is not zero")]
    Pad,
    /// The CRC is wrong.
    #[error("a CRC is {is:08x}, expected {right:08x}")]
    Crc {
        /// Content of the field.
        is: u32,
        /// Its correct content.
        right: u32,
    },
}

/// Framing options of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Markers are in use.
    pub markers: bool,
    /// CRCs are in use.
    pub crc: bool,
}

impl Framing {
    /// Reads the FPDU at the start of `bytes`, whose first byte is at `position` in the stream.
    /// Returns `None` if it is incomplete. Does not judge Markers, PAD and CRC.
    ///
    /// # Errors
    /// ULPDU_Length is too large, which is known before the FPDU is complete.
    pub fn read(self, bytes: &[u8], position: u64) -> Result<Option<Fpdu>, FpduError> {
        let mut stream = Stream::new(self, bytes, position);
        let fpdu = stream.fpdu()?;
        Ok(fpdu.map(|fpdu| Fpdu {
            markers: stream.markers,
            ..fpdu
        }))
    }

    /// Checks the Markers of an FPDU that is incomplete: those whose four bytes have arrived.
    ///
    /// # Errors
    /// The first wrong Marker, and the error of [`read`](Self::read).
    pub fn check_incomplete(self, bytes: &[u8], position: u64) -> Result<(), FpduError> {
        let mut stream = Stream::new(self, bytes, position);
        stream.fpdu()?;
        check_markers(&stream.markers)
    }

    /// Checks an FPDU as a sender must build it.
    ///
    /// # Errors
    /// The first violation, in the order Markers, PAD, CRC.
    pub fn check(self, fpdu: &Fpdu) -> Result<(), FpduError> {
        check_markers(&fpdu.markers)?;
        if fpdu.pad.iter().any(|byte| *byte != 0) {
            return Err(FpduError::Pad);
        }
        if self.crc && fpdu.crc != fpdu.right_crc {
            return Err(FpduError::Crc {
                is: fpdu.crc,
                right: fpdu.right_crc,
            });
        }
        Ok(())
    }
}

/// Checks Markers as a sender must build them.
fn check_markers(markers: &[Marker]) -> Result<(), FpduError> {
    match markers.iter().find(|marker| marker.value != marker.pointer) {
        Some(wrong) => Err(FpduError::Marker(*wrong)),
        None => Ok(()),
    }
}

/// Returns the result of a parser, or `None` if the input is incomplete. The parsers of this file
/// accept all bytes.
fn complete<T>(result: IResult<&[u8], T>) -> Option<(&[u8], T)> {
    crate::whole(result).unwrap_or_default()
}

/// Parser of one FPDU among its Markers.
struct Stream<'a> {
    bytes: &'a [u8],
    /// Position of the FPDU since the last Marker that was due, if Markers are in use.
    position: Option<usize>,
    /// Offset of ULPDU_Length in the FPDU, once known.
    length_at: Option<usize>,
    markers: Vec<Marker>,
}

impl<'a> Stream<'a> {
    fn new(framing: Framing, bytes: &'a [u8], position: u64) -> Self {
        Stream {
            bytes,
            // Only the distance to the next Marker counts.
            position: framing.markers.then_some(position as usize % INTERVAL),
            length_at: None,
            markers: Vec::new(),
        }
    }

    /// Parses the FPDU, without its Markers, which are left in `markers`. Returns `None` if it is
    /// incomplete.
    fn fpdu(&mut self) -> Result<Option<Fpdu>, FpduError> {
        let Some((rest, len)) = complete(self.content(self.bytes, 2)) else {
            return Ok(None);
        };
        let len = u16::from_be_bytes([len[0], len[1]]);
        if usize::from(len) > MAX_ULPDU {
            return Err(FpduError::Length(len));
        }
        let parsed = complete(self.rest(rest, len.into()));
        Ok(parsed.map(|(rest, fpdu)| Fpdu {
            len: self.bytes.len() - rest.len(),
            ..fpdu
        }))
    }

    /// Parses PAD and CRC after a ULPDU of this length.
    fn rest(&mut self, input: &'a [u8], len: usize) -> IResult<&'a [u8], Fpdu> {
        let (input, ulpdu) = self.content(input, len)?;
        let (input, pad) = self.content(input, (2 + len).wrapping_neg() % 4)?;
        let (input, _) = self.marker(input)?;
        let covered = self.bytes.len() - input.len();
        let (input, crc) = le_u32(input)?;
        let fpdu = Fpdu {
            ulpdu,
            pad,
            crc,
            right_crc: crc32c(&self.bytes[..covered]),
            markers: Vec::new(),
            len: 0,
        };
        Ok((input, fpdu))
    }

    /// Parses `len` bytes that are not of Markers.
    fn content(&mut self, mut input: &'a [u8], len: usize) -> IResult<&'a [u8], Vec<u8>> {
        let mut content = Vec::with_capacity(len);
        while content.len() < len {
            input = self.marker(input)?.0;
            let at = self.bytes.len() - input.len();
            self.length_at.get_or_insert(at);
            let due = self
                .position
                .map_or(usize::MAX, |position| INTERVAL - (position + at) % INTERVAL);
            let (next, part) = take(due.min(len - content.len()))(input)?;
            content.extend_from_slice(part);
            input = next;
        }
        Ok((input, content))
    }

    /// Parses a Marker if one is due.
    fn marker(&mut self, input: &'a [u8]) -> IResult<&'a [u8], ()> {
        let at = self.bytes.len() - input.len();
        if !self
            .position
            .is_some_and(|position| (position + at).is_multiple_of(INTERVAL))
        {
            return Ok((input, ()));
        }
        let (input, value) = be_u32(input)?;
        let pointer = self.length_at.map_or(0, |length_at| at - length_at) as u32;
        self.markers.push(Marker { at, value, pointer });
        Ok((input, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SEND, Tagged, Untagged};

    const BOTH: Framing = Framing {
        markers: true,
        crc: true,
    };

    fn checked(framing: Framing, bytes: &[u8], position: u64) -> Result<Option<Fpdu>, FpduError> {
        let fpdu = framing.read(bytes, position)?;
        fpdu.iter().try_for_each(|fpdu| framing.check(fpdu))?;
        Ok(fpdu)
    }

    /// Returns the FPDU of RFC 5044 Figure 5, which starts with a Marker.
    fn figure_5() -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0, 0x2A, 0x41, 0x43];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        bytes.extend([0; 24]);
        bytes.extend([0x52, 0x23, 0x99, 0x83]);
        bytes
    }

    #[test]
    fn figures_5_and_6_of_rfc_5044_come_out() {
        let mut fpdus = Fpdus::new(true, true);
        let send = |msn| Untagged::new(SEND, 0, msn, &[0; 24]).bytes();
        assert_eq!(fpdus.seal(&send(1)), figure_5());
        // In Figure 6 a Marker is between the DDP header and the payload.
        fpdus.position = 512 - 20;
        let figure_6 = fpdus.seal(&send(2));
        assert_eq!(figure_6[20..24], [0, 0, 0, 0x14]);
        assert_eq!(figure_6[48..], [0x84, 0x92, 0x58, 0x98]);
        assert!(checked(BOTH, &figure_6, 512 - 20).unwrap().is_some());
    }

    #[test]
    fn an_fpdu_without_crc_has_a_field_of_zeros() {
        assert_eq!(
            fpdu(&Tagged::write(0x0102_0304, 5).with(&[9]), Crc::Zero),
            [
                0, 15, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 9, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn the_fpdu_of_rfc_5044_is_read_when_it_is_whole() {
        let bytes = figure_5();
        for len in 0..bytes.len() {
            assert_eq!(BOTH.read(&bytes[..len], 512), Ok(None));
        }
        let fpdu = checked(BOTH, &bytes, 512).unwrap().unwrap();
        assert_eq!((&fpdu.ulpdu[..], fpdu.len), (&bytes[6..48], 52));
    }

    #[test]
    fn a_wrong_crc_marker_or_pad_is_found() {
        for (at, what) in [(20, "CRC"), (3, "Marker"), (51, "CRC")] {
            let mut bytes = figure_5();
            bytes[at] ^= 1;
            let error = checked(BOTH, &bytes, 0).unwrap_err();
            assert!(error.to_string().contains(what));
        }
        let without = Framing {
            markers: false,
            crc: false,
        };
        let fpdu = |pad| [0, 1, 7, pad, 0, 0, 0, 0];
        let read = checked(without, &fpdu(0), 0).unwrap().unwrap();
        assert_eq!((read.ulpdu, read.len), (vec![7], 8));
        assert_eq!(checked(without, &fpdu(1), 0), Err(FpduError::Pad));
        assert_eq!(without.read(&[0xFD, 1], 0), Err(FpduError::Length(0xFD01)));
    }

    #[test]
    fn a_wrong_marker_is_found_before_its_fpdu_is_whole() {
        let mut bytes = figure_5();
        for len in 0..bytes.len() {
            assert_eq!(BOTH.check_incomplete(&bytes[..len], 512), Ok(()));
        }
        bytes[3] ^= 1;
        for len in 0..bytes.len() {
            let wrong = BOTH.check_incomplete(&bytes[..len], 512).is_err();
            assert_eq!(wrong, len >= 4, "{len} bytes");
        }
    }

    #[test]
    #[should_panic(expected = "65536 does not fit into ULPDU_Length")]
    fn a_ulpdu_that_is_too_long_for_its_length_field_is_not_built() {
        Fpdus::new(true, false).seal(&[0; 1 << 16]);
    }

    #[test]
    fn a_marker_inside_points_back_to_the_length_field() {
        let mut bytes = vec![0, 4, 1, 2, 0, 0, 0, 4, 3, 4, 0, 0, 0, 0, 0, 0];
        let framing = Framing {
            markers: true,
            crc: false,
        };
        let fpdu = checked(framing, &bytes, 508).unwrap().unwrap();
        assert_eq!((fpdu.ulpdu, fpdu.len), (vec![1, 2, 3, 4], 16));
        // A Marker at the end belongs to the next FPDU.
        let before = [0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0];
        assert_eq!(checked(framing, &before, 500).unwrap().unwrap().len, 12);
        bytes[7] = 8;
        assert!(matches!(
            checked(framing, &bytes, 508),
            Err(FpduError::Marker(_))
        ));
    }
}
