//! Fast path for small Writes and Sends, framed one after the other.
//!
//! Most messages fit one segment, and many are posted together. The general path in `outbound.rs`
//! makes its checks for each segment; the fast path makes them once for a series of requests. It
//! also keeps no state of a message, because each has a single segment. The bytes on the wire are
//! the same: a test frames the same requests on both paths.

use crate::mem::Sources;
use crate::state::QpState;
use crate::timers::Timer;
use uwarp_ddp::{STag, TAGGED_HEADER, TaggedOffset, UNTAGGED_HEADER};
use uwarp_rdmap::SendKind;

use super::framing::Framing;
use super::outbound::OutboundHalf;
use super::transmit::TxBatch;
use super::work::SendWqe;
use super::{Connection, OpenStream, Stage};
use crate::completion::CompletionQueue;
use crate::policy::transfer::IN_PLACE_BYTES;
use crate::policy::{Heuristic, is_on};
use crate::wr::SendOp;

impl<Q: CompletionQueue> Connection<Q> {
    /// Frames the plain requests that are next in the queue, while the batch has room.
    ///
    /// Returns false if it framed none: the next request is not plain, nothing may be framed now,
    /// or another message comes first. The general path then decides.
    pub(super) fn frame_plain(&mut self) -> bool {
        if !is_on(Heuristic::SendFastPath) {
            return false;
        }
        let Connection {
            state,
            timers,
            stage: Stage::Open(stream),
            sq,
            tx,
            recorder,
            now,
            ..
        } = self
        else {
            return false;
        };
        let OpenStream {
            outbound:
                OutboundHalf {
                    framing,
                    current,
                    answered_last,
                    ..
                },
            rdmap,
            gate,
            close,
            ..
        } = &mut **stream;
        let may = matches!(state, QpState::Rts | QpState::Closing)
            && gate.may_send() // 5044-7.1.2-15
            && !timers.is_set(Timer::Hold)
            && current.is_none()
            && !rdmap.requests_pending();
        let Some(mulpdu) = framing.whole_mulpdu().filter(|_| may) else {
            return false;
        };
        // Each message must fit one segment and be small enough to be staged.
        let most = mulpdu.saturating_sub(UNTAGGED_HEADER);
        let most = u32::try_from(most.min(IN_PLACE_BYTES - 1)).unwrap_or(0);
        let framed = sq.frame_plain(most, |wqe, sources| {
            if !tx.has_room() {
                return None;
            }
            match wqe.op {
                SendOp::Write { rkey, remote_addr } => {
                    let head: [u8; TAGGED_HEADER] =
                        rdmap.whole_write(STag(rkey), TaggedOffset(remote_addr))?;
                    let end = frame(framing, tx, &head, wqe, sources)?;
                    recorder.sent_headers(*now, &head, head.len() + wqe.len as usize, end);
                    Some(end)
                }
                SendOp::Send {
                    solicited,
                    invalidate,
                } => {
                    let invalidate = invalidate.map(STag);
                    let head: [u8; UNTAGGED_HEADER] = rdmap.whole_send(SendKind {
                        solicited,
                        invalidate,
                    })?;
                    let end = frame(framing, tx, &head, wqe, sources)?;
                    rdmap.whole_send_framed();
                    recorder.sent_headers(*now, &head, head.len() + wqe.len as usize, end);
                    Some(end)
                }
                SendOp::Read { .. }
                | SendOp::Atomic { .. }
                | SendOp::Immediate
                | SendOp::Local(_) => None,
            }
        });
        *answered_last &= !framed;
        if framed && let Some(close) = close {
            close.waits_for(tx.framed_to());
        }
        framed
    }
}

/// Stages the FPDU of a request and returns the stream offset at which it ends.
///
/// Returns `None`, with no effect, if its memory was revoked or unmapped.
#[inline]
fn frame<const N: usize>(
    framing: &mut Framing,
    tx: &mut TxBatch,
    head: &[u8; N],
    wqe: &SendWqe,
    sources: &mut Sources<'_>,
) -> Option<u64> {
    let len = wqe.len as usize;
    if wqe.data.spot.is_empty() {
        framing.stage_whole(tx, head, wqe.data.inline.as_slice(), len)?;
    } else {
        framing.stage_whole(tx, head, sources.source(wqe.data.spot)?, len)?;
    }
    tx.end_of_fpdu();
    Some(tx.framed_to())
}
