//! Completions: the queues in which work requests complete, and the channels that wake a sleeping
//! program.

mod channel;
mod cq;
mod eventfd;
mod outcome;
mod places;
mod wc;

pub use channel::{ChannelError, CompletionChannel, CqEvent};
pub use cq::{Notify, ResizeCqError};
pub use outcome::WorkError;
pub use wc::{Completion, DatagramSource, Status, WcOpcode};

pub(crate) use cq::{CqInner, CqOverflow, Pushing};
pub(crate) use eventfd::EventFd;
pub(crate) use places::{CqOfQueue, FreedPlaces};

#[cfg(test)]
mod tests;
