//! `uwarp run --sysfs namespace`: shows the device in `/sys/class/infiniband` and `/dev/infiniband`
//! by mounts that only the program sees. Unlike `--preload`, this reaches every program that looks
//! there, however it does.
//!
//! The process gets a mount namespace of its own, and a user namespace if it may not mount
//! otherwise. The files come from `cp`, which runs with the libraries of `--preload`. So they show
//! the device as it is when the program starts. Files that change later are left out.
//!
//! | path | mount |
//! |---|---|
//! | `/sys/class` | an overlay, which has the two directories if the kernel has no such devices |
//! | `/sys/class/infiniband`, `..._verbs` | the files |
//! | `/dev` | a new directory with all the old entries, unless there is a `/dev/infiniband` |
//! | `/dev/infiniband` | a directory with `uverbs0`, which is `/dev/null` |

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::failure::{Failure, Report};

const CLASS: &str = "/sys/class";
const DEV: &str = "/dev";
/// Directory that the file system with the files covers until all is mounted. It exists everywhere,
/// and `cp` does not need it.
const PLACE: &str = "/sys/kernel";
/// Directories of `/sys/class`.
const DIRECTORIES: [&str; 2] = ["infiniband", "infiniband_verbs"];
/// Directories below a device whose files change while the program runs. The first exists on every
/// device, and may be empty.
const CHANGING: [&str; 2] = ["ports/1/counters", "ports/1/hw_counters"];

/// Enters the namespaces and mounts the files. `copy` is a command to whose environment the
/// libraries belong; it gets the arguments of `cp`.
///
/// # Errors
/// This user may not do so here, or the device cannot be opened.
pub(super) fn enter(copy: &mut Command) -> Result<(), Failure> {
    unshare().map_err(|error| refused("a namespace of its own", &error))?;
    let place = Path::new(PLACE);
    memory(place).map_err(|error| refused("a file system in memory", &error))?;
    fill(place, copy)?;
    // The mounts elsewhere keep what they need of it.
    let uncovered = unmount(place, UnmountFlags::DETACH);
    uncovered.map_err(|error| refused("its /sys as before", &error.into()))
}

/// Returns the failure of a step that needs rights.
fn refused(what: &str, error: &io::Error) -> Failure {
    Report::new(format!("the program cannot have {what}: {error}"))
        .expected("user namespaces that users may create, and Linux 5.11")
        .advice(
            "see sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone and \
             kernel.apparmor_restrict_unprivileged_userns (a container needs the capability \
             SYS_ADMIN); or use --preload, which needs no rights",
        )
        .into()
}

/// Enters a new mount namespace, and a new user namespace if this user may not mount. The user has
/// the same number there.
fn unshare() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: the process keeps its table of file descriptors.
    #[expect(unsafe_code, reason = "the function is unsafe for file descriptors")]
    let unshare = |flags| unsafe { unshare_unsafe(flags) };
    if unshare(UnshareFlags::NEWNS).is_err() {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        // Without the right to change groups, a user may map the own group.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // Mounts of the program stay in its namespace, and later ones of the system still reach it.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", flags)?)
}

/// Puts the files into `place`, a file system in memory, and mounts all.
fn fill(place: &Path, copy: &mut Command) -> Result<(), Failure> {
    let at = |name: &str| place.join(name);
    let prepared = ["tree", "upper", "work", "dev"].map(at);
    let prepared = prepared.iter().try_for_each(fs::create_dir);
    prepared.map_err(|error| refused("a file system in memory", &error))?;
    let devices = copied(&at("tree"), copy)?;
    class(place).map_err(|error| refused("/sys/class/infiniband", &error))?;
    dev(&at("dev"), &devices).map_err(|error| refused("/dev/infiniband", &error))
}

/// Returns true for a directory of the system. The standard library calls the C library, which
/// finds the device if this command runs under `--preload` itself.
fn is_directory(path: &Path) -> bool {
    let found = rustix::fs::stat(path);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

fn memory(at: &Path) -> io::Result<()> {
    Ok(mount(
        "tmpfs",
        at,
        "tmpfs",
        MountFlags::NOSUID,
        c"mode=755",
    )?)
}

/// Copies the files to `tree`. Returns the names of the character devices.
fn copied(tree: &Path, copy: &mut Command) -> Result<Vec<PathBuf>, Failure> {
    let sources = DIRECTORIES.map(|name| Path::new(CLASS).join(name));
    let said = copy
        .arg("-r")
        .args(sources)
        .arg(tree)
        .stdin(Stdio::null())
        .output();
    let said = said.map_err(|error| Failure::because(format!("cp cannot be run: {error}")))?;
    let cannot =
        |why: String| Failure::because(format!("the files of the device cannot be created: {why}"));
    if !said.status.success() {
        return Err(cannot(String::from_utf8_lossy(&said.stderr).into_owned()));
    }
    let without_counters = || -> io::Result<Vec<PathBuf>> {
        for device in fs::read_dir(tree.join(DIRECTORIES[0]))? {
            let device = device?.path();
            let [counters, own] = CHANGING.map(|name| device.join(name));
            fs::remove_dir_all(&counters)?;
            fs::create_dir(counters)?;
            fs::remove_dir_all(own)?;
        }
        let verbs = fs::read_dir(tree.join(DIRECTORIES[1]))?;
        let verbs = verbs
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_dir());
        Ok(verbs.map(|entry| entry.file_name().into()).collect())
    };
    without_counters().map_err(|error| cannot(error.to_string()))
}

/// Mounts the directories of `/sys/class`.
fn class(place: &Path) -> io::Result<()> {
    let [tree, upper, work] = ["tree", "upper", "work"].map(|name| place.join(name));
    let targets = DIRECTORIES.map(|name| Path::new(CLASS).join(name));
    if targets.iter().any(|target| !is_directory(target)) {
        for name in DIRECTORIES {
            fs::create_dir(upper.join(name))?;
        }
        let mut options = format!("lowerdir={CLASS},upperdir=").into_bytes();
        options.extend(upper.as_os_str().as_bytes());
        options.extend(b",workdir=");
        options.extend(work.as_os_str().as_bytes());
        let options = CString::new(options)?;
        mount(
            "overlay",
            CLASS,
            "overlay",
            MountFlags::empty(),
            options.as_c_str(),
        )?;
    }
    for (name, target) in DIRECTORIES.iter().zip(&targets) {
        mount_bind(tree.join(name), target)?;
    }
    Ok(())
}

/// Mounts `/dev/infiniband` with the character devices. `old`: directory where `/dev` is kept
/// meanwhile.
fn dev(old: &Path, devices: &[PathBuf]) -> io::Result<()> {
    let target = Path::new(DEV).join(DIRECTORIES[0]);
    mount_bind_recursive(DEV, old)?;
    if is_directory(&target) {
        memory(&target)?;
    } else {
        memory(Path::new(DEV))?;
        for entry in fs::read_dir(old)? {
            let entry = entry?;
            let (from, to) = (entry.path(), Path::new(DEV).join(entry.file_name()));
            let kind = entry.file_type()?;
            if kind.is_symlink() {
                symlink(fs::read_link(from)?, to)?;
            } else if kind.is_dir() {
                fs::create_dir(&to)?;
                mount_bind_recursive(from, to)?;
            } else {
                File::create(&to)?;
                mount_bind(from, to)?;
            }
        }
        fs::create_dir(&target)?;
    }
    for name in devices {
        // Not by the C library, for the same reason.
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(rustix::fs::open(
            target.join(name),
            flags,
            Mode::from_raw_mode(0o666),
        )?);
        mount_bind(old.join("null"), target.join(name))?;
    }
    Ok(())
}
