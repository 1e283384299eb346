//! Plan of a test: operation, sizes and parameters.

use serde::{Deserialize, Serialize};

/// Operation of a test, and the figure that it measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Bandwidth of RDMA Writes to the server (`ib_write_bw`).
    #[serde(rename = "write_bw")]
    WriteBandwidth,
    /// Bandwidth of RDMA Reads from the server (`ib_read_bw`).
    #[serde(rename = "read_bw")]
    ReadBandwidth,
    /// Bandwidth of Sends to the server (`ib_send_bw`).
    #[serde(rename = "send_bw")]
    SendBandwidth,
    /// Latency of a Write in each direction (`ib_write_lat`): half of the round trip. The target
    /// detects the Write in memory.
    #[serde(rename = "write_lat")]
    WriteLatency,
    /// Latency of a Read from post to completion (`ib_read_lat`): the whole round trip.
    #[serde(rename = "read_lat")]
    ReadLatency,
    /// Latency of a Send in each direction (`ib_send_lat`): half of the round trip.
    #[serde(rename = "send_lat")]
    SendLatency,
    /// Bandwidth of RDMA Writes with Immediate Data (`ib_write_bw --write_with_imm`). Each consumes
    /// a receive of the server.
    #[serde(rename = "write_imm_bw")]
    WriteImmBandwidth,
    /// Latency of an RDMA Write with Immediate Data in each direction
    /// (`ib_write_lat --write_with_imm`): half of the round trip.
    #[serde(rename = "write_imm_lat")]
    WriteImmLatency,
    /// Rate of atomic operations on a word of the server, one word for each QP (`ib_atomic_bw`).
    #[serde(rename = "atomic_bw")]
    AtomicBandwidth,
    /// Latency of an atomic operation from post to completion (`ib_atomic_lat`): the whole round
    /// trip.
    #[serde(rename = "atomic_lat")]
    AtomicLatency,
}

impl Test {
    /// Returns true for latency tests.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(
            self,
            Test::WriteLatency
                | Test::ReadLatency
                | Test::SendLatency
                | Test::WriteImmLatency
                | Test::AtomicLatency
        )
    }

    /// Name of the test on the command line, for example `write_bw`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Test::WriteBandwidth => "write_bw",
            Test::ReadBandwidth => "read_bw",
            Test::SendBandwidth => "send_bw",
            Test::WriteLatency => "write_lat",
            Test::ReadLatency => "read_lat",
            Test::SendLatency => "send_lat",
            Test::WriteImmBandwidth => "write_imm_bw",
            Test::WriteImmLatency => "write_imm_lat",
            Test::AtomicBandwidth => "atomic_bw",
            Test::AtomicLatency => "atomic_lat",
        }
    }

    /// Returns true for atomic operations, which always have [`ATOMIC_SIZE`] bytes.
    #[must_use]
    pub fn is_atomic(self) -> bool {
        matches!(self, Test::AtomicBandwidth | Test::AtomicLatency)
    }

    /// Returns true if the application at the server has nothing to do during the test.
    #[must_use]
    pub fn is_one_sided(self) -> bool {
        matches!(self, Test::WriteBandwidth) || self.has_responses()
    }

    /// Returns true if each request is completed by a response of the server. This is true for
    /// Reads and atomic operations.
    #[must_use]
    pub fn has_responses(self) -> bool {
        matches!(self, Test::ReadBandwidth | Test::ReadLatency) || self.is_atomic()
    }

    /// Returns true if each message consumes a receive of its target.
    #[must_use]
    pub fn takes_receives(self) -> bool {
        matches!(
            self,
            Test::SendBandwidth
                | Test::SendLatency
                | Test::WriteImmBandwidth
                | Test::WriteImmLatency
        )
    }
}

/// Length in bytes of the word of an atomic operation (RFC 7306 section 5).
pub const ATOMIC_SIZE: u32 = 8;

/// Operation of the atomic tests (perftest's `-A`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Atomic {
    /// Adds 1.
    #[default]
    FetchAdd,
    /// Compares with 0 and stores 0. The comparison always succeeds, so the word is always written.
    CompareSwap,
}

/// Way in which a side waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// Polls the completion queue continuously.
    #[default]
    Poll,
    /// Blocks in `Cq::wait`.
    Block,
    /// Blocks in `poll(2)` on the descriptor of a completion channel.
    Channel,
    /// Polls once after a post, then only reads the buffer, as `ib_write_lat` does. For write
    /// latency only.
    Memory,
}

/// Condition that ends the measurement of one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// After [`Plan::iterations`] messages on each QP.
    Iterations,
    /// After this many seconds: at least a millisecond, at most a day.
    Seconds(f64),
}

/// Parameters of a test. The client has the plan and sends it to the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Test to run.
    pub test: Test,
    /// Sizes of messages in bytes. Each size has a measurement of its own.
    pub sizes: Vec<u32>,
    /// Number of measured messages on each QP.
    pub iterations: u64,
    /// Number of messages on each QP before the measurement starts.
    pub warm_up: u64,
    /// Condition that ends a measurement.
    pub until: Until,
    /// Number of QPs, each with its own connection.
    pub qps: u32,
    /// Maximum number of messages outstanding on each QP.
    pub tx_depth: u32,
    /// Number of receives posted on each QP, or in the shared receive queue.
    pub rx_depth: u32,
    /// Number of work requests in one post.
    pub post_list: u32,
    /// One message in this many is signaled. Only signaled messages have completions.
    pub cq_moderation: u32,
    /// Maximum length in bytes of messages that are posted inline.
    pub inline: u32,
    /// True if both sides send at the same time (bandwidth only).
    pub bidirectional: bool,
    /// Way in which the client waits for completions. The server waits in the same way if it takes
    /// part.
    pub waiting: Waiting,
    /// If true, the application at the server of a one-sided test sleeps; otherwise it polls. If it
    /// sleeps, the write latency is the time from posting a Write to the completion of an empty
    /// Read after it. The response to this Read shows that the Write is placed.
    pub target_sleeps: bool,
    /// Maximum number of Reads and atomic operations outstanding on each QP (IRD and ORD).
    pub reads: u16,
    /// Operation of the atomic tests.
    pub atomic: Atomic,
    /// True if bandwidth tests also measure the fastest part of the time
    /// ([`Bandwidth::peak`](crate::Bandwidth::peak)).
    pub peak: bool,
    /// Number of seconds excluded at the beginning of [`Until::Seconds`], and again at its end
    /// (perftest's `-f`).
    pub margin: f64,
    /// True if all QPs of a side share one receive queue of `rx_depth`.
    pub srq: bool,
    /// True if a latency test keeps the time of each message in
    /// [`Row::samples`](crate::Row::samples).
    pub samples: bool,
}

/// Reason why a plan is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number is out of its range.
    #[error("{what} is {value}, and must be {range}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Its allowed range.
        range: &'static str,
    },
    /// The test does not have this option.
    #[error("{test} cannot {what}")]
    NotForTest {
        /// The test.
        test: &'static str,
        /// The option.
        what: &'static str,
    },
}

impl Plan {
    /// Largest message in bytes.
    pub const MAX_SIZE: u32 = 1 << 30;
    /// Maximum number of bytes that the server registers for one client.
    pub(crate) const MAX_MEMORY: u64 = 8 << 30;
    /// Maximum number of messages whose times are kept. The times take 80 MB.
    const MAX_SAMPLES: u64 = 10_000_000;

    /// Creates a plan with perftest's defaults: 5,000 messages for bandwidth and 1,000 for latency,
    /// 128 messages outstanding, one signaled message in a hundred, and 512 receives.
    #[must_use]
    pub fn new(test: Test, sizes: &[u32]) -> Self {
        let iterations = if test.is_latency() { 1_000 } else { 5_000 };
        Plan {
            test,
            sizes: sizes.to_vec(),
            iterations,
            warm_up: iterations / 10,
            until: Until::Iterations,
            qps: 1,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 1,
            cq_moderation: 100,
            inline: 0,
            bidirectional: false,
            waiting: Waiting::Poll,
            target_sleeps: false,
            reads: 16,
            atomic: Atomic::FetchAdd,
            peak: true,
            margin: 0.0,
            srq: false,
            samples: false,
        }
    }

    /// Number of bytes in each buffer of a QP: the largest size of the plan.
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1).max(1)
    }

    /// Checks that the plan is valid.
    ///
    /// # Errors
    /// [`PlanError`] for the first violation.
    pub fn check(&self) -> Result<(), PlanError> {
        let within = |what, value: u64, from: u64, to: u64, range| {
            if (from..=to).contains(&value) {
                Ok(())
            } else {
                Err(PlanError::Range { what, value, range })
            }
        };
        for size in &self.sizes {
            let least = u32::from(self.test == Test::WriteLatency);
            let range = "0 (1 for write_lat) to 1073741824 bytes";
            within(
                "a size",
                u64::from(*size),
                u64::from(least),
                u64::from(Self::MAX_SIZE),
                range,
            )?;
        }
        within(
            "the number of sizes",
            self.sizes.len() as u64,
            1,
            1_000,
            "1 to 1000",
        )?;
        within(
            "the number of iterations",
            self.iterations,
            1,
            1 << 40,
            "1 to 2^40",
        )?;
        if let Until::Seconds(seconds) = self.until {
            within(
                "the time in milliseconds",
                // The cast turns NaN into 0, and a value that is too large into `u64::MAX`.
                (seconds * 1e3) as u64,
                1,
                86_400_000,
                "1 ms to a day",
            )?;
        }
        within(
            "the number of QPs",
            self.qps.into(),
            1,
            65_536,
            "1 to 65536",
        )?;
        let depth = "1 to 32768";
        within("tx-depth", self.tx_depth.into(), 1, 32_768, depth)?;
        within("rx-depth", self.rx_depth.into(), 1, 32_768, depth)?;
        let list = "1 to tx-depth";
        within(
            "the post list",
            self.post_list.into(),
            1,
            self.tx_depth.into(),
            list,
        )?;
        within(
            "the CQ moderation",
            self.cq_moderation.into(),
            1,
            u64::MAX,
            "1 or more",
        )?;
        let memory = u64::from(self.qps) * u64::from(self.largest());
        within(
            "the memory of all QPs",
            memory,
            0,
            Self::MAX_MEMORY,
            "at most 8 GiB",
        )?;
        if self.samples && self.until == Until::Iterations {
            let most = Self::MAX_SAMPLES;
            let range = "at most 10000000 if the time of each is kept";
            within("the number of iterations", self.iterations, 1, most, range)?;
        }
        self.check_margin()?;
        self.check_test()
    }

    /// Checks, as perftest does, that the two margins leave some time between them.
    fn check_margin(&self) -> Result<(), PlanError> {
        let fits = match self.until {
            // The comparison is false for NaN.
            Until::Seconds(seconds) => self.margin >= 0.0 && seconds > 2.0 * self.margin,
            Until::Iterations => self.margin == 0.0,
        };
        if fits {
            return Ok(());
        }
        Err(PlanError::Range {
            what: "the margin in milliseconds",
            value: (self.margin * 1e3) as u64,
            range: "less than half of the duration (-D)",
        })
    }

    fn check_test(&self) -> Result<(), PlanError> {
        let refused = |what| {
            let test = self.test.name();
            Err(PlanError::NotForTest { test, what })
        };
        if self.test.is_atomic() && self.sizes != [ATOMIC_SIZE] {
            return refused("use a size other than 8 bytes, the word of an atomic operation");
        }
        if self.srq && !self.test.takes_receives() {
            return refused("use a shared receive queue: its messages take no receives");
        }
        if self.samples && !self.test.is_latency() {
            return refused("list the time of each message: it measures bandwidth");
        }
        if self.samples && self.until != Until::Iterations {
            return refused(
                "list the time of each message for a duration: give a number of messages",
            );
        }
        if self.test.is_latency() && self.bidirectional {
            return refused("be bidirectional");
        }
        if self.test.is_latency() && self.qps > 1 {
            return refused("use more than one QP");
        }
        if self.waiting == Waiting::Memory && self.test != Test::WriteLatency {
            return refused("wait by watching the buffer");
        }
        if self.test == Test::WriteLatency
            && !self.is_confirmed_write()
            && matches!(self.waiting, Waiting::Block | Waiting::Channel)
        {
            return refused("wait for an event: a Write raises none at its target");
        }
        if self.is_confirmed_write() && self.waiting == Waiting::Memory {
            return refused("wait by watching the buffer: nothing is written back");
        }
        let takes_part = !self.test.is_one_sided() && !self.is_confirmed_write();
        if self.target_sleeps && (takes_part || self.bidirectional) {
            return refused("let its target sleep: it takes part in the test");
        }
        Ok(())
    }

    /// Returns true if a Read after each Write measures the Write's latency. In this case the
    /// target's application sleeps and writes nothing back.
    pub(crate) fn is_confirmed_write(&self) -> bool {
        self.test == Test::WriteLatency && self.target_sleeps
    }

    /// One message in this many is signaled. The number is limited so that the send queue cannot
    /// fill up without a signaled message.
    pub(crate) fn signal_every(&self) -> u64 {
        if self.waiting == Waiting::Memory {
            // `ib_write_lat` also takes the completion of each Write before it watches memory.
            return 1;
        }
        u64::from(self.cq_moderation.min(self.tx_depth.div_ceil(2)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let plan = |change: fn(&mut Plan)| {
            let mut plan = Plan::new(Test::WriteBandwidth, &[64]);
            change(&mut plan);
            plan.check().map_err(|error| error.to_string())
        };
        assert_eq!(plan(|_| {}), Ok(()));
        let said = |change| plan(change).unwrap_err();
        assert!(said(|plan| plan.qps = 0).starts_with("the number of QPs is 0"));
        assert!(said(|plan| plan.sizes.clear()).starts_with("the number of sizes"));
        assert!(said(|plan| plan.sizes = vec![u32::MAX]).starts_with("a size is"));
        assert!(said(|plan| plan.until = Until::Seconds(f64::NAN)).starts_with("the time"));
        assert!(said(|plan| plan.until = Until::Seconds(1e9)).starts_with("the time"));
        assert!(said(|plan| plan.post_list = 129).contains("1 to tx-depth"));
        assert!(said(|plan| plan.waiting = Waiting::Memory).contains("write_bw cannot"));
        assert!(said(|plan| plan.srq = true).contains("its messages take no receives"));
        assert!(said(|plan| plan.samples = true).contains("it measures bandwidth"));
        assert!(said(|plan| plan.margin = 1.0).starts_with("the margin"));
        assert!(said(|plan| plan.margin = f64::NAN).starts_with("the margin"));
        assert!(
            said(|plan| {
                plan.until = Until::Seconds(2.0);
                plan.margin = 1.0;
            })
            .contains("less than half of the duration")
        );
        assert!(said(|plan| plan.test = Test::AtomicBandwidth).contains("8 bytes"));
        assert!(
            said(|plan| {
                plan.test = Test::SendLatency;
                plan.samples = true;
                plan.until = Until::Seconds(2.0);
            })
            .contains("for a duration")
        );
        assert!(
            said(|plan| {
                plan.test = Test::SendBandwidth;
                plan.target_sleeps = true;
            })
            .contains("it takes part")
        );
        assert!(
            said(|plan| {
                plan.test = Test::WriteLatency;
                plan.target_sleeps = true;
                plan.waiting = Waiting::Memory;
            })
            .contains("nothing is written back")
        );
    }

    #[test]
    fn a_send_queue_never_waits_for_a_completion_that_nobody_asked_for() {
        for (depth, moderation, every) in [(128, 100, 64), (1, 100, 1), (16, 1, 1), (300, 100, 100)]
        {
            let mut plan = Plan::new(Test::WriteBandwidth, &[1]);
            (plan.tx_depth, plan.cq_moderation) = (depth, moderation);
            assert_eq!(plan.signal_every(), every);
        }
    }

    #[test]
    fn a_side_that_looks_at_memory_has_a_completion_of_each_write_as_ib_write_lat_has() {
        let mut plan = Plan::new(Test::WriteLatency, &[8]);
        assert!(plan.signal_every() > 1);
        plan.waiting = Waiting::Memory;
        assert_eq!(plan.signal_every(), 1);
    }
}
