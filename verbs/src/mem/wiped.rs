//! A word that the kernel clears in the child of a fork.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Room for the word; the kernel maps and wipes whole pages.
const LEN: usize = 4096;

/// A word of this process: 0 until somebody stores something, and again in every child of a fork (MADV_WIPEONFORK of
/// `madvise(2)`). `None` where the kernel cannot do that.
pub(crate) fn wiped_on_fork() -> Option<&'static AtomicU32> {
    static WORD: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *WORD.get_or_init(map)
}

fn map() -> Option<&'static AtomicU32> {
    if cfg!(miri) {
        // Miri has no MADV_WIPEONFORK; it has no fork either.
        return None;
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), LEN, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was just made here, and nobody else knows of it.
    if unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(page, LEN) };
        return None;
    }
    // SAFETY: the page is never unmapped from here on, it is aligned to more than a word, zero bytes are a valid
    // `AtomicU32`, and it is only reached through this shared reference.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}
