//! Splits the stream of one direction into a startup frame and FPDUs.

use super::assembly::Assembly;
use super::buffer::Buffer;
use super::fpdu::Framing;
use super::order::Sent;
use super::segment::{HEAD, Segment};
use uwarp_mpa::{MAX_ULPDU, crc32c};
use uwarp_rdmap::Peer;

/// Decoding state of one direction.
///
/// ```text
/// Opening --whole frame--> AwaitPeer --both accepted--> Fpdus --gap, impossible length--> Lost
///    |  |                     |  |  |                     ^                                ^
///    |  |                     |  |  +- alone, an FPDU ----+                                |
///    |  |                     |  +-- gap ------------- -- | ------------------------------>|
///    |  +-- gap, no beginning-|-------------------------- | ------------------------------>|
///    |                        |                           +--- an FPDU begins a segment ---+
///    +-- other bytes --> Plain <-- rejected, or the other direction is not MPA
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The direction has to begin with a startup frame.
    #[default]
    Opening,
    /// The startup frame of this direction is complete, but not the startup frame of the other
    /// direction.
    AwaitPeer,
    /// Full Operation: the stream consists of FPDUs.
    Fpdus,
    /// The start of the next FPDU is unknown.
    Lost,
    /// The direction does not use MPA, or MPA has ended.
    Plain,
}

/// Decoder of one direction.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) phase: Phase,
    pub(super) assembly: Assembly,
    /// True if a SYN determined the first byte of the stream.
    pub(super) from_start: bool,
    /// Bytes that are not decoded yet.
    pub(super) buffer: Buffer,
    /// Offset of `buffer` in the stream.
    pub(super) offset: u64,
    /// Offset in `buffer` of the first missing byte of the current FPDU. Zeros replace the missing
    /// bytes.
    pub(super) hole: Option<usize>,
    /// Offset in the stream of the first byte of Full Operation.
    pub(super) base: u64,
    pub(super) framing: Option<Framing>,
    /// True if the capture lacks the startup frame of the other direction.
    pub(super) alone: bool,
    /// True if `framing` was derived from an FPDU, not from startup frames.
    pub(super) guessed: bool,
    /// True if FPDUs were skipped, because the capture lacks bytes or framing was lost.
    pub(super) was_lost: bool,
    /// True if it is not certain that the next bytes are an FPDU. If they are invalid, no violation
    /// is reported.
    pub(super) unsure: bool,
    pub(super) sent: Sent,
    /// True if the side sent bytes after its Request before the Reply arrived.
    pub(super) early: bool,
    pub(super) fpdus: u64,
    /// Number of bytes in ULPDUs.
    pub(super) bytes: u64,
    pub(super) ended: bool,
}

/// Result of examining the start of the buffer in Full Operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// There are too few bytes to determine the length of an FPDU, or the FPDU is incomplete.
    More,
    /// A whole FPDU of `len` bytes on the wire, with `ulpdu` as ULPDU_Length.
    Fpdu { ulpdu: u16, len: usize },
    /// ULPDU_Length has a value above the maximum.
    Impossible(u16),
}

/// Result of deriving the framing of a direction from its first FPDU, if the other startup frame is
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guess {
    /// There are too few bytes of the first FPDU.
    More,
    /// The FPDUs have this framing.
    Framing(Framing),
    /// The bytes are not an FPDU.
    No,
}

impl Side {
    /// Returns the memory in use, in bytes.
    pub(super) fn held(&self) -> usize {
        self.assembly.held() + self.buffer.held() + self.sent.held()
    }

    /// Returns true if the capture may lack bytes that this side has already sent.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.from_start || self.was_lost || self.assembly.is_incomplete()
    }

    /// Removes and returns the first `len` bytes of the buffer.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let bytes = self.buffer.take(len);
        self.offset += bytes.len() as u64;
        self.hole = None;
        bytes
    }

    /// Drops the buffer and skips the `more` bytes after it.
    pub(super) fn drop_all(&mut self, more: u64) {
        self.offset += self.buffer.len() as u64 + more;
        self.buffer = Buffer::default();
        self.hole = None;
    }

    /// Returns the offset of the buffer from the first byte of Full Operation.
    pub(super) fn position(&self) -> u64 {
        self.offset.saturating_sub(self.base)
    }

    /// Examines the start of the buffer in Full Operation, without removing bytes.
    pub(super) fn next(&self) -> Next {
        let Some(framing) = self.framing else {
            return Next::More;
        };
        let position = self.position();
        match framing.ulpdu_len(position, &self.buffer) {
            None => Next::More,
            Some(ulpdu) if usize::from(ulpdu) > MAX_ULPDU => Next::Impossible(ulpdu),
            Some(ulpdu) => match framing.wire_len(position, ulpdu) {
                len if len <= self.buffer.len() => Next::Fpdu { ulpdu, len },
                _ => Next::More,
            },
        }
    }

    /// Accepts bytes as an FPDU and updates `unsure`. Returns false if the bytes are invalid and it
    /// was not certain that they are an FPDU.
    pub(super) fn accept_fpdu(&mut self, fpdu: &[u8], segment: Option<&Segment>) -> bool {
        let has_crc = self.framing.is_some_and(|framing| framing.crc);
        let right = segment.is_some_and(Segment::is_plausible)
            && fpdu.split_last_chunk().is_some_and(|(body, field)| {
                !has_crc || crc32c(body) == u32::from_le_bytes(*field)
            });
        if right || !self.unsure {
            self.unsure &= self.guessed;
            return true;
        }
        false
    }

    /// Extends the FPDU at the start of the buffer with zeros over a gap. Does so only if enough of
    /// the FPDU is present to identify it. Returns the number of bytes of the gap that were filled.
    pub(super) fn bridge(&mut self, gap: u64) -> u64 {
        let Some(framing) = self.framing else {
            return 0;
        };
        let position = self.position();
        let Some(ulpdu) = framing.ulpdu_len(position, &self.buffer) else {
            return 0;
        };
        let len = framing.wire_len(position, ulpdu);
        // One Marker may precede the bytes that identify the FPDU, and another may be inside them.
        let told = len.min(2 + HEAD + 8);
        if usize::from(ulpdu) > MAX_ULPDU || self.buffer.len() < told || self.buffer.len() >= len {
            return 0;
        }
        let missing = (len - self.buffer.len()) as u64;
        let taken = missing.min(gap);
        self.hole.get_or_insert(self.buffer.len());
        // `taken` is at most the length of an FPDU.
        self.buffer.extend_zeros(taken as usize);
        taken
    }

    /// Resumes decoding at `piece` if an FPDU begins there. Returns true if it does.
    pub(super) fn resume(&mut self, piece: &[u8], peer: Peer) -> bool {
        let Some(framing) = self.begins_fpdu(piece, peer) else {
            return false;
        };
        if self.framing.is_none() {
            (self.framing, self.base, self.guessed) = (Some(framing), self.offset, true);
        }
        self.unsure = true;
        self.phase = Phase::Fpdus;
        true
    }

    /// Derives the framing from the buffer, which begins with the first FPDU of Full Operation.
    /// Without CRCs, a whole FPDU with a plausible header is sufficient. `crc` is true if CRCs are
    /// certainly in use.
    pub(super) fn guess(&self, crc: bool, peer: Peer) -> Guess {
        let mut guess = Guess::No;
        for (with, markers) in [(true, false), (true, true), (false, false), (false, true)] {
            if crc && !with {
                break;
            }
            let framing = Framing { crc: with, markers };
            match framing.begins(&self.buffer, peer) {
                Guess::No => {}
                // An incomplete FPDU with a CRC takes precedence, until it is complete.
                Guess::Framing(_) if guess == Guess::More => return Guess::More,
                found @ Guess::Framing(_) => return found,
                Guess::More => guess = Guess::More,
            }
        }
        guess
    }

    /// Begins Full Operation with a framing that was derived from an FPDU. `crc` is true if CRCs
    /// are certainly in use.
    pub(super) fn begin_alone(&mut self, framing: Framing, crc: bool) {
        self.framing = Some(framing);
        self.guessed = !(crc && framing.crc);
        self.unsure = self.guessed;
        self.was_lost = true;
        self.phase = Phase::Fpdus;
    }

    /// Returns the framing of the FPDU at the start of `piece`, or `None` if no FPDU begins there.
    /// If the framing is not known yet, only a complete FPDU with a correct CRC is accepted.
    fn begins_fpdu(&self, piece: &[u8], peer: Peer) -> Option<Framing> {
        let known = self.framing.is_some();
        let framing = self.framing.unwrap_or(Framing {
            crc: true,
            markers: false,
        });
        let position = self.position();
        if framing.markers && !position.is_multiple_of(4) {
            return None;
        }
        let ulpdu = framing.ulpdu_len(position, piece)?;
        let len = framing.wire_len(position, ulpdu);
        if usize::from(ulpdu) > MAX_ULPDU {
            return None;
        }
        let there = piece.get(..len.min(piece.len()))?;
        let content = framing.content(position, there.get(..2 + HEAD + 8).unwrap_or(there));
        let head = content.get(2..)?;
        let head = head.get(..usize::from(ulpdu)).unwrap_or(head);
        if !Segment::read(head, peer)?.is_plausible() {
            return None;
        }
        let is_right = match there.split_last_chunk() {
            Some((body, field)) if there.len() == len && framing.crc => {
                crc32c(body) == u32::from_le_bytes(*field)
            }
            _ => known,
        };
        is_right.then_some(framing)
    }
}

impl Framing {
    /// Checks whether `bytes` can be the beginning of Full Operation with this framing.
    fn begins(self, bytes: &[u8], peer: Peer) -> Guess {
        let Some(ulpdu) = self.ulpdu_len(0, bytes) else {
            return Guess::More;
        };
        if usize::from(ulpdu) > MAX_ULPDU {
            return Guess::No;
        }
        let len = self.wire_len(0, ulpdu);
        let content = self.content(0, bytes.get(..len.min(bytes.len())).unwrap_or(bytes));
        let head = content.get(2..).unwrap_or_default();
        let head = head.get(..usize::from(ulpdu).min(HEAD)).unwrap_or(head);
        let plausible = Segment::read(head, peer).is_some_and(|segment| segment.is_plausible());
        match bytes.get(..len).and_then(<[u8]>::split_last_chunk) {
            None if head.len() < usize::from(ulpdu).min(HEAD) || plausible => Guess::More,
            Some((body, field))
                if plausible && (!self.crc || crc32c(body) == u32::from_le_bytes(*field)) =>
            {
                Guess::Framing(self)
            }
            _ => Guess::No,
        }
    }
}
