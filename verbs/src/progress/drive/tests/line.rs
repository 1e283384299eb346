//! An LLP without a network: the test decides which bytes arrive and how many are taken.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use parking_lot::Mutex;
use uwarp_llp::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};

use super::*;
use crate::progress::confirmations::Confirmations;
use crate::progress::doorbell::Doorbell;
use crate::progress::drive::{Driven, Progress};

/// State of an LLP without a network, shared by the LLP and the test.
pub(super) struct Line {
    /// Bytes from the peer that the connection has not read.
    pub(super) arrived: VecDeque<u8>,
    /// Number of bytes that the LLP still takes.
    pub(super) room: usize,
    /// For each call that sends: the number of pieces, and the bytes that were taken.
    pub(super) calls: Vec<(usize, Vec<u8>)>,
    /// Length of `arrived` at each of those calls.
    pub(super) unread: Vec<usize>,
    /// Hint of the last call: FPDUs may span TCP segments.
    pub(super) over_segments: bool,
    /// Hint of each call: a single response is awaited.
    pub(super) asking: Vec<bool>,
    /// Number of bytes that the peer has not acknowledged.
    pub(super) unacknowledged: usize,
    /// The LLP was reset.
    pub(super) reset: bool,
}

struct LineLlp {
    line: Arc<Mutex<Line>>,
    /// Descriptor for the `Llp` trait. No test polls it.
    fd: File,
    /// Memory of the end, whose regions do not own it.
    _memory: Arc<Memory>,
}

/// Returns `end` over a line that takes `room` bytes.
pub(super) fn over_line(end: End, room: usize) -> (Driven, Arc<Mutex<Line>>) {
    let line = Arc::new(Mutex::new(Line {
        arrived: VecDeque::new(),
        room,
        calls: Vec::new(),
        unread: Vec::new(),
        over_segments: false,
        asking: Vec::new(),
        unacknowledged: 0,
        reset: false,
    }));
    let llp = LineLlp {
        line: Arc::clone(&line),
        fd: File::open("/dev/null").unwrap(),
        _memory: end.memory,
    };
    let driven = Driven {
        conn: end.conn,
        llp: Some(Box::new(llp)),
        rx: end.rx,
        peer: None,
        recorded: Progress::default(),
        doorbell: Doorbell::default(),
        confirmations: Confirmations::new(Arc::default()),
        traffic: Arc::default(),
    };
    (driven, line)
}

impl Llp for LineLlp {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        let mut line = self.line.lock();
        let count = buf.len().min(line.arrived.len());
        if count == 0 {
            return Ok(Recv::WouldBlock);
        }
        for (place, byte) in buf.iter_mut().zip(line.arrived.drain(..count)) {
            *place = byte;
        }
        Ok(Recv::Data(count))
    }
    fn try_send(&mut self, pieces: &[Piece<'_>], ends: SendHints<'_>) -> Result<usize, LlpError> {
        let mut line = self.line.lock();
        let (mut count, mut bytes) = (0, Vec::new());
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let room = line.room - bytes.len();
            if room == 0 {
                break;
            }
            piece.append_to(piece.len().min(room), &mut bytes);
            count += 1;
        }
        let taken = bytes.len();
        line.room -= taken;
        if taken > 0 {
            line.calls.push((count, bytes));
            let unread = line.arrived.len();
            line.unread.push(unread);
            line.over_segments = ends.may_go_over_segments();
            line.asking.push(ends.is_asking());
        }
        Ok(taken)
    }
    fn emss(&self) -> usize {
        536
    }
    fn shutdown(&mut self) -> Result<(), LlpError> {
        Ok(())
    }
    fn abort(&mut self) {
        self.line.lock().reset = true;
    }
    fn set_keepalive(&mut self, _: Keepalive) -> Result<(), LlpError> {
        Ok(())
    }
    fn lost(&mut self) -> Option<LlpError> {
        None
    }
    fn flushed(&mut self) -> bool {
        true
    }
    fn unacknowledged(&mut self) -> usize {
        self.line.lock().unacknowledged
    }
    fn local_addr(&self) -> SocketAddr {
        ([192, 0, 2, 1], 1).into()
    }
    fn peer_addr(&self) -> SocketAddr {
        ([192, 0, 2, 2], 2).into()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn wants_write_event(&self) -> bool {
        true
    }
    fn clear_readiness(&mut self) {}
    fn deadline(&self) -> Option<Instant> {
        None
    }
    fn drive(&mut self) {}
    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        Ok(true)
    }
}
