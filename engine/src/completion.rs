//! Completions of work requests, and the interface to the queue that takes them.
//!
//! A thread that takes a completion sees what it completes, such as placed bytes. A queue provides
//! this order between the thread that appends a completion and the one that takes it.

mod outcome;
mod queue;
mod ring;
mod wc;

pub use crate::status::Status;
pub use outcome::WorkError;
pub use queue::{CompletionQueue, CqOverflow, FreedPlaces, Pushing};
pub use ring::{QueueOfRing, Ring};
pub use wc::{Completion, DatagramSource, WcOpcode};
