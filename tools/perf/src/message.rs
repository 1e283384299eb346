//! Messages between client and server, as JSON.
//!
//! ```text
//!   client                                     server
//!     | greeting (16 bytes, `greeting`) ------>  |
//!     | <----------------------------- greeting  |
//!     | Hello { plan, token } ---------------->  |
//!     | <----- Welcome { session } or Declined   |
//!     |   (the client opens the plan's connections; their private
//!     |    data has the session and the index)
//!     | Memory { its own } ------------------->  |
//!     | <---------------------- Memory { ... }   |
//!     | Start { size } ----------------------->  |   for every size
//!     | <------------------------------ Ready    |
//!     |   (data moves)
//!     | Done { sent } ------------------------>  |
//!     | <------------------ Finished { cpu ... } |
//!     | Bye ---------------------------------->  |
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::results::Row;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToServer {
    /// First message after the greeting. A server may want a token.
    Hello {
        plan: Plan,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// Memory that the server may Write to and Read from.
    Memory(Memory),
    /// A measurement of this size starts.
    Start { size: u32 },
    /// The client has sent all messages. `sent`: number of messages on each QP, including the
    /// warm-up.
    Done { sent: u64 },
    /// The client measures no more sizes.
    Bye,
}

/// Token of a server. Its `Debug` shows nothing of it, because errors show messages of a peer.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToClient {
    /// The server accepts the plan. The data connections must name this session.
    Welcome { session: u64 },
    /// The server declines the plan.
    Declined { reason: String },
    /// Memory that the client may Write to and Read from.
    Memory(Memory),
    /// The server is ready for the measurement.
    Ready,
    /// The server's part of the measurement has ended.
    Finished {
        /// Processor time of the server in nanoseconds.
        cpu: u64,
        /// Result of the server's own measurement, if it sends as well.
        row: Option<Box<Row>>,
    },
}

/// Memory of one side: one region, with a part for each QP in the order of the QPs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}
