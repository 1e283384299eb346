//! Progress: work that any thread can do under a connection's lock, and a parked thread for
//! connections that nobody polls.
//!
//! * **Posting** sends at once when the LLP takes it, or leaves it to the next turn ([`doorbell::Doorbell`]).
//! * **Polling an empty CQ** gives each connection of that CQ a turn ([`drive::Driven::turn`]), or, where there are many,
//!   those that are ready or have something staged ([`epoll_group::EpollGroup`]).
//!   A poll that finds nothing also drives connections of other CQs that have traffic and that nobody polls
//!   ([`orphan_polling::OrphanPoller`]), and one that has a completion waits a moment for the peer's answer where the program
//!   seems to look for it in memory ([`reply_wait::ReplyWait`]).
//! * **Waiting** ([`crate::Cq::wait`]) waits on the sockets of the CQ's connections itself: one wake-up,
//!   not two.
//! * **The background thread** ([`background::Background`]) sleeps in `epoll_wait`, never spins, and
//!   gives a turn to connections that are ready and that nobody polls. With
//!   [`Progress::Manual`](crate::Progress::Manual) there is none, and the program runs the same rounds.
//!
//! Who looks after a connection while nobody holds its lock is its [`poll_owner::PollOwner`]:
//!
//! ```text
//!            event, but the CQ is being polled            a thread waits on it
//!   Armed ───────────────────────────────────► Watched   Armed ────────────────► Waited
//!     ▲   no poll for `takeover`, or a             │        ▲   the last one leaves  │
//!     └── notification is requested ───────────────┘        └───────────────────────┘
//!
//!                a turn, and its QP has a seat
//!   Armed, Watched ───────────────────────────► Seated ───────► Off (Waited, if a thread has it itself)
//!                                                 the LLP is gone
//! ```
//!
//! `Armed`: its descriptor is in the epoll set with `EPOLLONESHOT`. `Watched`: the one shot was
//! used up by an event that the polling thread takes care of; the background looks at it again
//! after `takeover`, and ever more rarely while polls go on ([`back_off::BackOff`]). At the second such look the descriptor leaves
//! the set, until it is armed again. `Waited`: a blocked thread of the consumer has the descriptor in its own set.
//! `Seated`: it is in the set of a crowd, whose own cover is one of the first three.
//!
//! Lock order: QP, then SRQ, then CQ; QP, then background. The background never holds its own lock while it
//! takes another.

mod back_off;
pub(crate) mod background;
pub(crate) mod doorbell;
pub(crate) mod drive;
mod epoll;
pub(crate) mod epoll_group;
pub(crate) mod linger;
pub(crate) mod lock_yield;
pub(crate) mod orphan_polling;
pub(crate) mod poll_owner;
pub(crate) mod reply_wait;

/// A call that can only wait was made on a device that the program drives itself: nobody would drive it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the program drives the device itself (Progress::Manual), and nobody would while this call waits; connect with a CmId or with the async API, and call Device::progress until it tells what came of it"
)]
pub struct WouldWait;

impl WouldWait {
    /// Whether calls of the device may wait.
    pub(crate) fn check(device: &crate::device::DeviceInner) -> Result<(), WouldWait> {
        if device.background.is_manual() {
            return Err(WouldWait);
        }
        Ok(())
    }
}
