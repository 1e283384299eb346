//! Completions of work requests, and the interface to the queue that takes them.

mod outcome;
mod queue;
mod ring;
mod wc;

pub use crate::status::Status;
pub use outcome::WorkError;
pub use queue::{CompletionQueue, CqOverflow, FreedPlaces, Pushing};
pub use ring::{QueueOfRing, Ring};
pub use wc::{Completion, DatagramSource, WcOpcode};
