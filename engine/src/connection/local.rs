//! Local work requests: binding a memory window, fast registration, local invalidation.
//!
//! They run in the order of the send queue: after all earlier requests are framed and, if fenced,
//! after all earlier Reads and atomics are answered. They send nothing, so they need neither the
//! peer's first FPDU nor room in the batch.

use crate::mem::SlotFault;
use crate::state::QpState;

use super::work::{Progress, SendWqe};
use super::{Connection, OpenStream};
use crate::cause::{LocalProblem, LocalVerb};
use crate::completion::{CompletionQueue, Status};
use crate::wr::{LocalOp, SendOp};

impl LocalOp {
    /// Returns the status of an operation that failed with `fault`.
    fn status(self, fault: SlotFault) -> Status {
        match self {
            Self::Bind { .. } => Status::WindowBind,
            Self::Register(_) | Self::Invalidate { .. } => match fault {
                SlotFault::NotAssociated { .. }
                | SlotFault::OutOfBounds { .. }
                | SlotFault::Rights { .. }
                | SlotFault::Register(_) => Status::LocalProtection,
                SlotFault::NoWindow { .. }
                | SlotFault::NoFastRegion { .. }
                | SlotFault::WrongKind { .. }
                | SlotFault::StillValid { .. }
                | SlotFault::SameKey { .. }
                | SlotFault::NoRegion { .. }
                | SlotFault::NoBindRight { .. }
                | SlotFault::NoBytes
                | SlotFault::NotValid { .. }
                | SlotFault::Type1 { .. }
                | SlotFault::WindowsBound { .. } => Status::LocalQpOperation,
            },
        }
    }

    /// Returns the status and the problem of an operation that failed with `fault`.
    pub(super) fn failure(self, fault: SlotFault) -> (Status, LocalProblem) {
        let verb = self.verb();
        (self.status(fault), LocalProblem::Memory { verb, fault })
    }

    /// Returns the name of the operation for error messages.
    fn verb(self) -> LocalVerb {
        match self {
            Self::Bind { .. } => LocalVerb::Bind,
            Self::Register(_) => LocalVerb::Register,
            Self::Invalidate { .. } => LocalVerb::Invalidate,
        }
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Runs the next work request if it is a local one whose turn has come, and ends the connection
    /// if it fails. Returns false if there is no such request.
    pub(super) fn run_local(&mut self) -> bool {
        let is_between = |stream: &OpenStream| stream.outbound.current.is_none();
        let runs = matches!(self.state, QpState::Rts | QpState::Closing);
        if !runs || !self.stage.open().is_some_and(is_between) {
            return false;
        }
        let Some((sequence, wqe)) = self.sq.next_to_send() else {
            return false;
        };
        let SendOp::Local(op) = wqe.op else {
            return false;
        };
        if wqe.fence && self.sq.requests_pending() {
            return false;
        }
        // Invalidation waits until the memory is not in use. Ends this connection's own loans
        // first, so that it does not wait for itself.
        self.tx.reclaim();
        match self.local(op) {
            Ok(()) => {
                self.sq.framed(Progress::Answered);
                self.retire();
            }
            // The failure ends the connection, so earlier requests complete first.
            Err(_) if sequence != self.sq.completed_to() => return false,
            Err(fault) => {
                let (status, problem) = op.failure(fault);
                self.fail_locally(Some((sequence, status)), None, problem);
            }
        }
        true
    }

    pub(super) fn local(&mut self, op: LocalOp) -> Result<(), SlotFault> {
        let asker = self.ctx.asker(self.attr.access);
        let table = &self.ctx.table;
        let (stag, new) = match op {
            LocalOp::Bind {
                rkey,
                bind,
                by_call,
            } => (rkey, table.bind(rkey, &bind, by_call, &asker)?),
            LocalOp::Register(register) => (register.stag, table.register_fast(&register, &asker)?),
            LocalOp::Invalidate { stag } => {
                table.invalidate_locally(stag, &asker)?;
                (stag, false)
            }
        };
        if new {
            self.record_own_stag(stag >> 8);
        }
        Ok(())
    }

    /// Invalidates the STag of a Read's sink if the program requested that and the Response is the
    /// last one to the Read. Call it when a Response was placed completely.
    ///
    /// Returns false if the invalidation failed; the connection has then ended.
    pub(super) fn invalidate_sink(&mut self, sequence: u64) -> bool {
        let wqe = self.sq.get(sequence);
        let Some(stag) = wqe.and_then(SendWqe::invalidates) else {
            return true;
        };
        if !self.sq.awaits_last_response() {
            return true;
        }
        let op = LocalOp::Invalidate { stag };
        match self.local(op) {
            Ok(()) => true,
            Err(fault) => {
                let verb = LocalVerb::InvalidateSink;
                let problem = LocalProblem::Memory { verb, fault };
                self.fail_locally(Some((sequence, op.status(fault))), None, problem);
                false
            }
        }
    }

    /// Records an STag that belongs to this QP alone and ends with its stream.
    fn record_own_stag(&mut self, index: u32) {
        if self.own_stags.len() == self.own_stags.capacity() {
            // Removes STags that are no longer valid for this QP, so that the list does not grow
            // without need.
            let (table, qp) = (&self.ctx.table, self.ctx.qp_num);
            self.own_stags.retain(|index| table.is_for(*index, qp));
        }
        self.own_stags.push(index);
    }

    /// Invalidates the STags that work requests made valid for this QP alone, because its stream
    /// has ended.
    pub fn give_up_own(&mut self) {
        for index in self.own_stags.drain(..) {
            self.ctx.table.end_for(index, self.ctx.qp_num);
        }
    }
}
