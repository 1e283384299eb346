//! The receiving end of one queue of Untagged Buffers: MSN, MO, and the buffer's bounds
//! (RFC 5041 sections 5.4 and 7.1).

use core::ops::Range;

use crate::error::UntaggedFault;
use crate::header::UntaggedHeader;
use crate::mutants::mutate;
use crate::types::{Msn, Qn};

/// Follows the messages of one queue, one after the other.
///
/// With an LLP that keeps order there is one message under way at most, the next octet is known, and
/// the only buffer that can be meant is the one at the head of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedReceiver {
    qn: Qn,
    /// The message under way, or the next one.
    msn: Msn,
    /// Octets of it that were accepted.
    received: u32,
}

/// Where the payload of an accepted segment goes, in the buffer at the head of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedPlacement {
    /// Offset of the first octet in the buffer.
    pub offset: u32,
    /// Octets.
    pub len: u32,
    /// With these octets placed, the message is complete: deliver it, and take its buffer off the
    /// queue.
    pub last: bool,
    /// Octets of the message so far; of the whole message when `last` (5041-5.4-02).
    pub message_len: u32,
}

impl UntaggedPlacement {
    /// The octets of the buffer, as a range for slices.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.offset as usize..self.message_len as usize
    }
}

impl UntaggedReceiver {
    /// A queue on which nothing was received yet.
    #[must_use]
    pub const fn new(qn: Qn) -> Self {
        UntaggedReceiver {
            qn,
            msn: Msn::FIRST,
            received: 0,
        }
    }

    /// The message under way, or the next one.
    #[must_use]
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// Octets that were accepted of the message under way; 0 between messages.
    #[must_use]
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// The next message has come, whole and in one segment: what [`accept`](Self::accept) does with a segment that the caller has judged
    /// as that would.
    #[inline]
    pub fn whole_received(&mut self) {
        self.msn = self.msn.next();
        self.received = 0;
    }

    /// Judges a segment with `payload_len` octets of payload. `buffer` has the octets of the buffer
    /// at the head of the queue, which is the one for this message; `None` if none is posted.
    ///
    /// A message of no octets needs a buffer, too: it consumes one (5040-5.3-08).
    ///
    /// # Errors
    /// Nothing changes, and nothing may be placed (5041-7.1-15). In this order:
    /// * [`UntaggedFault::InvalidQn`]: the segment belongs to another queue.
    /// * [`UntaggedFault::MsnRange`]: it belongs to another message.
    /// * [`UntaggedFault::NoBuffer`]: none is posted.
    /// * [`UntaggedFault::InvalidMo`]: it does not continue where the last one ended.
    /// * [`UntaggedFault::MessageTooLong`]: it would go beyond the end of the buffer.
    pub fn accept(
        &mut self,
        header: &UntaggedHeader,
        payload_len: u32,
        buffer: Option<u32>,
    ) -> Result<UntaggedPlacement, UntaggedFault> {
        let other = mutate!(header.qn != self.qn, QnNotChecked => false);
        if mutate!(other, SendOnQueue1 => false) {
            return Err(UntaggedFault::InvalidQn(header.qn)); // 5041-7.1-01
        }
        if mutate!(header.msn != self.msn, MsnNotChecked => false) {
            return Err(UntaggedFault::MsnRange {
                expected: self.msn,
                got: header.msn,
            }); // 5041-7.1-05
        }
        let Some(buffer) = mutate!(buffer, NoReceiveNeeded => buffer.or(Some(u32::MAX))) else {
            return Err(UntaggedFault::NoBuffer {
                qn: self.qn,
                msn: self.msn,
            }); // 5041-7.1-02
        };
        if mutate!(header.mo != self.received, MoNotChecked => false) {
            return Err(UntaggedFault::InvalidMo {
                expected: self.received,
                got: header.mo,
            }); // 5041-7.1-03
        }
        let too_long = UntaggedFault::MessageTooLong {
            end: u64::from(self.received) + u64::from(payload_len),
            buffer,
        };
        let end = self
            .received
            .checked_add(payload_len)
            .filter(|end| mutate!(*end <= buffer, TooLongTruncated => true))
            .ok_or(too_long)?; // 5041-7.1-04
        let last = mutate!(header.last, DeliveredWithoutLast => true);
        let placement = UntaggedPlacement {
            offset: self.received,
            len: payload_len,
            last,
            message_len: end, // 5041-5.4-i01
        };
        if last {
            self.msn = self.msn.next();
            self.received = 0;
        } else {
            self.received = end;
        }
        Ok(placement)
    }
}

#[cfg(test)]
mod tests;
