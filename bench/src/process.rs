//! Child processes. They can be pinned to a processor, and they end with this process.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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
    /// Returns the first two processors that this process may use, one for each side.
    pub(crate) fn usual() -> Self {
        let allowed = std::fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
                Some(processors(line.trim()))
            })
            .unwrap_or_default();
        let can = installed("setpriv") && installed("taskset");
        Pinning {
            processors: match allowed[..] {
                [first, second, ..] if can => Some((first, second)),
                _ => None,
            },
        }
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

/// Parses a list such as `0-2,5`.
fn processors(list: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse(), to.parse()) {
            all.extend::<std::ops::RangeInclusive<usize>>(from..=to);
        }
    }
    all
}

/// A process that is killed on drop.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command, which must succeed within this time. Returns its stdout.
pub(crate) fn output(command: &mut Command, within: Duration) -> io::Result<String> {
    run(command, within).map(|(stdout, _)| stdout)
}

/// Runs a command, which must succeed within this time. Returns its stdout, followed by its stderr.
pub(crate) fn both_outputs(command: &mut Command, within: Duration) -> io::Result<String> {
    run(command, within).map(|(stdout, stderr)| stdout + &stderr)
}

/// Waits for the end of a process, for at most this long.
pub(crate) fn wait(running: &mut Running, within: Duration) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = running.0.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no end after {} s", within.as_secs()),
            ));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn run(command: &mut Command, within: Duration) -> io::Result<(String, String)> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let program = command.get_program().to_string_lossy();
            io::Error::new(error.kind(), format!("{program}: {error}"))
        })?;
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

/// Returns true if a program is in `PATH`.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns a port without a listener.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
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
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("nothing listens at port {port}"),
    ))
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
    fn processors_are_counted_by_ranges() {
        assert_eq!(processors("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(processors("7"), [7]);
        assert!(processors("").is_empty());
    }

    #[test]
    fn a_command_is_pinned_to_its_side() {
        let pinning = Pinning {
            processors: Some((2, 5)),
        };
        let command = pinning.command(Side::Server, "qperf");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["--pdeathsig", "KILL", "taskset", "-c", "5", "qperf"]);
        let free = Pinning { processors: None };
        assert_eq!(free.command(Side::Client, "qperf").get_program(), "qperf");
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
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo because >&2; exit 3"]);
        let error = output(&mut command, Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().ends_with(": because"), "{error}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out"]);
        assert_eq!(
            output(&mut command, Duration::from_secs(60)).unwrap(),
            "out\n"
        );
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
