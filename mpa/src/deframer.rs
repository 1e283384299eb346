//! The receive side: a stream of octets becomes ULPDUs (RFC 5044 section 6).

use thiserror::Error;

use crate::crc::crc32c;
use crate::error::MpaErrorCode;
use crate::layout::{CRC_FIELD, LENGTH_FIELD, MARKER, Markers};
use crate::mulpdu::MAX_ULPDU;
use crate::mutants::mutate;

/// The peer's stream of FPDUs is broken.
///
/// Nothing after the error is looked at any more (5044-8-11). The connection stays open: the other
/// direction can still carry a Terminate (5044-8-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeframeError {
    /// The CRC field does not match the octets.
    #[error(
        "the FPDU at octet {position} of the stream is damaged: its CRC field says {got:08x}, its octets give {expected:08x}"
    )]
    BadCrc {
        /// The CRC of the octets that came.
        expected: u32,
        /// The CRC field.
        got: u32,
        /// Stream offset of the FPDU (of the Marker before it, if one is there).
        position: u64,
    },
    /// A Marker points somewhere else than to the FPDU it lies in.
    #[error(
        "the Marker at octet {position} of the stream says that its FPDU started {got} octets before it, but it started {expected} octets before"
    )]
    MarkerMismatch {
        /// The distance that the `ULPDU_Length` fields give, in octets.
        expected: u16,
        /// FPDUPTR, its two low bits taken as zero (5044-4.2-05).
        got: u16,
        /// Stream offset of the Marker.
        position: u64,
    },
    /// `ULPDU_Length` is above what any FPDU may carry.
    #[error(
        "the FPDU at octet {position} of the stream claims a ULPDU of {len} octets, more than the {MAX_ULPDU} that any FPDU may carry"
    )]
    LengthTooLong {
        /// The length field.
        len: u16,
        /// Stream offset of the FPDU (of the Marker before it, if one is there).
        position: u64,
    },
}

impl DeframeError {
    /// The code for the Terminate.
    ///
    /// No RFC names a code for a length field above 64768. A field that no sender can have written
    /// means that an FPDU does not start where the lengths say, which is what code 3 reports; to
    /// wait for that many octets and a CRC that will not fit them would only let the connection
    /// hang.
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

/// What [`Deframer::next`] found.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// No whole FPDU is there yet. The input has to hold at least this many octets, counted from
    /// [`Deframer::position`] on, before the next call can find out more.
    Need(usize),
    /// A verified FPDU. [`Ulpdu::wire_len`] octets of the input are used up.
    Fpdu(Ulpdu<'a>),
}

/// Takes the FPDUs out of one direction of one connection.
///
/// The caller owns the buffer. It hands over what it has from [`position`](Self::position) on, and
/// drops [`Ulpdu::wire_len`] octets after each FPDU. How the stream came in pieces makes no
/// difference (5044-5.1-05).
#[derive(Clone, Debug)]
pub struct Deframer {
    crc: bool,
    markers: bool,
    /// Every octet before this one belonged to a verified FPDU; a multiple of four.
    position: u64,
    /// Once set, it is the answer to every call.
    failed: Option<DeframeError>,
}

impl Deframer {
    /// A deframer at the first octet of Full Operation.
    ///
    /// `crc`: CRCs are in use; if not, the field is skipped unseen (5044-4.1-04). `markers`: we
    /// asked the peer for Markers.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: 0,
            failed: None,
        }
    }

    /// Stream offset of the next FPDU's first octet, or of the Marker in front of it.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Looks for an FPDU at the start of `input`, whose first octet is the one at
    /// [`position`](Self::position).
    ///
    /// Only a whole FPDU is given out (5044-6-04), after its CRC and then its Markers were checked
    /// (5044-4.4-15, 5044-8-03).
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

    /// Takes back the FPDU that [`next`](Self::next) gave last: it gives it again. For a caller that cannot
    /// use it yet, and leaves its octets where they are.
    pub fn put_back(&mut self, ulpdu: &Ulpdu<'_>) {
        self.position = self.position.saturating_sub(ulpdu.wire_len() as u64);
    }

    /// An FPDU starts where the one before it ended by its `ULPDU_Length`, and only if all before it were right
    /// (5044-6-03).
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
        // Every octet in front of the field is covered: length, ULPDU, PAD and Markers
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

    /// Octets come in order, so there is never a gap: the FPDU around a Marker is always known, and every Marker is
    /// checked against it (5044-8-07).
    fn check_markers(&self, markers: Markers, fpdu: &[u8]) -> Result<(), DeframeError> {
        for (at, expected) in markers.each(fpdu.len()) {
            let Some(&[_, _, high, low]) =
                fpdu.get(at..).and_then(|rest| rest.first_chunk::<MARKER>())
            else {
                continue;
            };
            // The reserved half is not looked at (5044-4.2-03).
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

/// A ULPDU out of a verified FPDU, lying in the caller's buffer. Only the [`Deframer`] makes one.
///
/// It is the same with CRCs and without: nothing above MPA can tell (5044-4.4-06).
#[derive(Clone, Copy, Debug)]
pub struct Ulpdu<'a> {
    /// The FPDU, from the Marker in front of it (if any) to its CRC field.
    fpdu: &'a [u8],
    markers: Markers,
    len: u16,
    position: u64,
}

impl<'a> Ulpdu<'a> {
    /// Octets of the ULPDU.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the ULPDU has no octet at all. Nobody may send such a thing; DDP finds its header missing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Octets that its FPDU took of the input: length, PAD, CRC and Markers included.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.fpdu.len()
    }

    /// Stream offset of its FPDU (of the Marker in front of it, if one is there).
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The first octets of the ULPDU as one slice: as many as `scratch` has, at most all.
    ///
    /// They are borrowed from the input unless a Marker lies between them; only then they are
    /// copied to `scratch`.
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

    /// The `len` octets of the ULPDU from `offset` on as one slice, on a stream without Markers. `None` on one with
    /// Markers, and when they are not all in the ULPDU: [`pieces`](Self::pieces) gives them, or what there is of them.
    #[inline]
    #[must_use]
    pub fn run(&self, offset: usize, len: usize) -> Option<&'a [u8]> {
        let end = offset.checked_add(len)?;
        if !self.markers.are_none() || end > self.len() {
            return None;
        }
        self.fpdu.get(LENGTH_FIELD + offset..LENGTH_FIELD + end)
    }

    /// The `len` octets of the ULPDU from `offset` on, without the Markers: one slice where there
    /// are none, else at most 508 octets each. What lies beyond the end of the ULPDU is left out.
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

/// The runs of octets that make up a range of a [`Ulpdu`]; see [`Ulpdu::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    fpdu: &'a [u8],
    markers: Markers,
    /// Next octet, as an offset in the FPDU's content.
    content: usize,
    /// Octets still to give out.
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
