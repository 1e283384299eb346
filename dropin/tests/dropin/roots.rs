//! Root file systems of other distributions, which `./ci.sh roots` makes. A program runs in a mount
//! namespace of its own, whose root directory has the directories of the root file system, those of
//! this machine that the kernel fills, and the installed uwarp. The root file system is read-only.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::packages;
use crate::prefix::Prefix;
use crate::process::{UNPRIVILEGED, root, unprivileged};
use crate::programs::{self, Row};

/// Variable with the names of the roots that must exist, separated by spaces.
const REQUIRED: &str = "UWARP_REQUIRE_ROOTS";
/// Variable with a number N: only every N-th test of a root runs.
const SAMPLE: &str = "UWARP_TEST_ROOTS_SAMPLE";

/// A root file system.
pub(crate) struct Root {
    /// Name of its directory and of its description in `tests/roots`.
    pub(crate) name: &'static str,
    /// Name in the names of tests.
    pub(crate) label: &'static str,
    pub(crate) title: &'static str,
    /// Description from which `.ci/roots.sh` makes it.
    description: &'static str,
    pub(crate) rows: fn() -> Vec<Row>,
    /// List of what is particular about its programs, for the matrix.
    pub(crate) remarks: &'static str,
    /// Installed uwarp that its programs run on.
    pub(crate) prefix: OnceLock<Result<Prefix, String>>,
}

pub(crate) static TRIXIE: Root = Root {
    name: "trixie",
    label: "debian-13",
    title: "Debian 13",
    description: include_str!("../roots/trixie.sh"),
    rows: programs::debian_13,
    remarks: programs::DEBIAN_13,
    prefix: OnceLock::new(),
};

pub(crate) static ROOTS: [&Root; 1] = [&TRIXIE];

/// Script that enters a root. `$1` is the root file system, `$2` an empty directory for the new
/// root directory, and `$3` the directory of the installed uwarp, which keeps its path. The other
/// arguments are options of `unshare` with the program.
const ENTER: &str = r#"set -e
root=$1 top=$2 prefix=$3
shift 3
mount -t tmpfs -o mode=755 tmpfs "$top"
for from in "$root"/*; do
    to=$top/${from##*/}
    if [ -L "$from" ]; then ln -s "$(readlink "$from")" "$to"; else mkdir "$to"; fi
done
for name in etc usr var; do
    mount --bind "$root/$name" "$top/$name"
    mount -o remount,bind,ro "$top/$name"
done
for name in dev proc sys; do mount --rbind "/$name" "$top/$name"; done
chmod 1777 "$top/tmp"
mkdir -p "$top$prefix"
mount --bind "$prefix" "$top$prefix"
exec unshare --root="$top" --wd="$prefix/scratch" "$@"
"#;

impl Root {
    /// Returns the directory of the root file system.
    ///
    /// # Errors
    /// Returns a message if this test is not in a target directory of cargo.
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        let test = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = test.ancestors().nth(3);
        let target = target.ok_or("the test is not in a target directory")?;
        Ok(target.join("roots").join(self.name))
    }

    /// Returns the reason why no program can run in this root, if there is one.
    pub(crate) fn missing(&self) -> Option<String> {
        let path = match self.path() {
            Ok(path) => path,
            Err(error) => return Some(error),
        };
        let (name, title) = (self.name, self.title);
        match std::fs::read_to_string(path.join("etc/uwarp-root")) {
            Err(_) => Some(format!(
                "there is no root of {title}; `./ci.sh roots {name}` makes it"
            )),
            Ok(description) if description != self.description => Some(format!(
                "the root of {title} has another description; `./ci.sh roots {name}` makes it anew"
            )),
            Ok(_) => no_mounts(),
        }
    }

    /// Returns true if a missing root is a failure.
    pub(crate) fn required(&self) -> bool {
        let names = std::env::var(REQUIRED).unwrap_or_default();
        names.split_whitespace().any(|name| name == self.name)
    }

    /// Returns the version of a package of this root, without epoch and Debian revision.
    pub(crate) fn version(&self, package: &str) -> Option<String> {
        let database = self.path().ok()?.join("var/lib/dpkg");
        packages::version_in(Some(&database), package)
    }

    /// Returns a command that runs `program` in this root, with the uwarp installed in `prefix`, as
    /// the user `nobody`.
    ///
    /// # Errors
    /// As [`path`](Self::path).
    pub(crate) fn enter(&self, prefix: &Path, program: &Path) -> Result<Command, String> {
        let mut command = Command::new("unshare");
        // Root can mount what `nobody` cannot reach, such as a target directory in root's home.
        match root() {
            true => command.arg("-m"),
            false => command.arg("-Urm"),
        };
        command.args(["sh", "-c", ENTER, "sh"]).arg(self.path()?);
        command.arg(prefix.join("top")).arg(prefix);
        match root() {
            true => command.args(UNPRIVILEGED),
            false => command.args(["--user", "--map-user=65534", "--map-group=65534", "--"]),
        };
        command.arg(program);
        Ok(command)
    }
}

/// Returns true if the test with this position is in the sample.
pub(crate) fn sampled(position: usize) -> bool {
    let every = std::env::var(SAMPLE)
        .ok()
        .and_then(|text| text.parse().ok());
    every.is_none_or(|every: usize| every != 0 && position.is_multiple_of(every))
}

/// Returns the reason why this process cannot mount directories in a new namespace, if there is
/// one.
fn no_mounts() -> Option<String> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let flags = if root() { "-m" } else { "-Urm" };
        let words = [flags, "mount", "-t", "tmpfs", "tmpfs", "/tmp"];
        let refused = match Command::new("unshare").args(words).output() {
            Ok(asked) if asked.status.success() => return None,
            Ok(asked) => String::from_utf8_lossy(&asked.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Some(format!("new mount namespaces are not available: {refused}"))
    };
    REFUSED.get_or_init(ask).clone()
}

/// Returns a command for `program`, in `within` or on this machine, as an unprivileged user.
///
/// # Errors
/// As [`Root::path`].
pub(crate) fn command(
    within: Option<&Root>,
    prefix: &Path,
    program: &Path,
) -> Result<Command, String> {
    match within {
        Some(root) => root.enter(prefix, program),
        None => Ok(unprivileged(program)),
    }
}
