//! The process that an object belongs to.
//!
//! Threads do not survive a fork, and descriptors are shared after one. So what a process made before it forked is
//! dead in the child: every call says so ([`Inherited`]) before it takes a lock, which a thread that is no more may
//! hold, and a drop in the child frees nothing that the parent could notice: no FIN, no `epoll_ctl`, no count
//! of an eventfd, no join. The parent goes on, and the child may open devices of its own.
//!
//! Nothing has to be called before a fork, and regions need no `MADV_DONTFORK`, because no hardware writes to
//! them: where libibverbs asks, the answer is `IBV_FORK_UNNEEDED`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::mem::wiped_on_fork;

/// The object was made before a `fork()`, and this is the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this was made before a fork(), and belongs to the parent process, where it works on; open a device in this process"
)]
pub struct Inherited;

/// Remembers in which process it was made. The question costs one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard {
    /// `None`: the kernel wipes nothing, and the number is that of the process.
    word: Option<&'static AtomicU32>,
    number: u32,
}

/// Numbers of processes, each larger than those of its ancestors: a fork copies it.
static LAST: AtomicU32 = AtomicU32::new(0);

impl ForkGuard {
    /// This process.
    pub(crate) fn here() -> Self {
        let Some(word) = wiped_on_fork() else {
            return ForkGuard {
                word: None,
                number: std::process::id(),
            };
        };
        let number = match word.load(Ordering::Acquire) {
            0 => {
                let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                match word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => new,
                    Err(other) => other,
                }
            }
            number => number,
        };
        ForkGuard {
            word: Some(word),
            number,
        }
    }

    /// Whether this is still that process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        match self.word {
            Some(word) => word.load(Ordering::Relaxed) == self.number,
            None => std::process::id() == self.number,
        }
    }

    /// # Errors
    /// [`Inherited`] in the child of a fork.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Inherited> {
        if self.is_here() {
            Ok(())
        } else {
            Err(Inherited)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_at_home_where_it_began() {
        let (one, other) = (ForkGuard::here(), ForkGuard::here());
        assert_eq!(one.number, other.number);
        assert!(one.is_here() && other.check().is_ok());
    }
}
