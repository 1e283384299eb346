//! Child processes. They can be pinned to a processor, and they end with this process.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

/// Processors on which the two sides run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinning {
    /// Processor of the clients and processor of the servers. If `None`, the system chooses both.
    pub(crate) processors: Option<(usize, usize)>,
}

/// One of the two sides of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Pinning {
    /// Lets the system choose the processors.
    pub(crate) const ANY: Pinning = Pinning { processors: None };

    /// Returns the first two processors that this process may use, one for each side.
    pub(crate) fn usual() -> Self {
        let allowed = sched_getaffinity(None).ok();
        let is_allowed = |cpu: &usize| allowed.is_some_and(|set| set.is_set(*cpu));
        let mut all = (0..CpuSet::MAX_CPU).filter(is_allowed);
        let pair = all.next().zip(all.next());
        let can = installed("setpriv") && installed("taskset");
        let processors = pair.filter(|_| can);
        Pinning { processors }
    }

    /// Creates a command for one side. If `processors` is set, the command runs on the processor
    /// of its side, and is killed when this process ends.
    pub(crate) fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let Some((client, server)) = self.processors else {
            return Command::new(program);
        };
        let processor = match side {
            Side::Client => client,
            Side::Server => server,
        };
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "taskset", "-c"])
            .arg(processor.to_string())
            .arg(program);
        command
    }
}

/// Parses a number of seconds, for options.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Creates a directory for temporary files, whose name contains `name`.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("uwarp-bench-{name}-{id}"));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed on drop.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server. Returns it with the first line that it prints.
pub(crate) fn start(command: &mut Command) -> io::Result<(Running, String)> {
    let mut running = Running(command.stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    if let Some(stdout) = running.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    Ok((running, line))
}

/// Runs a command, which must succeed within this time. Returns its stdout.
pub(crate) fn output(command: &mut Command, within: Duration) -> io::Result<String> {
    outputs(command, within).map(|(stdout, _)| stdout)
}

/// Waits for the end of a process, for at most this long.
pub(crate) fn wait(running: &mut Running, within: Duration) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = running.0.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            let why = format!("no end after {} s", within.as_secs());
            return Err(io::Error::other(why));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a command, which must succeed within this time. Returns its stdout and its stderr.
pub(crate) fn outputs(command: &mut Command, within: Duration) -> io::Result<(String, String)> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::other(format!("{:?}: {error}", command.get_program())))?;
    let mut child = Running(child);
    let stdout = collect(child.0.stdout.take());
    let stderr = collect(child.0.stderr.take());
    let status = wait(&mut child, within)?;
    let said = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
    let (stdout, stderr) = (said(stdout), said(stderr));
    if status.success() {
        return Ok((stdout, stderr));
    }
    let last = stdout
        .lines()
        .chain(stderr.lines())
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("it says nothing");
    Err(io::Error::other(format!("{status}: {last}")))
}

fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Creates the error for unexpected output of a program.
pub(crate) fn strange(program: &str, said: &str) -> io::Error {
    let mut lines = said.lines();
    let last = lines.rfind(|line| !line.trim().is_empty());
    io::Error::other(format!("{program} said: {}", last.unwrap_or("nothing")))
}

/// Returns an error if a program is not in `PATH`. The second name is that of its Debian package.
pub(crate) fn require((program, package): (&str, &str)) -> io::Result<()> {
    if installed(program) {
        return Ok(());
    }
    let why = format!("{program} is not installed (Debian: {package}; --install-peers)");
    Err(io::Error::other(why))
}

/// Installs the missing programs from Debian packages, as root. Each element is a program and its
/// package.
pub(crate) fn install(programs: &[(&str, &str)]) -> io::Result<()> {
    let missing = programs.iter().filter(|(program, _)| !installed(program));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {missing:?}");
    let within = Duration::from_secs(600);
    // A failure is ignored, because old package lists are sufficient.
    let _ = output(Command::new("apt-get").args(["update", "-qq"]), within);
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(missing);
    output(&mut install, within).map(drop)
}

/// Returns true if a program is in `PATH`.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns a port without a listener.
pub(crate) fn free_port() -> io::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until a port has a listener. Does not connect, because the server might accept only one
/// client.
pub(crate) fn wait_for_listener(port: u16) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let table = std::fs::read_to_string(table).unwrap_or_default();
            if listens(&table, port) {
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(io::Error::other(format!("nothing listens at port {port}")))
}

/// Returns true if `/proc/net/tcp` shows a listener at the port. The state of a listener is 0A, and
/// ports are hexadecimal.
fn listens(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        let state = words.nth(1).unwrap_or_default();
        state == "0A" && local.ends_with(&format!(":{port:04X}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_pinned_to_its_side() {
        let processors = Some((2, 5));
        let pinning = Pinning { processors };
        let command = pinning.command(Side::Server, "qperf");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["--pdeathsig", "KILL", "taskset", "-c", "5", "qperf"]);
        let command = Pinning::ANY.command(Side::Client, "qperf");
        assert_eq!(command.get_program(), "qperf");
    }

    #[test]
    fn a_listener_is_seen_by_its_state_and_its_port() {
        let table = "  sl  local_address rem_address   st\n\
             0: 0100007F:4855 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:1F90 0100007F:4855 01 00000000:00000000\n";
        assert!(listens(table, 0x4855));
        assert!(!listens(table, 0x1f90));
        assert!(!listens(table, 0x0855));
    }

    #[test]
    fn what_fails_says_its_last_words() {
        let shell = |script| {
            let mut command = Command::new("sh");
            output(command.args(["-c", script]), Duration::from_secs(60))
        };
        let error = shell("echo out; echo because >&2; exit 3").unwrap_err();
        assert!(error.to_string().ends_with(": because"), "{error}");
        assert_eq!(shell("echo out").unwrap(), "out\n");
    }

    #[test]
    fn a_process_ends_with_what_holds_it() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let id = child.id();
        drop(Running(child));
        // The process was also reaped, so its id has no entry or belongs to another process.
        let comm = std::fs::read_to_string(format!("/proc/{id}/comm"));
        assert!(comm.map_or(true, |comm| comm.trim() != "sleep"));
    }
}
