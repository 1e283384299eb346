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
    let plain = plain(path);
    if !contents::DIRECTORIES
        .iter()
        .any(|directory| is_in(&plain, directory))
    {
        // It has left the directories again.
        return Ok((0, plain));
    }
    let rnic = rnic::look().ok_or(libc::ENOENT)?;
    // Programs ask for a character device that they may read and write. They use it by libibverbs
    // only.
    if contents::is_character_device(&rnic, &plain) {
        return Ok((0, b"/dev/null".to_vec()));
    }
    let tree = tree::current(&rnic).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    for (file, text) in contents::counters_at(&rnic, &plain) {
        // The number of the last time remains if the disk is full.
        let _ = tree.rewrite(file.as_bytes(), &text);
    }
    let root = tree.root().as_os_str().as_bytes();
    Ok((root.len(), [root, path].concat()))
}

/// Returns an absolute path without empty parts, `.` and `..`.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    [b"/", &*parts.join(&b'/')].concat()
}

fn is_in(path: &[u8], directory: &str) -> bool {
    let below = path.strip_prefix(directory.as_bytes());
    below.is_some_and(|below| below.is_empty() || below.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_same_with_and_without_detours() {
        for (path, due) in [
            ("/sys/class/infiniband", "/sys/class/infiniband"),
            ("//sys/./class//infiniband/", "/sys/class/infiniband"),
            ("/sys/class/infiniband/../net", "/sys/class/net"),
            ("/sys/class/infiniband/a/../b", "/sys/class/infiniband/b"),
            ("/../..", "/"),
        ] {
            assert_eq!(plain(path.as_bytes()), due.as_bytes(), "{path}");
        }
    }

    #[test]
    fn a_path_that_leaves_the_directories_is_that_of_the_system() {
        let mapped = |path: &str| mapped(path.as_bytes()).unwrap();
        let out = mapped("/sys/class/infiniband/../net/lo");
        assert_eq!(out, (0, b"/sys/class/net/lo".to_vec()));
        let dev = mapped("/dev//infiniband/./uverbs0");
        assert_eq!(dev, (0, b"/dev/null".to_vec()));
        let (root, path) = mapped("/sys//class/infiniband/../infiniband");
        assert!(root > 0 && path.ends_with(b"/sys//class/infiniband/../infiniband"));
    }
}
