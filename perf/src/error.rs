//! Why a measurement could not be made.

use std::net::SocketAddr;

use uwarp_verbs::{
    AcceptError, ConnectError, DeviceError, EndReason, ListenError, PostError, RegisterError,
    StartupError, WorkError,
};

use crate::perftest;
use crate::plan::PlanError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan makes no sense.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The server does not take the plan: what it said.
    #[error("{peer} does not want this test: {reason}")]
    Declined {
        /// The server.
        peer: SocketAddr,
        /// What it said.
        reason: String,
    },
    /// There is no connection to the server.
    #[error("{error}")]
    Connect {
        /// The server.
        addr: SocketAddr,
        /// Why.
        error: Box<ConnectError>,
    },
    /// The peer is perftest, which has another protocol on the same port.
    #[error(
        "{peer} is perftest{}: it has the port and the names of uwarp perf, and another protocol",
        .version.as_ref().map(|version| format!(" {version}")).unwrap_or_default()
    )]
    Perftest {
        /// The peer.
        peer: SocketAddr,
        /// Its version, if it said that.
        version: Option<String>,
    },
    /// A connection that came to the server is not an iWARP connection.
    #[error("{peer}: {error}")]
    Startup {
        /// Who connected.
        peer: SocketAddr,
        /// What was wrong.
        error: StartupError,
    },
    /// A connection of the client could not be accepted.
    #[error("{0}")]
    Accept(#[from] AcceptError),
    /// Nobody can be waited for.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The device, or one of its limits.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// Memory that cannot be registered.
    #[error("{0}")]
    Register(#[from] RegisterError),
    /// A work request that was refused.
    #[error("{0}")]
    Post(#[from] PostError),
    /// Work that failed.
    #[error("{0}")]
    Work(#[from] Box<WorkError>),
    /// The connection has ended.
    #[error("{during}: {reason}")]
    Ended {
        /// The peer.
        peer: SocketAddr,
        /// Meanwhile.
        during: &'static str,
        /// Why.
        reason: Box<EndReason>,
    },
    /// The peer said what no peer of this protocol says.
    #[error("{peer}: {what}")]
    Protocol {
        /// The peer.
        peer: SocketAddr,
        /// What.
        what: String,
    },
    /// No message completed between the two margins of a duration, in one of the directions.
    #[error(
        "nothing was measured: no message of {size} bytes completed between the margins, {margin} s at both ends of {seconds} s"
    )]
    NothingMeasured {
        /// Bytes of a message.
        size: u32,
        /// The duration.
        seconds: f64,
        /// The margin.
        margin: f64,
    },
    /// The peer says nothing any more.
    #[error("{peer} has said nothing for {seconds} s while {during}")]
    Silent {
        /// The peer.
        peer: SocketAddr,
        /// For how long.
        seconds: u64,
        /// Meanwhile.
        during: &'static str,
    },
    /// The completion queue had no room for a completion.
    #[error("the completion queue has overflowed; this is a bug of uwarp-perf")]
    Overflow,
}

impl PerfError {
    /// Why there is no connection to `addr`.
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

    /// What came from `peer` in place of an MPA frame, by name where that is known.
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
