//! Reassembles the byte stream of one direction of a TCP connection. It drops repeated bytes, keeps
//! early bytes until the bytes before them arrive, and reports bytes that the capture lacks as a
//! gap.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Maximum number of bytes that wait for earlier bytes. If more wait, the earlier bytes count as
/// missing.
const MAX_AHEAD: usize = 1024 * 1024;
/// Maximum number of segments that wait for earlier bytes. If more wait, the earlier bytes count as
/// missing.
const MAX_AHEAD_SEGMENTS: usize = 2048;
/// Largest TCP window (RFC 7323 section 2.3). A sequence number at a greater distance does not
/// belong to this connection.
const WINDOW: i32 = 1 << 30;
/// Estimated memory of a waiting segment besides its bytes.
const OVERHEAD: usize = 64;

/// Part of the byte stream of a direction. Pieces are returned in stream order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Next bytes of the stream, without bytes that were already returned.
    Bytes(Cow<'a, [u8]>),
    /// A number of bytes that are missing from the capture.
    Gap(u64),
}

/// Statistics of the TCP segments of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentCounts {
    /// Number of segments with payload.
    pub segments: u64,
    /// Number of segments without new bytes.
    pub repeated: u64,
    /// Number of segments that arrived before earlier bytes of the stream.
    pub early: u64,
    /// Number of segments that were ignored, because their sequence number is farther away than any
    /// window.
    pub stray: u64,
    /// Number of bytes that are missing from the capture.
    pub missing: u64,
}

/// State of the reassembly of one direction.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// Sequence number of the first byte of the stream.
    first: Option<u32>,
    /// Sequence number of the next expected byte. `None` until it is known.
    next: Option<u32>,
    /// Offset of `next` in the stream.
    position: u64,
    /// Bytes that wait for earlier bytes, by their offset in the stream.
    ahead: BTreeMap<u64, Vec<u8>>,
    ahead_bytes: usize,
    /// Offset in the stream up to which the peer has acknowledged the bytes.
    acknowledged: u64,
    pub(super) counts: SegmentCounts,
}

impl Assembly {
    /// Sets the sequence number of the first byte, unless it is already known.
    pub(super) fn starts_at(&mut self, seq: u32) {
        self.first.get_or_insert(seq);
        self.next.get_or_insert(seq);
    }

    /// Returns true if the first byte of the stream has this sequence number.
    pub(super) fn began_at(&self, seq: u32) -> bool {
        self.first == Some(seq)
    }

    pub(super) fn is_started(&self) -> bool {
        self.next.is_some()
    }

    /// Returns true if the capture is known to lack bytes: some were skipped, or the peer
    /// acknowledged bytes that have not been seen.
    pub(super) fn is_incomplete(&self) -> bool {
        self.counts.missing > 0 || self.acknowledged > self.position
    }

    /// Returns the memory that the waiting bytes use.
    pub(super) fn held(&self) -> usize {
        self.ahead_bytes + self.ahead.len() * OVERHEAD
    }

    /// Handles an acknowledgement of all bytes before `seq`. If acknowledged bytes are missing and
    /// later bytes wait, the missing bytes become a gap. Returns the pieces that this completes.
    pub(super) fn acknowledge(&mut self, seq: u32) -> Vec<Piece<'static>> {
        let mut pieces = Vec::new();
        if self.next.is_some() {
            self.mark_acknowledged(seq);
            self.give_up_acknowledged(&mut pieces);
        }
        pieces
    }

    /// Handles a segment and returns the pieces that it completes. `len` is the length of its
    /// payload on the wire. Bytes that the capture truncated count as missing.
    pub(super) fn push<'a>(&mut self, seq: u32, bytes: &'a [u8], len: u32) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        if len == 0 {
            return pieces;
        }
        self.counts.segments += 1;
        self.starts_at(seq);
        if bytes.len() < len as usize {
            self.mark_acknowledged(seq.wrapping_add(len));
        }
        let next = self.next.unwrap_or(seq);
        let ahead = seq.wrapping_sub(next) as i32;
        if !(-WINDOW..WINDOW).contains(&ahead) {
            self.counts.stray += 1;
        } else if ahead > 0 {
            self.counts.early += 1;
            self.keep(self.position + u64::from(ahead.unsigned_abs()), bytes);
            self.give_up_acknowledged(&mut pieces);
            while self.ahead_bytes > MAX_AHEAD || self.ahead.len() > MAX_AHEAD_SEGMENTS {
                self.skip(&mut pieces);
            }
        } else {
            match bytes.get(ahead.unsigned_abs() as usize..) {
                Some(new) if !new.is_empty() => {
                    self.step(new.len() as u64);
                    pieces.push(Piece::Bytes(Cow::Borrowed(new)));
                    self.join(&mut pieces);
                    self.give_up_acknowledged(&mut pieces);
                }
                _ if bytes.len() < len as usize => {}
                _ => self.counts.repeated += 1,
            }
        }
        pieces
    }

    /// Marks the bytes before `seq` as acknowledged, so that they are no longer awaited. It is also
    /// used for bytes that the capture truncated.
    fn mark_acknowledged(&mut self, seq: u32) {
        let ahead = seq.wrapping_sub(self.next.unwrap_or(seq)) as i32;
        if (0..WINDOW).contains(&ahead) {
            let offset = self.position + u64::from(ahead.unsigned_abs());
            self.acknowledged = self.acknowledged.max(offset);
        }
    }

    /// Ends the direction. Returns all waiting bytes, and the gaps between them.
    pub(super) fn finish(&mut self) -> Vec<Piece<'static>> {
        let mut pieces = Vec::new();
        while !self.ahead.is_empty() {
            self.skip(&mut pieces);
        }
        pieces
    }

    fn keep(&mut self, offset: u64, bytes: &[u8]) {
        let there = self.ahead.entry(offset).or_default();
        if there.len() < bytes.len() {
            self.ahead_bytes += bytes.len() - there.len();
            *there = bytes.to_vec();
        }
    }

    fn give_up_acknowledged(&mut self, pieces: &mut Vec<Piece<'_>>) {
        while let Some((first, _)) = self.ahead.first_key_value()
            && *first <= self.acknowledged
        {
            self.skip(pieces);
        }
    }

    /// Treats the bytes before the first waiting segment as missing.
    fn skip(&mut self, pieces: &mut Vec<Piece<'_>>) {
        if let Some((first, _)) = self.ahead.first_key_value() {
            let missing = first.saturating_sub(self.position);
            if missing > 0 {
                self.counts.missing += missing;
                self.step(missing);
                pieces.push(Piece::Gap(missing));
            }
        }
        self.join(pieces);
    }

    /// Returns the waiting bytes that directly follow the stream so far.
    fn join(&mut self, pieces: &mut Vec<Piece<'_>>) {
        while let Some(entry) = self.ahead.first_entry()
            && *entry.key() <= self.position
        {
            let (offset, mut bytes) = entry.remove_entry();
            self.ahead_bytes -= bytes.len();
            let old = usize::try_from(self.position - offset).unwrap_or(usize::MAX);
            if old < bytes.len() {
                bytes.drain(..old);
                self.step(bytes.len() as u64);
                pieces.push(Piece::Bytes(Cow::Owned(bytes)));
            }
        }
    }

    fn step(&mut self, bytes: u64) {
        self.position += bytes;
        self.next = self.next.map(|next| next.wrapping_add(bytes as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: Vec<Piece<'_>>) -> String {
        let piece = |piece: Piece<'_>| match piece {
            Piece::Bytes(bytes) => String::from_utf8(bytes.into_owned()).unwrap(),
            Piece::Gap(len) => format!("<{len}>"),
        };
        pieces.into_iter().map(piece).collect()
    }

    #[test]
    fn what_comes_again_in_part_or_whole_is_given_out_once() {
        let mut assembly = Assembly::default();
        assembly.starts_at(u32::MAX - 1);
        assert_eq!(text(assembly.push(u32::MAX - 1, b"abcd", 4)), "abcd");
        assert_eq!(text(assembly.push(u32::MAX - 1, b"abcd", 4)), "");
        assert_eq!(text(assembly.push(0, b"cdef", 4)), "ef");
        assert_eq!(assembly.counts.repeated, 1);
    }

    #[test]
    fn what_comes_early_waits_for_what_belongs_before_it() {
        let mut assembly = Assembly::default();
        assembly.starts_at(10);
        assert_eq!(text(assembly.push(16, b"gh", 2)), "");
        assert_eq!(text(assembly.push(12, b"cdef", 4)), "");
        assert_eq!(text(assembly.push(10, b"abc", 3)), "abcdefgh");
        assert_eq!((assembly.held(), assembly.counts.early), (0, 2));
    }

    #[test]
    fn what_was_acknowledged_and_never_seen_is_a_gap() {
        let mut assembly = Assembly::default();
        assembly.starts_at(0);
        assert_eq!(text(assembly.acknowledge(4)), "");
        assert_eq!(text(assembly.push(4, b"ef", 2)), "<4>ef");
        assert_eq!(text(assembly.push(8, b"ij", 2)), "");
        assert_eq!(text(assembly.acknowledge(10)), "<2>ij");
        assert_eq!(assembly.counts.missing, 6);
    }

    #[test]
    fn memory_is_bounded_and_the_end_gives_out_what_waits() {
        let mut assembly = Assembly::default();
        assembly.starts_at(0);
        let mut seen = 0;
        for segment in 1..10_000_u32 {
            seen += assembly.push(segment * 1000, &[0; 999], 999).len();
            assert!(assembly.held() <= MAX_AHEAD + MAX_AHEAD_SEGMENTS * OVERHEAD);
        }
        assert!(seen > 0);
        assert!(!assembly.finish().is_empty());
        assert_eq!(assembly.held(), 0);
    }

    #[test]
    fn a_number_outside_of_every_window_is_left_out() {
        let mut assembly = Assembly::default();
        assembly.starts_at(0);
        assert_eq!(text(assembly.push(1 << 31, b"x", 1)), "");
        assert_eq!(assembly.counts.stray, 1);
    }
}
