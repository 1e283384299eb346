//! Receiver of one queue of Untagged Buffers: checks MSN, MO, and the bounds of the buffer
//! (RFC 5041 sections 5.4 and 7.1).

use core::ops::Range;

use crate::error::UntaggedFault;
use crate::header::UntaggedHeader;
use crate::mutants::mutate;
use crate::types::{Msn, Qn};

/// Tracks the messages that arrive on one queue.
///
/// The LLP delivers segments in order, so at most one message of a queue is in progress. The offset
/// of the next segment is therefore known, and every segment belongs to the buffer at the head of
/// the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedReceiver {
    qn: Qn,
    /// Number of the message in progress or, between messages, of the next one.
    msn: Msn,
    /// Number of bytes of this message that were accepted.
    received: u32,
}

/// Position of the payload of an accepted segment, in the buffer at the head of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedPlacement {
    /// Offset of the first byte in the buffer.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// These are the last bytes of the message. When they are placed, the caller delivers the
    /// message and removes its buffer from the queue.
    pub last: bool,
    /// Length of the message up to the end of this segment. With `last`, it is the length of the
    /// whole message (5041-5.4-02).
    pub message_len: u32,
}

impl UntaggedPlacement {
    /// Returns the position of the payload in the buffer, as a range for slices.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.offset as usize..self.message_len as usize
    }
}

impl UntaggedReceiver {
    /// Creates the receiver of a queue on which nothing was received yet.
    #[must_use]
    pub const fn new(qn: Qn) -> Self {
        UntaggedReceiver {
            qn,
            msn: Msn::FIRST,
            received: 0,
        }
    }

    /// Returns the number of the message in progress or, between messages, of the next one.
    #[must_use]
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// Returns the number of accepted bytes of the message in progress, or 0 between messages.
    #[must_use]
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// Records that the next message arrived completely, in one segment.
    ///
    /// The caller must have made the checks of [`accept`](Self::accept) for this segment.
    #[inline]
    pub fn whole_received(&mut self) {
        self.msn = self.msn.next();
        self.received = 0;
    }

    /// Checks a segment and returns the position of its payload, which has `payload_len` bytes.
    ///
    /// `buffer`: length of the buffer at the head of the queue, which is the one for this message;
    /// `None` if no buffer is posted.
    ///
    /// An empty message needs a buffer too, because it consumes one (5040-5.3-08).
    ///
    /// # Errors
    /// The receiver does not change, and the payload may not be placed (5041-7.1-15). The checks
    /// are made in this order:
    /// * [`UntaggedFault::InvalidQn`]: the segment belongs to another queue.
    /// * [`UntaggedFault::MsnRange`]: the segment belongs to another message.
    /// * [`UntaggedFault::NoBuffer`]: no buffer is posted.
    /// * [`UntaggedFault::InvalidMo`]: the segment does not continue where the previous one ended.
    /// * [`UntaggedFault::MessageTooLong`]: the segment would reach past the end of the buffer.
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
            qn: self.qn,
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
