//! Progress of connections: the threads that send and receive for a connection, and the occasions
//! on which they do.
//!
//! A connection has no thread of its own. Any thread that holds its lock can give it a *turn*
//! ([`drive::Driven::turn`]), which receives, places, answers and sends. Turns happen on these
//! occasions:
//!
//! * **Posting** sends at once if the LLP takes the bytes, or stages the request for the next turn
//!   ([`doorbell::Doorbell`]).
//! * **Polling an empty CQ** gives each connection of that CQ a turn. A CQ with many connections
//!   gives turns only to those that are ready or dirty ([`epoll_group::EpollGroup`]).
//! * **A poll that finds nothing** also gives turns to active connections of other CQs that no
//!   thread polls ([`orphan_polling::OrphanPoller`]).
//! * **A poll that takes a completion** waits briefly for the peer's answer if the program seems to
//!   watch memory for it ([`reply_wait::ReplyWait`]).
//! * **Waiting** ([`crate::Cq::wait`]) sleeps on the sockets of the CQ's connections directly. This
//!   needs one wake-up, where waiting for the background would need two.
//! * **The background** ([`background::Background`]) sleeps in `epoll_wait`, never spins, and gives
//!   turns to ready connections that no thread polls. While polling continues, it checks for such
//!   connections less and less often ([`back_off::BackOff`]). With
//!   [`Progress::Manual`](crate::Progress::Manual) there is no background thread, and the program
//!   runs the same rounds.
//! * **Closing** an LLP connection finishes in the background ([`linger`]).
//!
//! [`crate::policy`] has the constants of these occasions, and the switch that leaves one out.
//!
//! [`poll_owner::PollOwner`] records which thread watches the descriptor of a connection while its
//! lock is free:
//!
//! ```text
//!            event, but the CQ is being polled            a thread waits on it
//!   Armed ───────────────────────────────────► Watched   Armed ────────────────► Waited
//!     ▲   no poll for `takeover`, or a             │        ▲   the last one leaves  │
//!     └── notification is requested ───────────────┘        └───────────────────────┘
//!
//!                a turn, and its QP is in a group
//!   Armed, Watched ───────────────────────────► Grouped ──────► Off (Waited, if a thread waits)
//!                                                 the LLP is gone
//! ```
//!
//! * `Armed`: the descriptor is in the background's epoll set with `EPOLLONESHOT`.
//! * `Watched`: the one shot was used up by an event that a polling thread handles. The background
//!   checks again after `takeover`, and less often while polling continues.
//! * `Waited`: a thread of the program that waits for a completion has the descriptor in its own
//!   epoll set.
//! * `Grouped`: the descriptor is in the set of an epoll group, which has a `PollOwner` of its own.
//!
//! Lock order: QP, then SRQ, then CQ; QP, then background. The background never holds its own lock
//! while it takes another.

mod back_off;
pub(crate) mod background;
pub(crate) mod confirmations;
pub(crate) mod doorbell;
pub(crate) mod drive;
mod epoll;
pub(crate) mod epoll_group;
pub(crate) mod linger;
pub(crate) mod orphan_polling;
pub(crate) mod poll_owner;
pub(crate) mod reply_wait;

/// Error of a blocking call on a device that the program drives itself
/// ([`Progress::Manual`](crate::Progress::Manual)). No thread would drive the device during the
/// call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the program drives the device itself (Progress::Manual), so no thread would drive it while this call waits; connect with a CmId or the async API, and call Device::progress until the result is reported"
)]
pub struct WouldWait;

impl WouldWait {
    /// Fails if the program drives the device itself.
    pub(crate) fn check(device: &crate::device::DeviceInner) -> Result<(), WouldWait> {
        if device.background.is_manual() {
            return Err(WouldWait);
        }
        Ok(())
    }
}
