//! Sends with Immediate Data, which iWARP does not have, between two QPs that are connected by
//! their numbers.
//!
//! ```text
//!   work request          messages (RFC 7306 section 6, RFC 5040 section 5.3)     completion
//!   Send, 4 bytes  ──►    Immediate Data: the 4 bytes, then "SImm"          ──►   of the receive,
//!                         Send: the payload                                       with the 4 bytes
//! ```
//!
//! The Immediate Data comes first, because the receiver of a Send could not know whether to wait
//! for it. It takes no receive of the program: the library has the buffer that each message on
//! queue 0 needs (5041-7.1-06). Nothing is sent between the two messages. A receiver shows the last
//! such data that came before the Send, and forgets it when other Immediate Data comes.
//!
//! Both sides say in the private data of MPA that they take it
//! ([`hello`](crate::hello)). On other connections the marker has no meaning.

use uwarp_ddp::UNTAGGED_HEADER;
use uwarp_rdmap::Opcode;

use super::Connection;
use super::outbound::OutboundHalf;
use super::post::PostErrorKind;
use super::work::{ImmediateData, SendWqe};
use crate::completion::CompletionQueue;
use crate::wr::{SendOp, SendWr};

/// Last bytes of Immediate Data that belongs to the next Send.
const MARKER: [u8; 4] = *b"SImm";

/// Returns the Immediate Data to send before a Send. Its flag for a solicited event is the Send's.
pub(super) fn before_send(of_send: ImmediateData) -> ImmediateData {
    let ([a, b, c, d, ..], [e, f, g, h]) = (of_send.data, MARKER);
    ImmediateData {
        data: [a, b, c, d, e, f, g, h],
        solicited: false,
    }
}

fn is_marked(data: &[u8]) -> bool {
    data.get(4..) == Some(&MARKER)
}

/// Returns true if a segment with this head is Immediate Data that belongs to the next Send.
pub(super) fn is_of_send(head: &[u8]) -> bool {
    Opcode::of_segment(head) == Some(Opcode::Immediate)
        && head.get(UNTAGGED_HEADER..).is_some_and(is_marked)
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Checks the Immediate Data of a request against what the peer takes.
    pub(super) fn check_immediate(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Some(data) = wr.imm else {
            return Ok(());
        };
        let takes = match self.stage.open() {
            Some(stream) => stream.outbound.send_immediate,
            // Not known yet. If the peer takes none, the request fails when its turn comes. A QP
            // that has ended flushes it.
            None => self.pair.is_some() || self.state.flushes(),
        };
        match wr.op {
            SendOp::Send { .. } if !takes => Err(PostErrorKind::NoSendWithImmediate),
            SendOp::Send { .. } if data[4..] != [0; 4] => Err(PostErrorKind::LongImmediate),
            SendOp::Write { .. } | SendOp::Immediate if takes && is_marked(&data) => {
                Err(PostErrorKind::ReservedImmediate)
            }
            _ => Ok(()),
        }
    }

    /// Records that the peer takes Sends with Immediate Data, although no private data says so:
    /// the QP is connected to itself.
    pub fn take_send_immediate(&mut self) {
        if let Some(stream) = self.stage.open_mut() {
            stream.outbound.send_immediate = true;
        }
    }
}

impl OutboundHalf {
    /// Returns true if a request is a Send with Immediate Data and the peer takes none.
    pub(super) fn refuses_immediate(&self, wqe: &SendWqe) -> bool {
        !self.send_immediate && wqe.imm.is_some() && matches!(wqe.op, SendOp::Send { .. })
    }
}
