//! Events of a running test.

use std::net::SocketAddr;

use crate::error::PerfError;
use crate::plan::Plan;
use crate::results::Row;

/// Event that one side reports while a plan runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The two sides are connected.
    Begins {
        /// The other side.
        peer: SocketAddr,
        /// The client's plan.
        plan: &'a Plan,
        /// Congestion control that this side uses on a connection between the two sides
        /// ([`Qp::congestion_control`](uwarp_verbs::Qp::congestion_control)).
        congestion: Option<&'a str>,
    },
    /// The server refused a connection that does not belong to a client, or whose plan it declined.
    /// The server continues to wait.
    ForeignConnection(&'a PerfError),
    /// Result of one size, measured by this side. A server measures only if it also sends.
    Row(&'a Row),
}
