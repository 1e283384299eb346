//! Closing an LLP connection so that the peer gets what was sent last.
//!
//! After the time limit the connection is dropped. A kernel then goes on by itself with what it has, as after the end of a
//! process; a stack in user space resets what the peer has not acknowledged.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_llp::{Llp, Piece, Recv, SendHints};

use super::background::{Background, Interest, Source, Token, Verdict};
use crate::close_timer::CloseTimer;
use crate::limits::Charge;

/// A connection that only has to end: the rest is sent, then FIN, and what arrives is dropped until
/// the peer has closed too. (Closing with bytes unread would make the kernel send a reset, which
/// can overtake the last message.)
struct Lingering {
    background: Weak<Background>,
    token: Token,
    state: Mutex<State>,
}

/// How often a closed connection is looked at until its last bytes were acknowledged.
const AGAIN: Duration = Duration::from_millis(10);

struct State {
    llp: Option<Box<dyn Llp>>,
    /// The place of the connection in the accounts, until TCP is gone.
    place: Option<Charge>,
    rest: Vec<u8>,
    at: usize,
    fin_sent: bool,
    peer_closed: bool,
    /// The peer sends without end: look again soon.
    more: bool,
    /// Bytes that TCP had to deliver when this began, without `rest`.
    queued: u64,
    timer: CloseTimer,
    /// When to look whether the peer makes progress.
    look: Instant,
}

/// Lets `llp` end in the background: sends `rest`, then FIN, and gives up after `limit` without progress. Its
/// `place` stays taken until then, so that a peer cannot pile up connections that it does not close.
pub(crate) fn linger(
    background: &Arc<Background>,
    mut llp: Box<dyn Llp>,
    place: Option<Charge>,
    rest: Vec<u8>,
    limit: Duration,
) {
    let now = background.now();
    let timer = CloseTimer::new(now, limit);
    let look = timer.first_look(now);
    let token = background.token();
    let state = State {
        queued: llp.unacknowledged() as u64,
        llp: Some(llp),
        place,
        rest,
        at: 0,
        fin_sent: false,
        peer_closed: false,
        more: false,
        timer,
        look,
    };
    let lingering = Arc::new(Lingering {
        background: Arc::downgrade(background),
        token,
        state: Mutex::new(state),
    });
    let mut state = lingering.state.lock();
    if state.turn() {
        return;
    }
    let weak: Weak<Lingering> = Arc::downgrade(&lingering);
    if let Some(llp) = &state.llp
        && background.register(token, weak, llp.fd()).is_err()
    {
        return;
    }
    background.at(token, look);
    let keep: Arc<Lingering> = Arc::clone(&lingering);
    background.keep(token, keep);
    state.arm(background, token);
    drop(state);
}

impl State {
    /// True when the connection has ended or failed.
    fn turn(&mut self) -> bool {
        let Some(llp) = &mut self.llp else {
            return true;
        };
        llp.clear_readiness();
        llp.drive();
        while self.at < self.rest.len() {
            match llp.try_send(&[Piece::from(&self.rest[self.at..])], SendHints::NONE) {
                Ok(0) => break,
                Ok(octets) => self.at += octets,
                Err(_) => return true,
            }
        }
        if self.at == self.rest.len() && !self.fin_sent {
            if llp.shutdown().is_err() {
                return true;
            }
            self.fin_sent = true;
        }
        let mut sink = [0; 4096];
        // Bounded, so that a peer that never stops sending does not hold the thread.
        self.more = true;
        for _ in 0..256 {
            match llp.try_recv(&mut sink) {
                Ok(Recv::Data(_)) => {}
                Ok(Recv::WouldBlock) => {
                    self.more = false;
                    break;
                }
                Ok(Recv::Closed) => {
                    self.peer_closed = true;
                    self.more = false;
                    break;
                }
                Err(_) => return true,
            }
        }
        self.peer_closed && self.fin_sent && llp.flushed()
    }

    /// Whether the peer has made no progress for too long.
    fn is_over(&mut self, now: Instant) -> bool {
        let Some(llp) = &mut self.llp else {
            return true;
        };
        if now < self.look {
            return false;
        }
        let goal = self.queued + self.rest.len() as u64;
        let taken = self.queued + self.at as u64;
        let acknowledged = taken.saturating_sub(llp.unacknowledged() as u64);
        match self.timer.look(now, acknowledged, goal) {
            Some(next) => {
                self.look = next;
                false
            }
            None => true,
        }
    }

    fn arm(&self, background: &Background, token: Token) {
        let Some(llp) = &self.llp else {
            return;
        };
        let mut next = llp.deadline();
        if self.more {
            next = Some(background.now());
        }
        if llp.wants_write_event() && self.peer_closed {
            // Both halves are closed, which makes a kernel socket ready for ever: from here on only the
            // clock tells when to look whether the last bytes were acknowledged.
            background.forget_fd(llp.fd());
            next = Some(background.now() + AGAIN);
        } else {
            let write = self.at < self.rest.len() && llp.wants_write_event();
            background.arm(token, llp.fd(), Interest::new(true, write));
        }
        background.at(token, next.map_or(self.look, |next| next.min(self.look)));
    }
}

impl Source for Lingering {
    fn attend(&self, now: Instant) -> Verdict {
        let Some(background) = self.background.upgrade() else {
            return Verdict::Settled;
        };
        let mut state = self.state.lock();
        if state.turn() || state.is_over(now) {
            if let Some(llp) = state.llp.take() {
                background.forget_fd(llp.fd());
            }
            state.place = None;
            drop(state);
            background.forget(self.token);
        } else {
            state.arm(&background, self.token);
        }
        Verdict::Settled
    }
}
