//! The `uwarp` command as our endpoint.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::guest::Output;
use crate::process::{self, Owned};

/// Returns the path of the command: `UWARP_BIN`, or the newest one in the target directory.
///
/// # Errors
/// The command was not found. The error says how to build it.
pub fn uwarp_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("UWARP_BIN") {
        return Ok(path.into());
    }
    // The test's path is TARGET/PROFILE/deps/interop-HASH.
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).unwrap_or(Path::new("."));
    let found = ["release", "debug"]
        .map(|profile| target.join(profile).join("uwarp"))
        .into_iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max();
    found.map(|(_, path)| path).ok_or_else(|| {
        Failure::new(format!(
            "no uwarp command under {}: run 'cargo build -p uwarp', or set UWARP_BIN",
            target.display()
        ))
    })
}

/// A running `uwarp`. It is killed on drop and when this process ends.
pub struct Uwarp {
    process: Owned,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    what: String,
}

impl Uwarp {
    /// Starts `uwarp` with these arguments.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(arguments: &[&str]) -> Result<Uwarp> {
        let what = format!("uwarp {}", arguments.join(" "));
        let child = process::spawn(uwarp_binary()?.as_os_str(), |command| {
            command
                .args(arguments)
                .env_remove("UWARP_LOG")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        });
        let mut process = Owned(
            child.map_err(|error| Failure::new(format!("'{what}' does not start: {error}")))?,
        );
        let said = Arc::new(Mutex::new(String::new()));
        let readers = [
            process.0.stdout.take().map(|from| collect(from, &said)),
            process.0.stderr.take().map(|from| collect(from, &said)),
        ];
        Ok(Uwarp {
            process,
            said,
            readers: readers.into_iter().flatten().collect(),
            what,
        })
    }

    /// Returns the output on stdout and stderr so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Checks whether the process has ended, and reaps an ended process. Returns true if it has
    /// ended.
    ///
    /// # Errors
    /// As for `try_wait`.
    pub fn reap(&mut self) -> Result<bool> {
        Ok(self.process.0.try_wait()?.is_some())
    }

    /// Waits for a line of output that contains `text`. Returns the line.
    ///
    /// # Errors
    /// No such line appears in time, or the command has ended.
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.process.0.try_wait()?;
            let said = self.said();
            // Searches complete lines only.
            let whole = &said[..said.rfind('\n').map_or(0, |at| at + 1)];
            if let Some(line) = whole.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            if ended.is_some() || Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "'{}' did not say '{text}', only:\n{said}",
                    self.what
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the command ends.
    ///
    /// # Errors
    /// The command does not end in time. It is then killed.
    pub fn wait(mut self, timeout: Duration) -> Result<Output> {
        let deadline = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.process.0.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "'{}' did not end within {timeout:?}; it said:\n{}",
                    self.what,
                    self.said()
                )));
            }
            thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        Ok(Output {
            code: status.code().unwrap_or(-1),
            text: self.said(),
        })
    }
}

fn collect(mut from: impl Read + Send + 'static, into: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let piece = String::from_utf8_lossy(&buffer[..count]);
            into.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_str(&piece);
        }
    })
}
