//! Writes of the peer: from a verified FPDU to memory.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use uwarp_ddp::{DdpError, TAGGED_HEADER, TaggedFault};
use uwarp_mpa::Ulpdu;
use uwarp_rdmap::{HEAD_LEN, StreamError};

use super::connection::{Connection, Stage};
use crate::mem::{Landing, WriteTargetCache};
use crate::mutants::mutate;

impl Connection {
    /// Takes a segment of a Write about which there is nothing to say: most are. False, and nothing has happened, for
    /// everything else, also for a Write that is refused: the general path finds out why. (A test has both paths take
    /// the same segments.)
    #[inline]
    pub(super) fn plain_write(&mut self, ulpdu: &Ulpdu<'_>, recent: &mut WriteTargetCache) -> bool {
        let Stage::Open(stream) = &mut self.stage else {
            return false;
        };
        if stream.first_awaited {
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
        let asker = self.ctx.asker(self.access);
        let Ok(landing) = recent.check_write(&self.ctx.table, stag, to, len, &asker) else {
            return false;
        };
        stream.gate.fpdu_validated();
        stream.rdmap.write_received(segment);
        self.recorder.received(self.now, head, ulpdu.len());
        self.count_write(len, last);
        self.place_write(landing, recent, ulpdu, TAGGED_HEADER, len);
        true
    }

    /// Counts the bytes of a Write: the completion of Immediate Data behind it tells them.
    #[inline]
    pub(super) fn count_write(&mut self, len: u32, last: bool) {
        let before = match self.written {
            (octets, true) => octets,
            (_, false) => 0,
        };
        let octets = before.saturating_add(len);
        self.written = (octets, !last);
        self.wrote |= last && octets > 0;
    }

    /// A Write of the peer has ended, and no request is outstanding, or none any more: an event, where the program wants that and can be
    /// waiting for nothing else ([`Settings::event_on_write`](crate::Settings::event_on_write)). A program that never posted one is not
    /// waiting for leave to post more.
    #[cold]
    pub(super) fn tell_of_write(&mut self) {
        self.wrote = false;
        let ctx = &*self.ctx;
        if !ctx.settings.event_on_write || !ctx.send_cq.has_channel() || self.sq.posted_to() == 0 {
            return;
        }
        let receives_complete_there = Arc::ptr_eq(ctx.send_cq.cq(), ctx.recv_cq.cq());
        if receives_complete_there && self.rq.next_len().is_some() {
            return;
        }
        // What was placed is in memory before the look at the arming, and who arms looks at memory behind that: one of both sees the
        // other. (A CQ with many QPs is armed without the locks of their connections.)
        fence(Ordering::SeqCst);
        ctx.send_cq.event_without_completion();
    }

    #[inline]
    pub(super) fn place_write(
        &mut self,
        landing: Landing,
        recent: &mut WriteTargetCache,
        ulpdu: &Ulpdu<'_>,
        payload_at: usize,
        len: u32,
    ) {
        let placed = match ulpdu.run(payload_at, len as usize) {
            Some(run) => recent.place(landing, 0, run),
            None => {
                let mut at = 0;
                ulpdu
                    .pieces(payload_at, len as usize)
                    .try_for_each(|piece| {
                        recent.place(landing, at, piece)?;
                        at += piece.len();
                        Ok(())
                    })
            }
        };
        if let Err(fault) = mutate!(placed, BoundsOffByOne => Ok(())) {
            recent.leave();
            self.write_target_gone(fault, ulpdu);
        }
    }

    /// Deregistered between the check and the placement.
    #[cold]
    fn write_target_gone(&mut self, fault: TaggedFault, ulpdu: &Ulpdu<'_>) {
        let error = StreamError::Ddp(DdpError::Tagged(fault));
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        let cause = self.cause_of(error, head, ulpdu.len());
        self.offended(error, cause, Some((head, ulpdu.len())));
    }
}
