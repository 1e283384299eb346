//! Errors of a measurement.

use std::net::SocketAddr;

use uwarp_verbs::headroom::MemoryShort;
use uwarp_verbs::{
    AcceptError, ConnectError, DeviceError, EndReason, ListenError, PostError, RegisterError,
    StartupError, WorkError,
};

use crate::perftest;
use crate::plan::PlanError;

/// Reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The server declined the plan.
    #[error("{peer} declined this test: {reason}")]
    Declined {
        /// The server.
        peer: SocketAddr,
        /// Reason that the server gave.
        reason: String,
    },
    /// The client has not sent the token of the server.
    #[error("the client sent no token, or a wrong one (`--token`)")]
    WrongToken,
    /// The plan needs more memory than the server allows.
    #[error(
        "the test needs {needed} bytes of memory at the server, which allows {limit} (its --max-memory)"
    )]
    TooMuchMemory {
        /// Number of bytes that the plan needs.
        needed: u64,
        /// Limit of the server in bytes.
        limit: u64,
    },
    /// The connection to the server could not be established.
    #[error("{error}")]
    Connect {
        /// The server.
        addr: SocketAddr,
        /// Cause of the failure.
        error: Box<ConnectError>,
    },
    /// The peer is perftest, which uses the same port with another protocol.
    #[error(
        "{peer} is perftest{}, which uses the same port as uwarp perf with another protocol",
        .version.as_ref().map(|version| format!(" {version}")).unwrap_or_default()
    )]
    Perftest {
        /// The peer.
        peer: SocketAddr,
        /// Version of perftest, if the peer sent it.
        version: Option<String>,
    },
    /// The connection of a peer is not iWARP.
    #[error("{peer}: {error}")]
    Startup {
        /// Address of the peer.
        peer: SocketAddr,
        /// Error of the startup.
        error: StartupError,
    },
    /// A connection of the client could not be accepted.
    #[error("{0}")]
    Accept(#[from] AcceptError),
    /// The server cannot wait for clients.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// A limit of this process's memory leaves too little for a client.
    #[error("{0}")]
    Memory(#[from] MemoryShort),
    /// The device failed, or one of its limits is reached.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// Memory could not be registered.
    #[error("{0}")]
    Register(#[from] RegisterError),
    /// A work request was refused.
    #[error("{0}")]
    Post(#[from] PostError),
    /// A work request completed with an error.
    #[error("{0}")]
    Work(#[from] Box<WorkError>),
    /// The connection has ended.
    #[error("{during}: {reason}")]
    Ended {
        /// The peer.
        peer: SocketAddr,
        /// Phase of the test.
        during: &'static str,
        /// Cause of the end.
        reason: Box<EndReason>,
    },
    /// The peer sent a message that violates the protocol.
    #[error("{peer}: {what}")]
    Protocol {
        /// The peer.
        peer: SocketAddr,
        /// Description of the violation.
        what: String,
    },
    /// In at least one direction, no message completed in the measured time, which excludes a
    /// margin at the start and at the end.
    #[error(
        "nothing was measured: no message of {size} bytes completed between the margins of {margin} s at both ends of {seconds} s"
    )]
    NothingMeasured {
        /// Size of a message in bytes.
        size: u32,
        /// Duration of the measurement in seconds, including both margins.
        seconds: f64,
        /// Length of each margin in seconds.
        margin: f64,
    },
    /// The peer has stopped sending.
    #[error("{peer} has sent nothing for {seconds} s, {during}")]
    Silent {
        /// The peer.
        peer: SocketAddr,
        /// Time without a message, in seconds.
        seconds: u64,
        /// Phase of the test.
        during: &'static str,
    },
    /// The completion queue had no room for a completion.
    #[error("the completion queue has overflowed; this is a bug of uwarp-perf")]
    Overflow,
}

impl PerfError {
    /// Creates the error of a connection attempt to `addr`. If the server is perftest, the error
    /// names it.
    pub(crate) fn connect(addr: SocketAddr, error: ConnectError) -> Self {
        match &error {
            ConnectError::Startup { error: startup, .. } if Self::is_of_perftest(startup) => {
                Self::startup(addr, *startup)
            }
            _ => PerfError::Connect {
                addr,
                error: Box::new(error),
            },
        }
    }

    /// Creates the error of a startup with `peer`. If the peer is perftest, the error names it.
    pub(crate) fn startup(peer: SocketAddr, error: StartupError) -> Self {
        match &error {
            StartupError::NotMpa { first, .. } if Self::is_of_perftest(&error) => {
                PerfError::Perftest {
                    peer,
                    version: perftest::version(first.as_slice()).map(str::to_owned),
                }
            }
            _ => PerfError::Startup { peer, error },
        }
    }

    fn is_of_perftest(error: &StartupError) -> bool {
        let StartupError::NotMpa { first, .. } = error else {
            return false;
        };
        let first = first.as_slice();
        perftest::version(first).is_some() || perftest::is_key_exchange(first)
    }
}
