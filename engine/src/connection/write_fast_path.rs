//! Fast path for Writes of the peer: places the payload of a verified FPDU in memory.

use std::sync::atomic::{Ordering, fence};

use crate::mem::{Landing, PlaceFault, WriteTargetCache};
use uwarp_ddp::{Header, STag, TAGGED_HEADER, TaggedOffset};
use uwarp_rdmap::{AccessError, HEAD_LEN, Opcode, StreamError};

use super::Connection;
use super::framing::Ulpdu;
use crate::cause::{LocalProblem, Unmapped};
use crate::completion::CompletionQueue;
use crate::mutants::mutate;
use crate::policy::{Heuristic, is_on};

impl<Q: CompletionQueue> Connection<Q> {
    /// Handles a segment of a Write that passes all checks, as most do.
    ///
    /// Returns false, with no effect, for all other segments, including a Write that is refused.
    /// The general path then handles them. A test sends the same segments through both paths.
    #[inline]
    pub(super) fn try_fast_write(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        targets: &mut WriteTargetCache,
    ) -> bool {
        if !is_on(Heuristic::WriteFastPath) {
            return false;
        }
        let Some(stream) = self.stage.open_mut() else {
            return false;
        };
        if stream.inbound.first_awaited {
            return false;
        }
        let Some(head) = ulpdu
            .run(0, TAGGED_HEADER)
            .and_then(|run| run.first_chunk())
        else {
            return false;
        };
        let Some(segment) = stream.rdmap.write_segment(head, ulpdu.len()) else {
            return false;
        };
        let (stag, to, len, last) = (segment.stag, segment.to.0, segment.len, segment.last);
        let asker = self.ctx.asker(self.attr.access);
        let Ok(landing) = targets.check_write(&self.ctx.table, stag, to, len, &asker) else {
            return false;
        };
        stream.gate.fpdu_validated();
        stream.rdmap.write_received(segment);
        stream.inbound.count_write(len, last);
        self.recorder.received(self.now, head, ulpdu.len());
        self.place_write(landing, targets, ulpdu, TAGGED_HEADER, len);
        true
    }

    /// Reports a completed Write of the peer to the program, once no request of this side is
    /// outstanding. Until then, the completion of the request is the report.
    #[inline]
    pub(super) fn report_write(&mut self) {
        if let Some(stream) = self.stage.open_mut()
            && stream.inbound.unreported_write
            && self.sq.is_empty()
        {
            stream.inbound.unreported_write = false;
            self.raise_write_event();
        }
    }

    /// Raises an event on the send CQ for a completed Write of the peer, if the program may wait
    /// for it. No request is outstanding.
    ///
    /// The program must have enabled such events
    /// (`Settings::event_on_write`), and no posted receive may
    /// complete on that CQ. A program that never posted a request gets no event, because it is not
    /// waiting to post more.
    #[cold]
    fn raise_write_event(&mut self) {
        let ctx = &*self.ctx;
        if !ctx.settings.event_on_write || !ctx.send_cq.has_channel() || self.sq.posted_to() == 0 {
            return;
        }
        let receives_complete_there = ctx.send_cq.is_same(&ctx.recv_cq);
        if receives_complete_there && self.rq.next_len().is_some() {
            return;
        }
        // This thread has placed the bytes and now reads whether the CQ is armed. The program arms
        // the CQ and then reads memory. The fence ensures that at least one of the two threads sees
        // the other's change. (A CQ with many QPs is armed without the locks of their connections.)
        fence(Ordering::SeqCst);
        ctx.send_cq.event_without_completion();
    }

    #[inline]
    pub(super) fn place_write(
        &mut self,
        landing: Landing,
        targets: &mut WriteTargetCache,
        ulpdu: &Ulpdu<'_>,
        payload_at: usize,
        len: u32,
    ) {
        let placed = match ulpdu.run(payload_at, len as usize) {
            Some(run) => targets.place(landing, 0, run),
            None => {
                let mut at = 0;
                ulpdu
                    .pieces(payload_at, len as usize)
                    .try_for_each(|piece| {
                        targets.place(landing, at, piece)?;
                        at += piece.len();
                        Ok(())
                    })
            }
        };
        if let Err(fault) = mutate!(placed, BoundsOffByOne => Ok(())) {
            targets.leave();
            self.write_target_gone(fault, ulpdu);
        }
    }

    /// Ends the connection, because the target of a Write was deregistered or unmapped between the
    /// check and the placement.
    ///
    /// If it was unmapped, the STag and the bounds of the Write are valid, so no protection error
    /// of DDP or RDMAP is true. The error is of this host alone: a local catastrophic error
    /// (5040-4.8-i01).
    #[cold]
    fn write_target_gone(&mut self, fault: PlaceFault, ulpdu: &Ulpdu<'_>) {
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        // The header is read again, so that the path of Writes that succeed need not keep it.
        let (stag, to) = match Header::parse(head) {
            Ok((Header::Tagged(header), _)) => (header.stag, header.to),
            _ => (STag(0), TaggedOffset(0)),
        };
        let fault = match fault {
            PlaceFault::Tagged(fault) => fault,
            PlaceFault::Unmapped => {
                let (stag, by) = (stag.0, Unmapped::Write);
                return self.fail_locally(None, None, LocalProblem::Unmapped { stag, by });
            }
        };
        let error = StreamError::Access(AccessError {
            opcode: Opcode::Write,
            fault,
            stag,
            to,
            len: u32::try_from(ulpdu.len() - TAGGED_HEADER).unwrap_or(u32::MAX),
        });
        let cause = self.cause_of(error);
        self.end_in_violation(error, cause, Some((head, ulpdu.len())));
    }
}
