//! Shared receive queues in the guest.

use serde_json::json;

use super::{Agent, number, text};
use crate::failure::Result;

/// Number of a shared receive queue in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqNum(pub u64);

impl Agent {
    /// Creates an SRQ for `max_wr` receives.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn srq(&mut self, max_wr: u64) -> Result<SrqNum> {
        let answer = self.command(&json!({"cmd": "srq", "max_wr": max_wr}))?;
        Ok(SrqNum(number(&answer, "srq")?))
    }

    /// Posts `count` receives to an SRQ, as [`recv`](Self::recv) does.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn srq_recv(
        &mut self,
        SrqNum(srq): SrqNum,
        wr_id: u64,
        sge: &str,
        count: u64,
        stride: u64,
    ) -> Result<()> {
        self.command(
            &json!({"cmd": "srq_recv", "srq": srq, "wr_id": wr_id, "sge": sge,
            "count": count, "stride": stride}),
        )?;
        Ok(())
    }

    /// Arms the limit of an SRQ. One event is raised when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn srq_limit(&mut self, SrqNum(srq): SrqNum, limit: u64) -> Result<()> {
        self.command(&json!({"cmd": "srq_modify", "srq": srq, "limit": limit}))?;
        Ok(())
    }

    /// Waits for the next event of the device about an SRQ. Returns the description by libibverbs.
    ///
    /// # Errors
    /// No event arrives in time.
    pub fn srq_event(&mut self, SrqNum(srq): SrqNum) -> Result<String> {
        let what = format!("event of the device about shared receive queue {srq}");
        let line = (self.channel).event(&what, |line| line["srq"] == json!(srq))?;
        Ok(text(&line, "async"))
    }
}
