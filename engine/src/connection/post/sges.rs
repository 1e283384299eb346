//! Scatter/gather elements of the send queue. They are checked when the request is posted, and
//! again when its turn comes.
//!
//! The post checks elements against the regions registered at that time. They are validated again
//! when their bytes are copied for sending. An element may also name memory that an earlier request
//! of the same queue has yet to register. The post then checks the element against that request, so
//! that a mistake is reported at once. The element is checked against the region when the turn of
//! its own request comes.

use crate::mem::{LocalFault, LocalFaultKind, Sge};

use super::super::work::{SendData, SendWqe};
use super::super::{Connection, QpContext};
use crate::completion::CompletionQueue;

impl<Q: CompletionQueue> Connection<Q> {
    /// Resolves the elements of a request, now or later, and returns their length in bytes.
    ///
    /// The length fits into a message. `write`: the elements are the sink of a Read or atomic,
    /// which needs the local write right. Sources need no right.
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

    /// Returns true if a queued request registers the memory of an element.
    ///
    /// In a state that flushes, the registration may have been flushed already. A request posted in
    /// such a state is accepted and then flushed as well.
    #[inline]
    pub(super) fn is_for_later(&self, sge: &Sge) -> bool {
        sge.len > 0
            && (self.sq.registration(sge.lkey).is_some()
                || (self.state.flushes() && self.ctx.table.is_fast(sge.lkey, self.ctx.pd)))
    }

    /// Checks one element of a list that is resolved later.
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
        table.check_sge(sge, write, *pd, *qp_num)
    }
}

impl<Q> QpContext<Q> {
    /// Returns true if an element that was left for the request's turn is not usable now.
    pub(in crate::connection) fn has_late_fault(&self, wqe: &SendWqe) -> bool {
        self.late_fault(wqe).is_some()
    }

    /// Returns the fault of the first element that was left for the request's turn and is not
    /// usable now.
    pub(in crate::connection) fn late_fault(&self, wqe: &SendWqe) -> Option<LocalFault> {
        let write = wqe.op.awaits_response();
        let later = wqe.data.later.iter().enumerate();
        let mut used = later.filter(|(_, sge)| sge.len > 0);
        used.find_map(|(index, sge)| {
            let checked = self.table.check_sge(sge, write, self.pd, self.qp_num);
            checked.err().map(|kind| LocalFault { index, kind })
        })
    }

    /// Resolves the elements that were left for the request's turn. Fails if one is not usable.
    pub(in crate::connection) fn resolve_later(&self, wqe: &mut SendWqe) -> Result<(), LocalFault> {
        if wqe.data.later.is_empty() {
            return Ok(());
        }
        let write = wqe.op.awaits_response();
        let SendData { list, later, .. } = &mut wqe.data;
        let resolved = list.resolve(&self.table, self.pd, self.qp_num, later, write);
        later.clear();
        resolved.map(drop)
    }
}
