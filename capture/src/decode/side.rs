//! One direction of a connection: from pieces of its stream to startup frame and FPDUs.

use super::assembly::Assembly;
use super::buffer::Buffer;
use super::fpdu::Framing;
use super::order::Sent;
use super::segment::{HEAD, Segment};
use uwarp_mpa::{MAX_ULPDU, crc32c};
use uwarp_rdmap::Peer;

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
    /// A startup frame is due.
    #[default]
    Opening,
    /// It is through, that of the other direction is not.
    AwaitPeer,
    /// Full Operation.
    Fpdus,
    /// Where the next FPDU begins is not known.
    Lost,
    /// No MPA, or no more of it.
    Plain,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) phase: Phase,
    pub(super) assembly: Assembly,
    /// The first byte of the stream is known by a SYN.
    pub(super) from_start: bool,
    /// What is not consumed yet.
    pub(super) buffer: Buffer,
    /// Offset of `buffer` in the stream.
    pub(super) offset: u64,
    /// From here in `buffer` on, bytes of the FPDU are missing; they stand there as zeros.
    pub(super) hole: Option<usize>,
    /// Offset of the first byte of Full Operation.
    pub(super) base: u64,
    pub(super) framing: Option<Framing>,
    /// The startup frame of the other direction is not in the capture.
    pub(super) alone: bool,
    /// No startup frames said so: `framing` is what an FPDU looked like.
    pub(super) guessed: bool,
    /// FPDUs were passed over.
    pub(super) was_lost: bool,
    /// An FPDU that is not right shows that this is none, and not that the sender is wrong.
    pub(super) unsure: bool,
    pub(super) sent: Sent,
    /// Bytes came behind the startup frame when its sender cannot have had the other one.
    pub(super) early: bool,
    pub(super) fpdus: u64,
    /// Bytes of ULPDUs.
    pub(super) octets: u64,
    pub(super) ended: bool,
}

/// An FPDU at the beginning of a side's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Not enough of it.
    More,
    /// It has so many bytes on the wire.
    Fpdu { ulpdu: u16, len: usize },
    /// ULPDU_Length says what cannot be.
    Impossible(u16),
}

/// How FPDUs look behind the startup frame of a direction whose other one is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guess {
    /// Not enough of the first one is there.
    More,
    /// So, with these CRCs and Markers.
    Framing(Framing),
    /// There is none.
    No,
}

impl Side {
    /// What this side takes of memory.
    pub(super) fn held(&self) -> usize {
        self.assembly.held() + self.buffer.held() + self.sent.held()
    }

    /// Not all that was sent so far was seen.
    pub(super) fn is_behind(&self) -> bool {
        !self.from_start || self.was_lost || self.assembly.is_behind()
    }

    /// Takes `len` bytes from the front of the buffer.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let octets = self.buffer.take(len);
        self.offset += octets.len() as u64;
        self.hole = None;
        octets
    }

    /// Passes over everything in the buffer and `more` bytes behind it.
    pub(super) fn drop_all(&mut self, more: u64) {
        self.offset += self.buffer.len() as u64 + more;
        self.buffer = Buffer::default();
        self.hole = None;
    }

    /// Where the buffer begins, counted from the first byte of Full Operation.
    pub(super) fn position(&self) -> u64 {
        self.offset.saturating_sub(self.base)
    }

    /// What the buffer begins with in Full Operation.
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

    /// Whether an FPDU with this segment in it is believed to be one.
    pub(super) fn believes(&mut self, fpdu: &[u8], segment: Option<&Segment>) -> bool {
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

    /// Lets the FPDU in the buffer go on over a gap: with zeros, if enough of it is there to tell what it is. Returns how
    /// many bytes of the gap that took.
    pub(super) fn bridge(&mut self, gap: u64) -> u64 {
        let Some(framing) = self.framing else {
            return 0;
        };
        let position = self.position();
        let Some(ulpdu) = framing.ulpdu_len(position, &self.buffer) else {
            return 0;
        };
        let len = framing.wire_len(position, ulpdu);
        // A Marker before and one within.
        let told = len.min(2 + HEAD + 8);
        if usize::from(ulpdu) > MAX_ULPDU || self.buffer.len() < told || self.buffer.len() >= len {
            return 0;
        }
        let missing = (len - self.buffer.len()) as u64;
        let taken = missing.min(gap);
        self.hole.get_or_insert(self.buffer.len());
        // At most the length of an FPDU.
        self.buffer.extend_zeros(taken as usize);
        taken
    }

    /// Goes on with FPDUs at `piece`, if one begins there.
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

    /// The framing of the FPDU at the beginning of the buffer, which is that of Full Operation.
    /// Without CRCs a header that may be one has to do. `crc`: CRCs are in use for sure.
    pub(super) fn guess(&self, crc: bool, peer: Peer) -> Guess {
        let mut guess = Guess::No;
        for (with, markers) in [(true, false), (true, true), (false, false), (false, true)] {
            if crc && !with {
                break;
            }
            let framing = Framing { crc: with, markers };
            match framing.begins(&self.buffer, peer) {
                Guess::No => {}
                // One with a CRC may still become whole.
                Guess::Framing(_) if guess == Guess::More => return Guess::More,
                found @ Guess::Framing(_) => return found,
                Guess::More => guess = Guess::More,
            }
        }
        guess
    }

    /// Full Operation begins with this framing, which an FPDU has shown. `crc`: CRCs are in use for sure.
    pub(super) fn begin_alone(&mut self, framing: Framing, crc: bool) {
        self.framing = Some(framing);
        self.guessed = !(crc && framing.crc);
        self.unsure = self.guessed;
        self.was_lost = true;
        self.phase = Phase::Fpdus;
    }

    /// Whether an FPDU begins at the beginning of `piece`. Where no startup was seen only one that
    /// is whole and has a right CRC is believed.
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
    /// Whether these are the first bytes of Full Operation with this framing.
    fn begins(self, octets: &[u8], peer: Peer) -> Guess {
        let Some(ulpdu) = self.ulpdu_len(0, octets) else {
            return Guess::More;
        };
        if usize::from(ulpdu) > MAX_ULPDU {
            return Guess::No;
        }
        let len = self.wire_len(0, ulpdu);
        let content = self.content(0, octets.get(..len.min(octets.len())).unwrap_or(octets));
        let head = content.get(2..).unwrap_or_default();
        let head = head.get(..usize::from(ulpdu).min(HEAD)).unwrap_or(head);
        let plausible = Segment::read(head, peer).is_some_and(|segment| segment.is_plausible());
        match octets.get(..len).and_then(<[u8]>::split_last_chunk) {
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
