//! In-memory stream between two ends in one thread, in place of TCP. Sending costs a copy, without
//! a system call.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use uwarp_verbs::llp::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};

/// Maximum payload of a segment on loopback.
const EMSS: usize = 65_483;

/// Bytes that one end has sent, and the number of them that the other end has received.
#[derive(Default)]
struct Direction {
    bytes: Vec<u8>,
    taken: usize,
}

struct Shared {
    directions: [Mutex<Direction>; 2],
    /// True if the first end accepts no bytes, like TCP with a full window.
    full: AtomicBool,
    /// Number of receive calls of each end.
    looks: [AtomicU64; 2],
    /// Descriptor that is always readable, so that a caller never blocks in a wait.
    signal: OwnedFd,
}

impl Shared {
    fn direction(&self, from: usize) -> MutexGuard<'_, Direction> {
        let direction = self.directions[from].lock();
        direction.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Controls the stream for the benchmark.
pub(crate) struct Line(Arc<Shared>);

impl Line {
    /// Creates a line and its two ends.
    pub(crate) fn new() -> std::io::Result<(Line, [Box<dyn Llp>; 2])> {
        let shared = Arc::new(Shared {
            directions: Default::default(),
            full: AtomicBool::new(false),
            looks: Default::default(),
            signal: eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        });
        let end = |number| -> Box<dyn Llp> {
            let shared = Arc::clone(&shared);
            Box::new(End { shared, number })
        };
        let ends = [end(0), end(1)];
        Ok((Line(shared), ends))
    }

    /// Sets whether the first end accepts no bytes.
    pub(crate) fn set_full(&self, full: bool) {
        self.0.full.store(full, Ordering::Relaxed);
    }

    /// Returns the number of bytes from the first end that the second has not received.
    pub(crate) fn waiting(&self) -> usize {
        let direction = self.0.direction(0);
        direction.bytes.len() - direction.taken
    }

    /// Returns the number of receive calls of the first end.
    pub(crate) fn looks(&self) -> u64 {
        self.0.looks[0].load(Ordering::Relaxed)
    }
}

struct End {
    shared: Arc<Shared>,
    number: usize,
}

impl End {
    fn address(number: usize) -> SocketAddr {
        ([127, 0, 0, 1 + number as u8], 7174).into()
    }
}

impl Llp for End {
    fn try_recv(&mut self, out: &mut [u8]) -> Result<Recv, LlpError> {
        self.shared.looks[self.number].fetch_add(1, Ordering::Relaxed);
        let mut direction = self.shared.direction(1 - self.number);
        let Direction { bytes, taken } = &mut *direction;
        let len = out.len().min(bytes.len() - *taken);
        if len == 0 {
            return Ok(Recv::WouldBlock);
        }
        out[..len].copy_from_slice(&bytes[*taken..*taken + len]);
        *taken += len;
        if *taken == bytes.len() {
            bytes.clear();
            *taken = 0;
        }
        Ok(Recv::Data(len))
    }

    fn try_send(&mut self, pieces: &[Piece<'_>], _: SendHints<'_>) -> Result<usize, LlpError> {
        if self.number == 0 && self.shared.full.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let mut direction = self.shared.direction(self.number);
        let before = direction.bytes.len();
        for piece in pieces {
            piece.append_to(piece.len(), &mut direction.bytes);
        }
        Ok(direction.bytes.len() - before)
    }

    fn emss(&self) -> usize {
        EMSS
    }

    fn shutdown(&mut self) -> Result<(), LlpError> {
        Ok(())
    }

    fn abort(&mut self) {}

    fn flushed(&mut self) -> bool {
        true
    }

    fn unacknowledged(&mut self) -> usize {
        let direction = self.shared.direction(self.number);
        direction.bytes.len() - direction.taken
    }

    fn lost(&mut self) -> Option<LlpError> {
        None
    }

    fn local_addr(&self) -> SocketAddr {
        End::address(self.number)
    }

    fn peer_addr(&self) -> SocketAddr {
        End::address(1 - self.number)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    fn wants_write_event(&self) -> bool {
        false
    }

    fn clear_readiness(&mut self) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn drive(&mut self) {}

    fn set_keepalive(&mut self, _: Keepalive) -> Result<(), LlpError> {
        Ok(())
    }

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        Ok(true)
    }
}
