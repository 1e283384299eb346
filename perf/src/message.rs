//! What client and server say to each other, as JSON.
//!
//! ```text
//!   client                                     server
//!     | greeting (16 bytes, `greeting`) ------>  |
//!     | <----------------------------- greeting  |
//!     | Hello { plan } ----------------------->  |
//!     | <----- Welcome { session } or Declined   |
//!     |   (the client makes the plan's connections, each with the session and its index as private data)
//!     | Memory { its own } ------------------->  |
//!     | <---------------------- Memory { ... }   |
//!     | Start { size } ----------------------->  |   for every size
//!     | <------------------------------ Ready    |
//!     |   (data moves)
//!     | Done { sent } ------------------------>  |
//!     | <------------------ Finished { cpu ... } |
//!     | Bye ---------------------------------->  |
//! ```

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::results::Row;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToServer {
    /// First of all.
    Hello { plan: Plan },
    /// Where the server may Write to and Read from.
    Memory(Memory),
    /// A size is measured now.
    Start { size: u32 },
    /// All is sent: so many messages on each QP, also those of the warm-up.
    Done { sent: u64 },
    /// No more sizes.
    Bye,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum ToClient {
    /// The plan will do. The data connections name this number.
    Welcome { session: u64 },
    /// The plan will not.
    Declined { reason: String },
    /// Where the client may Write to and Read from.
    Memory(Memory),
    /// The server can be sent to.
    Ready,
    /// What the server did meanwhile.
    Finished {
        /// Processor time in nanoseconds.
        cpu: u64,
        /// What it measured, where it sends too.
        row: Option<Box<Row>>,
    },
}

/// One piece of memory with a part for each QP, one behind the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}
