//! Bandwidth tests: a side sends messages at full speed, receives them, or does both. One loop
//! serves all three cases. Neither this loop nor that of `latency` allocates for a message.

use std::time::{Duration, Instant};

use uwarp_verbs::{Completion, RemoteBuffer, SendWr, Sge};

use crate::control::ended;
use crate::error::PerfError;
use crate::plan::{Atomic, Plan, Test, Until};
use crate::traffic::{Traffic, parse_wr_id, wr_id};
use crate::usage::{Usage, Used};

/// Maximum time that one [`Load::turn`] sleeps. The caller checks for control messages between
/// turns.
const TURN: Duration = Duration::from_millis(5);

/// Number of parts into which [`Plan::iterations`] is divided. The peak is the message rate of the
/// fastest part.
const PARTS: u64 = 32;

/// Immediate Data of each Write that has it. Its content is not used.
const IMMEDIATE: [u8; 8] = *b"uwarp\0\0\0";

/// Message count in the work request id of the Read that [`Load::close`] posts. In practice no
/// message has this number.
const CLOSING: u64 = (1 << 40) - 1;

/// Progress of one QP: numbers of messages posted, completed and received.
#[derive(Clone, Copy, Default)]
struct Lane {
    posted: u64,
    done: u64,
    received: u64,
    /// Number of consumed receives that must be posted again.
    receives_to_repost: u32,
    /// True after the closing Read has completed.
    closed: bool,
}

/// Runs one message size on one side.
pub(crate) struct Load<'a> {
    traffic: &'a Traffic,
    plan: &'a Plan,
    lanes: Vec<Lane>,
    sources: Vec<[Sge; 1]>,
    inline: Vec<u8>,
    done: u64,
}

/// Result of one measured size.
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) took: Duration,
    pub(crate) used: Used,
    /// Messages per second in the fastest part, if the plan asks for the peak.
    pub(crate) peak: Option<f64>,
    /// Start of the measurement. `None` if margins determine the measured time.
    began: Option<(Instant, Usage)>,
}

impl Measured {
    /// Moves the end of the measurement to now, because its last message is now known to have
    /// arrived. Does nothing if the measurement has margins.
    pub(crate) fn end_now(&mut self) {
        if let Some((began, usage)) = self.began {
            self.took = began.elapsed();
            self.used = usage.until_now();
        }
    }
}

impl<'a> Load<'a> {
    pub(crate) fn new(traffic: &'a Traffic, plan: &'a Plan, size: u32) -> Self {
        let count = traffic.qps.len();
        let inline = if size <= plan.inline && !plan.test.has_responses() {
            vec![0x5a; size as usize]
        } else {
            Vec::new()
        };
        Load {
            traffic,
            plan,
            lanes: vec![Lane::default(); count],
            sources: (0..count).map(|lane| traffic.source(lane, size)).collect(),
            inline,
            done: 0,
        }
    }

    /// Warms up and measures. When it returns, all messages have arrived, except messages that
    /// consume receives. Only the target knows when those messages arrive.
    pub(crate) fn measure(&mut self) -> Result<Measured, PerfError> {
        // The warm-up ends with a signaled message. Otherwise each later list would have its
        // signaled message in the middle. The rest of the list would stay outstanding until the
        // next list completes, and would occupy the send queue.
        let warm_up = self.rounded_up(self.plan.warm_up);
        self.send(warm_up, None, &mut |_| {})?;
        self.close()?;
        match self.plan.until {
            Until::Seconds(seconds) if self.plan.margin > 0.0 => self.measure_within(seconds),
            Until::Seconds(seconds) => {
                let deadline = Instant::now() + Duration::from_secs_f64(seconds);
                self.measure_all(CLOSING - 1, Some(deadline))
            }
            Until::Iterations => self.measure_all(warm_up + self.plan.iterations, None),
        }
    }

    /// Sends until the goal or the deadline, waits until all messages have arrived, and measures
    /// the whole time.
    fn measure_all(&mut self, goal: u64, deadline: Option<Instant>) -> Result<Measured, PerfError> {
        let usage = Usage::now();
        let (from, mut peak) = (self.done, self.peak());
        let began = Instant::now();
        self.send(goal, deadline, &mut |done| peak.look(done))?;
        self.close()?;
        Ok(Measured {
            messages: self.done - from,
            took: began.elapsed(),
            used: usage.until_now(),
            peak: self.plan.peak.then_some(peak.best),
            began: Some((began, usage)),
        })
    }

    /// Sends for a number of seconds and measures the time between the two margins.
    fn measure_within(&mut self, seconds: f64) -> Result<Measured, PerfError> {
        let now = Instant::now();
        let deadline = now + Duration::from_secs_f64(seconds);
        let margin = Duration::from_secs_f64(self.plan.margin);
        let (from, until) = (now + margin, deadline - margin);
        let mut peak = self.peak();
        let mut began = None;
        let mut ended = None;
        self.send(CLOSING - 1, Some(deadline), &mut |done| {
            let now = Instant::now();
            if now < from || ended.is_some() {
                return;
            }
            let &mut (since, before, usage) = began.get_or_insert_with(|| {
                peak.begin(done);
                (now, done, Usage::now())
            });
            if now < until {
                peak.look(done);
            } else {
                ended = Some((done - before, now - since, usage.until_now()));
            }
        })?;
        self.close()?;
        let (messages, took, used) = ended.unwrap_or((0, Duration::ZERO, Usage::now().until_now()));
        Ok(Measured {
            messages,
            took,
            used,
            peak: self.plan.peak.then_some(peak.best),
            began: None,
        })
    }

    /// Starts the search for the fastest part.
    fn peak(&self) -> Peak {
        let part = self.plan.iterations * self.lanes.len() as u64 / PARTS;
        Peak::new(self.done, part.max(u64::from(self.plan.tx_depth)))
    }

    /// Number of messages that each QP has sent. It is the same for all QPs after
    /// [`Load::measure`].
    pub(crate) fn sent(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.done).max().unwrap_or(0)
    }

    /// Number of received messages, on all QPs.
    pub(crate) fn received(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.received).sum()
    }

    /// Sends until each QP has sent `goal` messages in all, and all of them have completed. At the
    /// deadline the goal is lowered to the largest number posted on any QP, rounded up to a
    /// signaled message. Calls `watch` with the number of completed messages after each turn that
    /// takes completions.
    fn send(
        &mut self,
        mut goal: u64,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(u64),
    ) -> Result<(), PerfError> {
        loop {
            let mut busy = false;
            for lane in 0..self.lanes.len() {
                while self.post(lane, goal)? {}
                busy |= self.lanes[lane].done < goal;
            }
            if !busy {
                return Ok(());
            }
            if self.turn()? > 0 {
                watch(self.done);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // From now on every QP stops at the same number: the largest number posted so far,
                // rounded up to a signaled message.
                let most = self.lanes.iter().map(|lane| lane.posted).max();
                goal = goal.min(self.rounded_up(most.unwrap_or(0)));
            }
        }
    }

    /// Rounds a number of messages up to the next signaled message.
    fn rounded_up(&self, count: u64) -> u64 {
        count.next_multiple_of(self.plan.signal_every())
    }

    /// Posts one list on one QP. Returns false if there is no room, or if no message is left to
    /// post.
    fn post(&mut self, lane: usize, goal: u64) -> Result<bool, PerfError> {
        let Lane { posted, done, .. } = self.lanes[lane];
        let depth = u64::from(self.plan.tx_depth);
        let count = u64::from(self.plan.post_list).min(goal.saturating_sub(posted));
        if count == 0 || posted - done + count > depth {
            return Ok(false);
        }
        let qp = &self.traffic.qps[lane];
        if count == 1 {
            qp.post_send(&self.request(lane, posted + 1, goal))?;
        } else {
            self.post_list(lane, posted, count, goal)?;
        }
        self.lanes[lane].posted += count;
        Ok(true)
    }

    fn post_list(&self, lane: usize, posted: u64, count: u64, goal: u64) -> Result<(), PerfError> {
        const AT_ONCE: usize = 64;
        let qp = &self.traffic.qps[lane];
        let mut next = posted + 1;
        let last = posted + count;
        while next <= last {
            let blank = self.request(lane, next, goal);
            let mut list = [blank; AT_ONCE];
            let now = (last - next + 1).min(AT_ONCE as u64);
            for (wr, number) in list.iter_mut().zip(next..next + now) {
                *wr = self.request(lane, number, goal);
            }
            // `now` is at most `AT_ONCE`.
            qp.post_send_list(&list[..now as usize])?;
            next += now;
        }
        Ok(())
    }

    /// Creates the work request of the message with this number, counted from 1.
    fn request(&self, lane: usize, number: u64, goal: u64) -> SendWr<'_> {
        let id = wr_id(lane, number);
        let source = &self.sources[lane];
        let is_inline = !self.inline.is_empty();
        let wr = match self.plan.test {
            Test::SendBandwidth | Test::SendLatency if is_inline => {
                SendWr::send_inline(id, &self.inline)
            }
            Test::SendBandwidth | Test::SendLatency => SendWr::send(id, source),
            Test::ReadBandwidth | Test::ReadLatency => {
                let target = self.traffic.target(lane);
                SendWr::read(id, source, target)
            }
            Test::AtomicBandwidth | Test::AtomicLatency => {
                atomic(self.plan.atomic, id, source, self.traffic.target(lane))
            }
            Test::WriteImmBandwidth | Test::WriteImmLatency => {
                let target = self.traffic.target(lane);
                if is_inline {
                    SendWr::write_inline(id, &self.inline, target).with_immediate(IMMEDIATE)
                } else {
                    SendWr::write(id, source, target).with_immediate(IMMEDIATE)
                }
            }
            Test::WriteBandwidth | Test::WriteLatency => {
                let target = self.traffic.target(lane);
                if is_inline {
                    SendWr::write_inline(id, &self.inline, target)
                } else {
                    SendWr::write(id, source, target)
                }
            }
        };
        if number.is_multiple_of(self.plan.signal_every()) || number == goal {
            wr
        } else {
            wr.unsignaled()
        }
    }

    /// Posts an empty Read after the Writes of each QP and waits for its response. The response
    /// shows that the peer has placed the Writes (5040-5.5).
    fn close(&mut self) -> Result<(), PerfError> {
        if self.plan.test != Test::WriteBandwidth {
            return Ok(());
        }
        for lane in 0..self.lanes.len() {
            let target = self.traffic.target(lane);
            let read = SendWr::read(wr_id(lane, CLOSING), &[], target);
            self.lanes[lane].closed = false;
            self.traffic.qps[lane].post_send(&read)?;
        }
        while self.lanes.iter().any(|lane| !lane.closed) {
            self.turn()?;
        }
        Ok(())
    }

    /// Takes completions, waiting as the plan specifies, and posts the consumed receives again.
    /// Returns the number of completions.
    pub(crate) fn turn(&mut self) -> Result<usize, PerfError> {
        let mut completions = [Completion::default(); 64];
        let taken = self.traffic.next(&mut completions, TURN)?;
        for completion in &completions[..taken] {
            self.handle(completion)?;
        }
        for lane in 0..self.lanes.len() {
            let receives_to_repost = std::mem::take(&mut self.lanes[lane].receives_to_repost);
            if receives_to_repost > 0 {
                self.traffic.post_receives(lane, receives_to_repost)?;
            }
        }
        Ok(taken)
    }

    fn handle(&mut self, completion: &Completion) -> Result<(), PerfError> {
        let (lane, count) = parse_wr_id(completion.wr_id);
        if let Err(error) = completion.ok() {
            let (qp, peer) = (&self.traffic.qps[lane], self.traffic.peer);
            return Err(ended(qp, peer, "while data moved", error));
        }
        let state = &mut self.lanes[lane];
        if completion.opcode.is_recv() {
            state.received += 1;
            state.receives_to_repost += 1;
        } else if count == CLOSING {
            state.closed = true;
        } else {
            self.done += count - state.done;
            state.done = count;
        }
        Ok(())
    }
}

/// Creates an atomic operation on the word at `target`. The word's old value is written to `sink`.
pub(crate) fn atomic(op: Atomic, id: u64, sink: &[Sge], target: RemoteBuffer) -> SendWr<'_> {
    match op {
        Atomic::FetchAdd => SendWr::fetch_add(id, sink, target, 1),
        Atomic::CompareSwap => SendWr::compare_swap(id, sink, target, 0, 0),
    }
}

/// Search for the fastest part of a measurement.
struct Peak {
    part: u64,
    since: (Instant, u64),
    best: f64,
}

impl Peak {
    fn new(done: u64, part: u64) -> Self {
        Peak {
            part,
            since: (Instant::now(), done),
            best: 0.0,
        }
    }

    /// Starts the first part now, after `done` messages.
    fn begin(&mut self, done: u64) {
        self.since = (Instant::now(), done);
    }

    fn look(&mut self, done: u64) {
        let (from, before) = self.since;
        if done - before < self.part {
            return;
        }
        let now = Instant::now();
        let took = now.duration_since(from).as_secs_f64();
        if took > 0.0 {
            self.best = self.best.max((done - before) as f64 / took);
        }
        self.since = (now, done);
    }
}
