//! What completions tell, held against the model.

use std::collections::VecDeque;

use uwarp_verbs::{Completion, Status};

use super::{RECEIVE, Stage, World};
use crate::end::{End, Message, Posted, both};
use crate::memory::Tracked;

impl World {
    /// Takes completions of a host.
    pub(crate) fn poll(&mut self, host: usize, most: usize) -> Result<usize, String> {
        let mut batch = [Completion::default(); 16];
        let things = (self.hosts[host].as_mut()).and_then(|host| host.things.as_mut());
        let Some(things) = things else {
            return Ok(0);
        };
        let count = things
            .take(&mut batch[..most], &mut self.random)
            .map_err(|error| format!("host {host}: {error}"))?;
        for wc in &batch[..count] {
            self.completed(host, wc)?;
        }
        Ok(count)
    }

    pub(crate) fn completed(&mut self, host: usize, wc: &Completion) -> Result<(), String> {
        let now = self.clock.elapsed();
        let Some((number, end)) = self.qps.get(&(host, wc.qp_num)).copied() else {
            return Err(format!(
                "host {host}: a completion of a QP that nobody has: {wc:?}"
            ));
        };
        let (receive, connection) = (wc.wr_id & RECEIVE != 0, number);
        self.log.event(now, || {
            let kind = if receive { "received" } else { "done" };
            let number = wc.wr_id & !RECEIVE;
            let came = match (wc.status, wc.cause) {
                (Status::Success, _) => format!("{} bytes", wc.byte_len),
                // Why is told once, when the connection is over.
                (Status::WrFlush, _) => "flushed".to_owned(),
                (_, Some(cause)) => cause.sentence(),
                (status, None) => status.to_string(),
            };
            format!(
                "connection {connection} end {end}: {kind} {number} {:?}: {came}",
                wc.opcode
            )
        });
        self.completions[usize::from(wc.status != Status::Success)] += 1;
        let whose = |error: String| format!("connection {number} end {end}: {error}");
        if receive {
            return self.received(number, end, wc).map_err(whose);
        }
        let lethal = self.connections[number].may_fail();
        let (me, peer) = both(&mut self.connections[number].ends, end);
        let effect = me.sent(wc, lethal).map_err(whose)?;
        placed(me, peer, effect.placed).map_err(whose)
    }

    /// A completion of a receive.
    fn received(&mut self, number: usize, end: usize, wc: &Completion) -> Result<(), String> {
        let connection = &mut self.connections[number];
        // What is left over when a connection is closed is flushed.
        let lethal = connection.may_fail()
            || (connection.stage == Stage::Closing && wc.status == Status::WrFlush);
        let (me, peer) = both(&mut connection.ends, end);
        let shared = (self.hosts[me.host].as_mut())
            .and_then(|host| host.things.as_mut())
            .and_then(|things| things.shared.as_mut());
        let is_shared = shared.is_some();
        let (queue, memory) = match shared {
            Some(shared) => (&mut shared.posted, Some(&mut shared.memory)),
            None => {
                let memory = me.memory.as_mut();
                let memory = memory.and_then(|memory| memory.receives.as_mut());
                (&mut me.receives, memory)
            }
        };
        let posted = taken(queue, wc, is_shared)?;
        let Some(memory) = memory else {
            return Ok(());
        };
        if wc.status != Status::Success {
            if !lethal {
                return Err(format!("a receive fails, and nothing is wrong: {wc:?}"));
            }
            return came_to_nothing(memory, posted, &mut me.expected, is_shared);
        }
        let Some(message) = me.expected.pop_front() else {
            return Err(format!("{wc:?}: nobody has sent this"));
        };
        message.is_told_by(wc)?;
        let payload = message.payload.as_deref().unwrap_or_default();
        if memory.read(posted.at, payload.len()) != payload {
            return Err(format!("{wc:?}: other bytes than were sent"));
        }
        memory.may_come(posted.at, payload);
        memory.has_come(posted.at, payload.len());
        me.has_back(&message)?;
        // RFC 5040 section 5.5: what was written before is placed.
        placed(peer, me, message.writes)
    }
}

/// The receive that completes: of a queue of its own the oldest.
fn taken(queue: &mut VecDeque<Posted>, wc: &Completion, is_shared: bool) -> Result<Posted, String> {
    let found = queue.iter().position(|posted| posted.wr_id == wc.wr_id);
    let Some(at) = found else {
        return Err(format!("{wc:?} completes twice, or was never posted"));
    };
    if at > 0 && !is_shared {
        return Err(format!("{wc:?} completes before {:?}", queue.front()));
    }
    queue
        .remove(at)
        .ok_or_else(|| "a receive is gone".to_owned())
}

/// A receive that was flushed, or has failed: the message that was coming may have been placed in part.
fn came_to_nothing(
    memory: &mut Tracked,
    posted: Posted,
    expected: &mut VecDeque<Message>,
    is_shared: bool,
) -> Result<(), String> {
    let coming = expected
        .front()
        .and_then(|message| message.payload.as_deref());
    if !memory.is_mix_of(posted.at, posted.len, coming.unwrap_or_default()) {
        let number = posted.wr_id & !RECEIVE;
        return Err(format!("receive {number} has bytes of nobody"));
    }
    memory.settle(posted.at, posted.len);
    // Only one message is under way.
    if coming.is_some() && !is_shared {
        expected.clear();
    }
    Ok(())
}

/// The first `count` Writes of `from` are in the memory of `to`.
pub(crate) fn placed(from: &mut End, to: &mut End, count: usize) -> Result<(), String> {
    let Some(memory) = &mut to.memory else {
        return Ok(());
    };
    for index in from.placed..count {
        let (at, len) = from.writes[index];
        if memory.target.read(at, len) != memory.target.expected(at, len) {
            return Err(format!(
                "Write {index} ({len} bytes at {at}) is not placed, and it should be"
            ));
        }
        memory.target.has_come(at, len);
    }
    from.placed = from.placed.max(count);
    Ok(())
}
