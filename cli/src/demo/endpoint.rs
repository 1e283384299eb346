//! One end of the demo's connection: a QP with its CQ, and the completed work.

use std::time::{Duration, Instant};

use uwarp_verbs::{
    Access, AsyncEvent, Completion, Cq, Device, EndReason, MemoryRegion, Pd, Qp, QpCaps, RecvWr,
    SendWr, Status,
};

use super::plan;
use crate::failure::{Failure, Report};

/// Longest time that a step of the demo may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// QP whose queues have room for all work of one step, with its CQ and the completions polled so
/// far.
pub(super) struct Endpoint {
    name: &'static str,
    device: Device,
    pub(super) qp: Qp,
    pd: Pd,
    cq: Cq,
    /// Completions of the send queue, in the order of their arrival.
    pub(super) sent: Vec<Completion>,
    /// Completions of receives, in the order of their arrival.
    pub(super) received: Vec<Completion>,
}

/// End of the connection as one side saw it, with the completions that followed.
pub(super) struct End {
    pub(super) reason: EndReason,
    /// True if the device reported the end of the connection by an asynchronous event.
    pub(super) event: bool,
    pub(super) sends: Vec<Completion>,
    pub(super) receives: Vec<Completion>,
}

/// Turns an error of this side's library into a failure.
pub(super) fn local(error: impl std::fmt::Display) -> Failure {
    Failure::because(error.to_string())
}

impl Endpoint {
    pub(super) fn new(name: &'static str, device: &Device) -> Result<Endpoint, Failure> {
        let pd = device.alloc_pd().map_err(local)?;
        let cq = device.create_cq(512).map_err(local)?;
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).map_err(local)?;
        Ok(Endpoint {
            name,
            device: device.clone(),
            qp,
            pd,
            cq,
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    pub(super) fn register(&self, bytes: Vec<u8>, access: Access) -> Result<MemoryRegion, Failure> {
        self.pd.register(bytes, access).map_err(local)
    }

    /// Posts one receive for each message of the plan, scattered over pieces of `inbox`, and
    /// `empty` receives for messages without content.
    pub(super) fn post_receives(&self, inbox: &MemoryRegion, empty: usize) -> Result<(), Failure> {
        for slot in plan::slots() {
            let pieces = slot.pieces(inbox);
            self.qp
                .post_recv(&RecvWr::new(slot.index as u64, &pieces))
                .map_err(local)?;
        }
        let list = vec![RecvWr::new(u64::MAX, &[]); empty];
        self.qp.post_recv_list(&list).map_err(local)
    }

    /// Posts one list with a Send for every message of the plan, gathered from pieces of `source`.
    pub(super) fn post_sends(&self, source: &MemoryRegion) -> Result<(), Failure> {
        let pieces: Vec<_> = plan::slots().map(|slot| slot.pieces(source)).collect();
        let list: Vec<_> = (0..)
            .zip(&pieces)
            .map(|(id, sges)| SendWr::send(id, sges))
            .collect();
        self.qp.post_send_list(&list).map_err(local)
    }

    /// Sends a message without content.
    pub(super) fn signal(&self) -> Result<(), Failure> {
        self.qp
            .post_send(&SendWr::send(u64::MAX, &[]))
            .map_err(local)
    }

    /// Waits until `sent` requests of the send queue and `received` receives have completed. Both
    /// counts start with the connection.
    pub(super) fn wait(&mut self, sent: usize, received: usize, step: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while self.sent.len() < sent || self.received.len() < received {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(completion) = self.cq.wait(Some(left)) else {
                return Err(Report::new(format!("{}, {step}: no progress", self.name))
                    .expected(format!(
                        "{sent} completed requests and {received} completed receives; there are {} and {}",
                        self.sent.len(),
                        self.received.len()
                    ))
                    .fault("uwarp")
                    .into());
            };
            if completion.status != Status::Success {
                let reason = self.qp.end_reason().map(|reason| format!("; {reason}"));
                let reason = reason.unwrap_or_default();
                let status = completion.status;
                return Err(Failure::because(format!(
                    "{}, {step}: {status}{reason}",
                    self.name
                )));
            }
            self.count(completion);
        }
        Ok(())
    }

    fn count(&mut self, completion: Completion) {
        let list = if completion.opcode.is_recv() {
            &mut self.received
        } else {
            &mut self.sent
        };
        list.push(completion);
    }

    /// Waits for the end of the connection and collects all further completions.
    pub(super) fn wait_end(&mut self) -> Result<End, Failure> {
        let (sent, received) = (self.sent.len(), self.received.len());
        let deadline = Instant::now() + PATIENCE;
        // The last receive is flushed when the connection ends.
        while self.received.len() == received && Instant::now() < deadline {
            if let Some(completion) = self.cq.wait(Some(PATIENCE)) {
                self.count(completion);
            }
        }
        let _ = self.qp.wait_closed(PATIENCE);
        while let Some(completion) = self.cq.poll_one() {
            self.count(completion);
        }
        let mut events = std::iter::from_fn(|| self.device.poll_event());
        let qp_num = self.qp.qp_num();
        let event = events
            .any(|event| matches!(event, AsyncEvent::Ended { qp_num: of, .. } if of == qp_num));
        let Some(reason) = self.qp.end_reason() else {
            return Err(Failure::because(format!(
                "{}: the connection still exists, but should have ended",
                self.name
            )));
        };
        Ok(End {
            reason,
            event,
            sends: self.sent[sent..].to_vec(),
            receives: self.received[received..].to_vec(),
        })
    }
}
