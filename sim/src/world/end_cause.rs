//! What was done to a connection, after which it may end; and the ends that this explains.

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{EndReason, RejectOptions, StartupError};

use super::World;
use crate::monitor::Damaged;

/// Something after which a connection may end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum EndCause {
    /// One of its hosts is dead.
    Death,
    /// Nobody polls the CQ at one of its ends.
    Overflow,
    /// Others take receives that it counts on.
    Robbed,
    /// One end has more Reads under way than the other one takes.
    Greedy,
    /// A region went while it was in use.
    Deregistered,
    /// One end has reset it, or dropped its QP.
    Aborted,
    /// One end has closed it in the middle of everything.
    Disconnected,
    /// A request was posted that has to be refused.
    Refusal,
    /// The program that is asked for the connection does not want it.
    Rejected,
    /// Bytes of an MPA Request or Reply were changed, which no CRC covers.
    StartupDamaged,
    /// Bytes of FPDUs were changed.
    Damaged,
}

/// No receive was there for a message (RFC 5041 section 7.2).
const NO_BUFFER: [u8; 3] = [1, 2, 2];
/// What a side that cannot go on says of itself (RFC 5040 section 7.1).
const LOCAL: [u8; 3] = [0, 0, 0];

impl EndCause {
    /// What a Terminate Message may say then; for a refusal see `Wrong`.
    pub(crate) fn codes(self) -> &'static [[u8; 3]] {
        match self {
            EndCause::Overflow => &[LOCAL],
            EndCause::Robbed | EndCause::Greedy => &[NO_BUFFER],
            // Writes, and Reads of what was written, find nothing.
            EndCause::Deregistered => &[[1, 1, 0], [0, 1, 0]],
            // RFC 5044 section 8: the CRC is wrong, or a Marker points elsewhere. Nothing else may be seen behind that.
            EndCause::Damaged => &[[2, 0, 2], [2, 0, 3]],
            EndCause::Death
            | EndCause::Aborted
            | EndCause::Disconnected
            | EndCause::Refusal
            | EndCause::Rejected
            | EndCause::StartupDamaged => &[],
        }
    }

    /// Whether a connection may end in this way then, where its end is not orderly. What Terminate Messages say is another
    /// matter.
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
            // Who is dead says nothing more, and so has reset nothing.
            EndReason::LlpLost {
                error: LlpError::TimedOut { .. },
            } => self == EndCause::Death,
            EndReason::ConnectTimedOut | EndReason::ConnectFailed { .. } => self == EndCause::Death,
            // A reset may overtake a Terminate Message, or the last bytes.
            EndReason::LlpLost { .. } => self != EndCause::Death,
            EndReason::ClosedMidway { .. } => matches!(self, EndCause::Aborted | EndCause::Damaged),
            // The length of an FPDU was damaged, and it never comes to its end.
            EndReason::Stalled { sending: false } => self == EndCause::Damaged,
            // Likewise, while this side closes and waits for the answer to its Read.
            EndReason::CloseTimedOut { .. } => matches!(self, EndCause::Damaged | EndCause::Death),
            // The first FPDU of the initiator was damaged, likewise.
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

/// Whether what was done explains this end.
pub(crate) fn is_explained(causes: &[EndCause], reason: &EndReason) -> bool {
    // Anything may come of a Request or Reply that is another one.
    causes.contains(&EndCause::StartupDamaged) || causes.iter().any(|cause| cause.explains(reason))
}

impl World {
    /// This was done to a connection.
    pub(crate) fn record_cause(&mut self, connection: usize, cause: EndCause) {
        let causes = &mut self.connections[connection].causes;
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }

    /// This was done to all connections of a host.
    pub(crate) fn record_host_cause(&mut self, host: usize, cause: EndCause) {
        for connection in 0..self.connections.len() {
            if self.connections[connection].plan.hosts.contains(&host) {
                self.record_cause(connection, cause);
            }
        }
    }

    /// Receives of this end are taken: if they are shared, others count on them, too, and from now on.
    pub(crate) fn robs(&mut self, connection: usize, end: usize) {
        let host = self.connections[connection].plan.hosts[end];
        if self.plans[host].srq {
            self.robbed.insert(host);
            self.record_host_cause(host, EndCause::Robbed);
        }
    }

    /// What a connection has to live with from its beginning.
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
                hosts().any(|host| self.robbed.contains(&host)),
                EndCause::Robbed,
            ),
            (
                hosts().any(|host| self.hosts[host].is_none()),
                EndCause::Death,
            ),
        ];
        let born = causes.into_iter().filter(|(is, _)| *is);
        born.map(|(_, cause)| cause).collect()
    }

    /// Bytes on their way were changed.
    pub(crate) fn note_damage(&mut self) {
        for Damaged { said, in_startup } in self.switch.damaged() {
            let Some((number, round)) = who(&said) else {
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

/// What a program says when it connects: which connection it is, and which round, and something that tells whether these
/// bytes were damaged, since no CRC covers them.
pub(crate) fn name(number: usize, round: u32) -> Vec<u8> {
    let mut said = vec![
        u8::try_from(number).unwrap_or(u8::MAX),
        u8::try_from(round).unwrap_or(u8::MAX),
    ];
    let check = u64::from(said[0]) << 8 | u64::from(said[1]);
    said.extend(fastrand::Rng::with_seed(check).u64(..).to_be_bytes());
    said
}

/// What a program says when it does not want a connection: bytes, and perhaps how many Reads it would need to have under way.
pub(crate) fn refusal(number: usize, round: u32) -> RejectOptions {
    let draw = &mut fastrand::Rng::with_seed(number as u64 * 64 + u64::from(round));
    let mut private_data = vec![0; draw.usize(0..=508)];
    draw.fill(&mut private_data);
    RejectOptions::default()
        .private_data(private_data)
        // More than anybody takes here.
        .ord_needed(draw.bool().then_some(20))
}

/// Which connection this is about, and which round; `None` where these bytes were damaged.
pub(crate) fn who(said: &[u8]) -> Option<(usize, u32)> {
    let &[number, round, ..] = said else {
        return None;
    };
    let who = (usize::from(number), u32::from(round));
    (name(who.0, who.1) == said).then_some(who)
}
