//! The flight recorder: headers of the last frames of a connection, in both directions, for error
//! reports.
//!
//! It is a ring of fixed size, allocated when startup begins. Recording a frame copies its headers,
//! and never its payload. It reads no clock: the time of a frame is the time that the driver set
//! last.

mod words;

use std::fmt;
use std::time::{Duration, Instant};

use uwarp_ddp::{TAGGED_HEADER, UNTAGGED_HEADER};
use uwarp_rdmap::{
    ATOMIC_REQUEST_HEADER, ATOMIC_RESPONSE_HEADER, MAX_HEADER, Opcode, Peer, READ_REQUEST_HEADER,
};

/// Number of frames that are kept.
const FRAMES: usize = 32;
/// Bytes of a startup frame without its private data: key, flags, revision, length, IRD and ORD.
const STARTUP_HEAD: usize = 24;
/// Bytes kept of a frame that could not be parsed: the length field and the longest DDP header.
const DAMAGED_HEAD: usize = 2 + UNTAGGED_HEADER;

/// Direction of a recorded frame. The verbs have no counterpart, as for [`FlightRecord`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The frame was sent to the peer.
    Sent,
    /// The frame was received from the peer.
    Received,
}

/// Kind of a recorded frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameKind {
    /// MPA Request or Reply.
    Startup,
    /// The ULPDU of an FPDU: DDP and RDMAP headers.
    Ulpdu,
    /// Received bytes that are not a valid FPDU.
    Damaged,
}

/// One frame of a [`FlightRecord`]. The verbs have no counterpart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedFrame {
    at: Duration,
    direction: Direction,
    kind: FrameKind,
    len: u32,
    head: [u8; MAX_HEADER],
    head_len: u8,
    /// Stream offset at which a sent frame ends. 0 for received frames, and for sent frames whose
    /// `unsent` is final.
    end: u64,
    unsent: bool,
}

impl RecordedFrame {
    const NONE: RecordedFrame = RecordedFrame {
        at: Duration::ZERO,
        direction: Direction::Sent,
        kind: FrameKind::Ulpdu,
        len: 0,
        head: [0; MAX_HEADER],
        head_len: 0,
        end: 0,
        unsent: false,
    };

    /// Returns the time from the beginning of the connection to the frame. A connection begins with
    /// `connect` or with the acceptance of a request.
    #[must_use]
    pub const fn at(&self) -> Duration {
        self.at
    }

    /// Returns the direction of the frame.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the length in bytes of the ULPDU or of the startup frame (RFC 5044 sections 4.1 and
    /// 7.1.1).
    ///
    /// For received bytes that are not a valid FPDU, returns the number of bytes that had arrived.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.len
    }

    /// Returns the headers as they were on the wire: DDP and RDMAP, or the beginning of a startup
    /// frame.
    ///
    /// See RFC 5041 section 4, RFC 5040 section 4 and RFC 5044 section 7.1.1.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head
            .get(..usize::from(self.head_len))
            .unwrap_or_default()
    }

    /// Returns false for a sent frame of which TCP has not taken all bytes.
    ///
    /// Either the connection ended first, or the bytes are still waiting to be sent.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        !self.unsent
    }
}

/// The last frames of a connection, oldest first. The verbs have no counterpart.
///
/// Its `Display` output is a table with one frame per line.
///
/// ```
/// # fn show(record: &uwarp_engine::connection::FlightRecord) {
/// eprintln!("{record}");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct FlightRecord {
    frames: Vec<RecordedFrame>,
    seen: u64,
    /// Profile of the peer, which decides how a Terminate from it is read.
    peer: Peer,
}

impl FlightRecord {
    /// Returns the kept frames, oldest first: the last 32 or fewer.
    #[must_use]
    pub fn frames(&self) -> &[RecordedFrame] {
        &self.frames
    }

    /// Returns the number of frames that the connection has sent and received, including those no
    /// longer kept.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.seen
    }
}

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.frames.len(), self.seen) {
            (0, _) => return f.write_str("no frame was sent or received"),
            (1, 1) => write!(f, "the only frame")?,
            (kept, seen) => write!(f, "the last {kept} of {seen} frames")?,
        }
        write!(f, " (-> sent, <- received, seconds since the beginning):")?;
        for frame in &self.frames {
            let arrow = match frame.direction {
                Direction::Sent => "->",
                Direction::Received => "<-",
            };
            let (seconds, micros) = (frame.at.as_secs(), frame.at.subsec_micros());
            write!(f, "\n  {arrow} {seconds}.{micros:06} ")?;
            words::frame(f, frame, self.peer)?;
            if frame.unsent {
                f.write_str(" (not sent whole)")?;
            }
        }
        Ok(())
    }
}

/// The ring of one connection.
pub(crate) struct Recorder {
    began: Instant,
    /// Time of the last frame, absolute and since `began`. Many frames have the same time, so the
    /// difference is computed only when it changes.
    last: (Instant, Duration),
    ring: Option<Box<[RecordedFrame; FRAMES]>>,
    /// Number of frames so far. The next one is stored at this index modulo the size of the ring.
    seen: u64,
}

impl Recorder {
    /// Creates a recorder that keeps nothing yet.
    pub(crate) const fn new(now: Instant) -> Self {
        Recorder {
            began: now,
            last: (now, Duration::ZERO),
            ring: None,
            seen: 0,
        }
    }

    /// Begins the record of a connection.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = now;
        self.last = (now, Duration::ZERO);
        self.seen = 0;
        self.ring
            .get_or_insert_with(|| Box::new([RecordedFrame::NONE; FRAMES]));
    }

    /// Records a startup frame of this side, which ends at stream offset `end`.
    pub(super) fn startup_sent(&mut self, now: Instant, frame: &[u8], end: u64) {
        let head = frame.get(..STARTUP_HEAD).unwrap_or(frame);
        let added = self.add(
            now,
            (Direction::Sent, FrameKind::Startup),
            head,
            frame.len(),
        );
        if let Some(frame) = added {
            frame.end = end;
        }
    }

    /// Records a startup frame of the peer.
    pub(super) fn startup_received(&mut self, now: Instant, frame: &[u8]) {
        let head = frame.get(..STARTUP_HEAD).unwrap_or(frame);
        self.add(
            now,
            (Direction::Received, FrameKind::Startup),
            head,
            frame.len(),
        );
    }

    /// Records a framed FPDU that ends at stream offset `end`.
    ///
    /// `head` is the beginning of a ULPDU of `len` bytes.
    pub(super) fn sent(&mut self, now: Instant, head: &[u8], len: usize, end: u64) {
        self.sent_headers(now, headers(head), len, end);
    }

    /// Records a framed FPDU like [`sent`](Self::sent). `head` contains exactly the headers.
    ///
    /// This saves the search for the end of the headers.
    #[inline]
    pub(super) fn sent_headers(&mut self, now: Instant, head: &[u8], len: usize, end: u64) {
        if let Some(frame) = self.add(now, (Direction::Sent, FrameKind::Ulpdu), head, len) {
            frame.end = end;
        }
    }

    /// Records the ULPDU of a verified FPDU.
    pub(super) fn received(&mut self, now: Instant, head: &[u8], len: usize) {
        let what = (Direction::Received, FrameKind::Ulpdu);
        if let Some(tagged) = head.first_chunk::<TAGGED_HEADER>()
            && tagged[0] & 0x80 != 0
        {
            // Most frames are tagged. Their constant length makes the copy cheap.
            self.add(now, what, tagged, len);
            return;
        }
        self.add(now, what, headers(head), len);
    }

    /// Records an untagged segment like [`received`](Self::received). `head` contains exactly the
    /// headers.
    #[inline]
    pub(super) fn received_headers(&mut self, now: Instant, head: &[u8], len: usize) {
        self.add(now, (Direction::Received, FrameKind::Ulpdu), head, len);
    }

    /// Records received bytes that are not a valid FPDU.
    pub(super) fn damaged(&mut self, now: Instant, bytes: &[u8]) {
        let head = bytes.get(..DAMAGED_HEAD).unwrap_or(bytes);
        self.add(
            now,
            (Direction::Received, FrameKind::Damaged),
            head,
            bytes.len(),
        );
    }

    /// Marks the sent frames that end after stream offset `end` as not sent completely.
    pub(super) fn drop_after(&mut self, end: u64) {
        for frame in self.frames_mut().iter_mut().filter(|frame| frame.end > end) {
            frame.unsent = true;
            frame.end = 0;
        }
    }

    /// Records the end of the stream, of which TCP has taken `taken_to` bytes. Whether a frame was
    /// sent no longer changes.
    pub(super) fn stream_over(&mut self, taken_to: u64) {
        self.drop_after(taken_to);
        for frame in self.frames_mut() {
            frame.end = 0;
        }
    }

    /// Returns the kept frames. `taken_to`: number of bytes of the stream that TCP has taken.
    pub(super) fn record(&self, taken_to: u64, peer: Peer) -> FlightRecord {
        let Some(ring) = &self.ring else {
            return FlightRecord::default();
        };
        let kept = self.seen.min(FRAMES as u64);
        let frames = (self.seen - kept..self.seen).filter_map(|number| {
            let mut frame = *ring.get(place(number))?;
            frame.unsent |= frame.end > taken_to;
            Some(frame)
        });
        FlightRecord {
            frames: frames.collect(),
            seen: self.seen,
            peer,
        }
    }

    fn frames_mut(&mut self) -> &mut [RecordedFrame] {
        self.ring.as_deref_mut().map_or(&mut [], |ring| ring)
    }

    /// Adds a frame and returns it, so that the caller can set its end.
    #[inline]
    fn add(
        &mut self,
        now: Instant,
        (direction, kind): (Direction, FrameKind),
        head: &[u8],
        len: usize,
    ) -> Option<&mut RecordedFrame> {
        let frame = self.ring.as_mut()?.get_mut(place(self.seen))?;
        self.seen += 1;
        if self.last.0 != now {
            self.last = (now, now.saturating_duration_since(self.began));
        }
        frame.at = self.last.1;
        (frame.direction, frame.kind) = (direction, kind);
        frame.len = u32::try_from(len).unwrap_or(u32::MAX);
        let head_len = head.len().min(MAX_HEADER);
        frame.head[..head_len].copy_from_slice(&head[..head_len]);
        frame.head_len = u8::try_from(head_len).unwrap_or(u8::MAX);
        (frame.end, frame.unsent) = (0, false);
        Some(frame)
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % FRAMES as u64).unwrap_or(0)
}

/// Returns the headers at the beginning of a ULPDU, without payload.
#[inline]
fn headers(head: &[u8]) -> &[u8] {
    let (Some(&ddp), Some(&rdmap)) = (head.first(), head.get(1)) else {
        return head;
    };
    if ddp & 0x80 != 0 {
        return head.get(..TAGGED_HEADER).unwrap_or(head);
    }
    let len = UNTAGGED_HEADER
        + match Opcode::from_raw(rdmap & 0x0F) {
            Some(Opcode::ReadRequest) => READ_REQUEST_HEADER,
            Some(Opcode::AtomicRequest) => ATOMIC_REQUEST_HEADER,
            Some(Opcode::AtomicResponse) => ATOMIC_RESPONSE_HEADER,
            Some(Opcode::Immediate | Opcode::ImmediateSolicited) => 8,
            Some(Opcode::Terminate) => return head,
            Some(
                Opcode::Write
                | Opcode::ReadResponse
                | Opcode::Send
                | Opcode::SendInvalidate
                | Opcode::SendSolicited
                | Opcode::SendSolicitedInvalidate,
            )
            | None => 0,
        };
    head.get(..len).unwrap_or(head)
}

#[cfg(test)]
mod tests;
