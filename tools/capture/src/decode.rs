//! Decodes the packets of a capture into MPA, DDP and RDMAP frames, and reports violations of their
//! RFCs (`uwarp dump`).
//!
//! ```text
//! Packet ─► TcpSegment ─► Sorter ─► Assembly ─► Side ──────────► Segment ─► Frame
//!                         (causal   (bytes in   (startup frames, (headers)  (with findings)
//!                          order)    order,      FPDUs)
//!                                    gaps)         └─ Connection: result of startup,
//!                                                     Sent: MSN, MO, TO, Reads
//! ```
//!
//! A [`Decoder`] takes packets and returns [`Frame`]s. It checks what each side *sent* against RFC
//! 5040, 5041, 5044, 6581 and 7306. It covers every MUST that is visible on the wire without
//! knowledge of the applications. It does not check how a receiver reacts.
//!
//! It accepts any file without a panic, and its memory is bounded (see [`Decoder`]). If the capture
//! has gaps or begins in the middle of a connection, only the known parts are checked. A gap may
//! hide a violation, but must never produce a finding.
//!
//! Lengths, Markers and startup frames are read leniently, because a dump has to show wrong traffic
//! too. Only headers, names and the CRC come from the protocol crates.
//!
//! ```
//! use uwarp_capture::{Reader, decode::Decoder};
//!
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/siw-fpdu-errors.pcap");
//! let mut decoder = Decoder::default();
//! let mut frames = Vec::new();
//! for packet in Reader::open(file)? {
//!     frames.extend(decoder.packet(&packet?));
//! }
//! frames.extend(decoder.finish());
//! assert!(frames[0].to_string().contains("MPA Request rev 2 S IRD 4 ORD 4 pd 4"));
//! assert!(decoder.totals().findings > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
mod buffer;
mod connection;
mod fields;
mod finding;
mod fpdu;
mod frame;
mod order;
mod segment;
mod side;
mod sorter;
mod startup;
mod totals;
mod words;

use std::collections::HashMap;
use std::net::SocketAddr;

use uwarp_rdmap::Peer;

use crate::{Packet, TcpSegment};
use connection::{Connection, Now, Protocol};

pub use assembly::SegmentCounts;
pub use fields::{Field, Value};
pub use finding::Finding;
pub use frame::{Content, Event, Frame};
pub use segment::{Body, Segment};
pub use startup::{Enhanced, Startup};
pub use totals::{ConnectionSummary, Direction, Totals};

/// Maximum number of connections that are followed at a time. If there are more, at least half of
/// them are dropped, beginning with the one whose last packet is oldest.
const MAX_CONNECTIONS: usize = 4096;
/// Maximum number of bytes that wait in all connections together. If more wait, connections are
/// dropped in the same way.
const MAX_HELD: usize = if cfg!(fuzzing) { 1 << 20 } else { 64 << 20 };
/// Maximum number of connections for which a summary is kept.
const MAX_SUMMARIES: usize = 4096;

/// Addresses of a connection, the smaller one first.
type Pair = (SocketAddr, SocketAddr);

/// Decodes the packets of one capture.
///
/// It follows at most 4096 connections. All of them together hold at most 64 MiB of bytes that wait
/// for earlier bytes or for the rest of a frame. In each direction, a connection holds at most 2
/// MiB and an FPDU. It also holds at most 1 MiB of packets that are not sorted yet.
/// [`Totals::dropped`] counts the connections that are dropped because of these limits.
#[derive(Debug)]
pub struct Decoder {
    connections: HashMap<Pair, Connection>,
    held: usize,
    peer: Peer,
    totals: Totals,
    summaries: Vec<ConnectionSummary>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(Peer::Rfc)
    }
}

impl Decoder {
    /// Creates a decoder. `peer` selects the layout for Terminate Messages that can be read in two
    /// ways.
    pub fn new(peer: Peer) -> Self {
        Self {
            connections: HashMap::new(),
            held: 0,
            peer,
            totals: Totals::default(),
            summaries: Vec::new(),
        }
    }

    /// Decodes the next packet. Returns the frames that it completes.
    pub fn packet(&mut self, packet: &Packet) -> Vec<Frame> {
        let mut out = Vec::new();
        self.totals.packets += 1;
        let Some(segment) = packet.tcp() else {
            self.totals.fragments += u64::from(packet.is_fragment());
            return out;
        };
        self.totals.tcp_packets += 1;
        let now = Now {
            packet: self.totals.packets,
            time: packet.timestamp,
        };
        let pair = pair(&segment);
        if segment.syn && !segment.ack && self.is_another(pair, &segment) {
            self.end(pair, &mut out);
        }
        let peer = self.peer;
        let (source, destination) = (segment.source, segment.destination);
        let connection = self
            .connections
            .entry(pair)
            .or_insert_with(|| Connection::new(source, destination, peer));
        let before = connection.held();
        connection.segment(now, &segment, &mut self.totals.connections, &mut out);
        self.held = (self.held + connection.held()).saturating_sub(before);
        if self.connections.len() > MAX_CONNECTIONS || self.held > MAX_HELD {
            self.drop_oldest(&mut out);
        }
        self.totals.count(&out);
        out
    }

    /// Ends the capture. Returns the remaining frames of all connections.
    pub fn finish(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        let mut pairs: Vec<(u64, Pair)> = self
            .connections
            .iter()
            .map(|(pair, connection)| (connection.last.packet, *pair))
            .collect();
        pairs.sort_unstable();
        for (_, pair) in pairs {
            self.end(pair, &mut out);
        }
        self.summaries.sort_by_key(|summary| summary.number);
        self.totals.count(&out);
        out
    }

    /// Returns the totals of all packets so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns summaries of the connections with MPA that have ended: the first 4096 to end. After
    /// [`finish`](Self::finish) every connection has ended, and the summaries are in the order of
    /// their [numbers](ConnectionSummary::number).
    pub fn connections(&self) -> &[ConnectionSummary] {
        &self.summaries
    }

    /// Returns true if the segment is a SYN of a new connection between the same addresses.
    fn is_another(&self, pair: Pair, segment: &TcpSegment<'_>) -> bool {
        self.connections.get(&pair).is_some_and(|connection| {
            let from = usize::from(segment.source != connection.ends[0]);
            let assembly = &connection.sides[from].assembly;
            assembly.is_started() && !assembly.began_at(segment.seq.wrapping_add(1))
        })
    }

    /// Ends a connection and stops following it.
    fn end(&mut self, pair: Pair, out: &mut Vec<Frame>) {
        let Some(mut connection) = self.connections.remove(&pair) else {
            return;
        };
        self.held = self.held.saturating_sub(connection.held());
        connection.finish(&mut self.totals.connections, out);
        match connection.protocol {
            Protocol::Mpa(number) if self.summaries.len() < MAX_SUMMARIES => {
                let summary = ConnectionSummary::of(number, &connection);
                self.summaries.push(summary);
            }
            Protocol::Mpa(_) => {}
            Protocol::Unknown | Protocol::Other => self.totals.others += 1,
        }
    }

    /// Drops at least half of the connections, beginning with the one whose last packet is oldest.
    fn drop_oldest(&mut self, out: &mut Vec<Frame>) {
        let mut pairs: Vec<(u64, Pair)> = self
            .connections
            .iter()
            .map(|(pair, connection)| (connection.last.packet, *pair))
            .collect();
        pairs.sort_unstable();
        let half = pairs.len().div_ceil(2);
        for (at, (_, pair)) in pairs.into_iter().enumerate() {
            if at >= half && self.held <= MAX_HELD / 2 {
                break;
            }
            self.totals.dropped += 1;
            self.end(pair, out);
        }
    }
}

fn pair(segment: &TcpSegment<'_>) -> Pair {
    let (source, destination) = (segment.source, segment.destination);
    match source <= destination {
        true => (source, destination),
        false => (destination, source),
    }
}
