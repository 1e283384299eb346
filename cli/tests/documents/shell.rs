//! Runs commands of the pages in a shell, in its own network namespace.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{Ended, Uwarp};

/// Options of `unshare` for a new network namespace and PID namespace: for an ordinary user, and
/// for root. When the first process of a PID namespace ends, the kernel kills all its other
/// processes.
const WAYS: [&[&str]; 2] = [&["-Urnpf", "--kill-child"], &["-npf", "--kill-child"]];

/// Returns options of `unshare` that work here, or the reason why no options work.
pub(crate) fn way_in() -> &'static Result<&'static [&'static str], String> {
    static WAY: OnceLock<Result<&'static [&'static str], String>> = OnceLock::new();
    WAY.get_or_init(|| {
        let mut reasons = Vec::new();
        for way in WAYS {
            let tried = Command::new("unshare")
                .args(way)
                .args(["ip", "link", "set", "lo", "up"])
                .output();
            match tried {
                Ok(output) if output.status.success() => return Ok(way),
                Ok(output) => {
                    reasons.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
                }
                Err(error) => reasons.push(format!("unshare: {error}")),
            }
        }
        Err(reasons.join("; "))
    })
}

/// Temporary directory with the command and its library, removed on drop. The shells use it as
/// their home.
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new(name: &str) -> Home {
        let dir = std::env::temp_dir().join(format!("uwarp-pages-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("bin")).expect("a temporary folder can be made");
        let home = Home(dir);
        symlink(command(), home.0.join("bin/uwarp")).expect("a link can be made");
        home
    }

    /// Runs a script by bash. The loopback interface is up when it starts. The result contains all
    /// output in `stdout`.
    pub(crate) fn run(&self, script: &str) -> Result<Ended, String> {
        let way = way_in().clone()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let (bin, built) = (self.0.join("bin"), built().display());
        let mut command = Command::new("unshare");
        command
            .args(way)
            .args(["bash", "-euc"])
            .arg("ip link set lo up\nexec 2>&1\neval \"$1\"")
            .args(["bash", script])
            .current_dir(&self.0)
            .env("HOME", &self.0)
            .env(
                "PATH",
                format!("{}:{path}:/usr/sbin:/sbin:{built}", bin.display()),
            );
        Ok(Uwarp::start_with(&mut command).end())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the directory of the programs that this build made.
fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_uwarp"))
        .parent()
        .expect("the command is in a folder")
}

/// Returns true if a program of `examples/` is built.
pub(crate) fn has_example(name: &str) -> bool {
    built().join(name).exists()
}

/// Returns the command under test. `UWARP_BIN` may name another command, which has its library in
/// the same directory.
fn command() -> PathBuf {
    match std::env::var_os("UWARP_BIN") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_BIN_EXE_uwarp")),
    }
}

/// Returns true if the libraries for unmodified programs are in the command's directory, where a
/// build of the workspace puts them.
pub(crate) fn has_library() -> bool {
    let command = command().canonicalize().unwrap_or_default();
    let mut libraries = ["libuwarp_dropin.so", "libuwarp_redirect.so"].into_iter();
    libraries.all(|library| command.with_file_name(library).exists())
}

/// Returns true if a program is on the path.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| Path::new(folder).join(name).exists())
}
