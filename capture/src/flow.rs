//! Packets made up for one TCP connection that the kernel runs.

use std::net::SocketAddr;

use crate::headers::{Kind, MAX_SEGMENT, Numbers, SegmentWriter};
use crate::segmenter::{Segmenter, Side};
use crate::{Direction, Interface};

/// Bytes one side may have sent without an acknowledgement before one is made up. Well below the
/// window, so that no tool reports a full one.
const ACK_AFTER: u32 = 64 * 1024;
/// The smallest MSS that is honoured: the beginning of an MPA Request or Reply fits.
const MIN_SEGMENT: usize = 20;

/// One TCP connection of the kernel, recorded with made-up IPv4 or IPv6 and TCP headers.
///
/// The owner of the socket reports what it does; `Flow` turns that into the packets a wire could
/// have carried: handshake, data, acknowledgements, FINs and resets, with right lengths,
/// checksums, sequence numbers and windows. What the kernel really sent (its segmentation,
/// retransmissions, timing of acknowledgements) is not known here and not shown.
///
/// Segments are cut so that Wireshark can dissect MPA; see the crate documentation. For that some
/// bytes wait until more come: the first 19 of an MPA Request or Reply, the first 7 of an FPDU, and
/// with Markers an FPDU that is not whole. A FIN, a reset and dropping the `Flow` record what
/// waits; nothing else is ever held back.
///
/// A connection with both ends in this process and in one capture is recorded once, by the end
/// whose `Flow` was made first.
#[derive(Debug)]
pub struct Flow {
    interface: Interface,
    addresses: (SocketAddr, SocketAddr),
    mss: usize,
    /// `false`: the other end records this connection.
    recorded: bool,
    segmenter: Segmenter,
    local: End,
    peer: End,
}

/// What one end has sent so far.
#[derive(Debug)]
struct End {
    writer: SegmentWriter,
    /// Sequence number of the next byte.
    next: u32,
    /// How far the other end has acknowledged.
    acknowledged: u32,
    /// A FIN or a reset ended this direction.
    closed: bool,
}

impl Flow {
    /// Begins to record the connection between `local` and `peer` on `interface`. `mss` is the
    /// largest segment in bytes, taken as 20 to 65495; [`Flow::opened`] announces it in the SYNs.
    pub fn new(interface: Interface, local: SocketAddr, peer: SocketAddr, mss: usize) -> Self {
        let number = interface.capture().live().enter(local, peer);
        let seed = number.unwrap_or(0);
        Self {
            addresses: (local, peer),
            mss: mss.clamp(MIN_SEGMENT, MAX_SEGMENT),
            recorded: number.is_some(),
            segmenter: Segmenter::default(),
            local: End::new(local, peer, Direction::Outbound, seed),
            peer: End::new(peer, local, Direction::Inbound, seed),
            interface,
        }
    }

    /// The connection is established: records SYN, SYN+ACK and ACK. `we_connected` tells whether
    /// the SYN was ours.
    pub fn opened(&mut self, we_connected: bool) {
        let side = if we_connected {
            Side::Local
        } else {
            Side::Peer
        };
        let mss = u16::try_from(self.mss).unwrap_or(u16::MAX);
        self.write(side, Kind::Syn { mss, ack: false }, &[]);
        self.write(side.other(), Kind::Syn { mss, ack: true }, &[]);
        self.write(side, Kind::Data { push: false }, &[]);
    }

    /// The kernel took `octets` from us to send.
    pub fn sent(&mut self, octets: &[u8]) {
        self.data(Side::Local, octets);
    }

    /// The kernel gave us `octets` that the peer had sent.
    pub fn received(&mut self, octets: &[u8]) {
        self.data(Side::Peer, octets);
    }

    /// We shut our direction down.
    pub fn local_fin(&mut self) {
        self.close(Side::Local, Kind::Fin);
    }

    /// The peer has shut its direction down.
    pub fn peer_fin(&mut self) {
        self.close(Side::Peer, Kind::Fin);
    }

    /// We reset the connection.
    pub fn local_reset(&mut self) {
        self.close(Side::Local, Kind::Reset);
    }

    /// The peer has reset the connection.
    pub fn peer_reset(&mut self) {
        self.close(Side::Peer, Kind::Reset);
    }

    fn data(&mut self, side: Side, octets: &[u8]) {
        if !self.recorded || self.end(side).closed {
            return;
        }
        // Taken out, so that the segmenter can call back into the rest of the flow.
        let mut segmenter = std::mem::take(&mut self.segmenter);
        segmenter.push(side, octets, self.mss, &mut |segment| {
            self.segment(side, segment);
        });
        self.segmenter = segmenter;
    }

    fn close(&mut self, side: Side, kind: Kind) {
        if !self.recorded || self.end(side).closed {
            return;
        }
        self.flush(side);
        if kind == Kind::Reset {
            self.flush(side.other());
        }
        self.write(side, kind, &[]);
        self.end_mut(side).closed = true;
        match kind {
            Kind::Reset => self.end_mut(side.other()).closed = true,
            _ => self.acknowledge(side),
        }
    }

    /// Records what the segmenter holds back of one direction.
    fn flush(&mut self, side: Side) {
        let mut segmenter = std::mem::take(&mut self.segmenter);
        segmenter.flush(side, &mut |segment| self.segment(side, segment));
        self.segmenter = segmenter;
    }

    fn segment(&mut self, side: Side, octets: &[u8]) {
        let push = octets.len() < self.mss;
        self.write(side, Kind::Data { push }, octets);
        let end = self.end(side);
        if end.next.wrapping_sub(end.acknowledged) >= ACK_AFTER {
            self.acknowledge(side);
        }
    }

    /// The other end acknowledges all that `side` has sent.
    fn acknowledge(&mut self, side: Side) {
        self.write(side.other(), Kind::Data { push: false }, &[]);
    }

    fn write(&mut self, side: Side, kind: Kind, payload: &[u8]) {
        if !self.recorded {
            return;
        }
        let ack = self.end(side.other()).next;
        self.end_mut(side.other()).acknowledged = ack;
        let end = self.end(side);
        let numbers = Numbers { seq: end.next, ack };
        end.writer.write(&self.interface, kind, numbers, payload);
        let flag = u32::from(matches!(kind, Kind::Syn { .. } | Kind::Fin));
        let end = self.end_mut(side);
        end.next = end.next.wrapping_add(payload.len() as u32 + flag);
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Local => &self.local,
            Side::Peer => &self.peer,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Local => &mut self.local,
            Side::Peer => &mut self.peer,
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if self.recorded {
            self.flush(Side::Local);
            self.flush(Side::Peer);
            let (local, peer) = self.addresses;
            self.interface.capture().live().leave(local, peer);
        }
    }
}

impl End {
    fn new(from: SocketAddr, to: SocketAddr, direction: Direction, seed: u32) -> Self {
        let first = initial_sequence_number(from, to, seed);
        Self {
            writer: SegmentWriter::new(from, to, direction),
            next: first,
            acknowledged: first,
            closed: false,
        }
    }
}

/// The same for the same addresses and number of the connection in the capture (FNV-1a).
///
/// Below 2^24: Wireshark 4.0 loses the Markers of a stream whose sequence numbers wrap, so that is
/// put off to the last bytes of the first 4 GiB.
fn initial_sequence_number(from: SocketAddr, to: SocketAddr, seed: u32) -> u32 {
    let mut hash: u32 = 0x811C_9DC5;
    let mut mix = |octet: u8| hash = (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193);
    for address in [from, to] {
        match address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets().into_iter().for_each(&mut mix),
            std::net::IpAddr::V6(ip) => ip.octets().into_iter().for_each(&mut mix),
        }
        address.port().to_be_bytes().into_iter().for_each(&mut mix);
    }
    seed.to_be_bytes().into_iter().for_each(&mut mix);
    hash & 0x00FF_FFFF
}

#[cfg(test)]
#[path = "flow/tests.rs"]
mod tests;
