//! The temporary directory with the files. The process creates it at the first path that is mapped,
//! and removes it when it exits. One that was replaced, because the GID table has changed, stays
//! until the next one is. A process that is killed, that calls `_exit`, or that executes another
//! program leaves them there. The next process that creates one removes them (`owner.rs`).
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
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::env;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use super::contents::{self, Entry};
use super::owner;
use crate::at_exit::at_exit;
use crate::gids::GidEntry;
use crate::rnic::Rnic;

/// Directory that is in memory on most systems, and that every user may write to.
const SHARED_MEMORY: &str = "/dev/shm";

/// Files of one process.
pub(super) struct Tree {
    process: u32,
    root: PathBuf,
    /// GID table in the files. A look may come before the device is opened, which fixes the table.
    gids: Arc<[GidEntry]>,
}

/// Tree of this process, or of the parent until the first call of [`current`] in a child. A tree
/// that was replaced is not freed, because another thread may use it.
static CURRENT: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());
/// The tree before that one. Its files stay until the next tree is replaced, because a program may
/// have opened a directory of it and go on from there.
static PREVIOUS: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());

/// Returns the tree of this process. Creates it if there is none, if someone has removed it, or if
/// it has another GID table.
pub(super) fn current(rnic: &Rnic) -> io::Result<&'static Tree> {
    let old = CURRENT.load(Ordering::Acquire);
    // SAFETY: trees are never freed.
    let found = unsafe { old.as_ref() };
    if let Some(tree) = found
        && tree.process == process::id()
        && tree.gids == rnic.gids
        && tree.root.is_dir()
    {
        return Ok(tree);
    }
    let made = Tree::create(rnic)?;
    // Not a lock, which a forked child might find taken. The child inherits the entry.
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.swap(true, Ordering::Relaxed) {
        at_exit(remove_at_exit);
    }
    let made = Box::into_raw(Box::new(made));
    match CURRENT.compare_exchange(old, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            remove_own(PREVIOUS.swap(old, Ordering::AcqRel));
            // SAFETY: the pointer came from a box that is never freed.
            Ok(unsafe { &*made })
        }
        Err(other) => {
            // SAFETY: no other code has this pointer.
            unsafe { Box::from_raw(made) }.remove();
            // SAFETY: another thread of this process has stored a tree, which is never freed.
            Ok(unsafe { &*other })
        }
    }
}

extern "C" fn remove_at_exit() {
    for tree in [&CURRENT, &PREVIOUS] {
        remove_own(tree.load(Ordering::Acquire));
    }
}

/// Removes the files of a tree of this process. Those of its parent stay.
fn remove_own(tree: *mut Tree) {
    // SAFETY: trees are never freed.
    let tree = unsafe { tree.as_ref() };
    if let Some(tree) = tree.filter(|tree| tree.process == process::id()) {
        tree.remove();
    }
}

impl Tree {
    /// Creates the directory and all its files, in the first safe place with room for them.
    fn create(rnic: &Rnic) -> io::Result<Self> {
        let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = own.filter(|own| own.is_absolute());
        let shared = [PathBuf::from(SHARED_MEMORY), env::temp_dir()];
        let mut made = Err(io::ErrorKind::NotFound.into());
        for place in own.into_iter().chain(shared) {
            made = safe(&place).and_then(|place| {
                owner::remove_abandoned(&place);
                Tree::create_in(&place, rnic)
            });
            if made.is_ok() {
                break;
            }
        }
        made
    }

    fn create_in(place: &Path, rnic: &Rnic) -> io::Result<Self> {
        let tree = Tree {
            process: process::id(),
            root: temporary_directory(place)?,
            gids: Arc::clone(&rnic.gids),
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
                create_directories(directory)?;
            }
            match entry {
                Entry::File(text) => {
                    write_new(&path, &(text + "\n"))?;
                }
                Entry::Link(target) => symlink(target, &path)?,
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
        let written = write_new(&new, &text).and_then(|()| fs::rename(&new, place));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
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

/// Returns the path of a directory without symbolic links. Fails if another user could replace what
/// is in it: it must be of this user and writable by nobody else, or a directory of root like
/// `/tmp`, in which everybody may only replace what is his own.
fn safe(place: &Path) -> io::Result<PathBuf> {
    let place = fs::canonicalize(place)?;
    let found = fs::metadata(&place)?;
    // SAFETY: the function has no precondition.
    let own = unsafe { libc::geteuid() };
    let is_private = found.uid() == own && found.mode() & 0o022 == 0;
    // In a user namespace root may have another number.
    let is_of_system =
        found.uid() == 0 || [SHARED_MEMORY, "/tmp"].map(Path::new).contains(&&*place);
    let is_sticky = is_of_system && found.mode() & 0o1000 != 0;
    match is_private || is_sticky {
        true => Ok(place),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Creates a directory with a name that no other has. Only its user may write to it. In a place
/// that everybody may read, a program that takes another user id later, as servers do, may still
/// read it.
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
    Ok(path)
}

/// Creates a directory and those above it. Everybody may read them, whatever the process's `umask`.
fn create_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        create_directories(above)?;
    }
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Creates a file, which must not exist, that everybody may read.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(0o444))
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
    fn a_place_in_which_others_can_replace_files_is_not_safe() {
        let name = format!("uwarp-places-{}", process::id());
        let place = safe(&env::temp_dir()).unwrap().join(name);
        create_directories(&place).unwrap();
        let mode = |mode| fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
        assert_eq!(safe(&place).unwrap(), place);
        for open in [0o775, 0o757, 0o777] {
            mode(open);
            safe(&place).unwrap_err();
        }
        mode(0o700);
        let link = place.join("link");
        symlink(&place, &link).unwrap();
        assert_eq!(safe(&link).unwrap(), place);
        // A link where a file is to be written is not followed.
        let victim = place.join("victim");
        fs::write(&victim, "before").unwrap();
        symlink(&victim, place.join("new")).unwrap();
        write_new(&place.join("new"), "after").unwrap_err();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "before");
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_tree_that_was_removed_is_made_again_and_one_that_is_replaced_stays_once_more() {
        let rnic = rnic();
        let first = current(&rnic).unwrap();
        assert!(ptr::eq(first, current(&rnic).unwrap()));
        first.remove();
        let second = current(&rnic).unwrap();
        assert_ne!(first.root(), second.root());
        assert!(second.root().is_dir());
        let changed = Rnic {
            gids: Arc::from([]),
            ..rnic.clone()
        };
        let third = current(&changed).unwrap();
        assert!(second.root().is_dir() && third.root().is_dir());
        let fourth = current(&rnic).unwrap();
        assert!(!second.root().exists());
        assert!(third.root().is_dir() && fourth.root().is_dir());
        remove_at_exit();
        assert!(!third.root().exists() && !fourth.root().exists());
    }
}
