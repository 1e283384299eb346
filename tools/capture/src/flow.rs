//! Synthesizes packets for a TCP connection of the kernel.

use std::net::SocketAddr;

use crate::headers::{Kind, MAX_SEGMENT, Numbers, SegmentWriter};
use crate::segmenter::{Segmenter, Side};
use crate::{Direction, Interface};

/// Number of bytes after which an acknowledgement is synthesized. It is far below the window, so
/// that no tool reports a full window.
const ACK_AFTER: u32 = 64 * 1024;
/// Smallest MSS. The fixed part of an MPA Request or Reply fits into it.
const MIN_SEGMENT: usize = 20;

/// Records a TCP connection of the kernel with synthesized IPv4 or IPv6 and TCP headers.
///
/// The owner of the socket reports its socket calls, and `Flow` turns the calls into plausible
/// packets: handshake, data, acknowledgements, FINs and resets. Their lengths, checksums, sequence
/// numbers and windows are correct. They do not show the segmentation, retransmissions and timing
/// of the real packets, which are not known here.
///
/// Data is cut into segments so that Wireshark can dissect MPA (see the crate documentation). For
/// that, some bytes wait until more arrive: the first 19 of an MPA Request or Reply, the first 7 of
/// an FPDU, and with Markers an incomplete FPDU. A FIN, a reset and dropping the `Flow` record the
/// waiting bytes. All other bytes are recorded at once.
///
/// If both ends of a connection are in this process and use the same capture, the connection is
/// recorded once. The end whose `Flow` was created first records it.
#[derive(Debug)]
pub struct Flow {
    interface: Interface,
    addresses: (SocketAddr, SocketAddr),
    mss: usize,
    /// False if the `Flow` of the other end records this connection.
    recorded: bool,
    segmenter: Segmenter,
    local: End,
    peer: End,
}

/// State of the synthesized packets of one end.
#[derive(Debug)]
struct End {
    writer: SegmentWriter,
    /// Sequence number of the next byte to send.
    next: u32,
    /// Last acknowledgement number that the other end sent.
    acknowledged: u32,
    /// True after a FIN or reset of this direction.
    closed: bool,
}

impl Flow {
    /// Starts recording the connection between `local` and `peer` on `interface`. `mss` is the
    /// maximum segment length in bytes, clamped to 20..=65495. [`Flow::opened`] announces it in the
    /// SYNs.
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

    /// Reports that the connection is established. Records SYN, SYN+ACK and ACK. If `we_connected`,
    /// this side sent the SYN.
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

    /// Reports `bytes` that the kernel accepted for sending.
    pub fn sent(&mut self, bytes: &[u8]) {
        self.data(Side::Local, bytes);
    }

    /// Reports `bytes` that the kernel received from the peer.
    pub fn received(&mut self, bytes: &[u8]) {
        self.data(Side::Peer, bytes);
    }

    /// Reports that this side shut down its direction.
    pub fn local_fin(&mut self) {
        self.close(Side::Local, Kind::Fin);
    }

    /// Reports that the peer shut down its direction.
    pub fn peer_fin(&mut self) {
        self.close(Side::Peer, Kind::Fin);
    }

    /// Reports that this side reset the connection.
    pub fn local_reset(&mut self) {
        self.close(Side::Local, Kind::Reset);
    }

    /// Reports that the peer reset the connection.
    pub fn peer_reset(&mut self) {
        self.close(Side::Peer, Kind::Reset);
    }

    fn data(&mut self, side: Side, bytes: &[u8]) {
        if !self.recorded || self.end(side).closed {
            return;
        }
        // The segmenter is taken out, because the closure borrows the flow.
        let mut segmenter = std::mem::take(&mut self.segmenter);
        segmenter.push(side, bytes, self.mss, &mut |segment| {
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

    /// Records the bytes of one direction that still wait in the segmenter.
    fn flush(&mut self, side: Side) {
        let mut segmenter = std::mem::take(&mut self.segmenter);
        segmenter.flush(side, &mut |segment| self.segment(side, segment));
        self.segmenter = segmenter;
    }

    fn segment(&mut self, side: Side, bytes: &[u8]) {
        let push = bytes.len() < self.mss;
        self.write(side, Kind::Data { push }, bytes);
        let end = self.end(side);
        if end.next.wrapping_sub(end.acknowledged) >= ACK_AFTER {
            self.acknowledge(side);
        }
    }

    /// Records an acknowledgement by the other end for all bytes that `side` sent.
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

/// Returns the initial sequence number: an FNV-1a hash of the addresses and of the number of the
/// connection in the capture.
///
/// It is below 2^24, because Wireshark 4.0 does not find the Markers of a stream after its sequence
/// numbers wrap. With this limit they wrap only shortly before the end of the first 4 GiB.
fn initial_sequence_number(from: SocketAddr, to: SocketAddr, seed: u32) -> u32 {
    let mut hash: u32 = 0x811C_9DC5;
    let mut mix = |byte: u8| hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
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
