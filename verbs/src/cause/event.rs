//! Events of the device that end no connection.

use super::parts::{Account, Layer, Who};
use super::{Cause, parts};
use crate::event::AsyncEvent;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happening {
    Established,
    CqOverflow,
    SrqLimit,
    LastWqe,
}

impl Happening {
    pub(super) const fn sentence(self) -> &'static str {
        match self {
            Self::Established => "the connection is open in both directions",
            Self::CqOverflow => {
                "a completion queue was full, and the completion of a work request is lost"
            }
            Self::SrqLimit => "fewer receives are left in the shared receive queue than its limit",
            Self::LastWqe => {
                "a queue pair that has failed takes no more receives from its shared receive queue"
            }
        }
    }

    pub(super) const fn account(self) -> parts::Account {
        match self {
            Self::Established => Account::new("", Who::PeerProgram, Layer::Mpa),
            Self::SrqLimit => Account::new("", Who::Program, Layer::Verbs)
                .hint("post more receives, then arm the limit again (`Srq::modify`)"),
            Self::LastWqe => Account::new("", Who::Program, Layer::Verbs)
                .hint("the queue pair can be dropped or reset once its completions are polled"),
            Self::CqOverflow => Account::new("completion lost", Who::Program, Layer::Verbs)
                .hint("poll more often, or create the completion queue with a place for every work request of its queue pairs"),
        }
    }
}

impl From<&AsyncEvent> for Cause {
    fn from(event: &AsyncEvent) -> Self {
        match event {
            AsyncEvent::Established { .. } => Cause::event(Happening::Established),
            AsyncEvent::Ended { reason, .. } => Cause::from(reason),
            AsyncEvent::CqOverflow { .. } => Cause::event(Happening::CqOverflow),
            AsyncEvent::SrqLimitReached { .. } => Cause::event(Happening::SrqLimit),
            AsyncEvent::LastWqeReached { .. } => Cause::event(Happening::LastWqe),
            AsyncEvent::DeviceFatal { error } | AsyncEvent::AddressConflict { error } => {
                Cause::from(*error)
            }
        }
    }
}
