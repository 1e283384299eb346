//! In-memory stream between two ends. Its bytes move only when the target delivers them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use uwarp_verbs::llp::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};

/// Maximum number of bytes in flight in one direction, as in a full TCP send buffer.
const ROOM: usize = 1 << 17;
/// Effective MSS that both ends report.
const EMSS: usize = 1460;

/// An end of the line. A direction is named after its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    First,
    Second,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn address(self) -> SocketAddr {
        ([192, 0, 2, 1 + self as u8], 7174).into()
    }
}

/// State of one direction, which belongs to its sender.
#[derive(Debug, Default)]
struct Direction {
    under_way: VecDeque<u8>,
    arrived: VecDeque<u8>,
    fin: bool,
    fin_arrived: bool,
    /// Nothing arrives until the direction is released.
    held: bool,
    /// The target has ended this direction: a FIN follows the bytes in flight, and later bytes are
    /// dropped.
    ended: bool,
}

#[derive(Debug, Default)]
struct State {
    directions: [Direction; 2],
    /// The line was reset, or an end was dropped.
    reset: bool,
    /// True for each end whose signal is raised. Only a change of the signal needs a system call.
    raised: [bool; 2],
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Event descriptors of the ends. A descriptor is readable while its end has something to
    /// process.
    signals: [OwnedFd; 2],
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call panics under it")
    }

    fn signal(&self, side: Side) {
        if std::mem::replace(&mut self.state().raised[side as usize], true) {
            return;
        }
        let _ = rustix::io::write(&self.signals[side as usize], &1_u64.to_ne_bytes());
    }
}

/// Controls the stream for the target.
#[derive(Debug)]
pub(crate) struct Line {
    shared: Arc<Shared>,
}

impl Line {
    /// Creates a line and its two ends.
    pub(crate) fn new() -> (Self, [Box<dyn Llp>; 2]) {
        let signal = || {
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .expect("there are descriptors")
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            signals: [signal(), signal()],
        });
        let end = |side| -> Box<dyn Llp> {
            Box::new(End {
                shared: Arc::clone(&shared),
                side,
            })
        };
        let ends = [end(Side::First), end(Side::Second)];
        (Self { shared }, ends)
    }

    /// Delivers up to `len` of the bytes in flight from `from`. If none are left and the direction
    /// is closed, also delivers a FIN. Returns true if anything was delivered.
    pub(crate) fn carry(&self, from: Side, len: usize) -> bool {
        let mut state = self.shared.state();
        let direction = &mut state.directions[from as usize];
        if direction.held {
            return false;
        }
        let len = len.min(direction.under_way.len());
        direction.arrived.extend(direction.under_way.drain(..len));
        let closes = direction.fin || direction.ended;
        let fin = closes && direction.under_way.is_empty() && !direction.fin_arrived;
        direction.fin_arrived |= fin;
        drop(state);
        if len > 0 || fin {
            self.shared.signal(from.other());
            self.shared.signal(from);
        }
        len > 0 || fin
    }

    /// Returns true if bytes are in flight in either direction.
    pub(crate) fn is_loaded(&self) -> bool {
        let state = self.shared.state();
        state
            .directions
            .iter()
            .any(|direction| !direction.under_way.is_empty())
    }

    /// Holds or releases the direction of `from`. Nothing arrives while it is held.
    pub(crate) fn hold(&self, from: Side, held: bool) {
        self.shared.state().directions[from as usize].held = held;
    }

    /// Ends the direction of `from`, as a middlebox might. Only the first `len` bytes in flight can
    /// still be delivered, followed by a FIN. Bytes that `from` sends later are dropped.
    pub(crate) fn end(&self, from: Side, len: usize) {
        let mut state = self.shared.state();
        let direction = &mut state.directions[from as usize];
        direction.under_way.truncate(len);
        direction.ended = true;
    }

    /// Damages a byte in flight from `from`. Returns true if the byte exists and has changed.
    pub(crate) fn damage(&self, from: Side, at: usize, by: u8) -> bool {
        let mut state = self.shared.state();
        let bytes = &mut state.directions[from as usize].under_way;
        let at = at % bytes.len().max(1);
        let Some(byte) = bytes.get_mut(at) else {
            return false;
        };
        *byte ^= by;
        by != 0
    }

    /// Puts bytes into the line as if `from` had sent them.
    pub(crate) fn put(&self, from: Side, bytes: &[u8]) {
        self.shared.state().directions[from as usize]
            .under_way
            .extend(bytes);
    }

    /// Removes all bytes in flight from `from` and returns them.
    pub(crate) fn take(&self, from: Side) -> Vec<u8> {
        let bytes = self.shared.state().directions[from as usize]
            .under_way
            .drain(..)
            .collect();
        self.shared.signal(from);
        bytes
    }

    /// Closes the direction of `from` and delivers its bytes in flight, then a FIN.
    pub(crate) fn fin(&self, from: Side) {
        self.shared.state().directions[from as usize].fin = true;
        self.carry(from, usize::MAX);
    }

    /// Resets the line. Both ends detect the reset.
    pub(crate) fn cut(&self) {
        self.shared.state().reset = true;
        self.shared.signal(Side::First);
        self.shared.signal(Side::Second);
    }

    /// Returns true if `from` has closed its direction, or the line was reset.
    pub(crate) fn ended(&self, from: Side) -> bool {
        let state = self.shared.state();
        state.reset || state.directions[from as usize].fin
    }
}

/// One end, as a transport for `uwarp-verbs`.
struct End {
    shared: Arc<Shared>,
    side: Side,
}

impl End {
    fn check(&self, state: &State) -> Result<(), LlpError> {
        if state.reset {
            let addr = self.side.other().address();
            return Err(LlpError::Reset { addr });
        }
        Ok(())
    }
}

impl Llp for End {
    fn try_recv(&mut self, out: &mut [u8]) -> Result<Recv, LlpError> {
        let mut state = self.shared.state();
        self.check(&state)?;
        let direction = &mut state.directions[self.side.other() as usize];
        let len = out.len().min(direction.arrived.len());
        if len == 0 {
            let closed = direction.fin_arrived && direction.arrived.is_empty() && !out.is_empty();
            return Ok(if closed {
                Recv::Closed
            } else {
                Recv::WouldBlock
            });
        }
        for (place, byte) in out.iter_mut().zip(direction.arrived.drain(..len)) {
            *place = byte;
        }
        Ok(Recv::Data(len))
    }

    fn try_send(&mut self, pieces: &[Piece<'_>], _: SendHints<'_>) -> Result<usize, LlpError> {
        let mut state = self.shared.state();
        self.check(&state)?;
        let direction = &mut state.directions[self.side as usize];
        if direction.fin {
            let addr = self.side.other().address();
            return Err(LlpError::Broken { addr });
        }
        if direction.ended {
            return Ok(pieces.iter().map(Piece::len).sum());
        }
        let mut taken = 0;
        for piece in pieces {
            let room = ROOM.saturating_sub(direction.under_way.len());
            let mut bytes = Vec::new();
            piece.append_to(room, &mut bytes);
            taken += bytes.len();
            direction.under_way.extend(&bytes);
            if bytes.len() < piece.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn emss(&self) -> usize {
        EMSS
    }

    fn shutdown(&mut self) -> Result<(), LlpError> {
        let mut state = self.shared.state();
        self.check(&state)?;
        state.directions[self.side as usize].fin = true;
        Ok(())
    }

    fn abort(&mut self) {
        self.shared.state().reset = true;
        self.shared.signal(self.side.other());
    }

    fn flushed(&mut self) -> bool {
        let state = self.shared.state();
        let direction = &state.directions[self.side as usize];
        let fin_arrived = direction.fin_arrived || !direction.fin;
        !state.reset && direction.under_way.is_empty() && fin_arrived
    }

    fn unacknowledged(&mut self) -> usize {
        let state = self.shared.state();
        state.directions[self.side as usize].under_way.len()
    }

    fn lost(&mut self) -> Option<LlpError> {
        self.check(&self.shared.state()).err()
    }

    fn local_addr(&self) -> SocketAddr {
        self.side.address()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.side.other().address()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.signals[self.side as usize].as_fd()
    }

    fn wants_write_event(&self) -> bool {
        false
    }

    fn clear_readiness(&mut self) {
        if !std::mem::take(&mut self.shared.state().raised[self.side as usize]) {
            return;
        }
        let _ = rustix::io::read(&self.shared.signals[self.side as usize], &mut [0; 8]);
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn drive(&mut self) {}

    fn set_keepalive(&mut self, _: Keepalive) -> Result<(), LlpError> {
        Ok(())
    }

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        self.check(&self.shared.state()).map(|()| true)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let own = &state.directions[self.side as usize];
        // Bytes sent before a FIN are still delivered. A drop without a FIN resets the line.
        if !own.fin {
            state.reset = true;
        }
        drop(state);
        self.shared.signal(self.side.other());
    }
}
