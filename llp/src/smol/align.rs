//! Which bytes make the next segment, so that segments begin with FPDUs.
//!
//! smoltcp fills a segment with whatever its send buffer and the peer's window hold. So it is given
//! one segment at a time, and only when it can send all of it at once:
//!
//! 1. everything before was sent, so that the segment begins with the first byte handed over;
//! 2. it is as many whole FPDUs as EMSS allows, or EMSS bytes of an FPDU that is longer;
//! 3. the peer's window takes it whole. If not, it waits for an acknowledgement.
//!
//! When nothing is in flight, no acknowledgement is to come, and a window that is too small for the
//! segment may stay so. Then as many whole FPDUs go out as fit; if not even one does, a sender of
//! RFC 9293 section 3.8.6.2.1 decides: the window is filled when it is half of the largest that the
//! peer ever offered, and else after [`PATIENCE`]. From then on the segment is smoltcp's, which
//! probes a closed window and cuts the segment to what opens: that is where alignment is lost, for
//! this one segment.
//!
//! On a link that cuts segments by itself, several of one length leave together. Where FPDUs are longer than segments on purpose
//! ([`SendHints::over_segments`]), a burst is as long as it can be, and cut every EMSS bytes whatever lies there.

use std::time::Duration;

use smoltcp::time::Instant;

use crate::SendHints;

/// How long a segment waits for a window that takes it when nothing is in flight: RFC 9293 section
/// 3.8.6.2.1 names 0.1 to 1 second.
const PATIENCE: Duration = Duration::from_millis(200);

/// What is offered to TCP and not yet taken, in one call.
pub(crate) struct Offer<'a> {
    /// Stream offsets of the next byte and of the end of what is offered.
    at: u64,
    to: u64,
    /// The ends behind `at`.
    ends: &'a [u64],
    /// Whether FPDUs longer than a segment are on purpose.
    over_segments: bool,
    /// Whether this call has taken something already.
    begun: bool,
}

/// How much room there is for the next segment, with everything before it sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes that the peer has not acknowledged.
    pub(crate) in_flight: usize,
    /// The peer's window, from the first byte in flight, and the largest it ever offered.
    pub(crate) window: usize,
    pub(crate) largest_window: usize,
    /// The size of the send buffer.
    pub(crate) buffer: usize,
    pub(crate) emss: usize,
    /// The most bytes that leave together, to be cut into segments later; EMSS where nobody does that.
    pub(crate) burst: usize,
}

/// Whether the next segment waits for a larger window although nothing is in flight.
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

/// What is remembered from call to call.
#[derive(Debug, Default)]
pub(crate) struct Aligner {
    /// What was taken last ended within an FPDU.
    mid_fpdu: bool,
    waiting: Waiting,
}

impl<'a> Offer<'a> {
    pub(crate) fn new(octets: usize, ends: SendHints<'a>) -> Self {
        Self {
            at: ends.base(),
            to: ends.base().saturating_add(octets as u64),
            ends: ends.ends(),
            over_segments: ends.may_go_over_segments(),
            begun: false,
        }
    }

    /// The longest run of whole FPDUs within `limit` bytes; 0 when not even one fits.
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

    /// The longest run, within `limit` bytes, of segments as they would be by themselves that have, but for the last
    /// one, exactly `each` bytes: what is cut every `each` bytes has an FPDU at every cut.
    fn alike(&self, each: usize, emss: usize, limit: usize) -> usize {
        let limit = self.at.saturating_add(limit as u64).min(self.to);
        // Where the run ends, and the segment that is being made up.
        let (mut run, mut segment) = (self.at, self.at);
        for end in self.ends {
            if len(*end - run) > each {
                // The segment is whole, unless it would have taken this one as well.
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

    /// Whether alignment was given up for what is within `limit` bytes: one of the FPDUs there, or the rest of the first one, is longer than
    /// a segment, and on purpose.
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

    /// The longest run within `limit` bytes that is cut every `emss` bytes, wherever FPDUs end: full segments, unless it is all there is.
    fn anywhere(&self, emss: usize, limit: usize) -> usize {
        let offered = len(self.to - self.at);
        if offered <= limit {
            offered
        } else {
            limit - limit % emss
        }
    }

    /// The bytes of the next segment when only EMSS limits it; 0 when that is for a later call to
    /// say.
    fn segment(&self, emss: usize, mid_fpdu: bool) -> usize {
        let offered = len(self.to - self.at);
        let Some(first) = self.ends.first() else {
            return offered.min(emss);
        };
        let first = len(first - self.at);
        if first > emss {
            // An FPDU longer than a segment is cut into full ones.
            offered.min(emss)
        } else if first > offered {
            // The rest of this FPDU comes with another call; unless that would bring no more.
            if self.begun { 0 } else { offered }
        } else if mid_fpdu {
            // What follows begins a segment again.
            first
        } else {
            self.whole(emss)
        }
    }
}

/// Bytes of an offer in memory.
fn len(octets: u64) -> usize {
    usize::try_from(octets).unwrap_or(usize::MAX)
}

impl Aligner {
    /// How many bytes to hand over as the next segment; 0 to wait, or when nothing is left.
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

    /// As [`next`](Self::next), but for as many segments as may leave together: their bytes, and those of each but
    /// the last.
    pub(crate) fn burst(&mut self, offer: &Offer<'_>, room: &Room, now: Instant) -> (usize, usize) {
        let each = self.next(offer, room, now);
        let usable = room.window.min(room.buffer).saturating_sub(room.in_flight);
        let limit = usable.min(room.burst);
        if each == 0 || room.burst <= each {
            return (each, each);
        }
        // Where nobody cuts segments, alignment costs nothing.
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
        let octets = run(limit).max(each);
        if room.in_flight >= room.burst / 2 && octets < room.burst / 2 {
            // An acknowledgement is to come, of two segments and more, and with it room for a longer burst: each costs a
            // call of the link, however long it is.
            if run(room.burst) > octets {
                return (0, 0);
            }
        }
        (octets, if over_segments { room.emss } else { each })
    }

    /// So many bytes of the offer were handed over.
    pub(crate) fn taken(&mut self, offer: &mut Offer<'_>, octets: usize) {
        self.waiting = Waiting::No;
        offer.begun = true;
        offer.at += octets as u64;
        let mut ended = false;
        while let Some((first, rest)) = offer.ends.split_first()
            && *first <= offer.at
        {
            ended = *first == offer.at;
            offer.ends = rest;
        }
        // Where no ends are known, none can be missed.
        self.mid_fpdu = !ended && !offer.ends.is_empty();
    }

    /// When the owner has to come back although nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.waiting {
            Waiting::Until(at) => Some(at),
            Waiting::No | Waiting::Over => None,
        }
    }

    /// Looks at the time.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.waiting = Waiting::Over;
        }
    }
}

#[cfg(test)]
mod tests;
