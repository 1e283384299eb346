//! Builds the command and the libraries, and installs them (`uwarp run --install`) where every user
//! may read them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::roots::{self, Root};

/// Directory with the installed files, which has the same path in a root. It is removed when this
/// process ends, even by a signal.
pub(crate) struct Prefix {
    path: PathBuf,
    /// Process that removes the directory when its standard input ends. Only the test process holds
    /// the write end of this pipe.
    remover: Child,
    /// Root in which the programs run; `None`: on this machine.
    root: Option<&'static Root>,
}

impl Prefix {
    /// Builds and installs the command and the libraries. If `UWARP_BIN` names a command with the
    /// libraries in the same directory, installs these files instead. `root`: the root in which the
    /// programs run.
    ///
    /// # Errors
    /// Returns the output of a command that failed.
    pub(crate) fn new(root: Option<&'static Root>) -> Result<Prefix, String> {
        let built = match std::env::var_os("UWARP_BIN") {
            Some(built) => PathBuf::from(built),
            None => build()?,
        };
        let place = root.map_or("", |root| root.name);
        let name = format!("uwarp-dropin-{}{place}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let open = |path: &Path, mode: u32| {
            fs::create_dir(path)?;
            fs::set_permissions(path, Permissions::from_mode(mode))
        };
        open(&path, 0o755).map_err(|error| format!("{}: {error}", path.display()))?;
        let remover = Command::new("sh")
            .args(["-c", "read -r _; rm -rf \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let prefix = Prefix {
            path,
            remover,
            root,
        };
        for (name, mode) in [("scratch", 0o1777), ("top", 0o755)] {
            open(&prefix.path.join(name), mode).map_err(|error| error.to_string())?;
        }
        let mut install = Command::new(built);
        install.args(["run", "--install"]).arg(&prefix.path);
        said(&mut install)?;
        Ok(prefix)
    }

    /// Returns the root in which the programs run, if they do not run on this machine.
    pub(crate) fn root(&self) -> Option<&'static Root> {
        self.root
    }

    /// Returns a command for `program`, where the programs run and as an unprivileged user.
    ///
    /// # Errors
    /// Returns a message if the root of the programs cannot be found.
    pub(crate) fn command(&self, program: &Path) -> Result<Command, String> {
        roots::command(self.root, &self.path, program)
    }

    /// Returns the path of the installed command.
    pub(crate) fn uwarp(&self) -> PathBuf {
        self.path.join("bin/uwarp")
    }

    /// Returns the path of the installed library.
    pub(crate) fn library(&self) -> PathBuf {
        self.path.join("lib/uwarp/libibverbs.so.1")
    }

    /// Returns a directory that every user may write to.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// Returns the directory in which cargo has built this test, without that of the profile.
pub(crate) fn target() -> Result<PathBuf, String> {
    let place = profile_dir()?;
    let target = place.parent().map(Path::to_owned);
    target.ok_or_else(|| "the test is not in a target directory".to_owned())
}

fn profile_dir() -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let place = test.parent().and_then(Path::parent).map(Path::to_owned);
    place.ok_or_else(|| "the test is not in a target directory".to_owned())
}

/// Builds the command and the shared libraries, which cargo does not build for a test. Uses the
/// profile and the target directory of this test.
fn build() -> Result<PathBuf, String> {
    let (place, target) = (profile_dir()?, target()?);
    let profile = match place.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    // One command builds all packages, so that their dependencies are built with the same
    // features.
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args([
        "build",
        "--locked",
        "--quiet",
        "-p",
        "uwarp",
        "-p",
        "uwarp-dropin",
        "-p",
        "uwarp-redirect",
        "--profile",
        profile,
    ]);
    said(cargo.arg("--target-dir").arg(target))?;
    Ok(place.join("uwarp"))
}

/// Runs a command, which must succeed, and returns its standard output.
pub(crate) fn said(command: &mut Command) -> Result<String, String> {
    said_both(command).map(|(out, _)| out)
}

/// Runs a command, which must succeed, and returns its standard output and standard error.
pub(crate) fn said_both(command: &mut Command) -> Result<(String, String), String> {
    let name = command.get_program().display().to_string();
    let ended = command.stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| format!("{name}: {error}"))?;
    let [out, err] = [&ended.stdout, &ended.stderr].map(|said| String::from_utf8_lossy(said));
    if !ended.status.success() {
        return Err(format!("{name} ended with {}:\n{out}{err}", ended.status));
    }
    Ok((out.into_owned(), err.into_owned()))
}
