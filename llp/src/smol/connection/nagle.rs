//! Segments stay whole at the edge of a congestion window that smoltcp tells nobody.
//!
//! smoltcp sends as much of a segment as the congestion window takes, and the rest when
//! acknowledgements make room. Under Nagle's algorithm (RFC 9293 section 3.7.4) it does not: while
//! anything is in flight, nothing leaves that is shorter than a full segment. How long a full one is
//! follows from the MTU of the interface that polls the socket. So a segment is sent by an interface
//! of whose MTU it is the full segment: it leaves whole or not at all, whatever algorithm keeps the
//! window and however it stands. One that does not leave stays in smoltcp's send buffer, the last
//! thing there, and is tried again after every arrival; when nothing is in flight any more, Nagle's
//! algorithm lets it go. So whatever smoltcp does about loss, a closed window or the end of the
//! connection finds all bytes where it expects them.
//!
//! When TCP's timer has fired, smoltcp sends everything again. Until the peer has acknowledged all that
//! had left, the interface of the path does that in full segments and no other is used, which would
//! cut what is sent again to its own size, and nothing more is handed over.

use std::mem;

use smoltcp::iface::{Interface, PollResult};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;

use super::{SmolConnection, new_interface};

/// What is known with a congestion window.
#[derive(Default)]
pub(super) struct Nagle {
    /// What was handed over last is a segment, not a run.
    on: bool,
    /// An interface whose full segments have so many bytes.
    exact: Option<(usize, Interface)>,
    /// Something arrived that acknowledged nothing, and smoltcp has not been able to answer it.
    repeated: bool,
    /// TCP's timer has fired: until the stream is acknowledged to here.
    resending_to: Option<u64>,
}

impl SmolConnection {
    /// How many of the bytes handed over have never left.
    pub(super) fn unsent(&self) -> usize {
        self.device.unsent(self.handed)
    }

    /// Stream offset to which the peer has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.handed - self.socket().send_queue() as u64
    }

    /// Whether bytes that follow are a segment. A run goes out as far as the window takes it.
    pub(super) fn hands_segments(&mut self, on: bool) {
        if let Some(nagle) = &mut self.nagle
            && nagle.on != on
        {
            nagle.on = on;
            self.socket_mut().set_nagle_enabled(on);
        }
    }

    /// Whether something has to leave or to be acknowledged before more may be handed over.
    pub(super) fn is_at_edge(&self) -> bool {
        let Some(nagle) = &self.nagle else {
            return false;
        };
        let queued = self.socket().send_queue();
        queued > 0 && (nagle.resending_to.is_some() || self.unsent() > 0)
    }

    /// Whether the FIN has to wait: with it, smoltcp would put Nagle's algorithm aside.
    pub(super) fn fin_waits(&self) -> bool {
        let in_flight = self.socket().send_queue() > self.unsent();
        self.nagle.as_ref().is_some_and(|nagle| nagle.on) && in_flight && self.is_at_edge()
    }

    /// Something was shown to smoltcp when `queued` bytes were unacknowledged.
    pub(super) fn heard(&mut self, queued: usize) {
        if let Some(nagle) = &mut self.nagle {
            let socket = self.sockets.get::<tcp::Socket<'_>>(self.handle);
            nagle.repeated |= queued > 0 && socket.send_queue() == queued;
        }
    }

    /// Has smoltcp send one packet, if there is one to send.
    pub(super) fn egress(&mut self, now: Instant) -> PollResult {
        if self.nagle.as_ref().is_some_and(|nagle| nagle.on) {
            let unsent = self.unsent();
            if unsent > 0 && unsent <= self.full_octets() && !self.device.holds_back() {
                return self.poll_segment(unsent, false, now);
            }
        }
        self.poll_interface(None, now)
    }

    /// Sends the segment that is held if the window takes it now; smoltcp has just sent all that it
    /// would send by itself. Whether something left.
    pub(super) fn push(&mut self, now: Instant) -> bool {
        self.notice_resending();
        let ready = |nagle: &Nagle| nagle.on && nagle.resending_to.is_none();
        if !self.nagle.as_deref().is_some_and(ready) {
            return false;
        }
        let unsent = self.unsent();
        let shorter = unsent > 0 && unsent < self.full_octets();
        if !shorter || self.device.holds_back() {
            return false;
        }
        self.poll_segment(unsent, true, now);
        self.unsent() < unsent
    }

    /// Has smoltcp send the segment that was just handed to it, behind what is in flight.
    pub(super) fn push_new(&mut self, octets: usize, now: Instant) {
        let in_flight = self.socket().send_queue() > octets;
        let exact = self.nagle.is_some() && in_flight && octets < self.full_octets();
        self.poll_segment(octets, exact, now);
    }

    /// Lets smoltcp make a segment of so many bytes. Where its ring ends, it makes two of it.
    fn poll_segment(&mut self, octets: usize, exact: bool, now: Instant) -> PollResult {
        let full = exact.then_some(octets);
        self.device.expect_segment(octets);
        let sent = self.poll_interface(full, now);
        let nagle = self.nagle.as_ref().map(|nagle| nagle.on);
        // With a congestion window, the part may be one of something that was sent again.
        if self.device.segment_is_cut() && (nagle.is_none() || self.unsent() < octets) {
            self.socket_mut().set_nagle_enabled(false);
            self.poll_interface(full, now);
            self.socket_mut().set_nagle_enabled(nagle == Some(true));
        }
        self.device.segment_is_made();
        sent
    }

    /// Has smoltcp send one packet by the interface of the path, or by one of full segments of so
    /// many bytes.
    fn poll_interface(&mut self, full: Option<usize>, now: Instant) -> PollResult {
        if let Some(octets) = full {
            self.make_exact(octets, now);
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

    /// Provides the interface whose full segments have so many bytes. It has no state that matters
    /// beside its address.
    fn make_exact(&mut self, octets: usize, now: Instant) {
        let Some(nagle) = &mut self.nagle else {
            return;
        };
        if nagle.exact.as_ref().is_some_and(|(has, _)| *has == octets) {
            return;
        }
        let header = super::sending::headers(self.key.local.ip());
        let mtu = mem::replace(&mut self.device.mtu, header + octets);
        let interface = new_interface(&mut self.device, self.key.local.ip(), now, 0);
        self.device.mtu = mtu;
        nagle.exact = Some((octets, interface));
    }

    /// Finds out whether TCP's timer has fired: something was sent again, and not because an
    /// acknowledgement was repeated. A mistake costs the alignment of a segment, or time until the
    /// next acknowledgement, no more.
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
