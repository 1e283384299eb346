//! Checks of completions against the model.

use std::collections::VecDeque;

use uwarp_verbs::{Completion, Status};

use super::{RECEIVE, Stage, World};
use crate::end::{End, Message, Posted, both};
use crate::memory::Tracked;

impl World {
    /// Polls the CQ of a host for at most `most` completions and checks each. Returns their number.
    pub(crate) fn poll(&mut self, host: usize, most: usize) -> Result<usize, String> {
        let mut batch = [Completion::default(); 16];
        let resources = (self.hosts[host].as_mut()).and_then(|host| host.resources.as_mut());
        let Some(resources) = resources else {
            return Ok(0);
        };
        let count = resources
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
                "host {host}: a completion of an unknown QP: {wc:?}"
            ));
        };
        let (receive, connection) = (wc.wr_id & RECEIVE != 0, number);
        self.log.event(now, || {
            let kind = if receive { "received" } else { "done" };
            let number = wc.wr_id & !RECEIVE;
            let came = match (wc.status, wc.cause) {
                (Status::Success, _) => format!("{} bytes", wc.byte_len),
                // The reason is logged once, at the end of the connection.
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

    /// Handles a completion of a receive and checks it against the message that the peer sent.
    fn received(&mut self, number: usize, end: usize, wc: &Completion) -> Result<(), String> {
        let connection = &mut self.connections[number];
        // Closing a connection flushes the remaining receives.
        let lethal = connection.may_fail()
            || (connection.stage == Stage::Closing && wc.status == Status::WrFlush);
        let (me, peer) = both(&mut connection.ends, end);
        let shared = (self.hosts[me.host].as_mut())
            .and_then(|host| host.resources.as_mut())
            .and_then(|resources| resources.shared.as_mut());
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
                return Err(format!("a receive fails without a cause: {wc:?}"));
            }
            return receive_failed(memory, posted, &mut me.expected, is_shared);
        }
        let Some(message) = me.expected.pop_front() else {
            return Err(format!("{wc:?}: no such message was sent"));
        };
        message.check_completion(wc)?;
        let payload = message.payload.as_deref().unwrap_or_default();
        if memory.read(posted.at, payload.len()) != payload {
            return Err(format!("{wc:?}: received bytes differ from those sent"));
        }
        memory.mark_expected(posted.at, payload);
        memory.mark_placed(posted.at, payload.len());
        me.take_returned(&message)?;
        // Writes before this message must be placed (RFC 5040 section 5.5).
        placed(peer, me, message.writes)
    }
}

/// Takes the completed receive from the model. A receive queue completes in posting order; an SRQ
/// does not.
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
        .ok_or_else(|| "a posted receive is missing from the model".to_owned())
}

/// Handles a receive that failed or was flushed. Part of its message may have been placed.
fn receive_failed(
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
        return Err(format!("receive {number} has bytes that no message sent"));
    }
    memory.settle(posted.at, posted.len);
    // Without an SRQ only the first message can be placed in part, and no later one arrives.
    if coming.is_some() && !is_shared {
        expected.clear();
    }
    Ok(())
}

/// Checks that the first `count` Writes from `from` are placed in the memory of `to`.
pub(crate) fn placed(from: &mut End, to: &mut End, count: usize) -> Result<(), String> {
    let Some(memory) = &mut to.memory else {
        return Ok(());
    };
    for index in from.placed..count {
        let (at, len) = from.writes[index];
        if memory.target.read(at, len) != memory.target.expected(at, len) {
            return Err(format!(
                "Write {index} ({len} bytes at {at}) should be placed, but is not"
            ));
        }
        memory.target.mark_placed(at, len);
    }
    from.placed = from.placed.max(count);
    Ok(())
}
