//! The programs. They keep receives posted, choose their next operations, and post them.

mod invalid_operations;
mod lend;
mod post;
mod wrong;

use std::time::Duration;

use uwarp_verbs::{EndReason, PostError, QpState, RecvWr, SendWr};

use crate::end::{Message, Op, Posted, Sent, both};
use crate::world::{Event, RECEIVE, Stage, World};
use crate::wrong::Wrong;

/// Maximum number of requests in flight in a send queue.
const QUEUE: usize = 32;
/// Number of receives that a program keeps posted.
const RECEIVES: usize = 8;
/// Maximum payload of an inline request, in bytes.
const INLINE: usize = 256;

impl World {
    pub(crate) fn next_wr_id(&mut self) -> u64 {
        self.wr_ids += 1;
        self.wr_ids
    }

    /// Runs one turn of an end's program and schedules the next.
    pub(crate) fn tick(&mut self, number: usize, end: usize, round: u32) -> Result<(), String> {
        let connection = &self.connections[number];
        if connection.stage == Stage::Over || connection.round != round {
            return Ok(());
        }
        let host = connection.ends[end].host;
        let mut busy = false;
        self.check_depths(number)?;
        let Some(alive) = &self.hosts[host] else {
            return Ok(());
        };
        if !alive.plan.overflow {
            let batch = self.random.usize(1..16);
            busy |= self.poll(host, batch)? > 0;
        }
        self.refill(number, end)?;
        self.take_back(number, end)?;
        let me = &self.connections[number].ends[end];
        if me.open && self.connections[number].stage == Stage::Open && me.operations > 0 {
            for _ in 0..self.random.u8(1..6) {
                if self.connections[number].ends[end].operations == 0
                    || !self.post_one(number, end)?
                {
                    break;
                }
                self.connections[number].ends[end].operations -= 1;
                busy = true;
            }
        }
        // The pause between turns doubles while nothing happens.
        let me = &mut self.connections[number].ends[end];
        me.pause = if busy {
            self.random.u64(1..3_000)
        } else {
            (me.pause * 2).min(2_000_000)
        };
        let at = self.clock.elapsed() + Duration::from_micros(me.pause);
        let tick = Event::Tick {
            connection: number,
            end,
            round,
        };
        self.at(at, tick);
        Ok(())
    }

    /// Posts receives until the program has enough of them.
    pub(crate) fn refill(&mut self, connection: usize, end: usize) -> Result<(), String> {
        let host = self.connections[connection].ends[end].host;
        let shared = (self.hosts[host].as_ref())
            .and_then(|host| host.resources.as_ref())
            .is_some_and(|resources| resources.shared.is_some());
        if shared {
            self.refill_shared(host)
        } else {
            self.refill_own(connection, end)
        }
    }

    fn refill_shared(&mut self, host: usize) -> Result<(), String> {
        loop {
            let wr_id = self.next_wr_id() | RECEIVE;
            let Some(alive) = &mut self.hosts[host] else {
                return Ok(());
            };
            let len = alive.plan.receive;
            let resources = alive.resources.as_mut();
            let Some(shared) = resources.and_then(|resources| resources.shared.as_mut()) else {
                return Ok(());
            };
            if shared.posted.len() >= 2 * RECEIVES {
                return Ok(());
            }
            let Some(at) = shared.memory.take(len) else {
                return Ok(());
            };
            let sges = [shared.memory.sge(at, len)];
            let sges = if len == 0 { &[][..] } else { &sges };
            (shared.srq.post_recv(&RecvWr::new(wr_id, sges)))
                .map_err(|error| format!("cannot post a receive to the SRQ: {error}"))?;
            shared.posted.push_back(Posted { wr_id, at, len });
        }
    }

    fn refill_own(&mut self, connection: usize, end: usize) -> Result<(), String> {
        let len = self.receive_len(connection, end);
        loop {
            let wr_id = self.next_wr_id() | RECEIVE;
            let me = &mut self.connections[connection].ends[end];
            let (Some(qp), Some(memory)) = (&me.qp, &mut me.memory) else {
                return Ok(());
            };
            let Some(receives) = &mut memory.receives else {
                return Ok(());
            };
            // If the connection receives nothing more, each new receive would be flushed at once,
            // and the program would post receives endlessly.
            let over = matches!(qp.state(), QpState::Terminate | QpState::Error)
                || matches!(qp.end_reason(), Some(EndReason::PeerDisconnect));
            if me.receives.len() >= RECEIVES || over {
                return Ok(());
            }
            let Some(at) = receives.take(len) else {
                return Ok(());
            };
            let sges = [receives.sge(at, len)];
            let sges = if len == 0 { &[][..] } else { &sges };
            qp.post_recv(&RecvWr::new(wr_id, sges))
                .map_err(|error| format!("cannot post a receive: {error}"))?;
            me.receives.push_back(Posted { wr_id, at, len });
            self.log.event(self.clock.elapsed(), || {
                let number = wr_id & !RECEIVE;
                format!("connection {connection} end {end}: receive {number} of {len}")
            });
        }
    }

    /// Returns true if a receive is left for a further message to this end.
    pub(crate) fn has_receive(&self, connection: usize, end: usize) -> bool {
        let to = &self.connections[connection].ends[end];
        let Some(host) = &self.hosts[to.host] else {
            return false;
        };
        if host.plan.hold {
            return true;
        }
        let Some(resources) = &host.resources else {
            return false;
        };
        match &resources.shared {
            None => to.receives.len() > to.expected.len(),
            Some(shared) => {
                let ends = self
                    .connections
                    .iter()
                    .flat_map(|connection| &connection.ends);
                let ends = ends.filter(|end| end.host == to.host);
                let coming: usize = ends.map(|end| end.expected.len()).sum();
                shared.srq.posted() > coming
            }
        }
    }

    /// Posts one operation. Returns false if it cannot be posted now.
    pub(crate) fn post_one(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let credit = self.has_receive(connection, 1 - end);
        let receive = self.receive_len(connection, 1 - end);
        let longest = self.connections[connection].plan.longest;
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        if me.sends.len() >= QUEUE || me.qp.is_none() || peer.memory.is_none() {
            return Ok(false);
        }
        if me.operations == 1 && !self.harmless && self.random.u8(0..6) == 0 {
            let wrong = Wrong::ALL[self.random.usize(0..Wrong::ALL.len())];
            if self.post_refused(connection, end, wrong)? {
                return Ok(true);
            }
        }
        let (me, _) = both(&mut self.connections[connection].ends, end);
        let first = end == 0 && !std::mem::replace(&mut me.has_posted, true);
        let kind = self.random.u8(0..22);
        let len = self.some_len(longest);
        match kind {
            // In the client-server model the responder waits for the first bytes of the initiator.
            _ if first => self.post_write(connection, end, len, false),

            0..=2 if credit => self.post_send(connection, end, len.min(receive), None),
            3 if credit => self.post_immediate(connection, end),
            4 if credit => self.post_write(connection, end, len, true),
            5 | 6 if credit => self.post_into_lent(connection, end, receive),
            7 => self.post_lend(connection, end, len),
            8 | 9 => self.post_read(connection, end, len),
            10 => self.post_read_back(connection, end),
            11 | 12 => self.post_atomic(connection, end),
            13 if credit => self.post_fenced(connection, end, len.min(receive), true),
            14 => self.post_fenced(connection, end, len, false),
            15 => self.post_once(connection, end, len, credit.then_some(receive)),
            _ => self.post_write(connection, end, len, false),
        }
    }

    pub(crate) fn receive_len(&self, connection: usize, end: usize) -> usize {
        let host = self.connections[connection].ends[end].host;
        self.hosts[host]
            .as_ref()
            .map_or(0, |host| host.plan.receive)
    }

    pub(crate) fn some_len(&mut self, longest: usize) -> usize {
        match self.random.u8(0..6) {
            0 => 0,
            1 => self.random.usize(1..9),
            2 => longest.min(1440 + self.random.usize(0..32)),
            3 => longest,
            _ => self.random.usize(0..=longest),
        }
    }

    /// Posts `wr` and records it, together with the message that it delivers to the peer.
    pub(crate) fn post_recorded(
        &mut self,
        connection: usize,
        end: usize,
        wr: SendWr<'_>,
        op: Op,
        message: Option<Message>,
    ) -> Result<bool, String> {
        // The completion of the last request shows that all requests are done, so it is signaled.
        let last = self.connections[connection].ends[end].operations <= 1;
        let signaled = self.random.u8(0..4) > 0 || last;
        let wr = if signaled { wr } else { wr.unsignaled() };
        let wr = if self.random.u8(0..6) == 0 {
            wr.fence()
        } else {
            wr
        };
        let (wr_id, is_message) = (wr.wr_id(), message.is_some());
        self.record_post(connection, end, (wr_id, signaled), op, message);
        let result = match &self.connections[connection].ends[end].qp {
            Some(qp) => qp.post_send(&wr),
            None => return Ok(false),
        };
        self.post_result(connection, end, wr_id, result, is_message)
    }

    /// Records a request that is about to be posted.
    fn record_post(
        &mut self,
        connection: usize,
        end: usize,
        (wr_id, signaled): (u64, bool),
        op: Op,
        message: Option<Message>,
    ) {
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        self.log.event(self.clock.elapsed(), || {
            let signaled = if signaled { "" } else { ", unsignaled" };
            format!("connection {connection} end {end}: {wr_id} {op:?}{signaled}")
        });
        me.sends.push_back(Sent {
            wr_id,
            signaled,
            op,
            writes: me.writes.len(),
        });
        peer.expected.extend(message);
    }

    /// Handles the result of posting the request that was recorded last.
    fn post_result(
        &mut self,
        connection: usize,
        end: usize,
        wr_id: u64,
        result: Result<(), PostError>,
        is_message: bool,
    ) -> Result<bool, String> {
        let Err(error) = result else {
            return Ok(true);
        };
        self.log.event(self.clock.elapsed(), || {
            format!("connection {connection} end {end}: {wr_id} refused: {error}")
        });
        let lethal = self.connections[connection].may_fail();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        me.sends.pop_back();
        if is_message {
            peer.expected.pop_back();
        }
        // The effect of the refused request stays possible in the model. This makes the model less
        // strict than it could be.
        if lethal {
            return Ok(false);
        }
        Err(format!("request {wr_id} is refused: {error}"))
    }
}
