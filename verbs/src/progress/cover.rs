//! Who looks after a connection while nobody holds its lock.

use std::time::Instant;

use super::background::{Background, Interest, Token};
use uwarp_llp::Llp;

/// See the diagram in the documentation of [`crate::progress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cover {
    /// No descriptor yet, or no more.
    Off,
    /// Armed in the epoll set.
    Armed { write: bool },
    /// Its one shot was used up while the CQ was being polled; the background looks again soon.
    Watched,
    /// So many threads of the consumer wait on the descriptor themselves.
    Waited { threads: u32 },
}

/// The registration of a connection with the background thread.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) token: Token,
    pub(crate) cover: Cover,
    /// The earliest timer that the background has for it.
    pub(crate) timer: Option<Instant>,
}

impl Registration {
    pub(crate) fn new(token: Token) -> Self {
        Registration {
            token,
            cover: Cover::Off,
            timer: None,
        }
    }

    /// Arms the descriptor after a turn of the background (or the first turn of all).
    pub(crate) fn arm(&mut self, background: &Background, llp: &dyn Llp, blocked: bool) {
        let write = blocked && llp.wants_write_event();
        let interest = if write {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        background.arm(self.token, llp.fd(), interest);
        self.cover = Cover::Armed { write };
    }

    /// After a turn of another thread: makes sure that a blocked LLP is noticed when it can send.
    pub(crate) fn adjust(&mut self, background: &Background, llp: &dyn Llp, blocked: bool) {
        let write = blocked && llp.wants_write_event();
        match self.cover {
            Cover::Armed { write: armed } if write && !armed => self.arm(background, llp, true),
            // The waiting threads wait for octets only.
            Cover::Waited { .. } if write => background.arm(self.token, llp.fd(), Interest::Write),
            _ => {}
        }
    }

    /// Makes sure that the background wakes up by `deadline`.
    pub(crate) fn set_timer(&mut self, background: &Background, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && self.timer.is_none_or(|timer| deadline < timer)
        {
            self.timer = Some(deadline);
            background.at(self.token, deadline);
        }
    }

    /// A consumer's thread begins to wait on the descriptor.
    pub(crate) fn wait_begins(&mut self, background: &Background, llp: &dyn Llp) {
        self.cover = match self.cover {
            Cover::Waited { threads } => Cover::Waited {
                threads: threads + 1,
            },
            Cover::Off => Cover::Off,
            Cover::Armed { .. } | Cover::Watched => {
                background.arm(self.token, llp.fd(), Interest::None);
                Cover::Waited { threads: 1 }
            }
        };
    }

    /// A consumer's thread waits no longer; the last one hands back to the background.
    pub(crate) fn wait_ends(
        &mut self,
        background: &Background,
        llp: Option<&dyn Llp>,
        blocked: bool,
    ) {
        match (self.cover, llp) {
            (Cover::Waited { threads }, _) if threads > 1 => {
                self.cover = Cover::Waited {
                    threads: threads - 1,
                };
            }
            (Cover::Waited { .. }, Some(llp)) => self.arm(background, llp, blocked),
            (Cover::Waited { .. }, None) => self.cover = Cover::Off,
            (Cover::Off | Cover::Armed { .. } | Cover::Watched, _) => {}
        }
    }
}
