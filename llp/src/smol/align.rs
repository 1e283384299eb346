//! Choice of the bytes of the next segment, so that segments begin with FPDUs.
//!
//! smoltcp fills a segment with all bytes that it has and that the peer's window allows. The
//! aligner therefore hands over the bytes of one segment at a time, and only when smoltcp can send
//! the whole segment at once:
//!
//! 1. All earlier bytes were sent, so that the segment begins with the first byte handed over.
//! 2. The segment consists of as many whole FPDUs as EMSS allows, or of EMSS bytes of a longer
//!    FPDU.
//! 3. The peer's window has room for the whole segment. Otherwise the segment waits for an
//!    acknowledgement.
//!
//! When nothing is in flight, no acknowledgement will arrive, so a window that is too small for the
//! segment may stay too small. In this case, the whole FPDUs that fit into the window are sent. If
//! not even one FPDU fits, the segment is handed over although smoltcp cuts it (RFC 9293 section
//! 3.8.6.2.1). That happens at once if the window is at least half of the largest that the peer
//! ever offered, and otherwise after [`PATIENCE`].
//!
//! smoltcp then cuts the segment to the size of the window, or probes a closed window. The parts
//! are not aligned.
//!
//! On a link that cuts segments by itself, several segments of one length are sent together as a
//! burst. If FPDUs are longer than segments on purpose ([`SendHints::over_segments`]), a burst is
//! as long as possible. It is then cut every EMSS bytes without regard to the ends of FPDUs.

use std::time::Duration;

use smoltcp::time::Instant;

use crate::SendHints;

/// Time that a segment waits for a large enough window when nothing is in flight. RFC 9293 section
/// 3.8.6.2.1 names 0.1 to 1 second.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes offered to TCP in one call that were not handed over yet.
pub(crate) struct Offer<'a> {
    /// Stream offset of the next byte.
    at: u64,
    /// Stream offset of the end of the offered bytes.
    to: u64,
    /// Stream offsets of the FPDU ends after `at`.
    ends: &'a [u64],
    /// True if FPDUs may be longer than a segment on purpose.
    over_segments: bool,
    /// True after some bytes of this call were handed over.
    begun: bool,
}

/// Limits for the next segment. They exist only when all earlier bytes were sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Number of bytes that the peer has not acknowledged.
    pub(crate) in_flight: usize,
    /// The peer's window in bytes, counted from the first byte in flight.
    pub(crate) window: usize,
    /// Largest window in bytes that the peer ever offered.
    pub(crate) largest_window: usize,
    /// Size of the send buffer in bytes.
    pub(crate) buffer: usize,
    pub(crate) emss: usize,
    /// Maximum length of a burst: bytes that are sent together and cut into segments later. Equal
    /// to EMSS if the link does not cut.
    pub(crate) burst: usize,
}

/// State of the next segment's wait for a larger window while nothing is in flight.
///
/// ```text
///     no window            PATIENCE is over
///  No ----------> Until(at) -----------------> Over
///   ^                |                          |
///   +---- taken -----+---------- taken ---------+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Waiting {
    #[default]
    No,
    Until(Instant),
    Over,
}

/// Alignment state of a connection, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Aligner {
    /// True if the bytes handed over so far end within an FPDU.
    mid_fpdu: bool,
    waiting: Waiting,
}

impl<'a> Offer<'a> {
    pub(crate) fn new(bytes: usize, hints: SendHints<'a>) -> Self {
        Self {
            at: hints.base(),
            to: hints.base().saturating_add(bytes as u64),
            ends: hints.ends(),
            over_segments: hints.may_go_over_segments(),
            begun: false,
        }
    }

    /// Length of the longest run of whole FPDUs within `limit` bytes, or 0 if not even one fits.
    fn whole(&self, limit: usize) -> usize {
        let limit = self.at.saturating_add(limit as u64).min(self.to);
        let mut last = self.at;
        for end in self.ends {
            if *end > limit {
                break;
            }
            last = *end;
        }
        len(last - self.at)
    }

    /// Length of the longest run of aligned segments within `limit` bytes. Each segment has exactly
    /// `each` bytes; only the last one may be shorter. When the link cuts such a run every `each`
    /// bytes, every segment begins with an FPDU.
    fn alike(&self, each: usize, emss: usize, limit: usize) -> usize {
        let limit = self.at.saturating_add(limit as u64).min(self.to);
        // Ends of the run and of the segment that is being assembled.
        let (mut run, mut segment) = (self.at, self.at);
        for end in self.ends {
            if len(*end - run) > each {
                // The segment ends here. A run cannot continue if the next FPDU would have fitted
                // into this segment as well, or if the segment is shorter than `each`.
                let longer = len(*end - run) <= emss;
                let short = len(segment - run) < each;
                run = if longer { run } else { segment };
                if longer || short || len(*end - run) > each {
                    return len(run - self.at);
                }
            }
            if *end > limit {
                return len(run - self.at);
            }
            segment = *end;
        }
        len(segment - self.at)
    }

    /// Returns true if the next `limit` bytes need not be aligned. That holds if one of their
    /// FPDUs, or the rest of the first one, is longer than a segment on purpose.
    fn is_over_segments(&self, emss: usize, limit: usize) -> bool {
        let limit = self.at.saturating_add(limit as u64).min(self.to);
        let mut begin = self.at;
        for end in self.ends.iter().take_while(|_| self.over_segments) {
            if begin >= limit {
                break;
            }
            if len(*end - begin) > emss {
                return true;
            }
            begin = *end;
        }
        false
    }

    /// Length of the longest run within `limit` bytes that is cut every `emss` bytes without regard
    /// to FPDUs. All its segments are full; only a segment with the last offered byte may be
    /// shorter.
    fn anywhere(&self, emss: usize, limit: usize) -> usize {
        let offered = len(self.to - self.at);
        if offered <= limit {
            offered
        } else {
            limit - limit % emss
        }
    }

    /// Length of the next segment if only EMSS limits it. 0 if the segment has to wait for the
    /// bytes of a later call.
    fn segment(&self, emss: usize, mid_fpdu: bool) -> usize {
        let offered = len(self.to - self.at);
        let Some(first) = self.ends.first() else {
            return offered.min(emss);
        };
        let first = len(first - self.at);
        if first > emss {
            // An FPDU longer than a segment is cut into full segments.
            offered.min(emss)
        } else if first > offered {
            // The rest of this FPDU follows in another call. The bytes wait for the rest, except at
            // the start of this call.
            if self.begun { 0 } else { offered }
        } else if mid_fpdu {
            // The segment ends with this FPDU, so that the next FPDU begins a segment.
            first
        } else {
            self.whole(emss)
        }
    }
}

/// Converts a length in the stream to `usize`.
fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Aligner {
    /// Returns the number of bytes to hand over as the next segment. Returns 0 if the bytes have to
    /// wait or none are left. May start the wait for a larger window.
    pub(crate) fn next(&mut self, offer: &Offer<'_>, room: &Room, now: Instant) -> usize {
        let wanted = offer.segment(room.emss.min(room.buffer), self.mid_fpdu);
        let usable = room.window.saturating_sub(room.in_flight);
        if wanted <= usable {
            let fits = room.in_flight.saturating_add(wanted) <= room.buffer;
            return if fits { wanted } else { 0 };
        }
        if room.in_flight > 0 {
            return 0;
        }
        let whole = if self.mid_fpdu {
            0
        } else {
            offer.whole(usable)
        };
        if whole > 0 {
            return whole;
        }
        if usable > 0 && usable >= room.largest_window / 2 {
            return wanted;
        }
        match self.waiting {
            Waiting::Over => return wanted,
            Waiting::No => self.waiting = Waiting::Until(now + PATIENCE.into()),
            Waiting::Until(_) => {}
        }
        0
    }

    /// Does the same as [`next`](Self::next) for all segments that may be sent together. Returns
    /// their total length, and the length of every segment except the last.
    pub(crate) fn burst(&mut self, offer: &Offer<'_>, room: &Room, now: Instant) -> (usize, usize) {
        let each = self.next(offer, room, now);
        let usable = room.window.min(room.buffer).saturating_sub(room.in_flight);
        let limit = usable.min(room.burst);
        if each == 0 || room.burst <= each {
            return (each, each);
        }
        // On a link that does not cut, alignment costs nothing.
        let cuts = room.burst > room.emss;
        let over_segments = cuts && offer.is_over_segments(room.emss, room.burst);
        if self.mid_fpdu && !over_segments {
            return (each, each);
        }
        let run = |limit| {
            if over_segments {
                offer.anywhere(room.emss, limit)
            } else {
                offer.alike(each, room.emss, limit)
            }
        };
        let bytes = run(limit).max(each);
        if room.in_flight >= room.burst / 2 && bytes < room.burst / 2 {
            // Acknowledgements will arrive and make room for a longer burst. Each burst costs one
            // call of the link, whatever its length.
            if run(room.burst) > bytes {
                return (0, 0);
            }
        }
        (bytes, if over_segments { room.emss } else { each })
    }

    /// Records that `bytes` bytes of the offer were handed over.
    pub(crate) fn taken(&mut self, offer: &mut Offer<'_>, bytes: usize) {
        self.waiting = Waiting::No;
        offer.begun = true;
        offer.at += bytes as u64;
        let mut ended = false;
        while let Some((first, rest)) = offer.ends.split_first()
            && *first <= offer.at
        {
            ended = *first == offer.at;
            offer.ends = rest;
        }
        // If no ends are known, the stream has no FPDUs.
        self.mid_fpdu = !ended && !offer.ends.is_empty();
    }

    /// Time at which the wait for a larger window ends, if there is one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.waiting {
            Waiting::Until(at) => Some(at),
            Waiting::No | Waiting::Over => None,
        }
    }

    /// Ends the wait if its deadline has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.waiting = Waiting::Over;
        }
    }
}

#[cfg(test)]
mod tests;
