//! Parts of every cause: originator, layer, code, requirement, hint.

use std::fmt;

use uwarp_rdmap::{Opcode, Requirement, TerminateCode};

use crate::status::Status;

/// Originator of a failure, as far as this side can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Who {
    /// The program that uses this library.
    Program,
    /// This library.
    Library,
    /// The other end, if it is unknown whether its program or its iWARP stack is the originator.
    Peer,
    /// The program at the other end.
    PeerProgram,
    /// The implementation of iWARP at the other end: a library, a driver, an adapter.
    PeerStack,
    /// The path between the two ends, or the machine of the peer.
    Network,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Who::Program => "this program",
            Who::Library => "this library",
            Who::Peer => "the peer",
            Who::PeerProgram => "the peer's program",
            Who::PeerStack => "the peer's iWARP stack",
            Who::Network => "the network",
        })
    }
}

/// Layer of the software RNIC (RFC 5040 section 1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Layer {
    /// TCP and the layers below it.
    Tcp,
    /// MPA (RFC 5044, RFC 6581): startup, FPDUs.
    Mpa,
    /// DDP (RFC 5041): segments, STags, queues.
    Ddp,
    /// RDMAP (RFC 5040, RFC 7306): messages.
    Rdmap,
    /// The verbs: queue pairs, work requests, memory, connection management.
    Verbs,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Layer::Tcp => "TCP",
            Layer::Mpa => "MPA",
            Layer::Ddp => "DDP",
            Layer::Rdmap => "RDMAP",
            Layer::Verbs => "verbs",
        })
    }
}

/// Number of a cause (`ibv_wc_status`, `errno`, or RFC 5040 section 4.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CauseCode {
    /// Layer, type and code of a Terminate Message, even if none could be sent.
    Terminate(TerminateCode),
    /// The status of the completion.
    Status(Status),
    /// Error number of the system, as in `errno.h`.
    System(i32),
}

impl fmt::Display for CauseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CauseCode::Terminate(code) => write!(f, "Terminate {code}"),
            CauseCode::Status(status) => write!(f, "status {}", status.code()),
            CauseCode::System(errno) => write!(f, "errno {errno}"),
        }
    }
}

/// The parts of one cause, and the title of its sentence.
pub(super) struct Account {
    /// Kind of error; empty if it is no error.
    pub(super) title: &'static str,
    pub(super) who: Who,
    pub(super) layer: Layer,
    pub(super) code: Option<CauseCode>,
    pub(super) requirement: Option<Requirement>,
    pub(super) hint: Option<&'static str>,
}

impl Account {
    pub(super) const fn new(title: &'static str, who: Who, layer: Layer) -> Self {
        Account {
            title,
            who,
            layer,
            code: None,
            requirement: None,
            hint: None,
        }
    }

    pub(super) const fn terminate(mut self, code: Option<TerminateCode>) -> Self {
        self.code = match code {
            Some(code) => Some(CauseCode::Terminate(code)),
            None => None,
        };
        self
    }

    pub(super) const fn status(mut self, status: Status) -> Self {
        self.code = Some(CauseCode::Status(status));
        self
    }

    pub(super) const fn against(mut self, requirement: Option<Requirement>) -> Self {
        self.requirement = requirement;
        self
    }

    pub(super) const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

/// Displays the operation that a message asks for: a Read, whose message is a Read Request.
#[derive(Clone, Copy)]
pub(super) struct Operation(pub(super) Opcode);

impl Operation {
    /// Returns the indefinite article for the name.
    pub(super) const fn article(self) -> &'static str {
        match self.0 {
            Opcode::AtomicRequest | Opcode::AtomicResponse => "an",
            _ => "a",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            Opcode::Send | Opcode::SendSolicited => "Send",
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => "Send with Invalidate",
            Opcode::Write => "Write",
            Opcode::ReadRequest => "Read",
            Opcode::ReadResponse => "Read Response",
            Opcode::Terminate => "Terminate",
            Opcode::Immediate | Opcode::ImmediateSolicited => "message of Immediate Data",
            Opcode::AtomicRequest => "atomic operation",
            Opcode::AtomicResponse => "Atomic Response",
        })
    }
}
