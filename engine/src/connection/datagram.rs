//! A QP for datagrams: it has no stream, and each Send and each receive is complete at once.
//!
//! The state of the QP is `Rts` from [`Connection::open_datagrams`] on.

use crate::datagram::{GRH, Header};
use crate::mem::{LocalFaultKind, MemorySource, PinnedRegions};
use crate::state::{QpEvent, QpState};

use super::Connection;
use super::post::PostErrorKind;
use super::work::{Progress, SendWqe};
use crate::cause::{Cause, LocalProblem, Unmapped};
use crate::completion::DatagramSource;
use crate::completion::{Completion, CompletionQueue, Status, WcOpcode};
use crate::event::EndReason;
use crate::wr::{self, SendOp, SendWr, Source};

impl<Q: CompletionQueue> Connection<Q> {
    /// Makes the QP receive and send datagrams. Returns false if it is not for datagrams, or not
    /// idle.
    pub fn open_datagrams(&mut self) -> bool {
        if self.ctx.datagrams.is_none() || self.state != QpState::Idle {
            return false;
        }
        self.event(QpEvent::Attach);
        self.event(QpEvent::Established)
    }

    /// Posts a Send, and completes it. Appends its payload to `out`, and returns true if the
    /// datagram is to be sent.
    pub fn post_datagram(
        &mut self,
        wr: &SendWr<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, PostErrorKind> {
        let unfit = self.check_kind(wr)?;
        self.append_send(wr)?;
        let Some((sequence, _)) = self.sq.next_to_send() else {
            // The state of the QP flushes the request.
            return Ok(false);
        };
        if let Some((status, problem)) = unfit {
            self.fail_without_stream(sequence, status, problem);
            return Ok(false);
        }
        match self.copy_payload(sequence, out) {
            Ok(()) => {
                self.sq.framed(Progress::Answered);
                self.retire();
                Ok(true)
            }
            Err(problem) => {
                self.fail_without_stream(sequence, Status::LocalProtection, problem);
                Ok(false)
            }
        }
    }

    /// Handles a request that is posted without a destination. With late faults it is accepted, and
    /// fails. Otherwise it is refused.
    #[cold]
    pub(super) fn post_without_destination(
        &mut self,
        wr: &SendWr<'_>,
    ) -> Result<(), PostErrorKind> {
        self.check_without_destination()?;
        self.append_send(wr)?;
        if let Some((sequence, _)) = self.sq.next_to_send() {
            let problem = LocalProblem::NotADatagram;
            self.fail_without_stream(sequence, Status::LocalQpOperation, problem);
        }
        Ok(())
    }

    /// Checks whether a request without a destination is accepted.
    pub(super) fn check_without_destination(&self) -> Result<(), PostErrorKind> {
        match self.ctx.late_faults {
            true => Ok(()),
            false => Err(PostErrorKind::NoDestination),
        }
    }

    /// Checks whether a Send would be accepted after `before` other ones, without posting it.
    pub fn check_datagram(&mut self, wr: &SendWr<'_>, before: usize) -> Result<(), PostErrorKind> {
        self.check_kind(wr)?;
        self.check_request(wr, before)
    }

    /// Checks that the QP sends datagrams now, and that the request is one. With late faults,
    /// returns how the request fails instead.
    fn check_kind(&self, wr: &SendWr<'_>) -> Result<Option<(Status, LocalProblem)>, PostErrorKind> {
        let Some(max) = self.ctx.datagrams else {
            return Err(PostErrorKind::NotForDatagrams);
        };
        if self.state == QpState::Idle {
            return Err(PostErrorKind::NotConnected { state: self.state });
        }
        let plain = matches!(
            wr.op,
            SendOp::Send {
                invalidate: None,
                ..
            }
        );
        let late = self.ctx.late_faults;
        if !plain || wr.imm.is_some() {
            return match late {
                true => Ok(Some((Status::LocalQpOperation, LocalProblem::NotADatagram))),
                false => Err(PostErrorKind::NotADatagram),
            };
        }
        let got = match wr.source {
            Source::Inline(bytes) => bytes.len() as u64,
            Source::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
        };
        if got <= u64::from(max) {
            return Ok(None);
        }
        match late {
            true => Ok(Some((
                Status::LocalLength,
                LocalProblem::DatagramTooLong { max },
            ))),
            false => Err(PostErrorKind::DatagramTooLong { got, max }),
        }
    }

    /// Appends the payload of a request to `out`.
    fn copy_payload(&self, sequence: u64, out: &mut Vec<u8>) -> Result<(), LocalProblem> {
        let Some(wqe) = self.sq.get(sequence) else {
            return Ok(());
        };
        if let Some(sge) = wqe.data.later.first() {
            // The only memory that is left for later is unusable: a QP for datagrams has no
            // requests that register memory.
            let (index, stag) = (0, sge.lkey);
            let kind = LocalFaultKind::InvalidKey { lkey: stag };
            let fault = self.ctx.late_fault(wqe);
            let fault = fault.unwrap_or(crate::mem::LocalFault { index, kind });
            return Err(LocalProblem::Element(fault));
        }
        let from = out.len();
        out.resize(from + wqe.len as usize, 0);
        let room = out.get_mut(from..).unwrap_or_default();
        copy(wqe, &self.sq.pinned, room)
    }

    /// Places a datagram into the next receive, and completes it. Returns the reason why the
    /// datagram is dropped.
    pub fn receive_datagram(
        &mut self,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), &'static str> {
        if self.ctx.datagrams.is_none() || self.state != QpState::Rts || self.rq.has_left() {
            return Err("the queue pair receives none");
        }
        if header.qkey != self.attr.qkey {
            return Err("it has another Q_Key");
        }
        let Some(source) = DatagramSource::of(header) else {
            return Err("its source is no queue pair");
        };
        let len = GRH + payload.len();
        // Checked before it is taken, because the receive may be that of an SRQ.
        if self.rq.next_len().is_some_and(|room| (room as usize) < len) {
            return Err("the receive is too short");
        }
        if !self.rq.take(false, &mut self.events) {
            return Err("no receive is posted");
        }
        let Some(wqe) = self.rq.taken() else {
            return Err("no receive is posted");
        };
        if (wqe.len as usize) < len {
            // Another QP took the receive that was checked. This one stays for the next datagram.
            return Err("the receive is too short");
        }
        let placed = (wqe.data.place(0, &header.grh(payload.len())))
            .and_then(|()| wqe.data.place(GRH, payload));
        if let Err(fault) = placed {
            self.datagram_receive_gone(fault.kind);
            return Err("the memory of the receive is gone");
        }
        let immediate = header.immediate.map(wr::send_immediate);
        // At most the length of the receive, which is a `u32`.
        let byte_len = u32::try_from(len).unwrap_or(u32::MAX);
        self.complete_receive_with(|wr_id, qp_num| Completion {
            wr_id,
            opcode: WcOpcode::Recv,
            byte_len,
            qp_num,
            solicited: header.solicited,
            immediate,
            datagram: Some(source),
            ..Completion::default()
        });
        Ok(())
    }

    /// Ends the QP, because the receive of a datagram has no usable memory.
    #[cold]
    fn datagram_receive_gone(&mut self, found: LocalFaultKind) {
        let fault = self.rq.taken().and_then(|wqe| wqe.fault.as_deref());
        let problem = match (fault, found) {
            (Some(fault), _) => LocalProblem::Element(*fault),
            (None, LocalFaultKind::Unmapped { lkey: stag }) => LocalProblem::Unmapped {
                stag,
                by: Unmapped::Receive,
            },
            (None, _) => LocalProblem::ReceiveGone,
        };
        let cause = Cause::local(problem);
        self.end(EndReason::LocalError { cause });
        self.flush_receives(Some((Status::LocalProtection, cause)));
        self.detach(QpEvent::LlpLost);
    }
}

/// Copies the payload of a request.
fn copy(wqe: &SendWqe, pinned: &PinnedRegions, out: &mut [u8]) -> Result<(), LocalProblem> {
    fn all<P: MemorySource>(payload: &P, out: &mut [u8]) -> Result<(), LocalProblem> {
        payload.copy(0, out, None);
        payload.unmapped().map_or(Ok(()), |stag| {
            let by = Unmapped::Payload;
            Err(LocalProblem::Unmapped { stag: stag.0, by })
        })
    }
    let data = &wqe.data;
    if !data.inline.is_empty() {
        out.copy_from_slice(data.inline.as_slice());
        return Ok(());
    }
    if !data.spot.is_empty() {
        let source = pinned.source(data.spot);
        return all(&source.ok_or(LocalProblem::PayloadGone)?, out);
    }
    let source = data.list.source(0, out.len());
    all(&source.map_err(|_| LocalProblem::PayloadGone)?, out)
}
