//! Fast path for Sends of the peer that have one segment: places the payload of a verified FPDU and
//! completes the receive.

use crate::mem::WriteTargetCache;
use crate::timers::Timer;
use uwarp_ddp::UNTAGGED_HEADER;

use super::Connection;
use super::framing::Ulpdu;
use crate::completion::CompletionQueue;
use crate::policy::{Heuristic, is_on};

impl<Q: CompletionQueue> Connection<Q> {
    /// Handles a Send of one segment if the QP's own receive queue has a receive that is long
    /// enough.
    ///
    /// Returns false, with no effect, for all other segments, including a Send that is refused or
    /// has to wait. The general path then handles them. Tests send the same messages through both
    /// paths.
    #[inline]
    pub(super) fn try_fast_send(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        targets: &mut WriteTargetCache,
    ) -> bool {
        if !is_on(Heuristic::ReceiveFastPath) {
            return false;
        }
        let Some(stream) = self.stage.open_mut() else {
            return false;
        };
        if stream.inbound.first_awaited || self.timers.is_set(Timer::Receive) {
            return false;
        }
        let Some(head) = ulpdu
            .run(0, UNTAGGED_HEADER)
            .and_then(|run| run.first_chunk::<UNTAGGED_HEADER>())
        else {
            return false;
        };
        let Some(segment) = stream.rdmap.send_segment(head, ulpdu.len()) else {
            return false;
        };
        let Some(payload) = ulpdu.run(UNTAGGED_HEADER, segment.len as usize) else {
            return false;
        };
        if !self.rq.take_for(segment.len) {
            return false;
        }
        #[cfg(test)]
        {
            self.fast_sends += 1;
        }
        targets.leave();
        stream.gate.fpdu_validated();
        stream.rdmap.send_received(segment);
        stream.inbound.shortened_hold = None;
        self.recorder.received_headers(self.now, head, ulpdu.len());
        let placed = self.rq.taken().map(|wqe| wqe.data.place(0, payload));
        if let Some(Ok(())) = placed {
            let immediate = stream.inbound.send_delivered();
            self.complete_receive(segment.len, segment.solicited, None, immediate);
        } else {
            self.receive_buffer_gone(placed.and_then(Result::err));
        }
        true
    }
}
