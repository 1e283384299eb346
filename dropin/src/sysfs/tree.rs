//! The temporary directory with the files. The process creates it at the first path that is mapped,
//! and removes it when it exits. A process that is killed, or that calls `_exit`, leaves it there.
//! The next process that creates one removes it (`owner.rs`).
//!
//! A forked child has counters and a device of its own, and so it creates its own directory.
//!
//! No lock is held while the files are written: a child may be forked at any time, and would find
//! the lock taken.
#![expect(
    unsafe_code,
    reason = "functions of the C library, and a pointer that is replaced atomically"
)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::env;
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Once;

use super::contents::{self, Entry};
use super::owner;
use crate::rnic::Rnic;

/// Directory that is in memory on most systems, and that every user may write to.
const SHARED_MEMORY: &str = "/dev/shm";

/// Files of one process.
pub(super) struct Tree {
    process: u32,
    root: PathBuf,
}

/// Tree of this process, or of the parent until the first call of [`current`] in a child. A tree
/// that was replaced is not freed, because another thread may use it.
static CURRENT: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());

/// Returns the tree of this process. Creates it if there is none, or if someone has removed it.
pub(super) fn current(rnic: &Rnic) -> io::Result<&'static Tree> {
    let old = CURRENT.load(Ordering::Acquire);
    // SAFETY: trees are never freed.
    let found = unsafe { old.as_ref() };
    if let Some(tree) = found
        && tree.process == process::id()
        && tree.root.is_dir()
    {
        return Ok(tree);
    }
    let made = Tree::create(rnic)?;
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: this library is never unloaded, so the function exists at exit. Without memory
        // for the entry, the directory stays.
        unsafe { libc::atexit(remove_at_exit) };
    });
    let made = Box::into_raw(Box::new(made));
    match CURRENT.compare_exchange(old, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the pointer came from a box that is never freed.
        Ok(_) => Ok(unsafe { &*made }),
        Err(other) => {
            // SAFETY: no other code has this pointer.
            unsafe { Box::from_raw(made) }.remove();
            // SAFETY: another thread of this process has stored a tree, which is never freed.
            Ok(unsafe { &*other })
        }
    }
}

extern "C" fn remove_at_exit() {
    // SAFETY: trees are never freed.
    let tree = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    if let Some(tree) = tree.filter(|tree| tree.process == process::id()) {
        tree.remove();
    }
}

impl Tree {
    /// Creates the directory and all its files, in the first place that can be written to.
    fn create(rnic: &Rnic) -> io::Result<Self> {
        let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = own.filter(|own| own.is_absolute());
        let shared = [PathBuf::from(SHARED_MEMORY), env::temp_dir()];
        let mut root = Err(io::ErrorKind::NotFound.into());
        for place in own.into_iter().chain(shared) {
            owner::remove_abandoned(&place);
            root = temporary_directory(&place);
            if root.is_ok() {
                break;
            }
        }
        let tree = Tree {
            process: process::id(),
            root: root?,
        };
        let written = tree.write(rnic);
        if written.is_err() {
            tree.remove();
        }
        written.map(|()| tree)
    }

    /// Directory before the paths of the files. It has no symbolic link in it.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn write(&self, rnic: &Rnic) -> io::Result<()> {
        for (path, entry) in contents::entries(rnic) {
            let path = self.place(path.as_bytes());
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            match entry {
                Entry::File(text) => {
                    fs::write(&path, text + "\n")?;
                    fs::set_permissions(&path, Permissions::from_mode(0o444))?;
                }
                Entry::Link(target) => symlink(target, &path)?,
                Entry::Directory => fs::create_dir_all(&path)?,
            }
        }
        Ok(())
    }

    /// Replaces the text of a file if it has changed. A thread that reads it meanwhile gets the old
    /// text. Otherwise the file stays the same one, because programs such as `cp` compare what they
    /// have opened with what they have found before.
    pub(super) fn rewrite(&self, path: &[u8], text: &str) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (place, text) = (self.place(path), format!("{text}\n"));
        if fs::read(&place).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(());
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let new = self.root.join(format!("new-{count}"));
        fs::write(&new, text)?;
        fs::set_permissions(&new, Permissions::from_mode(0o444))?;
        fs::rename(&new, place)
    }

    /// Returns the path of a file in the directory.
    fn place(&self, path: &[u8]) -> PathBuf {
        let bytes = [self.root.as_os_str().as_bytes(), path].concat();
        std::ffi::OsString::from_vec(bytes).into()
    }

    fn remove(&self) {
        // It may be gone already.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Creates a directory with a name that no other has. Only its user may write to it. A program that
/// takes another user id later, as servers do, may still read it.
fn temporary_directory(place: &Path) -> io::Result<PathBuf> {
    let name = place
        .join(format!("{}XXXXXX", owner::prefix()))
        .into_os_string();
    let name = CString::new(name.into_vec())?.into_raw();
    // SAFETY: the pointer is that of a C string, which the function changes without its length. The
    // string is freed afterwards.
    let (made, name) = unsafe { (libc::mkdtemp(name), CString::from_raw(name)) };
    if made.is_null() {
        return Err(io::Error::last_os_error());
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()));
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    fs::canonicalize(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::environment::Environment;

    fn rnic() -> Rnic {
        Rnic::open(Environment::from(|_: &str| None).unwrap(), None, None).unwrap()
    }

    #[test]
    fn the_files_are_there_until_the_tree_is_removed() {
        let rnic = rnic();
        let tree = Tree::create(&rnic).unwrap();
        let read = |path: &str| fs::read_to_string(tree.place(path.as_bytes()));
        for (path, entry) in contents::entries(&rnic) {
            let place = tree.place(path.as_bytes());
            match entry {
                Entry::File(text) => assert_eq!(read(&path).unwrap(), text + "\n", "{path}"),
                Entry::Link(target) => {
                    assert_eq!(fs::read_link(place).unwrap(), Path::new(&target));
                }
                Entry::Directory => assert!(place.is_dir(), "{path}"),
            }
        }
        let counter = "/sys/class/infiniband/uwarp0/ports/1/hw_counters/qps";
        let file = || fs::metadata(tree.place(counter.as_bytes())).unwrap().ino();
        tree.rewrite(counter.as_bytes(), "7").unwrap();
        assert_eq!(read(counter).unwrap(), "7\n");
        let before = file();
        tree.rewrite(counter.as_bytes(), "7").unwrap();
        assert_eq!(file(), before);
        let names: Vec<_> = fs::read_dir(tree.root()).unwrap().collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let root = tree.root().to_owned();
        tree.remove();
        assert!(!root.exists());
    }

    #[test]
    fn a_tree_that_was_removed_is_made_again() {
        let rnic = rnic();
        let first = current(&rnic).unwrap();
        assert!(ptr::eq(first, current(&rnic).unwrap()));
        first.remove();
        let second = current(&rnic).unwrap();
        assert_ne!(first.root(), second.root());
        assert!(second.root().is_dir());
        remove_at_exit();
        assert!(!second.root().exists());
    }
}
