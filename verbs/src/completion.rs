//! Completions: the queues in which work requests complete, and the channels that wake a sleeping
//! program.

mod channel;
mod cq;
mod eventfd;
mod places;

pub use channel::{ChannelError, CompletionChannel, CqEvent};
pub use cq::{Notify, ResizeCqError};
pub use uwarp_engine::completion::{Completion, DatagramSource, Status, WcOpcode, WorkError};

pub(crate) use cq::CqInner;
pub(crate) use eventfd::EventFd;
pub(crate) use places::CqOfQueue;

#[cfg(test)]
mod tests;
