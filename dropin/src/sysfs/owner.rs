//! Owners of temporary directories. The name of a directory tells which process has created it, so
//! that another process can remove what a killed one has left.
//!
//! A process ID alone is not enough. It is used again later, it has another meaning in another PID
//! namespace (a container with the same `/dev/shm`), and the directory may be one that several
//! machines share. So the name also has the boot ID of the machine, the number of the PID
//! namespace, and the time when the process started.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

/// Start of the names of all directories.
const NAME: &str = "uwarp-sysfs-";

/// Returns the start of the name of a directory of this process.
pub(super) fn prefix() -> String {
    let own = process::id();
    match (namespace(), start(own)) {
        (Some(namespace), Some(start)) => format!("{namespace}{own}-{start}-"),
        // Without `/proc`, nobody can find out that the process has ended.
        _ => NAME.to_owned(),
    }
}

/// Removes the directories in `place` whose processes have ended. Those of other users stay,
/// because only their owner may remove them.
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

/// Returns true if the process has ended. `name`: `PID-START-` and the rest of a name.
fn has_ended(name: &str) -> bool {
    let mut parts = name.split('-').map(str::parse::<u64>);
    let (Some(Ok(process)), Some(Ok(started))) = (parts.next(), parts.next()) else {
        return false;
    };
    let process = u32::try_from(process);
    process.is_ok_and(|process| start(process) != Some(started))
}

/// Returns the start of the names that processes of this PID namespace use.
fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let boot = boot.split('-').next()?;
    let number = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(format!("{NAME}{boot}-{number}-"))
}

/// Returns the time when a process started, in ticks since boot: field 22 of its `stat`. The name
/// of the program, field 2, is in parentheses and may have spaces.
fn start(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_processes_that_have_ended_are_removed() {
        let place = std::env::temp_dir().join(format!("uwarp-owner-{}", process::id()));
        let namespace = namespace().unwrap();
        let own = process::id();
        let started = start(own).unwrap();
        let keep = [
            format!("{}x", prefix()),
            format!("{namespace}{own}-{started}-abc"),
            format!("{namespace}x-1-abc"),
            format!("{namespace}{own}"),
            format!("{NAME}00000000-1-4000000000-1-abc"),
            format!("{NAME}abcdef"),
            "other".to_owned(),
        ];
        // No process has a number this high. The own number was that of an older process.
        let gone = [
            format!("{namespace}4000000000-1-abc"),
            format!("{namespace}{own}-{}-abc", started + 1),
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
