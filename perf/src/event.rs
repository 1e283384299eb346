//! What is told meanwhile.

use std::net::SocketAddr;

use crate::error::PerfError;
use crate::plan::Plan;
use crate::results::Row;

/// What a side tells while a plan is played.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The two are connected.
    Begins {
        /// The other side.
        peer: SocketAddr,
        /// The client's plan.
        plan: &'a Plan,
        /// Congestion control of a connection between the two, as this side has it
        /// ([`Qp::congestion_control`](uwarp_verbs::Qp::congestion_control)).
        congestion: Option<&'a str>,
    },
    /// A connection that is none of a client, of a server that goes on waiting: what it was.
    Stranger(&'a PerfError),
    /// What this side has measured for a size: the client always, the server where it sends too.
    Row(&'a Row),
}
