//! Cuts the bytes of a connection into segments that Wireshark can dissect as MPA.
//!
//! Wireshark (4.0, and as its source reads later versions too) asks for this:
//! * the first segment of an MPA Request or Reply has at least 20 bytes of it, the first segment
//!   of an FPDU at least 8: shorter ones are not taken for MPA and the rest is lost with them;
//! * nothing follows the Reply in its segment: it would be passed over;
//! * where Markers are in use, every FPDU has a segment for itself, whole, however long it is: the
//!   number of Markers is computed from the length of the segment.
//!
//! Everything else (without Markers several FPDUs in a segment, FPDUs and startup frames that span
//! segments) its reassembly copes with. So segments are cut at the ends of startup frames and FPDUs
//! by following ULPDU_Length, and bytes are passed on as they come, except for those of the
//! first 20 or 8, or of a whole FPDU with Markers, that have to wait for the others. When the
//! stream turns out not to be MPA, or the lengths make no sense, that direction is cut at the MSS
//! and nothing else from there on.

use crate::fpdu::{Chain, LostTrack};

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Peer,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Local => Self::Peer,
            Self::Peer => Self::Local,
        }
    }
}

/// Bytes of a startup frame before the Private Data (RFC 5044 section 7.1.1).
const FRAME_HEADER_LEN: usize = 20;
const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_REJECTED: u8 = 0x20;
const MAX_PRIVATE_DATA: usize = 512;

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Segmenter {
    local: Direction,
    peer: Direction,
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    phase: Phase,
    /// Bytes that wait for more: fewer than [`FRAME_HEADER_LEN`], or with Markers than an FPDU has.
    held: Vec<u8>,
}

/// ```text
/// Header --Begins--> Frame --Passed, to its end--> AwaitPeer --Answered--> Fpdus <--+
///    |                 |                              |                    |  |     |
///    |                 |                              |                    |  +-----+ Followed
///    v                 v                              v                    v
/// Plain <--------- Unfollowable, and whatever has no arrow ----------------+
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing was passed on yet.
    #[default]
    Header,
    /// Inside a startup frame, `left` bytes before its end.
    Frame { frame: Frame, left: usize },
    /// The startup frame is through, the one of the other direction is not.
    AwaitPeer(Frame),
    /// Full Operation.
    Fpdus(Chain),
    /// Not MPA, or not to be followed.
    Plain,
}

/// What happens to a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The first 20 bytes are a startup frame's, which has `len` bytes.
    Begins { frame: Frame, len: usize },
    /// So many bytes of the startup frame were passed on.
    Passed(usize),
    /// Both directions have an accepted startup frame; whether this one carries Markers.
    Answered { markers: bool },
    /// FPDUs, or a part of one, were passed on.
    Followed(Chain),
    /// It is not MPA, the connection was rejected, bytes came before they may, or the lengths make
    /// no sense.
    Unfollowable,
}

/// What cannot be followed is cut at the MSS: no combination is an error.
fn next(phase: Phase, event: Event) -> Phase {
    match (phase, event) {
        (Phase::Header, Event::Begins { frame, len }) => Phase::Frame { frame, left: len },
        (Phase::Frame { frame, left }, Event::Passed(len)) if len < left => {
            let left = left - len;
            Phase::Frame { frame, left }
        }
        (Phase::Frame { frame, .. }, Event::Passed(_)) => Phase::AwaitPeer(frame),
        (Phase::AwaitPeer(_), Event::Answered { markers }) => Phase::Fpdus(Chain::new(markers)),
        (Phase::Fpdus(_), Event::Followed(chain)) => Phase::Fpdus(chain),
        _ => Phase::Plain,
    }
}

/// What a startup frame decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    reply: bool,
    /// Its sender wants to receive Markers.
    markers: bool,
    rejected: bool,
}

impl Segmenter {
    /// Passes `octets` on to `emit` in segments of at most `mss` (at least 20) bytes, FPDUs with
    /// Markers in one segment each; what has to wait for more is held back.
    pub(crate) fn push(
        &mut self,
        side: Side,
        octets: &[u8],
        mss: usize,
        emit: &mut dyn FnMut(&[u8]),
    ) {
        let mut held = std::mem::take(&mut self.direction(side).held);
        if held.is_empty() {
            let taken = self.cut(side, octets, mss, emit);
            held.extend_from_slice(octets.get(taken..).unwrap_or(&[]));
        } else {
            held.extend_from_slice(octets);
            let taken = self.cut(side, &held, mss, emit);
            held.drain(..taken);
        }
        self.direction(side).held = held;
    }

    /// Passes on what is held back of a direction, because nothing more will come.
    pub(crate) fn flush(&mut self, side: Side, emit: &mut dyn FnMut(&[u8])) {
        let direction = self.direction(side);
        let held = std::mem::take(&mut direction.held);
        if !held.is_empty() {
            direction.phase = next(direction.phase, Event::Unfollowable);
            emit(&held);
        }
    }

    /// Passes on what it can and gives the number of bytes it took.
    fn cut(&mut self, side: Side, octets: &[u8], mss: usize, emit: &mut dyn FnMut(&[u8])) -> usize {
        let mut rest = octets;
        while !rest.is_empty() {
            let (event, taken) = match self.direction(side).phase {
                Phase::Header => (opening(rest), 0),
                Phase::Frame { left, .. } => {
                    let taken = left.min(rest.len());
                    split(rest, taken, mss, emit);
                    (Some(Event::Passed(taken)), taken)
                }
                // Nothing may follow a startup frame before the answer to it.
                Phase::AwaitPeer(_) => (Some(Event::Unfollowable), 0),
                Phase::Fpdus(chain) => cut_fpdus(chain, rest, mss, emit),
                Phase::Plain => {
                    split(rest, rest.len(), mss, emit);
                    return octets.len();
                }
            };
            let Some(event) = event else {
                break;
            };
            self.apply(side, event);
            rest = rest.get(taken..).unwrap_or(&[]);
        }
        octets.len() - rest.len()
    }

    /// Moves a direction on; when that ended the second startup frame, both enter Full Operation.
    fn apply(&mut self, side: Side, event: Event) {
        let direction = self.direction(side);
        direction.phase = next(direction.phase, event);
        let (Phase::AwaitPeer(mine), Phase::AwaitPeer(other)) = (
            self.direction(side).phase,
            self.direction(side.other()).phase,
        ) else {
            return;
        };
        let accepted = mine.reply != other.reply && !mine.rejected && !other.rejected;
        // M asks the receiver of the frame to send Markers (RFC 5044 section 7.1.1).
        for (side, markers) in [(side, other.markers), (side.other(), mine.markers)] {
            let event = if accepted {
                Event::Answered { markers }
            } else {
                Event::Unfollowable
            };
            let direction = self.direction(side);
            direction.phase = next(direction.phase, event);
        }
    }

    fn direction(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Local => &mut self.local,
            Side::Peer => &mut self.peer,
        }
    }
}

/// Cuts what it can of `octets`, and gives what happened and how many bytes were taken. `None`: an
/// FPDU begins there, but not enough of it.
fn cut_fpdus(
    mut chain: Chain,
    octets: &[u8],
    mss: usize,
    emit: &mut dyn FnMut(&[u8]),
) -> (Option<Event>, usize) {
    // Wireshark counts Markers by the length of the segment: one FPDU each, and all of it.
    let mss = if chain.markers() { usize::MAX } else { mss };
    let mut taken = chain.left().min(octets.len());
    if chain.left() == 0 {
        let (whole, next) = whole_fpdus(&chain, octets, mss);
        match next {
            _ if whole > 0 => {
                chain.begin(whole);
                taken = whole;
            }
            None => return (None, 0),
            Some(Err(LostTrack)) => return (Some(Event::Unfollowable), 0),
            Some(Ok(_)) if chain.markers() => return (None, 0),
            Some(Ok(len)) => {
                chain.begin(len);
                taken = len.min(octets.len());
            }
        }
    }
    split(octets, taken, mss, emit);
    chain.advance(taken);
    (Some(Event::Followed(chain)), taken)
}

/// How many bytes the whole FPDUs at the beginning of `octets` take that may share a segment; and
/// what is known of the FPDU after them.
fn whole_fpdus(
    chain: &Chain,
    octets: &[u8],
    mss: usize,
) -> (usize, Option<Result<usize, LostTrack>>) {
    let mut whole = 0;
    loop {
        let next = chain.fpdu_len(whole, octets.get(whole..).unwrap_or(&[]));
        match next {
            Some(Ok(len)) if whole + len <= octets.len().min(mss) => whole += len,
            _ => return (whole, next),
        }
        if chain.markers() {
            return (whole, next);
        }
    }
}

/// What the first bytes of a direction are; `None`: they could still become a startup frame.
fn opening(octets: &[u8]) -> Option<Event> {
    let start = octets.get(..REQUEST_KEY.len()).unwrap_or(octets);
    let reply = REPLY_KEY.starts_with(start);
    if !reply && !REQUEST_KEY.starts_with(start) {
        return Some(Event::Unfollowable);
    }
    let [.., flags, _revision, high, low] = octets.first_chunk::<FRAME_HEADER_LEN>()?;
    let private_data = usize::from(u16::from_be_bytes([*high, *low]));
    if private_data > MAX_PRIVATE_DATA {
        return Some(Event::Unfollowable);
    }
    let frame = Frame {
        reply,
        markers: flags & FLAG_MARKERS != 0,
        // R has a meaning in a Reply only.
        rejected: reply && flags & FLAG_REJECTED != 0,
    };
    let len = FRAME_HEADER_LEN + private_data;
    Some(Event::Begins { frame, len })
}

/// Emits the first `len` bytes in segments of at most `mss`.
fn split(octets: &[u8], len: usize, mss: usize, emit: &mut dyn FnMut(&[u8])) {
    let octets = octets.get(..len).unwrap_or(octets);
    octets.chunks(mss.max(1)).for_each(emit);
}

#[cfg(test)]
#[path = "segmenter/tests.rs"]
mod tests;
