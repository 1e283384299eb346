//! Posting and flushing of work requests, and completion of receives.

mod error;
mod sges;

pub use error::{PostError, PostErrorKind};

use crate::mem::{ATOMIC_LEN, LocalFault};
use crate::state::QpState;

use super::receive_queue::PostRules;
use super::work::{Blamed, ImmediateData, Progress};
use super::{Connection, QpContext};
use crate::cause::Cause;
use crate::completion::{Completion, CompletionQueue, Status, WcOpcode};
use crate::wr::{self, RecvWr, SendOp, SendWr, Source};

/// Number of bytes counted for a staged Read or atomic, because the peer sends its payload.
pub(crate) const REQUEST_BYTES: u64 = 64;

/// Limits of a QP's queues: work requests, elements per request, and inline data in bytes.
#[derive(Clone, Copy, Debug)]
pub struct QueueCaps {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Receives in the receive queue.
    pub max_recv_wr: u32,
    /// Elements of a send request.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a send request.
    pub max_inline_data: u32,
}

/// Calls `take` for each request of a list in order. Stops at the first refused request, and
/// returns its index in the error.
pub fn each<W>(
    wrs: &[W],
    mut take: impl FnMut(usize, &W) -> Result<(), PostErrorKind>,
) -> Result<(), PostError> {
    let mut numbered = wrs.iter().enumerate();
    numbered.try_for_each(|(index, wr)| take(index, wr).map_err(|kind| PostError { index, kind }))
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Posts one request to the send queue. If the QP is in a state in which requests are flushed,
    /// the request completes as flushed, after those before it.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if self.state == QpState::Idle {
            return Err(PostErrorKind::NotConnected { state: self.state });
        }
        if self.ctx.datagrams.is_some() {
            return self.post_without_destination(wr);
        }
        self.append_send(wr)
    }

    /// Appends a request to the send queue, in any state but Idle.
    #[inline]
    pub(super) fn append_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if !self.sq.find_room_after(0) {
            return Err(PostErrorKind::SendQueueFull {
                depth: self.sq.depth(),
            });
        }
        self.check_form(wr)?;
        let len = self.resolve_send(wr).inspect_err(|_| self.sq.drop_data())?;
        check_remote(wr, len).inspect_err(|_| self.sq.drop_data())?;
        let is_request = wr.op.awaits_response();
        self.sq.count(match is_request {
            true => REQUEST_BYTES,
            false => u64::from(len),
        });
        let wqe = self.sq.append(&wr.op);
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.plain = wr.imm.is_none()
            && !wr.fence
            && matches!(wr.op, SendOp::Write { .. } | SendOp::Send { .. })
            && (!wqe.data.spot.is_empty() || !wqe.data.inline.is_empty());
        wqe.len = len;
        wqe.imm = wr.imm.map(|data| ImmediateData {
            data,
            solicited: wr.solicited,
        });
        wqe.signaled = wr.signaled || self.ctx.signal_all;
        wqe.fence = wr.fence;
        wqe.invalidate_sink = wr.invalidate_sink;
        wqe.progress = Progress::Queued;
        if self.state.flushes() {
            wqe.progress = Progress::Refused;
            self.retire();
        } else if self.state == QpState::Connecting {
            self.posted_without_stream(!matches!(wr.op, SendOp::Local(_)));
        }
        Ok(())
    }

    /// Stores the payload of a request in the next place of the send queue. Returns its length in
    /// bytes.
    #[inline]
    fn resolve_send(&mut self, wr: &SendWr<'_>) -> Result<u32, PostErrorKind> {
        let caps = &self.ctx.caps;
        let is_request = wr.op.awaits_response();
        match wr.source {
            Source::Inline(bytes) => {
                let max = caps.max_inline_data as usize;
                if bytes.len() > max {
                    return Err(PostErrorKind::InlineTooLong {
                        got: bytes.len(),
                        max,
                    });
                }
                // At most `max_inline_data`, which is a `u32`.
                let len = u32::try_from(bytes.len()).unwrap_or(caps.max_inline_data);
                self.sq.next_data().inline.push(bytes);
                Ok(len)
            }
            // The common case: one element of a Write or Send. Other requests need the checks
            // below.
            Source::Sges([sge])
                if !is_request
                    && sge.len > 0
                    && caps.max_send_sge > 0
                    && !self.is_for_later(sge) =>
            {
                let QpContext {
                    table, pd, qp_num, ..
                } = &*self.ctx;
                match self.sq.resolve_spot(table, (*pd, *qp_num), sge) {
                    Ok(()) => Ok(sge.len),
                    Err(kind) => self.defer_or_fail(wr, LocalFault { index: 0, kind }),
                }
            }
            Source::Sges(sges) => {
                let max = caps.max_send_sge as usize;
                if sges.len() > max {
                    return Err(PostErrorKind::TooManySges {
                        got: sges.len(),
                        max,
                    });
                }
                if is_request && self.ctx.unreliable {
                    return Err(PostErrorKind::Unreliable);
                }
                if is_request
                    && self
                        .negotiated
                        .as_ref()
                        .is_some_and(|negotiated| negotiated.ord == 0)
                {
                    return Err(if matches!(wr.op, SendOp::Read { .. }) {
                        PostErrorKind::NoReads
                    } else {
                        PostErrorKind::NoAtomics
                    });
                }
                check_length(sges)?;
                self.resolve_sges(sges, is_request)
                    .or_else(|fault| self.defer_or_fail(wr, fault))
            }
        }
    }

    /// Checks whether a request would be accepted after `before` other requests, without posting
    /// it.
    pub fn check_send(&mut self, wr: &SendWr<'_>, before: usize) -> Result<(), PostErrorKind> {
        if self.state == QpState::Idle {
            return Err(PostErrorKind::NotConnected { state: self.state });
        }
        if self.ctx.datagrams.is_some() {
            self.check_without_destination()?;
        }
        self.check_request(wr, before)
    }

    /// Does [`check_send`](Self::check_send) for a QP that takes requests of this kind.
    pub(super) fn check_request(
        &mut self,
        wr: &SendWr<'_>,
        before: usize,
    ) -> Result<(), PostErrorKind> {
        if !self.sq.find_room_after(before) {
            return Err(PostErrorKind::SendQueueFull {
                depth: self.sq.depth(),
            });
        }
        self.check_form(wr)?;
        let resolved = self.resolve_send(wr);
        self.sq.drop_data();
        check_remote(wr, resolved?)
    }

    /// Handles a request with unusable elements. With `late_faults` it is accepted, and fails when
    /// its turn comes. Otherwise the post fails.
    #[cold]
    fn defer_or_fail(&mut self, wr: &SendWr<'_>, fault: LocalFault) -> Result<u32, PostErrorKind> {
        let Source::Sges(sges) = wr.source else {
            return Err(fault.into());
        };
        let len = sges
            .iter()
            .try_fold(0_u32, |sum, sge| sum.checked_add(sge.len));
        match len {
            Some(len) if self.ctx.late_faults => {
                // Drops the elements that were resolved before the fault.
                self.sq.drop_data();
                self.sq.next_data().later.extend_from_slice(sges);
                Ok(len)
            }
            _ => Err(fault.into()),
        }
    }

    /// Posts one request to the receive queue. If the state of the QP flushes receives, the request
    /// completes at once.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        let QpContext {
            table,
            pd,
            qp_num,
            caps,
            ..
        } = &*self.ctx;
        let rules = PostRules {
            table,
            pd: *pd,
            qp_num: *qp_num,
            max_sge: caps.max_recv_sge,
            late: self.ctx.late_faults,
        };
        self.rq.post(wr, rules)?;
        if self.state.flushes() && (self.state != QpState::Closing || self.fin.received) {
            self.flush_receives(None);
        }
        Ok(())
    }

    /// Checks Immediate Data, sinks to invalidate and atomics, which most requests do not have.
    #[inline]
    fn check_form(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if wr.imm.is_none() && !wr.invalidate_sink && !matches!(wr.op, SendOp::Atomic { .. }) {
            return Ok(());
        }
        check_extras(wr)?;
        self.check_immediate(wr)
    }

    /// Completes the whole send queue.
    ///
    /// Requests at its front that are already done succeed, such as a Read whose Response arrived
    /// just before the error. Of the others, `blamed` gets its own status, and the rest are flushed
    /// (5040-6.2.1-02).
    pub fn flush_sends(&mut self, blamed: Option<Blamed>) {
        let flushed = self.flush_cause();
        let Connection {
            ctx,
            sq,
            events,
            lost,
            tx,
            discards,
            ..
        } = self;
        let mut cq = ctx.send_cq.pushing();
        let mut complete = |completion, places| match discards {
            true => ctx.send_cq.freed().add(places),
            false => Self::complete_send(ctx, &mut cq, events, lost, completion, places),
        };
        sq.retire(tx.taken_to(), ctx.qp_num, || flushed, &mut complete);
        sq.flush(blamed, flushed, ctx.qp_num, complete);
    }

    /// Completes the receives of this QP with an error.
    ///
    /// The receive of the current message, or else the oldest one, gets `first`; the rest are
    /// flushed.
    pub fn flush_receives(&mut self, first: Option<(Status, Cause)>) {
        let flushed = self.flush_cause();
        let Connection {
            ctx,
            rq,
            events,
            lost,
            discards,
            ..
        } = self;
        rq.flush(first, flushed, ctx.qp_num, |completion| match discards {
            true => ctx.recv_cq.freed().add(1),
            false => Self::complete_recv(ctx, events, lost, completion),
        });
    }

    /// Completes the receive of the current message, which was delivered. `immediate`: Immediate
    /// Data that came for it.
    pub(crate) fn complete_receive(
        &mut self,
        byte_len: u32,
        solicited: bool,
        invalidated: Option<u32>,
        immediate: Option<[u8; 4]>,
    ) {
        self.complete_receive_with(|wr_id, qp_num| Completion {
            wr_id,
            opcode: WcOpcode::Recv,
            immediate: immediate.map(wr::send_immediate),
            byte_len,
            qp_num,
            invalidated,
            solicited,
            ..Completion::default()
        });
    }

    /// Completes the receive of the current message, which is Immediate Data.
    ///
    /// `written`: length of the Write that it follows, or 0.
    pub(crate) fn complete_immediate(&mut self, data: [u8; 8], solicited: bool, written: u32) {
        self.complete_receive_with(|wr_id, qp_num| Completion {
            wr_id,
            opcode: WcOpcode::RecvImmediate,
            qp_num,
            written,
            solicited,
            immediate: Some(data),
            ..Completion::default()
        });
    }

    /// Completes the receive of the current message. `make` builds the completion from the `wr_id`
    /// and the QP number.
    #[inline(always)]
    pub(super) fn complete_receive_with(&mut self, make: impl FnOnce(u64, u32) -> Completion) {
        let Connection {
            ctx,
            rq,
            events,
            lost,
            ..
        } = self;
        let completed = rq.complete_taken(|wr_id| {
            let completion = make(wr_id, ctx.qp_num);
            Self::complete_recv(ctx, events, lost, completion);
        });
        if completed {
            self.end_on_lost_completion();
        }
    }
}

/// Checks that a request of `len` bytes stays within the remote buffer that it names.
#[inline]
fn check_remote(wr: &SendWr<'_>, len: u32) -> Result<(), PostErrorKind> {
    if u64::from(len) <= wr.remote_len {
        return Ok(());
    }
    Err(PostErrorKind::BeyondRemote {
        got: len,
        room: wr.remote_len,
    })
}

/// Performs the checks of [`Connection::check_form`] for a request that needs them (RFC 7306).
fn check_extras(wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
    let (operation, takes_immediate) = match wr.op {
        SendOp::Write { .. } => ("an RDMA Write", true),
        SendOp::Immediate => ("Immediate Data", true),
        SendOp::Send { invalidate, .. } => match invalidate {
            None => ("a Send", true),
            Some(_) => ("a Send with Invalidate", false),
        },
        SendOp::Read { .. } => ("an RDMA Read", false),
        SendOp::Atomic { .. } => ("an atomic operation", false),
        SendOp::Local(_) => ("a local request", false),
    };
    if wr.imm.is_some() && !takes_immediate {
        return Err(PostErrorKind::ImmediateUnfit { operation });
    }
    if wr.invalidate_sink {
        let operation = match (wr.op, wr.source) {
            (SendOp::Read { .. }, Source::Sges(sges)) => {
                let mut sinks = sges.iter().filter(|sge| sge.len > 0).map(|sge| sge.lkey);
                match sinks.next() {
                    None => Some("an empty RDMA Read"),
                    Some(lkey) if sinks.any(|other| other != lkey) => {
                        Some("an RDMA Read into elements with different lkeys")
                    }
                    Some(_) => None,
                }
            }
            _ => Some(operation),
        };
        if let Some(operation) = operation {
            return Err(PostErrorKind::NoSinkToInvalidate { operation });
        }
    }
    // The alignment of the remote word is not checked: only the peer knows the address of its
    // memory, and the TO may have any value (7306-5.2.1-01).
    if let (SendOp::Atomic { .. }, Source::Sges(sges)) = (wr.op, wr.source) {
        let bytes = sges.iter().map(|sge| u64::from(sge.len)).sum();
        if sges.len() != 1 || bytes != u64::from(ATOMIC_LEN) {
            return Err(PostErrorKind::AtomicSink {
                elements: sges.len(),
                bytes,
            });
        }
    }
    Ok(())
}

/// Returns the sum of the lengths in bytes. Fails if it exceeds the maximum length of a message.
pub(super) fn check_length(sges: &[crate::mem::Sge]) -> Result<u32, PostErrorKind> {
    let got: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    u32::try_from(got).map_err(|_| PostErrorKind::MessageTooLong { got })
}
