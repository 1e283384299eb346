//! Progress: work that any thread can do under a connection's lock, and a parked thread for
//! connections that nobody polls.
//!
//! * **Posting** sends at once when the LLP takes it.
//! * **Polling an empty CQ** gives each connection of that CQ a turn ([`drive::Driven::turn`]).
//! * **Waiting** ([`crate::Cq::wait`]) waits on the sockets of the CQ's connections itself: one wake-up,
//!   not two.
//! * **The background thread** ([`background::Background`]) sleeps in `epoll_wait`, never spins, and
//!   gives a turn to connections that are ready and that nobody polls.
//!
//! Who looks after a connection while nobody holds its lock is its [`cover::Cover`]:
//!
//! ```text
//!            event, but the CQ is being polled            a thread waits on it
//!   Armed ───────────────────────────────────► Watched   Armed ────────────────► Waited
//!     ▲   no poll for `takeover`, or a             │        ▲   the last one leaves  │
//!     └── notification is requested ───────────────┘        └───────────────────────┘
//! ```
//!
//! `Armed`: its descriptor is in the epoll set with `EPOLLONESHOT`. `Watched`: the one shot was
//! used up by an event that the polling thread takes care of; the background looks at it again
//! every `takeover`. `Waited`: a blocked thread of the consumer has the descriptor in its own set.
//!
//! Lock order: QP, then SRQ, then CQ; QP, then background. The background never holds its own lock while it
//! takes another.

pub(crate) mod background;
pub(crate) mod cover;
pub(crate) mod drive;
pub(crate) mod linger;
