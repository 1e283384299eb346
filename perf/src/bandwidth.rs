//! As many messages as go: one loop for both sides, which sends, receives, or does both.

use std::time::{Duration, Instant};

use uwarp_verbs::{Completion, SendWr, Sge, WcOpcode};

use crate::control::ended;
use crate::error::PerfError;
use crate::plan::{Plan, Test, Until};
use crate::traffic::{Traffic, of_wr_id, wr_id};

/// How long a turn may sleep: then it looks for what the peer says.
const TURN: Duration = Duration::from_millis(5);

/// Parts of the time, of which the best is the peak.
const PARTS: u64 = 32;

/// Messages that end a measurement have this count in place of one of theirs.
const CLOSING: u64 = (1 << 40) - 1;

/// One QP.
#[derive(Clone, Copy, Default)]
struct Lane {
    posted: u64,
    done: u64,
    received: u64,
    /// Receives that were taken and are to be posted again.
    owed: u32,
    /// Its closing Read is done.
    closed: bool,
}

/// A size being measured at one side.
pub(crate) struct Load<'a> {
    traffic: &'a Traffic,
    plan: &'a Plan,
    lanes: Vec<Lane>,
    sources: Vec<[Sge; 1]>,
    inline: Vec<u8>,
    done: u64,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    /// Messages a second in the best part.
    pub(crate) peak: f64,
}

impl<'a> Load<'a> {
    pub(crate) fn new(traffic: &'a Traffic, plan: &'a Plan, size: u32) -> Self {
        let count = traffic.qps.len();
        let inline = if size <= plan.inline && plan.test != Test::ReadBandwidth {
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

    /// Warms up and measures. What was sent has arrived when this returns, but for Sends: only their receiver
    /// knows. `begins` is called between the two.
    pub(crate) fn measure(&mut self, begins: &mut dyn FnMut()) -> Result<Measured, PerfError> {
        // To a message that asks for a completion: else all lists that follow have theirs in their middle, and of the
        // messages that may be outstanding those behind it are always missing.
        let warm_up = self.rounded_up(self.plan.warm_up);
        self.send(warm_up, None, &mut |_| {})?;
        self.close()?;
        begins();
        let from = self.done;
        let (goal, deadline) = match self.plan.until {
            Until::Iterations => (warm_up + self.plan.iterations, None),
            Until::Seconds(seconds) => {
                let took = Duration::from_secs_f64(seconds);
                (CLOSING - 1, Some(Instant::now() + took))
            }
        };
        let part = self.plan.iterations * self.lanes.len() as u64 / PARTS;
        let mut peak = Peak::new(from, part.max(u64::from(self.plan.tx_depth)));
        self.send(goal, deadline, &mut |done| peak.look(done))?;
        self.close()?;
        Ok(Measured {
            messages: self.done - from,
            began: peak.began,
            took: peak.began.elapsed(),
            peak: peak.best,
        })
    }

    /// How many messages each QP has sent.
    pub(crate) fn sent(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.done).max().unwrap_or(0)
    }

    /// How many were received, on all QPs.
    pub(crate) fn received(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.received).sum()
    }

    /// Sends until each QP has sent `goal` in all, or as many as when the time was over; and until all of it is complete.
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
                // From here on what was posted is all: the last of it has to be told of.
                let most = self.lanes.iter().map(|lane| lane.posted).max();
                goal = goal.min(self.rounded_up(most.unwrap_or(0)));
            }
        }
    }

    /// To the next message that asks for a completion.
    fn rounded_up(&self, count: u64) -> u64 {
        count.next_multiple_of(self.plan.signal_every())
    }

    /// Posts a list on one QP. False when there is no room, or no need.
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
            // At most `AT_ONCE`.
            qp.post_send_list(&list[..now as usize])?;
            next += now;
        }
        Ok(())
    }

    /// The message with this number, from 1.
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
                let (addr, rkey) = self.traffic.target(lane);
                SendWr::read(id, source, addr, rkey)
            }
            Test::WriteBandwidth | Test::WriteLatency => {
                let (addr, rkey) = self.traffic.target(lane);
                if is_inline {
                    SendWr::write_inline(id, &self.inline, addr, rkey)
                } else {
                    SendWr::write(id, source, addr, rkey)
                }
            }
        };
        if number.is_multiple_of(self.plan.signal_every()) || number == goal {
            wr
        } else {
            wr.unsignaled()
        }
    }

    /// A Read of no octets behind the Writes of each QP: its answer says that the peer has placed them (5040-5.5).
    fn close(&mut self) -> Result<(), PerfError> {
        if self.plan.test != Test::WriteBandwidth {
            return Ok(());
        }
        for lane in 0..self.lanes.len() {
            let (addr, rkey) = self.traffic.target(lane);
            let read = SendWr::read(wr_id(lane, CLOSING), &[], addr, rkey);
            self.lanes[lane].closed = false;
            self.traffic.qps[lane].post_send(&read)?;
        }
        while self.lanes.iter().any(|lane| !lane.closed) {
            self.turn()?;
        }
        Ok(())
    }

    /// Takes completions, waiting for them as the plan says, and gives receives back. How many there were.
    pub(crate) fn turn(&mut self) -> Result<usize, PerfError> {
        let mut completions = [Completion::default(); 64];
        let taken = self.traffic.next(&mut completions, TURN)?;
        for completion in &completions[..taken] {
            self.took(completion)?;
        }
        for lane in 0..self.lanes.len() {
            let owed = std::mem::take(&mut self.lanes[lane].owed);
            if owed > 0 {
                self.traffic.post_receives(lane, owed)?;
            }
        }
        Ok(taken)
    }

    fn took(&mut self, completion: &Completion) -> Result<(), PerfError> {
        let (lane, count) = of_wr_id(completion.wr_id);
        if let Err(error) = completion.ok() {
            let (qp, peer) = (&self.traffic.qps[lane], self.traffic.peer);
            return Err(ended(qp, peer, "while data moved", error));
        }
        let state = &mut self.lanes[lane];
        if completion.opcode == WcOpcode::Recv {
            state.received += 1;
            state.owed += 1;
        } else if count == CLOSING {
            state.closed = true;
        } else {
            self.done += count - state.done;
            state.done = count;
        }
        Ok(())
    }
}

/// The best part of a measurement.
struct Peak {
    began: Instant,
    part: u64,
    since: (Instant, u64),
    best: f64,
}

impl Peak {
    fn new(done: u64, part: u64) -> Self {
        let began = Instant::now();
        Peak {
            began,
            part,
            since: (began, done),
            best: 0.0,
        }
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
