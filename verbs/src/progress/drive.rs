//! One turn of a connection under its lock: receive, place, answer, send.

use std::time::Instant;

use uwarp_llp::{Llp, LlpError, Piece, Recv};

use super::background::Interest;
use crate::engine::{BufferPool, Connection, LlpOrder, PARTS_PER_CALL, ReceiveBuffer};

/// Octets that one turn receives at most, so that no connection starves the others of a thread.
const TURN: usize = 4 * 1024 * 1024;

/// A connection with its LLP: what the lock of a QP protects.
pub(crate) struct Driven {
    pub(crate) conn: Connection,
    pub(crate) llp: Option<Box<dyn Llp>>,
    pub(crate) rx: ReceiveBuffer,
}

/// What a turn leaves to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    /// The LLP did not take everything: wait until it can.
    pub(crate) blocked: bool,
    /// The LLP has gone.
    pub(crate) over: bool,
    /// A new LLP connection is wanted (MPA revision 1).
    pub(crate) reconnect: bool,
}

impl Driven {
    /// Receives what has arrived, handles it, and sends what is due.
    pub(crate) fn turn(&mut self, pool: &BufferPool, now: Instant) -> Outcome {
        self.conn.set_now(now);
        if self.llp.is_none() {
            return Outcome::default();
        }
        if let Some(llp) = &mut self.llp {
            llp.clear_readiness();
            llp.drive();
        }
        self.finish_connect();
        self.receive(pool);
        self.expire(now);
        self.push()
    }

    /// Sends what is due, without receiving: what a post does.
    pub(crate) fn push(&mut self) -> Outcome {
        let blocked = self.send();
        let mut outcome = self.obey();
        outcome.blocked = blocked && self.llp.is_some();
        outcome
    }

    /// Which readiness of the LLP means something now. After the peer's FIN a kernel socket is
    /// readable for ever: to ask for that again would be to spin.
    pub(crate) fn interest(&self, outcome: Outcome) -> Interest {
        let connecting = self.conn.is_connecting_tcp();
        match &self.llp {
            None => Interest::None,
            Some(llp) if llp.wants_write_event() => {
                Interest::new(self.conn.wants_octets(), outcome.blocked || connecting)
            }
            Some(_) => Interest::Read,
        }
    }

    /// When a turn is due although nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let llp = self.llp.as_ref().and_then(Llp::deadline);
        match (llp, self.conn.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.conn.deadline().is_some_and(|deadline| deadline <= now) {
            self.conn.deadline_passed();
        }
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

    fn receive(&mut self, pool: &BufferPool) {
        let mut received = 0;
        while received < TURN && self.conn.wants_octets() {
            let Some(llp) = &mut self.llp else {
                break;
            };
            let space = self.rx.space(pool);
            let room = space.len();
            match llp.try_recv(space) {
                Ok(Recv::Data(octets)) => {
                    received += octets;
                    self.rx.received(octets);
                    self.conn.receive(&mut self.rx);
                    if octets < room {
                        break;
                    }
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::Closed) => self.conn.peer_fin(!self.rx.filled().is_empty()),
                Err(error) => self.conn.lost(error),
            }
        }
        self.rx.release(pool);
    }

    /// True when the LLP takes no more for now.
    fn send(&mut self) -> bool {
        loop {
            self.conn.fill();
            let Some(llp) = &mut self.llp else {
                return false;
            };
            if self.conn.tx.is_empty() || self.conn.is_connecting_tcp() {
                return false;
            }
            let mut pieces = [Piece::from(&[][..]); PARTS_PER_CALL];
            let count = self.conn.tx.pieces(&mut pieces);
            match llp.try_send(&pieces[..count]) {
                Ok(0) => return true,
                Ok(octets) => self.conn.taken(octets),
                Err(error) => {
                    self.send_failed(error);
                    return false;
                }
            }
        }
    }

    /// The peer has gone. What it sent before (a Terminate Message, say) may still be waiting here
    /// and tells more than the failed send does.
    fn send_failed(&mut self, error: LlpError) {
        if let Some(llp) = &mut self.llp {
            let mut last = vec![0; 64 * 1024];
            while let Ok(Recv::Data(octets)) = llp.try_recv(&mut last) {
                if !self.rx.append(&last[..octets]) {
                    break;
                }
                self.conn.receive(&mut self.rx);
            }
        }
        self.conn.lost(error);
    }

    /// Does with the LLP what the connection wants.
    fn obey(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(llp) = &mut self.llp else {
            return outcome;
        };
        match self.conn.llp_order() {
            LlpOrder::Keep => {}
            LlpOrder::Fin => match llp.shutdown() {
                Ok(()) => {
                    self.conn.fin_sent();
                    if self.conn.llp_order() == LlpOrder::Close {
                        outcome.over = true;
                    }
                }
                Err(error) => {
                    self.conn.lost(error);
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
