//! Latency tests: at most one message is under way at a time.

use std::time::{Duration, Instant};

use uwarp_verbs::{Completion, SendWr, WcOpcode};

use crate::bandwidth::atomic;
use crate::control::ended;
use crate::error::PerfError;
use crate::plan::{Plan, Test, Until, Waiting};
use crate::results::Times;
use crate::traffic::{Traffic, wr_id};
use crate::usage::{Usage, Used};

/// Maximum time to wait for the peer's message.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time that one wait for completions sleeps. The caller checks for control messages
/// between waits.
const TURN: Duration = Duration::from_millis(5);

/// Number of empty polls between two checks of the clock, or of the end of the connection.
const TURNS: u32 = 1 << 16;

/// One side of a ping-pong, or the client of a test of Reads or atomics.
pub(crate) struct PingPong<'a> {
    traffic: &'a Traffic,
    plan: &'a Plan,
    size: u32,
    posted: u64,
    /// True if this side answers, which means that the peer sends first.
    answers: bool,
    /// Content of the messages if they are sent inline, otherwise empty.
    inline: Vec<u8>,
}

/// Event for which a side waits.
#[derive(Clone, Copy)]
enum Awaited {
    /// The message of the peer.
    Message,
    /// The completion of a Read or an atomic operation.
    Response,
}

/// Result of one measured size.
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) took: Duration,
    pub(crate) times: Times,
    pub(crate) used: Used,
}

impl<'a> PingPong<'a> {
    /// Creates a side for messages of this size. `answers`: true if the peer sends first.
    pub(crate) fn new(traffic: &'a Traffic, plan: &'a Plan, size: u32, answers: bool) -> Self {
        // A byte left by a measurement of another size must not look like the first message.
        if plan.test == Test::WriteLatency {
            traffic.clear_last_byte(size, 0);
        }
        PingPong {
            traffic,
            plan,
            size,
            posted: 0,
            answers,
            inline: vec![
                0x5a;
                if size <= plan.inline {
                    size as usize
                } else {
                    0
                }
            ],
        }
    }

    /// Runs the client's side. Returns the number of messages and their times.
    pub(crate) fn measure(&mut self) -> Result<Measured, PerfError> {
        let samples = self.plan.samples.then_some(self.plan.iterations);
        let mut times = Times::new(!self.has_response(), samples);
        for _ in 0..self.plan.warm_up {
            self.ping()?;
        }
        let margin = Duration::from_secs_f64(self.plan.margin);
        self.ping_for(margin)?;
        let (usage, began) = (Usage::now(), Instant::now());
        let mut before = began;
        let mut count = 0;
        loop {
            self.ping()?;
            let now = Instant::now();
            let took = now.duration_since(before).as_nanos();
            times.record(u64::try_from(took).unwrap_or(u64::MAX));
            before = now;
            count += 1;
            let over = match self.plan.until {
                Until::Iterations => count == self.plan.iterations,
                Until::Seconds(seconds) => {
                    now.duration_since(began).as_secs_f64() >= seconds - 2.0 * self.plan.margin
                }
            };
            if over {
                let measured = Measured {
                    messages: count,
                    took: now.duration_since(began),
                    times,
                    used: usage.until_now(),
                };
                self.ping_for(margin)?;
                return Ok(measured);
            }
        }
    }

    /// Sends messages for this time without measuring them.
    fn ping_for(&mut self, time: Duration) -> Result<(), PerfError> {
        if time.is_zero() {
            return Ok(());
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.ping()?;
        }
        Ok(())
    }

    /// Number of messages that this side has sent.
    pub(crate) fn sent(&self) -> u64 {
        self.posted
    }

    /// Sends one message and waits for the answer.
    fn ping(&mut self) -> Result<(), PerfError> {
        if self.plan.is_confirmed_write() {
            self.post_confirmed()?;
        } else {
            self.post()?;
        }
        self.wait(if self.has_response() {
            Awaited::Response
        } else {
            Awaited::Message
        })
    }

    /// Returns true if each ping waits for the response to its request. Otherwise a ping waits for
    /// a message of the peer.
    fn has_response(&self) -> bool {
        self.plan.test.has_responses() || self.plan.is_confirmed_write()
    }

    /// Posts a Write and an empty Read after it. The response to the Read shows that the Write is
    /// placed (5040-5.5).
    fn post_confirmed(&mut self) -> Result<(), PerfError> {
        self.posted += 1;
        let id = wr_id(0, self.posted);
        let source = self.traffic.source(0, self.size);
        let target = self.traffic.target(0);
        let write = if self.inline.is_empty() {
            SendWr::write(id, &source, target)
        } else {
            SendWr::write_inline(id, &self.inline, target)
        };
        let both = [write.unsignaled(), SendWr::read(id, &[], target)];
        Ok(self.traffic.qps[0].post_send_list(&both)?)
    }

    /// Runs the server's side: answers messages until `over` returns true.
    pub(crate) fn answer(
        &mut self,
        over: &mut dyn FnMut(u64) -> Result<bool, PerfError>,
    ) -> Result<(), PerfError> {
        loop {
            let mut turns = 0_u32;
            while !self.poll_arrival(Awaited::Message)? {
                turns += 1;
                let looks = self.waits_long() || turns.is_multiple_of(1 << 10);
                if looks && over(self.posted)? {
                    return Ok(());
                }
            }
            self.post()?;
        }
    }

    fn post(&mut self) -> Result<(), PerfError> {
        self.posted += 1;
        let id = wr_id(0, self.posted);
        let source = self.traffic.source(0, self.size);
        let target = self.traffic.target(0);
        let is_inline = !self.inline.is_empty();
        let wr = match self.plan.test {
            Test::ReadLatency => SendWr::read(id, &source, target),
            Test::AtomicLatency => atomic(self.plan.atomic, id, &source, target),
            Test::WriteImmLatency => {
                let imm = self.posted.to_be_bytes();
                if is_inline {
                    SendWr::write_inline(id, &self.inline, target).with_immediate(imm)
                } else {
                    SendWr::write(id, &source, target).with_immediate(imm)
                }
            }
            Test::SendLatency if is_inline => SendWr::send_inline(id, &self.inline),
            Test::SendLatency => SendWr::send(id, &source),
            _ => {
                let number = number(self.posted);
                if let Some(last) = self.inline.last_mut() {
                    *last = number;
                    SendWr::write_inline(id, &self.inline, target)
                } else {
                    self.traffic.set_last_byte(self.size, number);
                    SendWr::write(id, &source, target)
                }
            }
        };
        let signaled =
            self.plan.test.has_responses() || self.posted.is_multiple_of(self.plan.signal_every());
        let wr = if signaled { wr } else { wr.unsignaled() };
        Ok(self.traffic.qps[0].post_send(&wr)?)
    }

    fn wait(&mut self, what: Awaited) -> Result<(), PerfError> {
        let mut turns = 0_u32;
        let mut since = None;
        while !self.poll_arrival(what)? {
            turns += 1;
            if !self.waits_long() && !turns.is_multiple_of(TURNS) {
                continue;
            }
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() > PATIENCE {
                return Err(PerfError::Silent {
                    peer: self.traffic.peer,
                    seconds: PATIENCE.as_secs(),
                    during: "in the middle of a ping-pong",
                });
            }
        }
        Ok(())
    }

    /// Returns true if an unsuccessful [`PingPong::poll_arrival`] takes long, because it sleeps or
    /// checks memory many times.
    fn waits_long(&self) -> bool {
        self.plan.waiting != Waiting::Poll
    }

    /// Checks once for the event, and waits for it as the plan specifies. Returns true if it has
    /// happened.
    fn poll_arrival(&mut self, what: Awaited) -> Result<bool, PerfError> {
        if self.plan.test == Test::WriteLatency && !self.has_response() {
            return self.poll_memory();
        }
        let mut came = false;
        let mut completions = [Completion::default(); 4];
        let taken = self.traffic.next(&mut completions, TURN)?;
        for completion in &completions[..taken] {
            self.check(completion)?;
            came |= match what {
                Awaited::Response => matches!(
                    completion.opcode,
                    WcOpcode::RdmaRead | WcOpcode::FetchAdd | WcOpcode::CompareSwap
                ),
                Awaited::Message => completion.opcode.is_recv(),
            };
            if completion.opcode.is_recv() {
                self.traffic.post_receives(0, 1)?;
            }
        }
        Ok(came)
    }

    /// Returns true if the last byte of the expected Write has arrived. That byte is placed last.
    fn poll_memory(&mut self) -> Result<bool, PerfError> {
        let due = number(self.posted + u64::from(self.answers));
        let is_here = || self.traffic.last_byte(self.size) == due;
        if self.plan.waiting == Waiting::Memory {
            // This loop only reads memory. The poll before the loop detects the end of the
            // connection.
            self.drive()?;
            for _ in 0..TURNS {
                if is_here() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        if is_here() {
            return Ok(true);
        }
        self.drive()?;
        Ok(is_here())
    }

    /// Polls the completion queue once. Fails if a request has failed.
    fn drive(&self) -> Result<(), PerfError> {
        let mut completions = [Completion::default(); 4];
        let taken = self.traffic.poll(&mut completions)?;
        completions[..taken]
            .iter()
            .try_for_each(|completion| self.check(completion))
    }

    fn check(&self, completion: &Completion) -> Result<(), PerfError> {
        match completion.ok() {
            Ok(_) => Ok(()),
            Err(error) => {
                let (qp, peer) = (&self.traffic.qps[0], self.traffic.peer);
                Err(ended(qp, peer, "in the middle of a ping-pong", error))
            }
        }
    }
}

/// Returns the byte that marks a message. It differs from the byte of the previous message, and
/// from the zero of an empty buffer.
#[expect(clippy::cast_possible_truncation, reason = "1 to 255")]
fn number(message: u64) -> u8 {
    (message % 255 + 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_never_taken_for_the_one_before_it() {
        assert!((0..1_000).all(|message| number(message) != 0));
        assert!((0..1_000).all(|message| number(message) != number(message + 1)));
    }
}
