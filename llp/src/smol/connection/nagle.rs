//! Keeps segments whole when smoltcp's congestion window is nearly full. The size of this window is
//! private to smoltcp.
//!
//! smoltcp sends as much of a segment as the congestion window allows, and the rest when
//! acknowledgements make room. Nagle's algorithm (RFC 9293 section 3.7.4) prevents that: while
//! anything is in flight, only full segments are sent. The size of a full segment follows from the
//! MTU of the interface that polls the socket.
//!
//! So each segment is sent by an interface whose MTU makes it a full segment. It is sent whole or
//! not at all, for every congestion control and state. A segment that is not sent stays at the end
//! of smoltcp's send buffer, and is tried again after every arrival. When nothing is in flight any
//! more, Nagle's algorithm allows this segment. All bytes are in smoltcp's buffer, so its handling
//! of loss, of a closed window and of the end of the connection works as usual.
//!
//! When TCP's timer fires, smoltcp retransmits all unacknowledged bytes. Until the peer has
//! acknowledged them, only the regular interface is used, whose MTU is the path's. An interface
//! with another MTU would cut the retransmission to its own size. No more bytes are handed over
//! during that time.

use std::mem;

use smoltcp::iface::{Interface, PollResult};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;

use super::{SmolConnection, new_interface};

/// State of Nagle's algorithm for a connection with a congestion window.
#[derive(Default)]
pub(super) struct Nagle {
    /// True if the bytes handed over last are one segment. False if they are a run that may be cut
    /// anywhere.
    on: bool,
    /// The interface with another MTU, and the size of its full segments in bytes.
    exact: Option<(usize, Interface)>,
    /// True if a packet that acknowledged nothing has arrived. smoltcp may retransmit because of
    /// this packet.
    repeated: bool,
    /// Set after TCP's timer has fired. Retransmission lasts until the stream is acknowledged up to
    /// this offset.
    resending_to: Option<u64>,
}

impl SmolConnection {
    /// Number of bytes that were handed over and never sent.
    pub(super) fn unsent(&self) -> usize {
        self.device.unsent(self.handed)
    }

    /// Stream offset up to which the peer has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.handed - self.socket().send_queue() as u64
    }

    /// Sets whether the bytes handed over next are one segment (`on`) or a run, which is sent as
    /// far as the window allows.
    pub(super) fn set_segment_mode(&mut self, on: bool) {
        if let Some(nagle) = &mut self.nagle
            && nagle.on != on
        {
            nagle.on = on;
            self.socket_mut().set_nagle_enabled(on);
        }
    }

    /// Returns true if no more bytes may be handed over, because earlier bytes are unsent or are
    /// being retransmitted.
    pub(super) fn is_at_edge(&self) -> bool {
        let Some(nagle) = &self.nagle else {
            return false;
        };
        let queued = self.socket().send_queue();
        queued > 0 && (nagle.resending_to.is_some() || self.unsent() > 0)
    }

    /// Returns true if the FIN has to wait, because smoltcp would ignore Nagle's algorithm for a
    /// FIN.
    pub(super) fn fin_waits(&self) -> bool {
        let in_flight = self.socket().send_queue() > self.unsent();
        self.nagle.as_ref().is_some_and(|nagle| nagle.on) && in_flight && self.is_at_edge()
    }

    /// Records a packet that acknowledged nothing, if smoltcp has just processed such a packet.
    /// `queued` bytes were unacknowledged before.
    pub(super) fn note_repetition(&mut self, queued: usize) {
        if let Some(nagle) = &mut self.nagle {
            let socket = self.sockets.get::<tcp::Socket<'_>>(self.handle);
            nagle.repeated |= queued > 0 && socket.send_queue() == queued;
        }
    }

    /// Lets smoltcp send one packet, if it has one.
    pub(super) fn egress(&mut self, now: Instant) -> PollResult {
        if self.nagle.as_ref().is_some_and(|nagle| nagle.on) {
            let unsent = self.unsent();
            if unsent > 0 && unsent <= self.full_bytes() && !self.device.hold_back_if_full() {
                return self.poll_segment(unsent, false, now);
            }
        }
        self.poll_interface(None, now)
    }

    /// If a segment is held back and the congestion window now allows it, sends the segment. Call
    /// it after smoltcp has sent everything that it would send by itself. Returns true if bytes
    /// were sent.
    pub(super) fn push(&mut self, now: Instant) -> bool {
        self.notice_resending();
        let ready = |nagle: &Nagle| nagle.on && nagle.resending_to.is_none();
        if !self.nagle.as_deref().is_some_and(ready) {
            return false;
        }
        let unsent = self.unsent();
        let shorter = unsent > 0 && unsent < self.full_bytes();
        if !shorter || self.device.hold_back_if_full() {
            return false;
        }
        self.poll_segment(unsent, true, now);
        self.unsent() < unsent
    }

    /// Lets smoltcp send the segment of `bytes` bytes that was just handed over.
    pub(super) fn push_new(&mut self, bytes: usize, now: Instant) {
        let in_flight = self.socket().send_queue() > bytes;
        let exact = self.nagle.is_some() && in_flight && bytes < self.full_bytes();
        self.poll_segment(bytes, exact, now);
    }

    /// Lets smoltcp make a segment of `bytes` bytes. smoltcp makes two packets if the bytes wrap
    /// around the end of its ring buffer; the device joins them.
    fn poll_segment(&mut self, bytes: usize, exact: bool, now: Instant) -> PollResult {
        let full = exact.then_some(bytes);
        self.device.expect_segment(bytes);
        let sent = self.poll_interface(full, now);
        let nagle = self.nagle.as_ref().map(|nagle| nagle.on);
        // With a congestion window, the cut packet may belong to a retransmission.
        if self.device.has_partial_segment() && (nagle.is_none() || self.unsent() < bytes) {
            self.socket_mut().set_nagle_enabled(false);
            self.poll_interface(full, now);
            self.socket_mut().set_nagle_enabled(nagle == Some(true));
        }
        self.device.end_segment();
        sent
    }

    /// Lets smoltcp send one packet. `full` selects the interface whose full segments have `full`
    /// bytes; `None` selects the regular interface.
    fn poll_interface(&mut self, full: Option<usize>, now: Instant) -> PollResult {
        if let Some(bytes) = full {
            self.make_exact(bytes, now);
        }
        let queued = self.socket().send_queue();
        self.device.before_egress(self.handed, queued);
        let (device, sockets) = (&mut self.device, &mut self.sockets);
        let interface = match &mut self.nagle {
            Some(nagle) if full.is_some() => nagle.exact.as_mut().map(|(_, interface)| interface),
            _ => None,
        };
        let interface = interface.unwrap_or(&mut self.interface);
        let sent = interface.poll_egress(now, device, sockets);
        self.device.after_egress();
        sent
    }

    /// Creates the interface whose full segments have `bytes` bytes, if the current one has another
    /// size. The interface can be replaced at any time, because it has no lasting state except its
    /// address.
    fn make_exact(&mut self, bytes: usize, now: Instant) {
        let Some(nagle) = &mut self.nagle else {
            return;
        };
        if nagle.exact.as_ref().is_some_and(|(has, _)| *has == bytes) {
            return;
        }
        let header = super::sending::headers(self.key.local.ip());
        let mtu = mem::replace(&mut self.device.mtu, header + bytes);
        let interface = new_interface(&mut self.device, self.key.local.ip(), now, 0);
        self.device.mtu = mtu;
        nagle.exact = Some((bytes, interface));
    }

    /// Detects that TCP's timer has fired: bytes were sent again, and not because of a repeated
    /// acknowledgement. Also ends the retransmission when all its bytes are acknowledged. A wrong
    /// result costs at most the alignment of a segment, or a delay until the next acknowledgement.
    fn notice_resending(&mut self) {
        if self.nagle.is_none() {
            return;
        }
        let (acknowledged, left) = (self.acknowledged(), self.handed - self.unsent() as u64);
        let (resent, held_back) = (self.device.take_resent(), self.device.held_back);
        let Some(nagle) = &mut self.nagle else {
            return;
        };
        if resent && !nagle.repeated {
            nagle.resending_to.get_or_insert(left);
        }
        nagle.repeated &= held_back;
        nagle.resending_to = nagle.resending_to.filter(|to| *to > acknowledged);
    }
}

#[cfg(test)]
mod tests;
