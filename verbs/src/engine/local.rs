//! Work requests that concern only this side: binding a memory window, fast registration, local invalidation.
//!
//! They run in the send queue, in order: when all before them is framed, and behind all earlier Reads when fenced. They
//! send nothing, so they need neither the peer's first FPDU nor room in the batch.

use super::connection::{Connection, Stage};
use super::work::{Progress, SendWqe};
use crate::cause::{LocalProblem, LocalVerb};
use crate::completion::Status;
use crate::mem::{FastRegister, SlotFault, WindowBind};
use crate::qp::state::QpState;
use crate::qp::wr::SendOp;

/// What a local work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalOp {
    Bind {
        /// The STag that the window shall have.
        rkey: u32,
        bind: WindowBind,
        /// For a window of type 1.
        by_call: bool,
    },
    Register(FastRegister),
    Invalidate {
        stag: u32,
    },
}

impl LocalOp {
    /// The status of one that was not carried out.
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
                | SlotFault::NoOctets
                | SlotFault::NotValid { .. }
                | SlotFault::Type1 { .. }
                | SlotFault::WindowsBound { .. } => Status::LocalQpOperation,
            },
        }
    }

    /// What it is, for a sentence.
    fn verb(self) -> LocalVerb {
        match self {
            Self::Bind { .. } => LocalVerb::Bind,
            Self::Register(_) => LocalVerb::Register,
            Self::Invalidate { .. } => LocalVerb::Invalidate,
        }
    }
}

impl Connection {
    /// Carries out the next work request, if it is a local one whose turn has come. False when it is not.
    pub(super) fn run_local(&mut self) -> bool {
        let Stage::Open(stream) = &self.stage else {
            return false;
        };
        let runs = matches!(self.state, QpState::Rts | QpState::Closing);
        if !runs || stream.current.is_some() {
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
        // To invalidate is to wait until nobody uses the memory, not even this thread.
        self.tx.reclaim();
        match self.local(op) {
            Ok(()) => {
                self.sq.framed(Progress::Answered);
                self.retire();
            }
            // Its failure ends the connection: first those before it complete.
            Err(_) if sequence != self.sq.completed_to() => return false,
            Err(fault) => {
                let (verb, status) = (op.verb(), op.status(fault));
                let problem = LocalProblem::Memory { verb, fault };
                self.fail_locally(Some((sequence, status)), None, problem);
            }
        }
        true
    }

    fn local(&mut self, op: LocalOp) -> Result<(), SlotFault> {
        let asker = self.ctx.asker(self.access);
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
            self.own(stag >> 8);
        }
        Ok(())
    }

    /// The Response to this Read was placed whole: ends the STag of its sink, if the program asked for that. False
    /// when that could not be done; the connection has ended then.
    pub(super) fn invalidate_sink(&mut self, sequence: u64) -> bool {
        let wqe = self.sq.get(sequence);
        let Some(stag) = wqe.and_then(SendWqe::invalidates) else {
            return true;
        };
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

    /// Remembers an STag that is for this QP alone and ends with its stream.
    fn own(&mut self, index: u32) {
        if self.own.len() == self.own.capacity() {
            // Those that were freed since go first, so the list stays as long as it has to be.
            let (table, qp) = (&self.ctx.table, self.ctx.qp_num);
            self.own.retain(|index| table.is_for(*index, qp));
        }
        self.own.push(index);
    }

    /// The stream is over for good: what work requests made valid for this QP alone is not valid any more.
    pub(crate) fn give_up_own(&mut self) {
        for index in self.own.drain(..) {
            self.ctx.table.end_for(index, self.ctx.qp_num);
        }
    }
}
