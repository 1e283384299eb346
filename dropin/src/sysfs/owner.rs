//! Owners of temporary directories. The name of a directory tells which process has created it, so
//! that another process can remove what a killed one has left.
//!
//! A process ID alone is not enough. It is used again later, it has another meaning in another PID
//! namespace (a container with the same `/dev/shm`), and the directory may be one that several
//! machines share. So the name also has the boot ID of the machine, the number of the PID
//! namespace, and the time when the process started. A process may execute another program, which
//! has its stack at another address.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

/// Start of the names of all directories.
const NAME: &str = "uwarp-sysfs-";

/// Returns the start of the name of a directory of this process.
pub(super) fn prefix() -> String {
    let own = process::id();
    match (namespace(), start(own)) {
        (Some(namespace), Some((start, stack))) => format!("{namespace}{own}-{start}-{stack}-"),
        // Without `/proc`, nobody can find out that the process has ended.
        _ => NAME.to_owned(),
    }
}

/// Removes the directories in `place` whose processes have ended or execute another program now.
/// Those of other users stay, because only their owner may remove them.
pub(super) fn remove_abandoned(place: &Path) {
    let Some(namespace) = namespace() else { return };
    let all = fs::read_dir(place).into_iter().flatten().flatten();
    for entry in all {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(&namespace));
        if name.is_some_and(has_ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns true if the process has ended, or if it is this one and has executed another program
/// since. `name`: `PID-START-STACK-` and the rest of a name.
fn has_ended(name: &str) -> bool {
    let mut parts = name.split('-').map(str::parse::<u64>);
    let [process, started, stack] = [(); 3].map(|()| parts.next().and_then(Result::ok));
    let (Some(process), Some(started), Some(stack)) = (process, started, stack) else {
        return false;
    };
    let Ok(process) = u32::try_from(process) else {
        return false;
    };
    match start(process) {
        Some(now) if process == process::id() => (now.0, now.1) != (started, stack),
        Some(now) => now.0 != started,
        // Without descriptors, or where `/proc` hides it, a process that runs cannot be read.
        None => fs::metadata(format!("/proc/{process}"))
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
    }
}

/// Returns the start of the names that processes of this PID namespace use.
fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let boot = boot.split('-').next()?;
    let number = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(format!("{NAME}{boot}-{number}-"))
}

/// Returns the time when a process started, in ticks since boot, and the address of its stack:
/// fields 22 and 28 of the `stat` of its first thread. The address is 0 where this process may not
/// see it.
///
/// The `stat` of the process itself has the same two numbers, except under QEMU's emulation of a
/// user's processes, which invents that file for a process that reads its own. Other processes
/// would then find another time than the name has, and remove the directory.
fn start(process: u32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{process}/stat")).ok()?;
    start_in(&stat)
}

/// Returns fields 22 and 28 of a `stat`. The name of the program, field 2, is in parentheses and
/// may have spaces.
fn start_in(stat: &str) -> Option<(u64, u64)> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(19);
    let start = fields.next()?.parse().ok()?;
    let stack = fields.nth(5)?.parse().ok()?;
    Some((start, stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_start_as_others_do() {
        let own = process::id();
        let mut other = process::Command::new("cat");
        let said = other.arg(format!("/proc/{own}/stat")).output().unwrap();
        let (seen, _) = start_in(str::from_utf8(&said.stdout).unwrap()).unwrap();
        let (known, stack) = start(own).unwrap();
        assert_eq!(seen, known);
        assert_ne!(stack, 0);
    }

    #[test]
    fn only_directories_of_processes_that_have_ended_are_removed() {
        let place = std::env::temp_dir().join(format!("uwarp-owner-{}", process::id()));
        let namespace = namespace().unwrap();
        let own = process::id();
        let (started, stack) = start(own).unwrap();
        let keep = [
            format!("{}x", prefix()),
            format!("{namespace}{own}-{started}-{stack}-abc"),
            format!("{namespace}x-1-1-abc"),
            format!("{namespace}1-{}-1-abc", start(1).unwrap().0),
            format!("{namespace}{own}"),
            format!("{NAME}00000000-1-4000000000-1-abc"),
            format!("{NAME}abcdef"),
            "other".to_owned(),
        ];
        // No process has a number this high. The own number was that of an older process, and this
        // process was another program.
        let gone = [
            format!("{namespace}4000000000-1-1-abc"),
            format!("{namespace}{own}-{}-{stack}-abc", started + 1),
            format!("{namespace}{own}-{started}-{}-abc", stack + 1),
        ];
        for name in keep.iter().chain(&gone) {
            fs::create_dir_all(place.join(name).join("sys/class")).unwrap();
        }
        remove_abandoned(&place);
        for name in &keep {
            assert!(place.join(name).exists(), "{name}");
        }
        for name in &gone {
            assert!(!place.join(name).exists(), "{name}");
        }
        fs::remove_dir_all(&place).unwrap();
    }
}
