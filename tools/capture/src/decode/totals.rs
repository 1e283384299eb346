//! Statistics of a whole capture and of each connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::assembly::SegmentCounts;
use super::connection::Connection;
use super::frame::{Content, Frame};
use super::startup::Startup;

/// Statistics of a whole capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Number of packets in the file.
    pub packets: u64,
    /// Number of packets with a TCP segment.
    pub tcp_packets: u64,
    /// Number of IP fragments. They are not reassembled, so their content counts as missing.
    pub fragments: u64,
    /// Number of TCP connections with MPA.
    pub connections: u64,
    /// Number of TCP connections without MPA.
    pub others: u64,
    /// Number of connections that were dropped before their end, because there were too many
    /// connections or too many waiting bytes.
    pub dropped: u64,
    /// Number of FPDUs.
    pub fpdus: u64,
    /// Number of bytes in ULPDUs.
    pub bytes: u64,
    /// Number of findings.
    pub findings: u64,
    /// Number of findings by requirement id.
    pub by_id: BTreeMap<&'static str, u64>,
}

/// Summary of a connection with MPA.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSummary {
    /// Number of the connection, as in [`Frame::connection`].
    pub number: u64,
    /// Request of the connection, if the capture contains it.
    pub request: Option<Startup>,
    /// Reply of the connection, if the capture contains it.
    pub reply: Option<Startup>,
    /// Summaries of the two directions, beginning with that of the initiator. Without a Request,
    /// the directions are in the order in which they were seen.
    pub directions: [Direction; 2],
    /// Number of findings.
    pub findings: u64,
}

/// Summary of one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Direction {
    /// Address of the sender.
    pub from: SocketAddr,
    /// Number of FPDUs.
    pub fpdus: u64,
    /// Number of bytes in the ULPDUs.
    pub bytes: u64,
    /// Statistics of the TCP segments of this direction.
    pub segments: SegmentCounts,
}

impl Totals {
    pub(super) fn count(&mut self, frames: &[Frame]) {
        for frame in frames {
            if let Content::Fpdu { ulpdu, .. } = frame.content {
                self.fpdus += 1;
                self.bytes += u64::from(ulpdu);
            }
            for finding in &frame.findings {
                self.findings += 1;
                *self.by_id.entry(finding.id()).or_default() += 1;
            }
        }
    }
}

impl ConnectionSummary {
    pub(super) fn of(number: u64, connection: &Connection) -> Self {
        let first = connection.request.map_or(0, |(from, _)| from);
        let direction = |from: usize| {
            let side = &connection.sides[from];
            Direction {
                from: connection.ends[from],
                fpdus: side.fpdus,
                bytes: side.bytes,
                segments: side.assembly.counts,
            }
        };
        Self {
            number,
            request: connection.request.map(|(_, request)| request),
            reply: connection.reply,
            directions: [direction(first), direction(1 - first)],
            findings: connection.findings,
        }
    }
}
