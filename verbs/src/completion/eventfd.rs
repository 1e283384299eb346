//! Counter on which `poll(2)` can wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::wait::timespec;

/// Owned descriptor of an eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// Creates a counter that counts events: each read takes 1. Reads block until the program makes
    /// the descriptor non-blocking.
    pub(crate) fn semaphore() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE,
        )?))
    }

    /// Creates a flag whose read takes everything and never blocks.
    pub(crate) fn flag() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Adds 1. The counter cannot overflow, because 2^64 events never exist.
    pub(crate) fn add(&self) {
        while let Err(Errno::INTR) = rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {}
    }

    /// Takes 1 (semaphore) or everything (flag). Returns false if there was nothing to take and the
    /// descriptor does not block.
    pub(crate) fn take(&self) -> bool {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(&self.0, &mut count) {
                Err(Errno::INTR) => {}
                result => return result.is_ok(),
            }
        }
    }

    /// Returns true if the program made the descriptor non-blocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.0);
        flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Waits until the counter is not 0. Returns false if `timeout` passed first (`None` waits
    /// without limit). Returns true after a signal as well.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            // The caller checks again and computes the remaining time.
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
