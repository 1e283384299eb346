//! A descriptor that becomes readable when something happened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

use crate::LlpError;

/// An eventfd that costs a system call only when it is not raised yet.
///
/// Nothing is lost as long as [`clear`](Self::clear) comes before looking at what was signalled,
/// and [`raise`](Self::raise) after putting it there. `clear` drains the descriptor first and
/// lowers the flag second: a `raise` in between finds the flag up and writes nothing, but what it
/// tells of is there before `clear` returns. The other order could drain the write of a `raise` and
/// leave the flag up, after which every later `raise` would stay silent. A `raise` that has set the
/// flag and not written yet when `clear` runs leaves the descriptor readable for nothing, once.
pub(crate) struct Signal {
    descriptor: OwnedFd,
    raised: AtomicBool,
}

impl Signal {
    /// Not raised.
    pub(crate) fn new() -> Result<Self, LlpError> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| LlpError::from_local_errno("make an eventfd", errno))?;
        Ok(Self {
            descriptor,
            raised: AtomicBool::new(false),
        })
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // An eventfd refuses a write only when its count is at its end: it is readable then.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        // Always read: the write of an earlier `raise` may have come after an earlier `clear`.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        self.raised.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec};

    fn readable(signal: &Signal) -> bool {
        let mut fds = [PollFd::new(signal, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_raise_to_clear_however_often_it_was_raised() {
        let signal = Signal::new().unwrap();
        assert!(!readable(&signal));
        signal.raise();
        signal.raise();
        assert!(readable(&signal));
        signal.clear();
        assert!(!readable(&signal));
        signal.raise();
        assert!(readable(&signal));
    }
}
