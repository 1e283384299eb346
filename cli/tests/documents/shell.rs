//! A shell in a network namespace of its own, in which commands of the pages are run.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bounds what hangs; nothing else takes so long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ways to a network namespace and a PID namespace: as an ordinary user, and as root. All that was
/// started in a PID namespace ends with its first process.
const WAYS: [&[&str]; 2] = [&["-Urnpf", "--kill-child"], &["-npf", "--kill-child"]];

/// Options of `unshare` that work here, or the reason why none does.
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

/// A folder with the command and its library, which is the home of the shells and is removed when
/// it is dropped.
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new(name: &str) -> Home {
        let dir = std::env::temp_dir().join(format!("uwarp-pages-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("bin")).expect("a temporary folder can be made");
        let home = Home(dir);
        symlink(command(), home.0.join("bin/uwarp")).expect("a link can be made");
        home
    }

    /// Runs a script by bash, and returns its exit status and output. The script begins with the
    /// loopback interface up.
    pub(crate) fn run(&self, script: &str) -> Result<(i32, String), String> {
        let way = way_in().clone()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = Command::new("unshare")
            .args(way)
            .args([
                "bash",
                "-euc",
                "ip link set lo up\nexec 2>&1\neval \"$1\"",
                "bash",
                script,
            ])
            .current_dir(&self.0)
            .env("HOME", &self.0)
            .env(
                "PATH",
                format!(
                    "{}:{path}:/usr/sbin:/sbin:{}",
                    self.0.join("bin").display(),
                    built().display()
                ),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut stdout = child.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = stdout.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status.code().unwrap_or(-1),
                None if begun.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break -1;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        Ok((status, reader.join().expect("reading does not panic")))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Folder of the programs that this build made.
fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_uwarp"))
        .parent()
        .expect("the command is in a folder")
}

/// Returns true if a program of `examples/` is built.
pub(crate) fn has_example(name: &str) -> bool {
    built().join(name).exists()
}

/// The command under test; `UWARP_BIN` names another one, which has its library beside it.
fn command() -> PathBuf {
    match std::env::var_os("UWARP_BIN") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_BIN_EXE_uwarp")),
    }
}

/// Returns true if the library for unmodified programs is beside the command, as a build of the
/// workspace leaves it.
pub(crate) fn has_library() -> bool {
    command()
        .canonicalize()
        .ok()
        .and_then(|path| Some(path.parent()?.join("libuwarp_dropin.so").exists()))
        .unwrap_or(false)
}

/// Returns true if a program is on the path.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| Path::new(folder).join(name).exists())
}
