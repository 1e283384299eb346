//! Memory that stays free for allocations that cannot fail.
//!
//! Rust ends the process when an allocation fails, which happens under a limit of the process's
//! memory (`ulimit -v`, `ulimit -d`). A peer must not be able to cause that. So allocations that
//! are large, and those of each new connection, are tried first: they are refused unless 2 MiB
//! remain. The small allocations in between then succeed. Without such a limit nothing is tried,
//! because Linux then grants memory beyond what it has.

use std::hint::black_box;
use std::ptr;

use crate::fork_guard::ForkLock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// Number of bytes that an allocation has to leave free.
///
/// An idle connection has about 12 KiB of small allocations (docs/performance.md), so this is the
/// room of some 170 connections between two trials.
const HEADROOM: usize = 2 << 20;
/// Length in bytes of one piece of the headroom. Such a piece comes from the same place as a small
/// allocation; a longer one would get a mapping of its own from glibc.
const PIECE: usize = 64 << 10;
/// Address space of a thread: the default stack of Rust's threads, with room for the stack of its
/// signal handlers and for guard pages.
const THREAD: usize = (2 << 20) + (256 << 10);

/// Held from a trial to the allocation that it is for.
static TRIAL: ForkLock = ForkLock::new();

/// Error: a limit of this process's memory leaves too little of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this process has too little memory left for {what}; end something, or raise its limit \
     (`ulimit -v`, `ulimit -d`)"
)]
pub struct MemoryShort {
    what: &'static str,
}

impl MemoryShort {
    /// Creates the error for an allocation that was to serve `what`.
    #[doc(hidden)]
    pub fn new(what: &'static str) -> Self {
        MemoryShort { what }
    }

    /// Returns the text for a client that is refused. It has no advice, because the client cannot
    /// follow it.
    #[must_use]
    pub fn for_peer(&self) -> String {
        format!("the server has too little memory left for {}", self.what)
    }
}

/// Lets all threads share one arena of glibc's allocator, if the process has a limit of its memory
/// (`ulimit -v`, `ulimit -d`). Otherwise glibc reserves 64 MiB of address space for each of several
/// arenas, and a thread that finds no room for one takes a page for each small allocation. Call it
/// before other threads exist.
pub fn share_arena() {
    #[cfg(target_env = "gnu")]
    if is_limited() {
        // SAFETY: this only sets a number that the allocator reads when a thread first allocates.
        #[expect(unsafe_code, reason = "see the safety comment")]
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

/// Returns true if the process can allocate `bytes` bytes at once, and enough remains for small
/// allocations.
pub fn has(bytes: usize) -> bool {
    if !is_limited() {
        return true;
    }
    let _trial = TRIAL.lock();
    can_allocate(bytes, || has_free(HEADROOM))
}

/// Returns true if the process can start a thread that needs `bytes` bytes, and enough remains for
/// small allocations.
///
/// The bytes must be free twice. Otherwise a server that keeps its threads might later find no room
/// for the memory of a single client.
pub fn has_for_thread(bytes: usize) -> bool {
    if !is_limited() {
        return true;
    }
    let _trial = TRIAL.lock();
    let rest = || can_allocate(bytes, || has_free(HEADROOM));
    can_map(THREAD + bytes, rest)
}

/// Returns true if enough memory is free for a connection in startup. On the kernel's TCP it needs
/// little, so it may use half of the headroom. Its server can then tell the peer why it is refused.
/// The buffers of TCP in user space, 512 KiB by default, are not tried.
pub fn allows_startup() -> bool {
    if !is_limited() {
        return true;
    }
    let _trial = TRIAL.lock();
    has_free(HEADROOM / 2)
}

/// Calls `allocate`, which allocates `bytes` bytes. Returns `None` without the call if the memory
/// is too short for that.
pub fn allocate<T>(bytes: usize, allocate: impl FnOnce() -> T) -> Option<T> {
    if !is_limited() {
        return Some(allocate());
    }
    let _trial = TRIAL.lock();
    can_allocate(bytes, || has_free(HEADROOM)).then(allocate)
}

/// Returns true if this process has a limit of its memory.
fn is_limited() -> bool {
    let limits = [Resource::As, Resource::Data];
    // Miri has no such limits.
    !cfg!(miri)
        && limits
            .map(getrlimit)
            .iter()
            .any(|limit| limit.current.is_some())
}

/// Returns true if `bytes` bytes can be allocated in one piece, and `rest` returns true meanwhile.
fn can_allocate(bytes: usize, rest: impl FnOnce() -> bool) -> bool {
    let mut trial = Vec::<u8>::new();
    let is_granted = trial.try_reserve_exact(bytes).is_ok() && rest();
    // Otherwise the compiler may leave the allocation out.
    black_box(&trial);
    is_granted
}

/// Returns true if `bytes` bytes can be allocated in small pieces. `bytes`: at most [`HEADROOM`].
fn has_free(bytes: usize) -> bool {
    let mut pieces = [const { Vec::<u8>::new() }; HEADROOM / PIECE];
    let is_granted = pieces
        .iter_mut()
        .take(bytes / PIECE)
        .all(|piece| piece.try_reserve_exact(PIECE).is_ok());
    black_box(&pieces);
    is_granted
}

/// Returns true if `bytes` bytes can be mapped, and `rest` returns true meanwhile. A stack cannot
/// come from free memory of the allocator.
fn can_map(bytes: usize, rest: impl FnOnce() -> bool) -> bool {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the new mapping replaces no other one. Nothing accesses it before it is unmapped.
    #[expect(unsafe_code, reason = "see the safety comment")]
    unsafe {
        match mmap_anonymous(ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) {
            Ok(base) => {
                let is_granted = rest();
                munmap(base, bytes).is_ok() && is_granted
            }
            Err(_) => false,
        }
    }
}

/// Length of an allocation that no process can make.
#[cfg(test)]
pub(crate) const TOO_MUCH: usize = isize::MAX as usize / 2;

/// Calls `act` in a process with a limit of its memory that disturbs no other test. Does not call
/// it where there are no limits.
#[cfg(test)]
pub fn with_limit(act: impl FnOnce()) {
    use rustix::process::{Rlimit, setrlimit};

    if cfg!(miri) {
        return;
    }
    // One test at a time, because each ends the limit.
    static LIMIT: ForkLock = ForkLock::new();
    let _held = LIMIT.lock();
    let before = getrlimit(Resource::Data);
    if !is_limited() {
        let current = Some(TOO_MUCH as u64);
        setrlimit(Resource::Data, Rlimit { current, ..before }).unwrap();
    }
    if is_limited() {
        act();
    } else {
        eprintln!("SKIPPED: QEMU's user emulation has no limits of memory");
    }
    setrlimit(Resource::Data, before).unwrap();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use uwarp_testkit::ends_in_child;

    use super::*;

    /// Without a lock that knows of forks, the child would wait for a thread that it does not
    /// have.
    #[test]
    fn a_fork_during_a_trial_does_not_stop_the_child_from_allocating() {
        with_limit(|| {
            let _held = TRIAL.lock();
            assert!(ends_in_child(|| allocate(1 << 20, || ()).is_some()));
        });
    }
}
