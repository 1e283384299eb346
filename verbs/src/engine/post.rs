//! Posting work requests.

use super::connection::{Connection, QpContext};
use super::receive_queue::PostRules;
use super::work::{Blamed, ImmediateData, Progress, SendData, SendWqe};
use crate::cause::Cause;
use crate::completion::{Completion, Status, WcOpcode};
use crate::home::Inherited;
use crate::mem::{ATOMIC_LEN, LocalFault, WindowKind};
use crate::qp::state::QpState;
use crate::qp::wr::{RecvWr, SendOp, SendWr, Source};

/// The sizes of a QP's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueCaps {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline: u32,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The send queue holds as many requests as it was made for.
    #[error(
        "the send queue is full: it holds {depth} work requests; poll the send CQ, or create the QP with a larger max_send_wr"
    )]
    SendQueueFull {
        /// Its capacity.
        depth: usize,
    },
    /// The receive queue holds as many requests as it was made for.
    #[error(
        "the receive queue is full: it holds {depth} work requests; poll the receive CQ, or create the QP with a larger max_recv_wr"
    )]
    RecvQueueFull {
        /// Its capacity.
        depth: usize,
    },
    /// The shared receive queue holds as many requests as it was made for.
    #[error(
        "the shared receive queue is full: it holds {depth} receives; poll the receive CQs of its QPs, or give it a larger max_wr with Srq::modify"
    )]
    SrqFull {
        /// Its capacity.
        depth: usize,
    },
    /// The QP has no receive queue of its own.
    #[error(
        "this QP takes its receives from shared receive queue {srq_num}; post them there, with Srq::post_recv"
    )]
    HasSrq {
        /// The SRQ.
        srq_num: u32,
    },
    /// The QP has no connection yet.
    #[error("the QP is in state {state}: connect or accept first")]
    NotConnected {
        /// The state it is in.
        state: QpState,
    },
    /// More scatter/gather elements than the QP was made for.
    #[error("{got} scatter/gather elements, but this QP takes at most {max}")]
    TooManySges {
        /// Elements given.
        got: usize,
        /// Elements allowed.
        max: usize,
    },
    /// A Read with more than one element.
    #[error(
        "an RDMA Read on iWARP has one sink element, not {got}: one Read Request names one sink (RFC 5040 section 5.2)"
    )]
    ReadSges {
        /// Elements given.
        got: usize,
    },
    /// `Qp::bind_mw` of a window that is not of type 1.
    #[error(
        "a memory window of {kind} is bound with a work request (SendWr::bind_window); Qp::bind_mw is for type 1"
    )]
    WindowKind {
        /// Its kind.
        kind: WindowKind,
    },
    /// A Read on a connection that has none.
    #[error(
        "no RDMA Reads were negotiated for this connection (ORD is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoReads,
    /// An atomic operation on a connection that has none.
    #[error(
        "no atomic operations were negotiated for this connection (ORD, which they share with Reads, is 0): connect or accept with an ord above 0, towards a peer whose IRD is above 0"
    )]
    NoAtomics,
    /// The result of an atomic operation has no place.
    #[error(
        "the sink of an atomic operation is one element of 8 octets, for what the peer's memory held before; got {elements} element(s) of {octets} octets"
    )]
    AtomicSink {
        /// Elements given.
        elements: usize,
        /// Octets in all.
        octets: u64,
    },
    /// Immediate Data on a request that cannot have any.
    #[error(
        "{operation} carries no Immediate Data: on iWARP it is a message of its own (RFC 7306 section 6); post SendWr::immediate behind the request, or use write_with_imm"
    )]
    ImmediateUnfit {
        /// What was posted.
        operation: &'static str,
    },
    /// More inline data than the QP was made for.
    #[error("{got} octets of inline data, but this QP takes at most {max}")]
    InlineTooLong {
        /// Octets given.
        got: usize,
        /// Octets allowed.
        max: usize,
    },
    /// The lengths add up to more than a message can carry.
    #[error(
        "the message has {got} octets; a message carries at most 2^32 - 1 (RFC 5041 section 5.2)"
    )]
    MessageTooLong {
        /// Octets in all.
        got: u64,
    },
    /// The QP was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// A scatter/gather element names memory that may not be used so.
    #[error("{0}")]
    Memory(#[from] LocalFault),
}

impl Connection {
    /// Takes one request for the send queue. In a state that flushes it completes at once.
    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if self.state == QpState::Idle {
            return Err(PostErrorKind::NotConnected { state: self.state });
        }
        if self.sq.room() == 0 {
            return Err(PostErrorKind::SendQueueFull {
                depth: self.sq.depth(),
            });
        }
        check_extension(wr)?;
        let mut data = self.sq.take_data();
        let len = match self.resolve_send(wr, &mut data) {
            Ok(len) => len,
            Err(error) => {
                self.sq.give_data(data);
                return Err(error);
            }
        };
        let sink = match wr.source {
            Source::Sges([sge, ..]) => (sge.lkey, sge.addr),
            _ => (0, 0),
        };
        self.sq.push(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            data,
            sink,
            len,
            imm: wr.imm.map(|data| ImmediateData {
                data,
                solicited: wr.solicited,
            }),
            signaled: wr.signaled || self.ctx.signal_all,
            fence: wr.fence,
            progress: if self.state.flushes() {
                Progress::Refused
            } else {
                Progress::Queued
            },
        });
        if self.state.flushes() {
            self.retire();
        }
        Ok(())
    }

    fn resolve_send(&self, wr: &SendWr<'_>, data: &mut SendData) -> Result<u32, PostErrorKind> {
        let caps = &self.ctx.caps;
        let is_request = wr.op.awaits_response();
        match wr.source {
            Source::Inline(octets) => {
                let max = caps.max_inline as usize;
                if octets.len() > max {
                    return Err(PostErrorKind::InlineTooLong {
                        got: octets.len(),
                        max,
                    });
                }
                data.inline.push(octets);
                // At most `max_inline`, which is a `u32`.
                Ok(u32::try_from(octets.len()).unwrap_or(caps.max_inline))
            }
            Source::Sges(sges) => {
                let max = caps.max_send_sge as usize;
                if sges.len() > max {
                    return Err(PostErrorKind::TooManySges {
                        got: sges.len(),
                        max,
                    });
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
                if is_request && sges.len() > 1 {
                    return Err(PostErrorKind::ReadSges { got: sges.len() });
                }
                check_length(sges)?;
                let QpContext {
                    table, pd, qp_num, ..
                } = &*self.ctx;
                // The sink of a Read or atomic needs local write and nothing else; sources need no right at all.
                Ok(data.list.resolve(table, *pd, *qp_num, sges, is_request)?)
            }
        }
    }

    /// Takes one request for the receive queue. In a state that flushes it completes at once.
    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
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
        };
        self.rq.post(wr, rules)?;
        if self.state.flushes() && (self.state != QpState::Closing || self.fin.received) {
            self.flush_receives(None);
        }
        Ok(())
    }

    /// Completes the whole send queue with an error: `blamed` with its own status, the rest as
    /// flushed (5040-6.2.1-02).
    pub(crate) fn flush_sends(&mut self, blamed: Option<Blamed>) {
        let flushed = self.flush_cause();
        let Connection {
            ctx,
            sq,
            events,
            lost,
            ..
        } = self;
        sq.flush(blamed, flushed, ctx.qp_num, |completion| {
            Self::complete_send(ctx, events, lost, completion);
        });
    }

    /// Completes the receives of this QP with an error: the one of the message under way, or else the oldest, with
    /// `first`, the rest as flushed.
    pub(crate) fn flush_receives(&mut self, first: Option<(Status, Cause)>) {
        let flushed = self.flush_cause();
        let Connection {
            ctx,
            rq,
            events,
            lost,
            ..
        } = self;
        rq.flush(first, flushed, ctx.qp_num, |completion| {
            Self::complete_recv(ctx, events, lost, completion);
        });
    }

    /// Completes the receive of the message under way with what was delivered into it.
    pub(crate) fn complete_receive(
        &mut self,
        byte_len: u32,
        solicited: bool,
        invalidated: Option<u32>,
    ) {
        self.complete_receive_with(Completion {
            opcode: WcOpcode::Recv,
            byte_len,
            invalidated,
            solicited,
            ..Completion::default()
        });
    }

    /// Completes the receive at the head with Immediate Data.
    pub(crate) fn complete_immediate(&mut self, data: [u8; 8], solicited: bool) {
        self.complete_receive_with(Completion {
            opcode: WcOpcode::RecvImmediate,
            solicited,
            immediate: Some(data),
            ..Completion::default()
        });
    }

    fn complete_receive_with(&mut self, what: Completion) {
        let qp_num = self.ctx.qp_num;
        let completion = self.rq.complete_taken(|wqe| Completion {
            wr_id: wqe.wr_id,
            qp_num,
            ..what
        });
        if let Some(completion) = completion {
            Self::complete_recv(&self.ctx, &mut self.events, &mut self.lost, completion);
            self.end_on_lost_completion();
        }
    }
}

/// What RFC 7306 asks of a request.
fn check_extension(wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
    let operation = match wr.op {
        SendOp::Write { .. } | SendOp::Immediate => None,
        SendOp::Send { .. } => Some("a Send"),
        SendOp::Read { .. } => Some("an RDMA Read"),
        SendOp::Atomic { .. } => Some("an atomic operation"),
        SendOp::Local(_) => Some("a request of this side alone"),
    };
    if let (Some(_), Some(operation)) = (wr.imm, operation) {
        return Err(PostErrorKind::ImmediateUnfit { operation });
    }
    // Where the peer's memory lies, and so whether it is aligned, the peer alone knows: the TO may be any
    // (7306-5.2.1-01).
    if let (SendOp::Atomic { .. }, Source::Sges(sges)) = (wr.op, wr.source) {
        let octets = sges.iter().map(|sge| u64::from(sge.len)).sum();
        if sges.len() != 1 || octets != u64::from(ATOMIC_LEN) {
            return Err(PostErrorKind::AtomicSink {
                elements: sges.len(),
                octets,
            });
        }
    }
    Ok(())
}

pub(super) fn check_length(sges: &[crate::mem::Sge]) -> Result<(), PostErrorKind> {
    let got: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    if got > u64::from(u32::MAX) {
        return Err(PostErrorKind::MessageTooLong { got });
    }
    Ok(())
}
