//! The scatter/gather elements of the send queue: at post, and when the turn of their request comes.
//!
//! Elements are looked at when they are posted, against what is registered then; a copy later finds out whether that is
//! still so. Memory that an earlier request of the same queue is still to register is looked at twice: at post against
//! that request, so that a mistake is told at once, and when the turn comes against what is there.

use super::super::connection::{Connection, QpContext};
use super::super::work::{SendData, SendWqe};
use crate::cause::LocalProblem;
use crate::completion::Status;
use crate::mem::{LocalFault, LocalFaultKind, Sge};

impl Connection {
    /// Resolves the elements of a request (not more bytes than a message has), now or later. Gives their bytes. The
    /// sink of a Read or atomic needs local write and nothing else (`write`); sources need no right at all.
    pub(super) fn resolve_sges(&mut self, sges: &[Sge], write: bool) -> Result<u32, LocalFault> {
        if !sges.iter().any(|sge| self.is_for_later(sge)) {
            let QpContext {
                table, pd, qp_num, ..
            } = &*self.ctx;
            let (data, before) = self.sq.next_data_and_before();
            let list = &mut data.list;
            return list.resolve_behind(before, table, (*pd, *qp_num), sges, write);
        }
        let mut total = 0_u32;
        for (index, sge) in sges.iter().enumerate() {
            let fault = |kind| LocalFault { index, kind };
            self.check_later(sge, write).map_err(fault)?;
            total = total
                .checked_add(sge.len)
                .ok_or(fault(LocalFaultKind::TooLong))?;
        }
        self.sq.next_data().later.extend_from_slice(sges);
        Ok(total)
    }

    /// Whether a request that is still in the queue registers the memory of an element. Where the queue is flushed, it
    /// may have been flushed with it: what is posted then is taken and flushed too.
    #[inline]
    pub(super) fn is_for_later(&self, sge: &Sge) -> bool {
        sge.len > 0
            && (self.sq.registration(sge.lkey).is_some()
                || (self.state.flushes() && self.ctx.table.is_fast(sge.lkey, self.ctx.pd)))
    }

    /// The checks of one element of a list that is resolved later.
    fn check_later(&self, sge: &Sge, write: bool) -> Result<(), LocalFaultKind> {
        if sge.len == 0 {
            return Ok(());
        }
        if let Some(register) = self.sq.registration(sge.lkey) {
            return register.check_sge(sge, write);
        }
        if self.is_for_later(sge) {
            return Ok(());
        }
        let QpContext {
            table, pd, qp_num, ..
        } = &*self.ctx;
        table.check_local(sge, write, *pd, *qp_num).map(|_| ())
    }

    /// Whether elements of a request that were left for its turn may not be used.
    pub(in crate::engine) fn has_late_fault(&self, wqe: &SendWqe) -> bool {
        let QpContext {
            table, pd, qp_num, ..
        } = &*self.ctx;
        let write = wqe.op.awaits_response();
        let fails = |sge: &Sge| table.check_local(sge, write, *pd, *qp_num).is_err();
        wqe.data.later.iter().any(|sge| sge.len > 0 && fails(sge))
    }

    /// The turn of a request has come: resolves what was left for now. False when its memory may not be used, and the
    /// connection has ended.
    pub(in crate::engine) fn resolve_later(&mut self, sequence: u64) -> bool {
        let Some(wqe) = self.sq.get_mut(sequence) else {
            return false;
        };
        if wqe.data.later.is_empty() {
            return true;
        }
        let write = wqe.op.awaits_response();
        let SendData { list, later, .. } = &mut wqe.data;
        let QpContext {
            table, pd, qp_num, ..
        } = &*self.ctx;
        let resolved = list.resolve(table, *pd, *qp_num, later, write);
        later.clear();
        match resolved {
            Ok(_) => true,
            Err(fault) => {
                let status = Status::LocalProtection;
                let problem = LocalProblem::Element(fault);
                self.fail_locally(Some((sequence, status)), None, problem);
                false
            }
        }
    }
}
