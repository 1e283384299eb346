//! Runs programs under `uwarp run`: as an unprivileged user, and with a time limit. Programs that
//! still run at the end of the test are killed.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::packages;
use crate::prefix::Prefix;

/// Time after which a program is considered to hang. The limit is long because a busy machine is
/// slow: at a load average of 13, `ib_read_lat -a` took more than a minute.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);
/// Variable with the persona in which the programs run, except those with an own `--persona`. The
/// default is that of uwarp.
const PERSONA: &str = "UWARP_TEST_PERSONA";
/// Command that runs a program as `nobody`, if this process is root.
pub(crate) const UNPRIVILEGED: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--no-new-privs",
    "--",
];
/// Interval between two checks of a condition, such as a line of output.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Installation of uwarp with which a program runs, and the flags of `uwarp run`.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) prefix: &'a Prefix,
    /// Flags of `uwarp run`.
    pub(crate) flags: &'a [&'a str],
}

/// A running program with its child processes. Dropping it kills its process group.
pub(crate) struct Running {
    name: String,
    child: Child,
    output: PathBuf,
}

/// Returns the persona in which the programs are to run; `None`: the default of uwarp.
pub(crate) fn persona() -> Option<OsString> {
    std::env::var_os(PERSONA)
}

/// Returns true if this process is root. No program here needs root.
pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a command for `program`. If this process is root, the program runs as user 65534
/// (`nobody`).
pub(crate) fn unprivileged(program: &Path) -> Command {
    if !root() {
        return Command::new(program);
    }
    let mut command = Command::new(UNPRIVILEGED[0]);
    command.args(&UNPRIVILEGED[1..]).arg(program);
    command
}

/// Returns the reason why programs cannot run here, if there is one.
pub(crate) fn unready() -> Option<String> {
    (root() && packages::program("setpriv").is_none()).then(|| {
        "setpriv, which takes the rights of root away, is not installed (util-linux)".to_owned()
    })
}

impl Place<'_> {
    /// Starts `uwarp run FLAGS -- WORDS`; its output goes into a file.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Running, String> {
        let mut command = self.prefix.command(&self.prefix.uwarp())?;
        command.arg("run").args(self.flags).arg("--").args(words);
        let name = words.join(" ");
        self.spawn(&mut command, name)
    }

    /// Starts a command without adding `uwarp run`. Removes all variables `UWARP_*` from its
    /// environment; its output goes into a file.
    pub(crate) fn spawn(&self, command: &mut Command, name: String) -> Result<Running, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let scratch = self.prefix.scratch();
        let output = scratch.join(format!("output-{number}"));
        let file = File::create(&output).map_err(|error| error.to_string())?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("UWARP_") {
                command.env_remove(variable);
            }
        }
        if let Some(persona) = persona() {
            command.env("UWARP_PERSONA", persona);
        }
        let child = command
            .current_dir(&scratch)
            .env("HOME", &scratch)
            .env("TMPDIR", &scratch)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Running {
            name,
            child,
            output,
        })
    }
}

impl Running {
    /// Returns the output so far.
    pub(crate) fn output(&self) -> String {
        let bytes = std::fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until `done` returns true. Fails if the program ends first.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Running) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let ended = self.ended()?;
            if done(self) {
                return Ok(());
            }
            if let Some(status) = ended {
                return Err(self.words(&format!("has ended with {status}, and never {what}")));
            }
            if Instant::now() > deadline {
                return Err(self.words(&format!("never {what}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the output contains `text`.
    pub(crate) fn until_said(&mut self, text: &str) -> Result<(), String> {
        self.wait_until(&format!("said '{text}'"), |running| {
            running.output().contains(text)
        })
    }

    /// Waits until a socket listens on this port.
    pub(crate) fn until_listening(&mut self, port: u16) -> Result<(), String> {
        self.wait_until(&format!("listened on port {port}"), |_| listens(port))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| error.to_string())
    }

    /// Waits until the program ends, and returns its output. Fails if the program does not end in
    /// time or has failed, except for the fault that `lost_its_channel` recognizes.
    pub(crate) fn end(&mut self) -> Result<String, String> {
        let status = self.status()?;
        if !status.success() && !self.lost_its_channel(status) {
            return Err(self.words(&format!("ended with {status}")));
        }
        Ok(self.output())
    }

    /// As [`Running::end`], for a program that may fail.
    pub(crate) fn end_with_any_status(&mut self) -> Result<String, String> {
        // A shell has a status from 128 on for a program that a signal has ended.
        match self.status()?.code() {
            Some(..128) => Ok(self.output()),
            _ => Err(self.words("was ended by a signal")),
        }
    }

    /// Waits until the program ends. Fails if it does not end in time.
    fn status(&mut self) -> Result<ExitStatus, String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.words("does not end"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns true if rping failed only because its event thread found a closed channel after all
    /// pings (MATRIX.md, faults of programs).
    fn lost_its_channel(&self, status: ExitStatus) -> bool {
        const WORDS: &str = "rdma_get_cm_event: Bad file descriptor";
        let said = self.output();
        status.code() == Some(255)
            && self.name.contains("rping")
            && said.contains(WORDS)
            && !said.contains(" failed")
    }

    /// Returns a sentence: the program's command line, `what`, and the output.
    pub(crate) fn words(&self, what: &str) -> String {
        format!("'{}' {what}. Output:\n{}", self.name, self.output())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.child.id())
            && let Some(group) = rustix::process::Pid::from_raw(group)
        {
            // The processes may have ended already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Returns true if a TCP socket of this machine listens on the port.
fn listens(port: u16) -> bool {
    sockets(port).iter().any(|(state, _)| state == "0A")
}

/// Returns the number of bytes in the queues of all connections of the port: bytes that were sent
/// and not read yet, in both directions.
pub(crate) fn unread(port: u16) -> u64 {
    let connected = sockets(port);
    let connected = connected.iter().filter(|(state, _)| state == "01");
    connected.map(|(_, bytes)| bytes).sum()
}

/// Returns the TCP sockets of this machine that have the port at either end: their state, and the
/// number of bytes in their queues.
fn sockets(port: u16) -> Vec<(String, u64)> {
    let has = |end: &str| {
        let number = end.rsplit_once(':').map(|(_, number)| number);
        number.is_some_and(|number| u16::from_str_radix(number, 16) == Ok(port))
    };
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, local, remote, state, queues, ..] = &fields[..] else {
            return None;
        };
        let of_it = has(local) || (has(remote) && state != "0A");
        let bytes = queues.split(':').map(|text| u64::from_str_radix(text, 16));
        let bytes = bytes.sum::<Result<u64, _>>().ok()?;
        of_it.then(|| (state.to_owned(), bytes))
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines.filter_map(socket).collect()
}

/// Returns a free port that no other test of this process gets. The port is below Linux's default
/// range of ephemeral ports.
pub(crate) fn free_port() -> Result<u16, String> {
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU16;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 8000).map_err(|error| error.to_string())?;
    for _ in 0..1000 {
        let port = 20_000 + first + NEXT.fetch_add(1, Ordering::Relaxed) % 4000;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
            return Ok(port);
        }
    }
    Err("no port is free".to_owned())
}
