//! The device as the kernel would show it in `/sys/class/infiniband`, `/sys/class/infiniband_verbs`
//! and `/dev/infiniband`. Programs such as UCX and NCCL look there, besides calling libibverbs.
//!
//! `uwarp run --preload` also loads the library of `dropin/redirect`, which replaces the functions
//! that take a path. For a path of these directories it calls [`map`], which returns the path of a
//! file in a temporary directory (`tree.rs`). The files are real ones, because a program may open a
//! directory, list it, and go on from its descriptor with `openat` or `fstatat`. A file without a
//! directory (`memfd_create`) could not serve that. Numbers that have changed are written anew when
//! their path is mapped.
//!
//! The two libraries are separate files. Programs search libibverbs before the C library, so a
//! function `open` in this library would replace that of every program, with and without
//! `--preload`.
#![expect(
    unsafe_code,
    reason = "C entry points: the caller guarantees that its pointers are valid"
)]

pub(crate) mod contents;
mod owner;
mod tree;

use core::ffi::{c_char, c_int};
use core::ptr;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use crate::panic_guard::entry;
use crate::rnic;

/// `uwarp_sysfs_map`: writes the path that replaces `path` to `room` bytes at `to`. Returns the
/// number of bytes at its start that come before `path`: 0 if it is another path. Returns a
/// negative error number if there is none.
pub(crate) unsafe extern "C-unwind" fn map(
    path: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    entry(-libc::EIO, || {
        // SAFETY: the caller passes a C string.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        match mapped(path) {
            Ok((before, mapped)) if mapped.len() < room => {
                // SAFETY: the caller has `room` bytes at `to`, which are more than these.
                unsafe {
                    ptr::copy_nonoverlapping(mapped.as_ptr().cast(), to, mapped.len());
                    *to.add(mapped.len()) = 0;
                }
                c_int::try_from(before).unwrap_or(-libc::ENAMETOOLONG)
            }
            Ok(_) => -libc::ENAMETOOLONG,
            Err(errno) => -errno,
        }
    })
}

/// Returns the path that replaces `path`, and the number of its bytes that come before `path`.
fn mapped(path: &[u8]) -> Result<(usize, Vec<u8>), c_int> {
    let rnic = rnic::get().ok_or(libc::ENOENT)?;
    // Programs ask for a character device that they may read and write. They use it by libibverbs
    // only.
    if contents::is_character_device(&rnic, path) {
        return Ok((0, b"/dev/null".to_vec()));
    }
    let tree = tree::current(&rnic).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    if let Some(text) = contents::counter(&rnic, path) {
        // The number of the last time remains if the disk is full.
        let _ = tree.rewrite(path, &text);
    }
    let root = tree.root().as_os_str().as_bytes();
    Ok((root.len(), [root, path].concat()))
}
