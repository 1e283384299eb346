//! A word that the kernel clears in the child of a fork.
#![expect(
    unsafe_code,
    reason = "a mapping of a page, which nothing else refers to"
)]

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Size of the mapping: the kernel maps and wipes whole pages.
const LEN: usize = 4096;

/// Returns a static word that is 0 until this process sets it, and 0 again in every child of a
/// fork.
///
/// Uses MADV_WIPEONFORK of `madvise(2)`. `None` if the kernel does not support it.
pub(super) fn wiped_on_fork() -> Option<&'static AtomicU32> {
    static WORD: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *WORD.get_or_init(map)
}

fn map() -> Option<&'static AtomicU32> {
    if cfg!(miri) {
        // Miri supports neither MADV_WIPEONFORK nor fork.
        return None;
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), LEN, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was just mapped here, and no other code refers to it.
    if unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nothing refers to the page.
        let _ = unsafe { rustix::mm::munmap(page, LEN) };
        return None;
    }
    // SAFETY: the page is never unmapped after this point and is aligned to more than a word. Zero
    // bytes are a valid `AtomicU32`, which is only accessed through this shared reference.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}
