//! Events of a running test.

use std::net::SocketAddr;

use crate::error::PerfError;
use crate::plan::Plan;
use crate::results::Row;

/// Event of a side while a plan runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The two sides are connected.
    Begins {
        /// The other side.
        peer: SocketAddr,
        /// The client's plan.
        plan: &'a Plan,
        /// Congestion control of a connection between the two sides, as this side has it
        /// ([`Qp::congestion_control`](uwarp_verbs::Qp::congestion_control)).
        congestion: Option<&'a str>,
    },
    /// The server refused a connection that does not belong to a client. It continues to wait.
    ForeignConnection(&'a PerfError),
    /// Result of one size, measured by this side. A server measures only if it sends as well.
    Row(&'a Row),
}
