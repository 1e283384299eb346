//! Counts of a whole capture and of each connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::assembly::SegmentCounts;
use super::connection::Connection;
use super::frame::{Content, Frame};
use super::startup::Startup;

/// Counts of a whole capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that hold a TCP segment.
    pub tcp_packets: u64,
    /// Fragments of IP packets. They are not reassembled, so their content is missing.
    pub fragments: u64,
    /// TCP connections with MPA.
    pub connections: u64,
    /// TCP connections without MPA.
    pub others: u64,
    /// Connections dropped before their end, because there were too many of them or too many
    /// waiting bytes.
    pub let_go: u64,
    /// FPDUs.
    pub fpdus: u64,
    /// Bytes of ULPDUs.
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
    /// Its number, as in [`Frame::connection`].
    pub number: u64,
    /// Its Request, if the capture has it.
    pub request: Option<Startup>,
    /// Its Reply, if the capture has it.
    pub reply: Option<Startup>,
    /// The initiator's direction first. Without the Request, in the order in which they were seen.
    pub directions: [Direction; 2],
    /// Number of findings.
    pub findings: u64,
}

/// Summary of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Direction {
    /// Sender.
    pub from: SocketAddr,
    /// FPDUs.
    pub fpdus: u64,
    /// Bytes of their ULPDUs.
    pub bytes: u64,
    /// TCP segments.
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
