//! [`Signal`]: a descriptor that other threads make readable to announce work.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::EventfdFlags;

use crate::LlpError;

/// An eventfd with a state in memory, so that `raise` and `clear` make a system call only when
/// readiness changes.
///
/// ```text
///  Lowered -- raise: the first one --> Raising -- it has written --> Raised
///     ^                                                                |
///     +------------------ clear: the descriptor was read --------------+
/// ```
/// Nothing is lost if [`clear`](Self::clear) is called before checking for work, and
/// [`raise`](Self::raise) after the work was added. `clear` first drains the descriptor and then
/// lowers the state. A `raise` in between sees the state raised and writes nothing, but its work
/// was added before `clear` returns.
///
/// If `clear` lowered the state first, it could drain the write of a later `raise` and leave the
/// state raised. Every further `raise` would then write nothing. A `clear` during a `raise` that
/// has not written yet does nothing. The descriptor then becomes readable although no work is left.
pub(crate) struct Signal {
    descriptor: OwnedFd,
    state: AtomicU8,
}

const LOWERED: u8 = 0;
const RAISING: u8 = 1;
const RAISED: u8 = 2;

impl Signal {
    /// Creates a signal that is not raised.
    pub(crate) fn new() -> Result<Self, LlpError> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| LlpError::from_local_errno("make an eventfd", errno))?;
        Ok(Self {
            descriptor,
            state: AtomicU8::new(LOWERED),
        })
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        // The read-modify-write takes place even if the state stays the same. A later `clear`
        // synchronizes with it, and its caller sees the work that was added before.
        let before = self.state.fetch_max(RAISING, Ordering::AcqRel);
        if before == LOWERED {
            // A write to an eventfd fails only if its counter is full. It is then already readable.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
            self.state.store(RAISED, Ordering::Release);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        self.state.load(Ordering::Acquire) != LOWERED
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        if self.state.load(Ordering::Acquire) == RAISED {
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
            self.state.swap(LOWERED, Ordering::AcqRel);
        }
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
