//! Data connections of one side, with their memory and their completion queue.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_verbs::{
    Access, Completion, CompletionChannel, Cq, Device, MemoryRegion, Notify, OnNoReceive, Pd, Qp,
    QpCaps, RecvWr, RemoteBuffer, Sge, Srq, SrqAttr,
};

use crate::error::PerfError;
use crate::message::Memory;
use crate::plan::{Plan, Waiting};

/// Maximum time for which the target holds a Send until a receive is posted.
const HOLD: Duration = Duration::from_secs(20);

/// Estimates of memory in bytes: a work request with its element, a completion, and a connection
/// without its queues.
const REQUEST: u64 = 144;
const COMPLETION: u64 = 128;
const CONNECTION: u64 = 16 << 10;
/// The same for a Read that is outstanding, in both directions.
const READ: u64 = 128;

/// Returns the memory in bytes that one side of a plan uses: its region, and an estimate of its
/// queues.
pub(crate) fn memory_of(plan: &Plan) -> u64 {
    let qps = u64::from(plan.qps);
    let stride = u64::from(plan.largest()).next_multiple_of(64);
    let sends = u64::from(plan.tx_depth) + 2;
    let receives = match plan.test.takes_receives() {
        true => u64::from(plan.rx_depth),
        false => 1,
    };
    let inline = sends.saturating_mul(plan.inline.into());
    let queues = (sends + receives) * (REQUEST + COMPLETION);
    let reads = u64::from(plan.reads) * READ;
    let each = (2 * stride + CONNECTION + queues + reads).saturating_add(inline);
    qps.saturating_mul(each)
}

/// Data connections of one side, with the resources that they share.
pub(crate) struct Traffic {
    pub(crate) qps: Vec<Qp>,
    pub(crate) peer: SocketAddr,
    /// Shared receive queue, if the plan asks for one.
    srq: Option<Srq>,
    cq: Cq,
    channel: Option<CompletionChannel>,
    region: MemoryRegion,
    /// Length in bytes of each buffer. Every QP has two: one for its own requests, and one for
    /// receives and the peer's requests.
    stride: u64,
    remote: Option<Memory>,
    waiting: Waiting,
}

impl Traffic {
    /// Creates the QPs, which are not connected yet, and their memory.
    pub(crate) fn new(
        device: &Device,
        pd: &Pd,
        plan: &Plan,
        peer: SocketAddr,
    ) -> Result<Self, PerfError> {
        let receives = if plan.test.takes_receives() {
            plan.rx_depth
        } else {
            0
        };
        let depth = plan.qps.saturating_mul(plan.tx_depth + receives + 2);
        let channel = match plan.waiting {
            Waiting::Channel => Some(device.create_channel()?),
            _ => None,
        };
        let cq = match &channel {
            Some(channel) => device.create_cq_on(depth, channel, 0)?,
            None => device.create_cq(depth)?,
        };
        let caps = QpCaps::default()
            // The two additional requests end a measurement and do not count toward `tx_depth`.
            .max_send_wr(plan.tx_depth + 2)
            .max_recv_wr(receives.max(1))
            .max_send_sge(1)
            .max_recv_sge(1)
            .max_inline_data(plan.inline);
        let srq = if plan.srq {
            let attr = SrqAttr::default().max_wr(plan.rx_depth).max_sge(1);
            Some(pd.create_srq(attr)?)
        } else {
            None
        };
        let build = |_| {
            let hold = OnNoReceive::Hold(HOLD);
            let builder = pd.qp().caps(caps).on_no_receive(hold);
            match &srq {
                Some(srq) => builder.srq(srq).build(&cq, &cq),
                None => builder.build(&cq, &cq),
            }
        };
        let qps = (0..plan.qps).map(build).collect::<Result<Vec<_>, _>>()?;
        let stride = u64::from(plan.largest()).next_multiple_of(64);
        let len = usize::try_from(2 * stride * u64::from(plan.qps)).unwrap_or(usize::MAX);
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let region = pd.register(vec![0; len], access)?;
        let traffic = Traffic {
            qps,
            peer,
            srq,
            cq,
            channel,
            region,
            stride,
            remote: None,
            waiting: plan.waiting,
        };
        let lanes = if traffic.srq.is_some() {
            1
        } else {
            traffic.qps.len()
        };
        for lane in 0..lanes {
            traffic.post_receives(lane, receives)?;
        }
        Ok(traffic)
    }

    /// Returns the memory that the peer may Write to and Read from.
    pub(crate) fn memory(&self) -> Memory {
        let remote = self.region.remote();
        Memory {
            addr: remote.addr,
            rkey: remote.rkey,
            len: remote.len,
        }
    }

    /// Sets the peer's memory, which must be at least as large as this side's.
    pub(crate) fn set_remote(&mut self, memory: Memory) -> Result<(), PerfError> {
        if memory.len < self.region.len() as u64 {
            return Err(PerfError::Protocol {
                peer: self.peer,
                what: format!(
                    "it offers {} bytes of memory, but the plan needs {}",
                    memory.len,
                    self.region.len()
                ),
            });
        }
        self.remote = Some(memory);
        Ok(())
    }

    /// Returns the buffer that this QP sends from and Reads into.
    pub(crate) fn source(&self, lane: usize, size: u32) -> [Sge; 1] {
        [self.region.sge(2 * self.stride * lane as u64, size)]
    }

    /// Returns the buffer at the peer that this QP's Writes, Reads and atomics use.
    pub(crate) fn target(&self, lane: usize) -> RemoteBuffer {
        let memory = self.remote.unwrap_or_else(|| self.memory());
        let offset = 2 * self.stride * lane as u64 + self.stride;
        RemoteBuffer::at(memory.addr.wrapping_add(offset), memory.rkey)
    }

    /// Posts `count` receives into one buffer: the QP's, or the first QP's if all QPs share a
    /// receive queue.
    pub(crate) fn post_receives(&self, lane: usize, count: u32) -> Result<(), PerfError> {
        let lane = if self.srq.is_some() { 0 } else { lane };
        let offset = 2 * self.stride * lane as u64 + self.stride;
        // This cannot fail, because the stride was computed from a `u32`.
        let len = u32::try_from(self.stride).unwrap_or(u32::MAX);
        let sges = [self.region.sge(offset, len)];
        let receives = [RecvWr::new(wr_id(lane, 0), &sges); 64];
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(receives.len());
            match &self.srq {
                Some(srq) => srq.post_recv_list(&receives[..now])?,
                None => self.qps[lane].post_recv_list(&receives[..now])?,
            }
            left -= now;
        }
        Ok(())
    }

    /// Returns the last byte of a Write into the first QP's buffer. This byte is placed last.
    pub(crate) fn last_byte(&self, size: u32) -> u8 {
        let mut byte = [0];
        let at = self.stride as usize + size as usize - 1;
        // This cannot fail, because a size is no larger than the stride.
        let _ = self.region.read_at(at, &mut byte);
        byte[0]
    }

    /// Sets the last byte of the message that the first QP sends.
    pub(crate) fn set_last_byte(&self, size: u32, byte: u8) {
        let _ = self.region.write_at(size as usize - 1, &[byte]);
    }

    /// Sets the byte that [`Traffic::last_byte`] reads.
    pub(crate) fn clear_last_byte(&self, size: u32, byte: u8) {
        let at = self.stride as usize + size as usize - 1;
        let _ = self.region.write_at(at, &[byte]);
    }

    /// Polls for completions. Does not wait.
    pub(crate) fn poll(&self, out: &mut [Completion]) -> Result<usize, PerfError> {
        self.checked(self.cq.poll(out))
    }

    /// Returns `taken`, or fails if the completion queue has overflowed.
    fn checked(&self, taken: usize) -> Result<usize, PerfError> {
        if taken == 0 && self.cq.has_overflowed() {
            return Err(PerfError::Overflow);
        }
        Ok(taken)
    }

    /// Takes completions. If the plan does not poll, waits for the first completion, at most for
    /// `most`.
    pub(crate) fn next(&self, out: &mut [Completion], most: Duration) -> Result<usize, PerfError> {
        match (self.waiting, &self.channel) {
            (Waiting::Poll | Waiting::Memory, _) | (Waiting::Channel, None) => self.poll(out),
            (Waiting::Block, _) => self.checked(self.cq.wait_into(out, Some(most))),
            (Waiting::Channel, Some(channel)) => {
                let taken = self.poll(out)?;
                if taken > 0 {
                    return Ok(taken);
                }
                if !self.cq.req_notify(Notify::Any) {
                    let mut fds = [PollFd::new(channel, PollFlags::IN)];
                    let timeout = Timespec::try_from(most).ok();
                    // The result is ignored, because an interrupted wait is only shorter.
                    let _ = poll(&mut fds, timeout.as_ref());
                    drop(channel.try_get_event());
                }
                self.poll(out)
            }
        }
    }
}

const COUNT_BITS: u32 = 40;

/// Creates a work request id from the QP's index and the number of its messages up to and including
/// this one.
pub(crate) fn wr_id(lane: usize, count: u64) -> u64 {
    (lane as u64) << COUNT_BITS | count & ((1 << COUNT_BITS) - 1)
}

/// Returns the QP's index and the number of messages in a work request id.
pub(crate) fn parse_wr_id(wr_id: u64) -> (usize, u64) {
    // The cast is lossless, because the index of a QP is far below 2^24.
    (
        (wr_id >> COUNT_BITS) as usize,
        wr_id & ((1 << COUNT_BITS) - 1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_holds_the_qp_and_the_count() {
        for (lane, count) in [(0, 0), (65_535, (1 << 40) - 1), (7, 1 << 39)] {
            assert_eq!(parse_wr_id(wr_id(lane, count)), (lane, count));
        }
    }
}
