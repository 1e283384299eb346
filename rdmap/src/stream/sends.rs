//! Fast path for received Sends of one segment, the most frequent messages on queue 0.

use uwarp_ddp::{DDP_VERSION, Msn, UNTAGGED_HEADER};

use super::Stream;
use crate::opcode::{Opcode, QN_SEND, RDMAP_VERSION};

/// A Send that consists of one segment, as [`Stream::send_segment`] reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendSegment {
    /// Length of the payload in bytes: everything after the header, at least one byte.
    pub len: u32,
    /// True if the peer requests a solicited event.
    pub solicited: bool,
}

impl Stream {
    /// Reads a ULPDU of `len` bytes that starts with `head`. Returns the segment if it is the only
    /// one of the next Send and may be received now. The segment must have payload, no STag to
    /// invalidate and no reserved bit set. The stream does not change.
    ///
    /// If the receive at the head of the queue has room for the payload, the caller places the
    /// payload there and calls [`send_received`](Self::send_received). The effect is the same as
    /// that of [`receive`](Self::receive), but takes less time. Pass every other ULPDU to
    /// `receive`: those for which this returns `None`, and Sends for which the receive is too
    /// short.
    #[inline]
    #[must_use]
    pub fn send_segment(&self, head: &[u8; UNTAGGED_HEADER], len: usize) -> Option<SendSegment> {
        /// The L bit is set, the T bit is not, and DV is 1.
        const WHOLE: u8 = 0x40 | DDP_VERSION;
        const SEND: u8 = RDMAP_VERSION << 6 | Opcode::Send as u8;
        const SOLICITED: u8 = RDMAP_VERSION << 6 | Opcode::SendSolicited as u8;
        let [
            control,
            ulp,
            _,
            _,
            _,
            _,
            q0,
            q1,
            q2,
            q3,
            m0,
            m1,
            m2,
            m3,
            mo @ ..,
        ] = *head;
        let len = u32::try_from(len.checked_sub(UNTAGGED_HEADER)?).ok()?;
        let plain = control == WHOLE
            && (ulp == SEND || ulp == SOLICITED)
            && u32::from_be_bytes([q0, q1, q2, q3]) == QN_SEND.0
            && Msn(u32::from_be_bytes([m0, m1, m2, m3])) == self.sends.msn() // 5041-7.1-05
            && mo == [0; 4]
            && len > 0
            && self.send_opcode.is_none()
            && self.sends.received() == 0
            && self.state.receives();
        plain.then_some(SendSegment {
            len,
            solicited: ulp == SOLICITED,
        })
    }

    /// Records that the payload of the segment read by [`send_segment`](Self::send_segment) was
    /// placed in a receive that is long enough.
    #[inline]
    pub fn send_received(&mut self, _: SendSegment) {
        debug_assert!(
            self.send_opcode.is_none() && self.sends.received() == 0 && self.state.receives(),
            "a Send is told of that was not read just now"
        );
        self.sends.whole_received();
    }
}
