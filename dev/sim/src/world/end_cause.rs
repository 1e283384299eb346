//! Causes that may end a connection, and the reported reasons that each of them explains.

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{EndReason, RejectOptions, StartupError};

use super::World;
use crate::monitor::Damaged;

/// Incident that may end a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum EndCause {
    /// One of the connection's hosts has vanished.
    Death,
    /// The CQ at one end of the connection is not polled.
    Overflow,
    /// Unexpected messages have consumed receives that the connection needs.
    ReceivesTaken,
    /// One end has more Reads in flight than the other end accepts.
    Greedy,
    /// A region was deregistered while it was in use.
    Deregistered,
    /// One end reset the connection, or dropped its QP.
    Aborted,
    /// One end closed the connection while it was in use.
    Disconnected,
    /// A request was posted that the peer has to refuse.
    Refusal,
    /// The responder's program rejects the connection.
    Rejected,
    /// Bytes of an MPA Request or Reply were changed, which no CRC covers.
    StartupDamaged,
    /// Bytes after the startup frames were changed.
    Damaged,
}

/// Terminate code for a message without a receive (RFC 5041 section 7.2).
const NO_BUFFER: [u8; 3] = [1, 2, 2];
/// Terminate code of a side that fails by itself (RFC 5040 section 7.1).
const LOCAL: [u8; 3] = [0, 0, 0];

impl EndCause {
    /// Returns the codes that a Terminate Message may carry after this cause.
    /// [`Wrong::codes`](crate::wrong::Wrong::codes) has the codes of a refusal.
    pub(crate) fn codes(self) -> &'static [[u8; 3]] {
        match self {
            EndCause::Overflow => &[LOCAL],
            EndCause::ReceivesTaken | EndCause::Greedy => &[NO_BUFFER],
            // Writes, and Reads of written bytes, then name an invalid STag.
            EndCause::Deregistered => &[[1, 1, 0], [0, 1, 0]],
            // A wrong CRC, or a wrong Marker (RFC 5044 section 8). Later errors must not be
            // reported.
            EndCause::Damaged => &[[2, 0, 2], [2, 0, 3]],
            EndCause::Death
            | EndCause::Aborted
            | EndCause::Disconnected
            | EndCause::Refusal
            | EndCause::Rejected
            | EndCause::StartupDamaged => &[],
        }
    }

    /// Returns true if this cause may lead to this reason. A graceful end needs no cause.
    /// `World::judge` checks the codes of Terminate Messages.
    fn explains(self, reason: &EndReason) -> bool {
        match reason {
            EndReason::LocalDisconnect | EndReason::PeerDisconnect => true,
            EndReason::Aborted => matches!(self, EndCause::Aborted | EndCause::Overflow),
            EndReason::TerminateSent { .. } | EndReason::TerminateReceived { .. } => {
                self == EndCause::Refusal || !self.codes().is_empty()
            }
            EndReason::CqOverflow { .. } | EndReason::LocalError { .. } => {
                self == EndCause::Overflow
            }
            // A dead host sends nothing more, so it resets no connection.
            EndReason::LlpLost {
                error: LlpError::TimedOut { .. },
            } => self == EndCause::Death,
            EndReason::ConnectTimedOut | EndReason::ConnectFailed { .. } => self == EndCause::Death,
            // A reset may overtake a Terminate Message or the last bytes.
            EndReason::LlpLost { .. } => self != EndCause::Death,
            EndReason::ClosedMidway { .. } => matches!(self, EndCause::Aborted | EndCause::Damaged),
            // A damaged length field announces an FPDU that never ends.
            EndReason::Stalled { sending: false } => self == EndCause::Damaged,
            // A damaged length field, or a dead host, while this side closes and waits for a
            // response.
            EndReason::CloseTimedOut { .. } => matches!(self, EndCause::Damaged | EndCause::Death),
            // The length field of the initiator's first FPDU was damaged.
            EndReason::StartupFailed {
                error: StartupError::RtrMissing,
            } => self == EndCause::Damaged,
            EndReason::Rejected { .. } => self == EndCause::Rejected,
            EndReason::StartupFailed { .. } => {
                matches!(self, EndCause::Aborted | EndCause::Disconnected)
            }
            _ => false,
        }
    }
}

/// Returns true if one of the causes explains this reason.
pub(crate) fn is_explained(causes: &[EndCause], reason: &EndReason) -> bool {
    // A damaged Request or Reply may lead to any reason.
    causes.contains(&EndCause::StartupDamaged) || causes.iter().any(|cause| cause.explains(reason))
}

impl World {
    /// Records a cause for a connection.
    pub(crate) fn record_cause(&mut self, connection: usize, cause: EndCause) {
        let causes = &mut self.connections[connection].causes;
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }

    /// Records a cause for all connections of a host.
    pub(crate) fn record_host_cause(&mut self, host: usize, cause: EndCause) {
        for connection in 0..self.connections.len() {
            if self.connections[connection].plan.hosts.contains(&host) {
                self.record_cause(connection, cause);
            }
        }
    }

    /// Records that unexpected messages consumed receives of this end. With an SRQ this is a cause
    /// for all connections of the host, now and later.
    pub(crate) fn record_taken_receives(&mut self, connection: usize, end: usize) {
        let host = self.connections[connection].plan.hosts[end];
        if self.plans[host].srq {
            self.receives_taken.insert(host);
            self.record_host_cause(host, EndCause::ReceivesTaken);
        }
    }

    /// Returns the causes that a connection has from its beginning.
    pub(crate) fn causes_at_birth(&self, connection: usize) -> Vec<EndCause> {
        let plan = &self.connections[connection].plan;
        let hosts = || plan.hosts.iter().copied();
        let causes = [
            (plan.greedy, EndCause::Greedy),
            (self.connections[connection].rejects, EndCause::Rejected),
            (
                hosts().any(|host| self.plans[host].overflow),
                EndCause::Overflow,
            ),
            (
                hosts().any(|host| self.receives_taken.contains(&host)),
                EndCause::ReceivesTaken,
            ),
            (
                hosts().any(|host| self.hosts[host].is_none()),
                EndCause::Death,
            ),
        ];
        let born = causes.into_iter().filter(|(is, _)| *is);
        born.map(|(_, cause)| cause).collect()
    }

    /// Records the causes that follow from bytes changed by the switch.
    pub(crate) fn note_damage(&mut self) {
        for Damaged { said, in_startup } in self.switch.damaged() {
            let Some((number, round)) = parse_name(&said) else {
                continue;
            };
            let cause = if in_startup {
                EndCause::StartupDamaged
            } else {
                EndCause::Damaged
            };
            if (self.connections.get(number)).is_some_and(|connection| connection.round == round) {
                self.record_cause(number, cause);
            }
        }
    }
}

/// Returns the private data of a connect request: connection, round, and a check value, because no
/// CRC covers it.
pub(crate) fn connection_name(number: usize, round: u32) -> Vec<u8> {
    let mut said = vec![
        u8::try_from(number).unwrap_or(u8::MAX),
        u8::try_from(round).unwrap_or(u8::MAX),
    ];
    let check = u64::from(said[0]) << 8 | u64::from(said[1]);
    said.extend(fastrand::Rng::with_seed(check).u64(..).to_be_bytes());
    said
}

/// Returns the options of a rejection: random private data, and perhaps the ORD that the responder
/// would need.
pub(crate) fn refusal(number: usize, round: u32) -> RejectOptions {
    let draw = &mut fastrand::Rng::with_seed(number as u64 * 64 + u64::from(round));
    let mut private_data = vec![0; draw.usize(0..=508)];
    draw.fill(&mut private_data);
    RejectOptions::default()
        .private_data(private_data)
        // More than any end accepts.
        .ord_needed(draw.bool().then_some(20))
}

/// Parses the connection and the round from private data. Returns `None` if the data was damaged.
pub(crate) fn parse_name(said: &[u8]) -> Option<(usize, u32)> {
    let &[number, round, ..] = said else {
        return None;
    };
    let named = (usize::from(number), u32::from(round));
    (connection_name(named.0, named.1) == said).then_some(named)
}
