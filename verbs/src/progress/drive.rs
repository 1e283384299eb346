//! A turn of a connection: receives, places, answers and sends under the connection's lock.
//!
//! A turn enters the `tracing` span of its connection once, and not for each FPDU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_engine::timers::Timer;
use uwarp_engine::times::{after, earlier};
use uwarp_llp::{Llp, LlpError, Piece, Recv};

use super::background::Interest;
use super::confirmations::{Confirmations, Giver};
use super::doorbell::Doorbell;
use crate::connection::Connection;
use crate::policy::progress::{CLOSE_CHECK, MEMORY_RETRY};
use crate::policy::transfer::MAX_TURN_BYTES;
use crate::traffic::TrafficCount;
use uwarp_engine::connection::{BufferPool, LlpOrder, PARTS_PER_CALL, ReceiveBuffer};
use uwarp_engine::limits::PeerAccount;

/// Time after which an incomplete FPDU ends its connection if it was begun with more than half of a
/// memory limit in use, and the limit is now reached.
///
/// The largest FPDU then needs 32 KB/s. Below the limit, and below half of it, only
/// `timeouts.stalled` applies.
const PRESSED: Duration = Duration::from_secs(2);

/// A connection with its LLP: the state that the lock of a QP protects.
pub(crate) struct Driven {
    pub(crate) conn: Connection,
    pub(crate) llp: Option<Box<dyn Llp>>,
    /// Resource account of the peer; `None` without a connection.
    pub(crate) peer: Option<Arc<PeerAccount>>,
    pub(crate) rx: ReceiveBuffer,
    pub(crate) recorded: Progress,
    pub(crate) doorbell: Doorbell,
    pub(crate) confirmations: Confirmations,
    /// Count of the device.
    pub(crate) traffic: Arc<TrafficCount>,
}

/// Progress that is recorded when a timer is set, and compared when it is due.
#[derive(Default)]
pub(crate) struct Progress {
    /// For [`Timer::Stall`].
    stall: Transfers,
    /// For [`Timer::Pressed`]: number of bytes consumed before an incomplete FPDU that holds memory
    /// which others may need.
    pressed: u64,
}

/// Progress of the directions with an unfinished transfer, for detecting a peer that stalls. The
/// progress is compared only once [`Timer::Stall`] is due, not in every turn. A busy connection
/// thus rarely sets this timer.
#[derive(Default)]
struct Transfers {
    /// Stream position up to which the LLP had accepted bytes, if bytes were left to send.
    sent: Option<u64>,
    /// Number of received bytes that were consumed, if an incomplete FPDU was left.
    received: Option<u64>,
}

/// Work that remains after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    /// The LLP did not accept all bytes. The next turn is due when the LLP is writable.
    pub(crate) blocked: bool,
    /// The turn reached its size limit. The next one is due at once.
    pub(crate) more: bool,
    /// The LLP connection has ended.
    pub(crate) over: bool,
    /// The connection needs a new LLP connection to the same address.
    pub(crate) reconnect: bool,
}

/// Result of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// Nothing is left that may be sent now.
    All,
    /// The LLP accepts no more bytes for now.
    Blocked,
    /// The turn reached its size limit.
    Enough,
}

impl Driven {
    /// Receives and handles incoming bytes, then sends what is due.
    pub(crate) fn turn(&mut self, pool: &BufferPool, now: Instant) -> Outcome {
        self.turn_by(pool, now, Giver::Other)
    }

    /// Does [`turn`](Self::turn), for this thread. What is due may wait for a post
    /// ([`Confirmations`]).
    pub(crate) fn turn_by(&mut self, pool: &BufferPool, now: Instant, giver: Giver) -> Outcome {
        self.conn.set_now(now);
        self.doorbell.turn();
        if self.llp.is_none() {
            return Outcome::default();
        }
        // Entered once for the whole turn. Without a subscriber this costs one check of an empty
        // option.
        let span = self.conn.span.clone();
        let _entered = span.enter();
        if let Some(llp) = &mut self.llp {
            llp.clear_readiness();
            llp.drive();
        }
        self.finish_connect();
        if self.confirmations.turn() {
            self.push_entered(pool);
        } else if self.doorbell.is_staged() && self.conn.sq.requests_pending() {
            // Sends the staged requests before receiving: the peer can work on them while this side
            // receives its earlier answers.
            self.push_entered(pool);
        }
        let completed = self.conn.sq.completed_to();
        let more = self.receive(pool);
        self.expire(now);
        let has_completed = self.conn.sq.completed_to() != completed;
        if giver != Giver::Other
            && !more
            && self.conn.owes_only_confirmations()
            && self.confirmations.wait(giver, has_completed)
        {
            self.watch_for_stall();
            return Outcome::default();
        }
        let mut outcome = self.push_entered(pool);
        outcome.more |= more && self.llp.is_some();
        outcome
    }

    /// Returns true if something was left to a later call of the program: staged requests, or
    /// confirmations.
    pub(crate) fn keeps_back(&self) -> bool {
        self.doorbell.is_staged() || self.confirmations.are_late()
    }

    /// Returns the numbers of bytes sent and of bytes received. They change in a turn that moved
    /// bytes.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.conn.tx.taken_to(), self.rx.consumed())
    }

    /// Handles bytes that the program has already read from the stream.
    pub(crate) fn feed(&mut self, pool: &BufferPool, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.conn.wants_bytes() {
            let Some(space) = self.rx.space(pool) else {
                self.conn.out_of_memory("receive");
                break;
            };
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            self.rx.received(count);
            self.conn.receive(&mut self.rx);
        }
        // Bytes that are left over are charged to the peer's account in the next turn.
        self.rx.release(pool, None);
    }

    /// Sends without receiving, as a post does.
    pub(crate) fn push(&mut self, pool: &BufferPool) -> Outcome {
        let span = self.conn.span.clone();
        let _entered = span.enter();
        self.push_entered(pool)
    }

    fn push_entered(&mut self, pool: &BufferPool) -> Outcome {
        self.doorbell.sent();
        self.confirmations.sent();
        let sent = self.send(pool);
        self.watch_for_stall();
        let mut outcome = self.carry_out_llp_order();
        if self.llp.is_some() {
            outcome.blocked = sent == Sent::Blocked;
            outcome.more = sent == Sent::Enough;
        }
        outcome
    }

    /// Returns the readiness of the LLP to wait for.
    ///
    /// After the peer's FIN this does not include reading, because a kernel socket then stays
    /// readable.
    pub(crate) fn interest(&self, outcome: Outcome) -> Interest {
        let connecting = self.conn.is_connecting_tcp();
        match &self.llp {
            None => Interest::None,
            Some(llp) if llp.wants_write_event() => {
                let write = outcome.blocked || outcome.more || connecting;
                let read = self.conn.wants_bytes() && !self.conn.timers.is_set(Timer::MemoryRetry);
                if self.conn.is_starving() && !write && !self.conn.fin.sent {
                    return Interest::Loss;
                }
                Interest::new(read, write)
            }
            Some(_) => Interest::Read,
        }
    }

    /// Returns the time at which a turn is due even if nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let llp = self.llp.as_ref().and_then(Llp::deadline);
        earlier(llp, self.conn.deadline())
    }

    /// Returns the positions of the directions with an unfinished transfer: bytes sent, bytes
    /// received.
    fn half_done(&self) -> (Option<u64>, Option<u64>) {
        let tx = &self.conn.tx;
        let sent = (!tx.is_empty() && !self.conn.is_connecting_tcp()).then(|| tx.taken_to());
        // A message that waits for a receive does not count: it waits for this side, and has a time
        // limit of its own.
        let receiving = !self.rx.is_empty() && !self.conn.is_starving();
        let received = receiving.then(|| self.rx.consumed());
        (sent, received)
    }

    /// Ends the connection if the recorded progress is due for a check and one of its directions
    /// has not advanced.
    fn check_for_stall(&mut self, now: Instant) {
        if !self.conn.timers.take_due(Timer::Stall, now) {
            return;
        }
        let Transfers { sent, received } = self.recorded.stall;
        let (sent_now, received_now) = self.half_done();
        let sending = sent.is_some() && sent == sent_now;
        if sending || (received.is_some() && received == received_now) {
            self.conn.stalled(sending);
        }
    }

    /// Ends the connection if its FPDU has been incomplete for [`PRESSED`] and the memory limits
    /// now leave no room for another FPDU. Call it after everything that arrived was handled.
    fn check_pressed(&mut self, now: Instant) {
        if !self.conn.timers.take_due(Timer::Pressed, now) {
            return;
        }
        let (_, received) = self.half_done();
        if received == Some(self.recorded.pressed) && !self.rx.has_room(self.peer.as_ref()) {
            self.conn.stalled(false);
        }
    }

    /// Records the progress for [`Self::check_pressed`], if memory is short.
    fn watch_pressed(&mut self) {
        if !self.conn.timers.is_set(Timer::Pressed)
            && self.rx.is_pressed()
            && let (_, Some(consumed)) = self.half_done()
        {
            self.recorded.pressed = consumed;
            let due = after(self.conn.now, PRESSED);
            self.conn.timers.set(Timer::Pressed, due);
        }
    }

    /// Records the progress for the stall check, if a direction has an unfinished transfer.
    fn watch_for_stall(&mut self) {
        self.watch_pressed();
        if self.conn.timers.is_set(Timer::Stall) {
            return;
        }
        let (sent, received) = self.half_done();
        if (sent.is_some() || received.is_some())
            && let Some(due) = self.conn.stall_due()
        {
            self.recorded.stall = Transfers { sent, received };
            self.conn.timers.set(Timer::Stall, due);
        }
    }

    /// Handles the timers that are due.
    fn expire(&mut self, now: Instant) {
        if self.conn.timers.is_any_due(now) {
            self.check_for_stall(now);
            self.check_pressed(now);
            self.conn.wake_peer(!self.rx.is_empty());
        }
        if !self.conn.give_up_pair() && self.conn.timers.take_due(Timer::Stage, now) {
            self.read_unacknowledged();
            self.conn.stage_timed_out();
        }
    }

    /// Reads the number of unacknowledged bytes from the LLP during a close, which waits for their
    /// acknowledgement.
    fn read_unacknowledged(&mut self) {
        if self.conn.is_closing()
            && let Some(llp) = &mut self.llp
        {
            self.conn.set_unacknowledged(llp.unacknowledged() as u64);
        }
    }

    /// Ends the connection with an error of TCP.
    fn lost(&mut self, error: LlpError) {
        self.read_unacknowledged();
        self.conn.lost(error);
    }

    fn finish_connect(&mut self) {
        if !self.conn.is_connecting_tcp() {
            return;
        }
        let Some(llp) = &mut self.llp else {
            return;
        };
        match llp.connect_progress() {
            Ok(false) => {}
            Ok(true) => {
                self.conn.emss = llp.emss();
                self.conn.tcp_connected();
            }
            Err(error) => self.conn.lost(error),
        }
    }

    /// Receives up to the limit of a turn. Returns true if there may be more to receive.
    fn receive(&mut self, pool: &BufferPool) -> bool {
        if self.conn.is_starving() {
            match self.llp.as_mut().and_then(Llp::lost) {
                Some(error) => self.lost(error),
                // A receive may be posted by now, or the time limit may have passed. Needs no
                // memory, and may give some back.
                None => {
                    self.check_for_close();
                    self.conn.receive(&mut self.rx);
                }
            }
        }
        let may_read = self.rx.check_room_for_turn(self.peer.as_ref());
        let retry = (!may_read).then(|| self.conn.now + MEMORY_RETRY);
        self.conn.timers.set_or_clear(Timer::MemoryRetry, retry);
        let mut received = 0;
        let mut more = false;
        while may_read && self.conn.wants_bytes() {
            let Some(llp) = &mut self.llp else {
                break;
            };
            if received >= MAX_TURN_BYTES {
                more = true;
                break;
            }
            let Some(space) = self.rx.space(pool) else {
                // Perhaps nothing has arrived. Other connections may give memory back.
                let retry = self.conn.now + MEMORY_RETRY;
                self.conn.timers.set(Timer::MemoryRetry, retry);
                break;
            };
            let room = space.len();
            match llp.try_recv(space) {
                Ok(Recv::Data(bytes)) => {
                    // With level-triggered readiness a short read is the last one, because more
                    // bytes make the descriptor ready again. With edge-triggered readiness only
                    // `WouldBlock` ends the loop.
                    let last = bytes < room && llp.wants_write_event();
                    received += bytes;
                    self.traffic.received(bytes);
                    self.rx.received(bytes);
                    self.conn.receive(&mut self.rx);
                    if self.rx.has_used_reserve() {
                        more = true;
                        break;
                    }
                    if last {
                        break;
                    }
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::Closed) => {
                    self.read_unacknowledged();
                    self.conn.peer_fin(!self.rx.filled().is_empty());
                }
                Err(error) => self.lost(error),
            }
        }
        if self.conn.is_starving() {
            if !self.conn.timers.is_set(Timer::CloseCheck) {
                let due = after(self.conn.now, CLOSE_CHECK);
                self.conn.timers.set(Timer::CloseCheck, due);
            }
        } else {
            self.conn.timers.clear(Timer::CloseCheck);
        }
        self.rx.release(pool, self.peer.as_ref());
        more
    }

    /// If the check is due, checks whether the peer has closed while its message waits for a
    /// receive.
    fn check_for_close(&mut self) {
        let now = self.conn.now;
        if !self.conn.timers.take_due(Timer::CloseCheck, now) {
            return;
        }
        if self.llp.as_mut().is_some_and(Llp::peer_closed) {
            self.conn.closed_on_hold();
        }
    }

    fn send(&mut self, pool: &BufferPool) -> Sent {
        let sent = self.send_batches(pool);
        let in_llp = match &mut self.llp {
            Some(llp) => holds_sent_bytes(&mut **llp),
            None => 0,
        };
        self.conn.tx.settle_memory(in_llp, self.peer.as_ref());
        sent
    }

    /// Sends batch by batch.
    fn send_batches(&mut self, pool: &BufferPool) -> Sent {
        let mut sent = 0;
        loop {
            let Some(llp) = &mut self.llp else {
                return Sent::All;
            };
            if self.conn.tx.is_empty() && !self.conn.has_unsent() {
                // Most turns have nothing to send. A turn that sent its last batch also ends here.
                self.conn.tx.rests(pool);
                return Sent::All;
            }
            if sent >= MAX_TURN_BYTES {
                return Sent::Enough;
            }
            // A framed batch is never changed, so the EMSS is read before framing.
            if self.conn.wants_emss(llp.wants_write_event()) {
                self.conn.set_emss(llp.emss());
            }
            if self.conn.tx.is_empty() {
                self.conn.tx.check_memory(self.peer.as_ref());
                // A TCP in user space would take one short FPDU after the other.
                if self.conn.tx.is_short() && holds_sent_bytes(&mut **llp) > 0 {
                    return Sent::Blocked;
                }
                self.conn.tx.borrow_staging(pool);
            }
            self.conn.fill();
            if self.conn.tx.is_empty() || self.conn.is_connecting_tcp() {
                self.conn.tx.return_staging(pool);
                return Sent::All;
            }
            if self.conn.tx.is_torn() {
                self.conn.memory_in_place_gone();
                return Sent::All;
            }
            if self.conn.tx.lacks_memory() {
                self.conn.out_of_memory("send");
                return Sent::All;
            }
            let offered = offer(&self.conn, &mut **llp);
            if let Ok(bytes) = offered {
                sent += bytes;
                self.traffic.sent(bytes);
                self.conn.taken(bytes);
            }
            self.conn.tx.reclaim();
            match offered {
                Ok(0) => return Sent::Blocked,
                Ok(_) => {}
                Err(error) => {
                    self.send_failed(error, pool);
                    return Sent::All;
                }
            }
        }
    }

    /// Handles a failed send. First reads messages that arrived earlier, such as a Terminate
    /// Message, because they tell more about the cause than the error of the send.
    fn send_failed(&mut self, error: LlpError, pool: &BufferPool) {
        if matches!(
            error,
            LlpError::Io {
                errno: libc::EFAULT,
                ..
            }
        ) {
            return self.conn.memory_in_place_gone();
        }
        while self.conn.wants_bytes()
            && let Some(llp) = &mut self.llp
            && let Some(space) = self.rx.space(pool)
            && let Ok(Recv::Data(bytes)) = llp.try_recv(space)
        {
            self.traffic.received(bytes);
            self.rx.received(bytes);
            self.conn.receive(&mut self.rx);
        }
        self.rx.release(pool, self.peer.as_ref());
        self.lost(error);
    }

    /// Carries out [`Connection::llp_order`] on the LLP, or requests it in the outcome.
    fn carry_out_llp_order(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(llp) = &mut self.llp else {
            return outcome;
        };
        match self.conn.llp_order() {
            LlpOrder::Keep => {}
            LlpOrder::Fin => match llp.shutdown() {
                Ok(()) => {
                    self.read_unacknowledged();
                    self.conn.fin_sent();
                    if self.conn.llp_order() == LlpOrder::Close {
                        outcome.over = true;
                    }
                }
                Err(error) => {
                    self.lost(error);
                    outcome.over = true;
                }
            },
            LlpOrder::Reconnect => outcome.reconnect = true,
            LlpOrder::Close => outcome.over = true,
            LlpOrder::Abort => {
                llp.abort();
                outcome.over = true;
            }
        }
        outcome
    }
}

/// Returns the number of bytes that a TCP in user space holds until the peer acknowledges them. The
/// kernel has its own account of what it holds.
fn holds_sent_bytes(llp: &mut dyn Llp) -> usize {
    if llp.wants_write_event() {
        0
    } else {
        llp.unacknowledged()
    }
}

/// Offers the framed bytes to the LLP. Returns the number of bytes that it took.
#[inline]
fn offer(conn: &Connection, llp: &mut dyn Llp) -> Result<usize, LlpError> {
    match conn.tx.single_piece() {
        Some(piece) => llp.try_send(&[piece], conn.fpdu_ends()),
        None => offer_many(conn, llp),
    }
}

/// Does [`offer`] for a batch of several pieces. It is a separate function because its array would
/// enlarge the stack frame of [`offer`].
#[inline(never)]
fn offer_many(conn: &Connection, llp: &mut dyn Llp) -> Result<usize, LlpError> {
    let mut pieces = [Piece::from(&[][..]); PARTS_PER_CALL];
    let count = conn.tx.pieces(&mut pieces);
    llp.try_send(&pieces[..count], conn.fpdu_ends())
}

#[cfg(test)]
mod tests;
