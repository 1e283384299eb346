//! Cuts the byte streams of a connection into segments that Wireshark can dissect as MPA.
//!
//! Wireshark 4.0 has these requirements. According to its source, later versions have the same
//! requirements.
//! * The first segment of an MPA Request or Reply contains at least 20 bytes of it, and the first
//!   segment of an FPDU at least 8. Otherwise Wireshark does not recognize MPA, and does not
//!   dissect the rest either.
//! * No bytes follow the Reply in its segment, because Wireshark would skip them.
//! * With Markers, every FPDU is a segment of its own, whatever its length. Wireshark computes the
//!   number of Markers from the length of the segment.
//!
//! Wireshark reassembles everything else: several FPDUs in a segment (without Markers), and FPDUs
//! and startup frames that span segments. The segmenter therefore follows ULPDU_Length and cuts at
//! the ends of startup frames and FPDUs. It passes bytes on at once, with two exceptions. The first
//! 20 bytes of a startup frame and the first 8 bytes of an FPDU wait until they are complete. With
//! Markers, an FPDU waits until it is complete. If a direction is not MPA, or its lengths are
//! invalid, it is cut only at the MSS from there on.

use crate::fpdu::{Chain, LostTrack};

/// An end of a connection.
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

/// Length in bytes of a startup frame without Private Data (RFC 5044 section 7.1.1).
const FRAME_HEADER_LEN: usize = 20;
/// Key of a Request Frame.
const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// Key of a Reply Frame.
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_REJECTED: u8 = 0x20;
const MAX_PRIVATE_DATA: usize = 512;

/// State of both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Segmenter {
    local: Direction,
    peer: Direction,
}

/// State of one direction, and the bytes that wait.
#[derive(Debug, Default)]
struct Direction {
    phase: Phase,
    /// Bytes that wait for more bytes: fewer than [`FRAME_HEADER_LEN`], or with Markers an
    /// incomplete FPDU.
    held: Vec<u8>,
}

/// State machine of one direction.
///
/// ```text
/// Header --Begins--> Frame --Passed, to its end--> AwaitPeer --Answered--> Fpdus <--+
///    |                 |                              |                    |  |     |
///    |                 |                              |                    |  +-----+ Followed
///    v                 v                              v                    v
/// Plain <--------- Unfollowable, and every event without an arrow ---------+
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// No bytes were passed on yet.
    #[default]
    Header,
    /// Inside a startup frame, which ends after `left` more bytes.
    Frame { frame: Frame, left: usize },
    /// The startup frame of this direction was passed on, but not the startup frame of the other
    /// direction.
    AwaitPeer(Frame),
    /// Full Operation.
    Fpdus(Chain),
    /// The direction is not MPA, or its FPDUs cannot be followed.
    Plain,
}

/// Event in the state machine of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The first 20 bytes belong to a startup frame of `len` bytes.
    Begins { frame: Frame, len: usize },
    /// This many bytes of the startup frame were passed on.
    Passed(usize),
    /// Both directions have passed on an accepted startup frame. `markers` is true if this
    /// direction carries Markers.
    Answered { markers: bool },
    /// FPDUs, or a part of one, were passed on. The value is the new position.
    Followed(Chain),
    /// The direction cannot be followed: it is not MPA, the connection was rejected, bytes were
    /// sent too early, or a length is invalid.
    Unfollowable,
}

/// Returns the state after `event`. No combination is an error, because a direction that cannot be
/// followed is cut at the MSS.
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

/// Properties of a startup frame that affect how the following bytes are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    reply: bool,
    /// True if the sender asks its peer to send Markers.
    markers: bool,
    rejected: bool,
}

impl Segmenter {
    /// Appends `bytes` to a direction, and passes segments of at most `mss` bytes (20 or more) to
    /// `emit`. With Markers, each FPDU is one segment of any length. Bytes that must wait for more
    /// are kept.
    pub(crate) fn push(
        &mut self,
        side: Side,
        bytes: &[u8],
        mss: usize,
        emit: &mut dyn FnMut(&[u8]),
    ) {
        let mut held = std::mem::take(&mut self.direction(side).held);
        if held.is_empty() {
            let taken = self.cut(side, bytes, mss, emit);
            held.extend_from_slice(bytes.get(taken..).unwrap_or(&[]));
        } else {
            held.extend_from_slice(bytes);
            let taken = self.cut(side, &held, mss, emit);
            held.drain(..taken);
        }
        self.direction(side).held = held;
    }

    /// Passes the waiting bytes of a direction to `emit`, because no more bytes follow.
    pub(crate) fn flush(&mut self, side: Side, emit: &mut dyn FnMut(&[u8])) {
        let direction = self.direction(side);
        let held = std::mem::take(&mut direction.held);
        if !held.is_empty() {
            direction.phase = next(direction.phase, Event::Unfollowable);
            emit(&held);
        }
    }

    /// Passes as many bytes as possible to `emit`. Returns the number of these bytes.
    fn cut(&mut self, side: Side, bytes: &[u8], mss: usize, emit: &mut dyn FnMut(&[u8])) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (event, taken) = match self.direction(side).phase {
                Phase::Header => (opening(rest), 0),
                Phase::Frame { left, .. } => {
                    let taken = left.min(rest.len());
                    split(rest, taken, mss, emit);
                    (Some(Event::Passed(taken)), taken)
                }
                // No bytes may follow a startup frame before the startup frame of the peer.
                Phase::AwaitPeer(_) => (Some(Event::Unfollowable), 0),
                Phase::Fpdus(chain) => cut_fpdus(chain, rest, mss, emit),
                Phase::Plain => {
                    split(rest, rest.len(), mss, emit);
                    return bytes.len();
                }
            };
            let Some(event) = event else {
                break;
            };
            self.apply(side, event);
            rest = rest.get(taken..).unwrap_or(&[]);
        }
        bytes.len() - rest.len()
    }

    /// Applies an event to a direction. After the second startup frame, both directions enter Full
    /// Operation. If the two frames do not establish a connection, they become plain.
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

/// Cuts as many FPDUs from `bytes` as possible. Returns the event and the number of bytes taken.
/// Returns no event if an FPDU begins but more of its bytes are needed.
fn cut_fpdus(
    mut chain: Chain,
    bytes: &[u8],
    mss: usize,
    emit: &mut dyn FnMut(&[u8]),
) -> (Option<Event>, usize) {
    // Wireshark derives the Markers from the length of the segment, so each segment must be one
    // whole FPDU.
    let mss = if chain.markers() { usize::MAX } else { mss };
    let mut taken = chain.left().min(bytes.len());
    if chain.left() == 0 {
        let (whole, next) = whole_fpdus(&chain, bytes, mss);
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
                taken = len.min(bytes.len());
            }
        }
    }
    split(bytes, taken, mss, emit);
    chain.advance(taken);
    (Some(Event::Followed(chain)), taken)
}

/// Finds the whole FPDUs at the start of `bytes` that may share a segment. Returns their total
/// length, and the result of `fpdu_len` for the last FPDU that was examined.
fn whole_fpdus(
    chain: &Chain,
    bytes: &[u8],
    mss: usize,
) -> (usize, Option<Result<usize, LostTrack>>) {
    let mut whole = 0;
    loop {
        let next = chain.fpdu_len(whole, bytes.get(whole..).unwrap_or(&[]));
        match next {
            Some(Ok(len)) if whole + len <= bytes.len().min(mss) => whole += len,
            _ => return (whole, next),
        }
        if chain.markers() {
            return (whole, next);
        }
    }
}

/// Returns the event for the first bytes of a direction. Returns `None` while they may still become
/// a startup frame.
fn opening(bytes: &[u8]) -> Option<Event> {
    let start = bytes.get(..REQUEST_KEY.len()).unwrap_or(bytes);
    let reply = REPLY_KEY.starts_with(start);
    if !reply && !REQUEST_KEY.starts_with(start) {
        return Some(Event::Unfollowable);
    }
    let [.., flags, _revision, high, low] = bytes.first_chunk::<FRAME_HEADER_LEN>()?;
    let private_data = usize::from(u16::from_be_bytes([*high, *low]));
    if private_data > MAX_PRIVATE_DATA {
        return Some(Event::Unfollowable);
    }
    let frame = Frame {
        reply,
        markers: flags & FLAG_MARKERS != 0,
        // R has a meaning only in a Reply.
        rejected: reply && flags & FLAG_REJECTED != 0,
    };
    let len = FRAME_HEADER_LEN + private_data;
    Some(Event::Begins { frame, len })
}

/// Passes the first `len` bytes to `emit` in segments of at most `mss` bytes.
fn split(bytes: &[u8], len: usize, mss: usize, emit: &mut dyn FnMut(&[u8])) {
    let bytes = bytes.get(..len).unwrap_or(bytes);
    bytes.chunks(mss.max(1)).for_each(emit);
}

#[cfg(test)]
#[path = "segmenter/tests.rs"]
mod tests;
