//! Receive side: extracts ULPDUs from the TCP byte stream (RFC 5044 section 6).

use thiserror::Error;

use crate::crc::crc32c;
use crate::error::MpaErrorCode;
use crate::layout::{CRC_FIELD, LENGTH_FIELD, MARKER, Markers};
use crate::mulpdu::MAX_ULPDU;
use crate::mutants::mutate;

/// The peer's stream of FPDUs is broken.
///
/// The deframer reads nothing after the error (5044-8-11). The connection stays open, because the
/// other direction can still carry a Terminate (5044-8-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeframeError {
    /// The CRC field does not match the bytes.
    #[error(
        "the FPDU at byte {position} of the stream is damaged: its CRC field says {got:08x}, its bytes give {expected:08x}"
    )]
    BadCrc {
        /// CRC of the received bytes.
        expected: u32,
        /// Value of the CRC field.
        got: u32,
        /// Stream offset of the FPDU, or of the Marker before it if there is one.
        position: u64,
    },
    /// A Marker does not point to the start of the FPDU that contains it.
    #[error(
        "the Marker at byte {position} of the stream says that its FPDU started {got} bytes before it, but it started {expected} bytes before"
    )]
    MarkerMismatch {
        /// Distance according to the `ULPDU_Length` fields, in bytes.
        expected: u16,
        /// FPDUPTR, with its two low bits taken as zero (5044-4.2-05).
        got: u16,
        /// Stream offset of the Marker.
        position: u64,
    },
    /// `ULPDU_Length` is above the limit for any FPDU.
    #[error(
        "the FPDU at byte {position} of the stream claims a ULPDU of {len} bytes, more than the {MAX_ULPDU} that any FPDU may carry"
    )]
    LengthTooLong {
        /// Value of the length field.
        len: u16,
        /// Stream offset of the FPDU, or of the Marker before it if there is one.
        position: u64,
    },
}

impl DeframeError {
    /// Returns the error code for the Terminate.
    ///
    /// No RFC names a code for a length field above 64768. A correct sender never writes such a
    /// field, so the bytes there are not the start of an FPDU. That is the meaning of code 3.
    /// Waiting for that many bytes, and for a CRC that cannot match them, would only hang the
    /// connection.
    #[must_use]
    pub fn code(&self) -> MpaErrorCode {
        match self {
            Self::BadCrc { .. } => MpaErrorCode::Crc,
            Self::MarkerMismatch { .. } | Self::LengthTooLong { .. } => {
                mutate!(MpaErrorCode::MarkerMismatch, MarkerErrorIsCrc => MpaErrorCode::Crc)
            }
        }
    }
}

/// Result of [`Deframer::next`].
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The input holds no complete FPDU yet. The next call needs at least this many bytes, counted
    /// from [`Deframer::position`].
    Need(usize),
    /// A verified FPDU. It occupies the first [`Ulpdu::wire_len`] bytes of the input.
    Fpdu(Ulpdu<'a>),
}

/// Extracts the FPDUs from one direction of one connection.
///
/// The caller owns the receive buffer. The caller passes the buffered bytes from
/// [`position`](Self::position) on, and drops [`Ulpdu::wire_len`] bytes after each FPDU. The stream
/// may arrive in pieces of any size (5044-5.1-05).
#[derive(Clone, Debug)]
pub struct Deframer {
    crc: bool,
    markers: bool,
    /// Stream offset of the next FPDU; a multiple of four. All bytes before it belonged to verified
    /// FPDUs.
    position: u64,
    /// First error, returned by every call after it.
    failed: Option<DeframeError>,
}

impl Deframer {
    /// Creates a deframer at the first byte of Full Operation.
    ///
    /// `crc`: CRCs are in use; if not, the CRC field is skipped without a check (5044-4.1-04).
    /// `markers`: this side asked the peer for Markers.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: 0,
            failed: None,
        }
    }

    /// Returns the stream offset of the next FPDU, or of the Marker before it.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Looks for an FPDU at the start of `input`, whose first byte is at
    /// [`position`](Self::position).
    ///
    /// Returns only complete FPDUs (5044-6-04). The CRC of an FPDU is checked first, then its
    /// Markers (5044-4.4-15, 5044-8-03).
    ///
    /// # Errors
    /// The peer's stream is broken. Every later call returns the same error.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, DeframeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let step = self.look(input);
        match &step {
            Ok(Step::Fpdu(ulpdu)) => self.position += ulpdu.wire_len() as u64,
            Ok(Step::Need(_)) => {}
            Err(error) => self.failed = Some(*error),
        }
        step
    }

    /// Undoes the last successful call of [`next`](Self::next), so that the next call returns the
    /// same FPDU again. This is for a caller that cannot process the FPDU yet and leaves its bytes
    /// in the buffer.
    pub fn put_back(&mut self, ulpdu: &Ulpdu<'_>) {
        self.position = self.position.saturating_sub(ulpdu.wire_len() as u64);
    }

    /// Returns the FPDU at the start of `input` without advancing. The `ULPDU_Length` of each FPDU
    /// determines where the next one starts, as long as all previous ones were valid (5044-6-03).
    #[inline]
    fn look<'a>(&self, input: &'a [u8]) -> Result<Step<'a>, DeframeError> {
        let markers = Markers::of(self.markers, self.position);
        let length_field = markers.leading();
        let Some(&[high, low]) = input
            .get(length_field..)
            .and_then(|rest| rest.first_chunk::<LENGTH_FIELD>())
        else {
            return Ok(Step::Need(length_field + LENGTH_FIELD));
        };
        let len = u16::from_be_bytes([high, low]);
        if usize::from(len) > MAX_ULPDU {
            return Err(DeframeError::LengthTooLong {
                len,
                position: self.position,
            });
        }
        let wire_len = markers.wire_len(usize::from(len));
        let Some(fpdu) = input.get(..wire_len) else {
            return Ok(Step::Need(wire_len));
        };
        let crc = mutate!(self.crc, CrcAlwaysChecked => true);
        if mutate!(crc, CrcNotChecked => false) {
            self.check_crc(fpdu)?;
        }
        if self.markers {
            self.check_markers(markers, fpdu)?;
        }
        Ok(Step::Fpdu(Ulpdu {
            fpdu,
            markers,
            len,
            position: self.position,
        }))
    }

    fn check_crc(&self, fpdu: &[u8]) -> Result<(), DeframeError> {
        // The CRC covers every byte before its field: length, ULPDU, PAD and Markers
        // (5044-4.4-12, -13).
        let Some((body, field)) = fpdu.split_last_chunk::<CRC_FIELD>() else {
            return Ok(());
        };
        let got = u32::from_le_bytes(*field);
        let expected = crc32c(body);
        if got == expected {
            Ok(())
        } else {
            Err(DeframeError::BadCrc {
                expected,
                got,
                position: self.position,
            })
        }
    }

    /// Checks every Marker against the FPDU around it (5044-8-07). That FPDU is always known,
    /// because TCP delivers the bytes in order and without gaps.
    fn check_markers(&self, markers: Markers, fpdu: &[u8]) -> Result<(), DeframeError> {
        for (at, expected) in markers.each(fpdu.len()) {
            let Some(&[_, _, high, low]) =
                fpdu.get(at..).and_then(|rest| rest.first_chunk::<MARKER>())
            else {
                continue;
            };
            // The reserved half is ignored (5044-4.2-03).
            let got = u16::from_be_bytes([high, low]) & mutate!(!3, MarkerLowBitsChecked => !0);
            if mutate!(got != expected, MarkerReservedChecked => fpdu[at + 1] != 0) {
                let position = self.position + at as u64;
                return Err(DeframeError::MarkerMismatch {
                    expected,
                    got,
                    position,
                });
            }
        }
        Ok(())
    }
}

/// A ULPDU from a verified FPDU, borrowed from the caller's buffer. Only the [`Deframer`] creates
/// one.
///
/// The type does not show whether CRCs are in use, so the layers above MPA cannot depend on that
/// (5044-4.4-06).
#[derive(Clone, Copy, Debug)]
pub struct Ulpdu<'a> {
    /// The FPDU, from the Marker before it (if any) to its CRC field.
    fpdu: &'a [u8],
    markers: Markers,
    len: u16,
    position: u64,
}

impl<'a> Ulpdu<'a> {
    /// Returns the length of the ULPDU in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the ULPDU has no bytes. No sender may send such a ULPDU; DDP refuses it
    /// because it lacks a header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the length of the FPDU in the input in bytes, including length field, PAD, CRC and
    /// Markers.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.fpdu.len()
    }

    /// Returns the stream offset of the FPDU, or of the Marker before it if there is one.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the first bytes of the ULPDU as one slice: as many as `scratch` holds, at most all
    /// of them.
    ///
    /// The slice borrows from the input. The bytes are copied to `scratch` only if a Marker lies
    /// between them.
    #[inline]
    #[must_use]
    pub fn head<'s>(&self, scratch: &'s mut [u8]) -> &'s [u8]
    where
        'a: 's,
    {
        let wanted = scratch.len().min(self.len());
        if let Some(head) = self.run(0, wanted) {
            return head;
        }
        let mut pieces = self.pieces(0, wanted);
        let first = pieces.next().unwrap_or_default();
        if first.len() == wanted {
            return first;
        }
        let mut filled = 0;
        for piece in self.pieces(0, wanted) {
            if let Some(place) = scratch.get_mut(filled..filled + piece.len()) {
                place.copy_from_slice(piece);
            }
            filled += piece.len();
        }
        scratch.get(..filled).unwrap_or_default()
    }

    /// Returns the `len` bytes of the ULPDU from `offset` on as one slice.
    ///
    /// `None` on a stream with Markers, and if the range reaches past the end of the ULPDU.
    /// [`pieces`](Self::pieces) handles both cases.
    #[inline]
    #[must_use]
    pub fn run(&self, offset: usize, len: usize) -> Option<&'a [u8]> {
        let end = offset.checked_add(len)?;
        if !self.markers.are_none() || end > self.len() {
            return None;
        }
        self.fpdu.get(LENGTH_FIELD + offset..LENGTH_FIELD + end)
    }

    /// Returns the `len` bytes of the ULPDU from `offset` on, without the Markers. They are one
    /// slice on a stream without Markers, otherwise slices of at most 508 bytes. The part of the
    /// range past the end of the ULPDU is left out.
    #[inline]
    #[must_use]
    pub fn pieces(&self, offset: usize, len: usize) -> Pieces<'a> {
        let offset = offset.min(self.len());
        Pieces {
            fpdu: self.fpdu,
            markers: self.markers,
            content: LENGTH_FIELD + offset,
            left: len.min(self.len() - offset),
        }
    }
}

/// Iterator over the slices of a range of a [`Ulpdu`]; see [`Ulpdu::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    fpdu: &'a [u8],
    markers: Markers,
    /// Offset of the next byte in the content of the FPDU.
    content: usize,
    /// Number of bytes that remain to be returned.
    left: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let run = self.markers.run(self.content).min(self.left);
        let at = self.markers.wire_offset(self.content);
        self.content += run;
        self.left -= run;
        self.fpdu.get(at..at + run)
    }
}

impl core::iter::FusedIterator for Pieces<'_> {}

#[cfg(test)]
mod tests;
