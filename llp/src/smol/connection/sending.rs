//! Hands bytes to smoltcp, and computes the size of segments.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use smoltcp::socket::tcp;
use smoltcp::time::Instant;

use super::stage::Cause;
use super::{SmolConnection, new_interface};
use crate::smol::align::{Offer, Room};
use crate::smol::burst::{BURST_MTU, bursts_with};
use crate::smol::settings::MIN_IPV6_MTU;
use crate::{Piece, SendHints};

/// MSS that smoltcp assumes if the peer's SYN has none.
const DEFAULT_MSS: usize = 536;
/// Smallest MSS that smoltcp uses. It raises a smaller MSS of the peer, except 0, to this one.
const MIN_MSS: usize = 48;
const TCP_HEADER: usize = 20;

/// Smallest MTU that is assumed for an IPv4 path. Packets of this size reach every host (RFC 791
/// section 3.2). If the path's MTU is smaller, the device allows routers to fragment them.
const LEAST_IPV4_MTU: usize = 576;

/// Size of the headers of a data segment, in bytes.
pub(super) fn headers(local: IpAddr) -> usize {
    TCP_HEADER + if local.is_ipv4() { 20 } else { 40 }
}

impl SmolConnection {
    /// Number of stream bytes that a segment may carry now. smoltcp does not report it, so it is
    /// computed: the MTU of the path less the headers, but no more than the peer's MSS
    /// (5044-5.1-02).
    pub(super) fn segment_bytes(&self) -> usize {
        let ours = self.mtu() - headers(self.key.local.ip());
        // As in smoltcp, an MSS of 0 counts as none. No option takes room in a data segment:
        // timestamps are off, and SACK blocks are sent only in pure acknowledgements.
        let peer = match self.device.peer.mss {
            None => ours,
            Some(None | Some(0)) => DEFAULT_MSS,
            Some(Some(mss)) => usize::from(mss).max(MIN_MSS),
        };
        ours.min(peer)
    }

    /// Number of bytes in smoltcp's largest segment. On a link that cuts bursts, this may be
    /// several segments on the wire.
    pub(super) fn full_bytes(&self) -> usize {
        let wire = self.segment_bytes();
        if !self.stack.settings.bursts {
            return wire;
        }
        match self.device.peer.mss {
            Some(Some(mss)) if bursts_with(mss) => BURST_MTU - headers(self.key.local.ip()),
            Some(None | Some(0)) => DEFAULT_MSS,
            Some(Some(mss)) => usize::from(mss).max(MIN_MSS),
            None => wire,
        }
    }

    /// Adapts to a change of the path's MTU. smoltcp reads the MTU only when an interface is
    /// created, so a changed MTU requires a new interface. The replacement loses no state of the
    /// connection. Segments that were too large for the path are lost. When TCP's timer fires,
    /// their bytes are sent again in smaller segments.
    pub(super) fn follow_path_mtu(&mut self, now: Instant) {
        let path = self.mailbox.path_mtu.load(Ordering::Relaxed);
        self.device.set_path_mtu(path);
        if self.stack.settings.bursts {
            // The limit has to hold for retransmissions too, which may be sent before new bytes are
            // handed over.
            self.device.limit_cut(self.segment_bytes());
            return;
        }
        let mtu = self.mtu();
        if mtu != self.device.mtu {
            self.device.mtu = mtu;
            self.interface = new_interface(
                &mut self.device,
                self.key.local.ip(),
                now,
                self.stack.random(),
            );
        }
    }

    /// Size in bytes of the largest IP packet that may be sent now.
    fn mtu(&self) -> usize {
        let path = self.mailbox.path_mtu.load(Ordering::Relaxed);
        let least = if self.key.local.is_ipv4() {
            LEAST_IPV4_MTU
        } else {
            MIN_IPV6_MTU
        };
        self.stack.settings.mtu.min(path.max(least))
    }

    /// Returns the limits for the next segment, or `None` if earlier bytes are unsent or the link
    /// is full.
    fn room(&mut self, emss: usize, burst: usize) -> Option<Room> {
        if self.device.hold_back_if_full() || self.is_at_edge() {
            return None;
        }
        let socket = self.socket();
        let in_flight = socket.send_queue();
        let window = self.device.peer.window;
        // smoltcp was polled until it had nothing more to send. If the window covers all bytes of
        // the send buffer, all of them were sent.
        (in_flight <= window).then(|| Room {
            in_flight,
            window,
            largest_window: self.device.peer.largest_window,
            buffer: socket.send_capacity(),
            emss,
            burst,
        })
    }

    /// Returns true if the send buffer should first drain until it has room for half a burst, so
    /// that bursts do not become short.
    fn waits_for_room(&self) -> bool {
        let half = self.full_bytes() / 2;
        let socket = self.socket();
        let queued = socket.send_queue();
        self.stack.settings.bursts && queued >= half && socket.send_capacity() - queued < half
    }

    /// Hands over bytes that may be cut anywhere.
    pub(super) fn send_run(&mut self, pieces: &[Piece<'_>], now: Instant) -> usize {
        let (mut position, mut taken) = ((0, 0), 0);
        self.set_segment_mode(false);
        self.device.set_cut(self.segment_bytes(), 0);
        loop {
            let count = if self.waits_for_room() {
                0
            } else {
                self.fill(pieces, &mut position, usize::MAX)
            };
            if count == 0 {
                return taken;
            }
            taken += count;
            // Acknowledgements may have arrived meanwhile and made room for more bytes.
            self.take_in(now);
            self.send_out(now);
        }
    }

    /// Hands FPDUs to smoltcp, one segment at a time. See [`crate::smol::align`].
    pub(super) fn send_fpdus(
        &mut self,
        pieces: &[Piece<'_>],
        hints: SendHints<'_>,
        now: Instant,
    ) -> usize {
        let offered = pieces.iter().map(Piece::len).sum();
        let mut offer = Offer::new(offered, hints);
        let emss = self.segment_bytes();
        let burst = self.full_bytes().max(emss);
        let (mut position, mut taken) = ((0, 0), 0);
        while taken < offered {
            let (segment, each) = match self.room(emss, burst) {
                Some(room) => self.aligner.burst(&offer, &room, now),
                None => (0, 0),
            };
            if segment == 0 {
                // Acknowledgements may have arrived meanwhile and made room for more bytes.
                if !self.mailbox.has_packets() {
                    break;
                }
                self.take_in(now);
                self.send_out(now);
                continue;
            }
            self.device.set_cut(emss, each);
            let count = self.fill(pieces, &mut position, segment);
            if count == 0 {
                break;
            }
            taken += count;
            self.aligner.taken(&mut offer, count);
            self.send_one(count, now);
            if !self.device.all_sent_once(self.handed) {
                // smoltcp sent a retransmission first. The segment follows now.
                self.send_out(now);
            }
        }
        self.send_out(now);
        taken
    }

    /// Lets smoltcp send the segment that was just handed over.
    fn send_one(&mut self, bytes: usize, now: Instant) {
        let before = self.socket().state();
        self.set_segment_mode(true);
        self.push_new(bytes, now);
        self.keepalive_state.sent(now);
        self.observe(before, Cause::Timer, now);
    }

    /// Copies at most `limit` bytes of the pieces into the send buffer, as far as there is room.
    /// Returns the number of bytes copied. `position` holds the number of pieces copied completely,
    /// and the offset in the next piece; it is updated.
    fn fill(&mut self, pieces: &[Piece<'_>], position: &mut (usize, usize), limit: usize) -> usize {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let mut total = 0;
        while let Some(piece) = pieces.get(position.0)
            && total < limit
        {
            if position.1 >= piece.len() {
                *position = (position.0 + 1, 0);
                continue;
            }
            let copy = |room: &mut [u8]| {
                let end = room.len().min(limit - total);
                let count = piece.copy_to(position.1, &mut room[..end]);
                (count, count)
            };
            match socket.send(copy) {
                Ok(count) if count > 0 => {
                    position.1 += count;
                    total += count;
                }
                _ => break,
            }
        }
        self.handed += total as u64;
        total
    }
}

#[cfg(test)]
pub(super) mod tests;
