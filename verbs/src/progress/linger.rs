//! Closing of an LLP connection in the background, so that the peer receives the last bytes.
//!
//! After the time limit the connection is dropped. The kernel then still sends the bytes that it
//! has buffered, as after the end of a process. A TCP stack in user space resets the connection if
//! bytes are unacknowledged.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_engine::close_timer::CloseTimer;
use uwarp_llp::{Llp, Piece, Recv, SendHints};

use super::background::{Background, Interest, Source, Token, Verdict};
use uwarp_engine::limits::Charge;
use uwarp_engine::policy::transfer::ACKNOWLEDGED_CHECK;

/// A connection that is being closed. It sends the remaining bytes and a FIN, and discards incoming
/// bytes until the peer has closed too. (If a socket is closed with unread bytes, the kernel sends
/// a reset, which can overtake the last message.)
struct Lingering {
    background: Weak<Background>,
    token: Token,
    state: Mutex<State>,
}

struct State {
    llp: Option<Box<dyn Llp>>,
    /// Charge on the account of the peer, held until TCP is gone.
    charge: Option<Charge>,
    rest: Vec<u8>,
    sent: usize,
    fin_sent: bool,
    peer_closed: bool,
    /// The peer keeps sending, so another turn is due at once.
    more_to_drop: bool,
    /// Number of bytes that TCP had taken but the peer had not acknowledged at the start. Does not
    /// include `rest`.
    queued: u64,
    timer: CloseTimer,
    /// Time of the next check for progress by the peer.
    next_check: Instant,
}

/// Closes `llp` in the background: sends `rest` and a FIN, and gives up after `limit` without
/// progress.
///
/// `charge` is held until the connection is closed, so that a peer cannot pile up connections by
/// not closing them.
pub(crate) fn linger(
    background: &Arc<Background>,
    mut llp: Box<dyn Llp>,
    charge: Option<Charge>,
    rest: Vec<u8>,
    limit: Duration,
) {
    let now = background.now();
    let timer = CloseTimer::new(now, limit);
    let next_check = timer.first_check(now);
    let token = background.token();
    let state = State {
        queued: llp.unacknowledged() as u64,
        llp: Some(llp),
        charge,
        rest,
        sent: 0,
        fin_sent: false,
        peer_closed: false,
        more_to_drop: false,
        timer,
        next_check,
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
    background.at(token, next_check);
    let keep: Arc<Lingering> = Arc::clone(&lingering);
    background.keep(token, keep);
    state.arm(background, token);
    drop(state);
}

impl State {
    /// Sends, receives and discards as far as possible. Returns true if the connection has ended or
    /// failed.
    fn turn(&mut self) -> bool {
        let Some(llp) = &mut self.llp else {
            return true;
        };
        llp.clear_readiness();
        llp.drive();
        while self.sent < self.rest.len() {
            match llp.try_send(&[Piece::from(&self.rest[self.sent..])], SendHints::NONE) {
                Ok(0) => break,
                Ok(count) => self.sent += count,
                Err(_) => return true,
            }
        }
        if self.sent == self.rest.len() && !self.fin_sent {
            if llp.shutdown().is_err() {
                return true;
            }
            self.fin_sent = true;
        }
        let mut sink = [0; 4096];
        // The number of reads is bounded, so that a peer that keeps sending does not occupy the
        // thread.
        self.more_to_drop = true;
        for _ in 0..256 {
            match llp.try_recv(&mut sink) {
                Ok(Recv::Data(_)) => {}
                Ok(Recv::WouldBlock) => {
                    self.more_to_drop = false;
                    break;
                }
                Ok(Recv::Closed) => {
                    self.peer_closed = true;
                    self.more_to_drop = false;
                    break;
                }
                Err(_) => return true,
            }
        }
        self.peer_closed && self.fin_sent && llp.flushed()
    }

    /// Checks the progress of the peer, if the check is due. Returns true if the peer made no
    /// progress for too long.
    fn check_progress(&mut self, now: Instant) -> bool {
        let Some(llp) = &mut self.llp else {
            return true;
        };
        if now < self.next_check {
            return false;
        }
        let goal = self.queued + self.rest.len() as u64;
        let taken = self.queued + self.sent as u64;
        let acknowledged = taken.saturating_sub(llp.unacknowledged() as u64);
        match self.timer.look(now, acknowledged, goal) {
            Some(next) => {
                self.next_check = next;
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
        if self.more_to_drop {
            next = Some(background.now());
        }
        if llp.wants_write_event() && self.peer_closed {
            // A kernel socket that the peer has closed is always ready, so it leaves the epoll set.
            // From now on a timer checks whether the last bytes were acknowledged.
            background.forget_fd(llp.fd());
            next = Some(background.now() + ACKNOWLEDGED_CHECK);
        } else {
            let write = self.sent < self.rest.len() && llp.wants_write_event();
            background.arm(token, llp.fd(), Interest::new(true, write));
        }
        background.at(
            token,
            next.map_or(self.next_check, |next| next.min(self.next_check)),
        );
    }
}

impl Source for Lingering {
    fn attend(&self, now: Instant) -> Verdict {
        let Some(background) = self.background.upgrade() else {
            return Verdict::Settled;
        };
        let mut state = self.state.lock();
        if state.turn() || state.check_progress(now) {
            if let Some(llp) = state.llp.take() {
                background.forget_fd(llp.fd());
            }
            state.charge = None;
            drop(state);
            background.forget(self.token);
        } else {
            state.arm(&background, self.token);
        }
        Verdict::Settled
    }
}
