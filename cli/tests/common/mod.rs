//! Helpers that run the built command with a time limit and kill every process they started.

#![allow(dead_code, reason = "every test file takes what it needs")]

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every wait. It is reached only if a test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Status and output of a command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts the exit code. Shows the output if the code differs.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Ended {
        assert!(
            self.stderr.contains(text),
            "no '{text}' in stderr:\n{}",
            self.stderr
        );
        self
    }
}

/// A running `uwarp` process, which is killed on drop.
pub(crate) struct Uwarp {
    child: Child,
    stdout: Option<Lines>,
    stderr: Lines,
}

struct Lines {
    from: Receiver<String>,
    seen: String,
}

impl Lines {
    fn new(stream: impl Read + Send + 'static) -> Lines {
        let (send, from) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Lines {
            from,
            seen: String::new(),
        }
    }

    fn next(&mut self, deadline: Instant) -> Option<String> {
        match self
            .from
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(line) => {
                self.seen += &line;
                self.seen.push('\n');
                Some(line)
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("no such line in time; output so far:\n{}", self.seen)
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Returns the next line that contains `text`.
    fn until(&mut self, text: &str) -> String {
        self.until_the_end(text)
            .unwrap_or_else(|| panic!("'{text}' was not printed, only:\n{}", self.seen))
    }

    /// Returns the next line that contains `text`, or `None` at the end of the output.
    fn until_the_end(&mut self, text: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        std::iter::from_fn(|| self.next(deadline)).find(|line| line.contains(text))
    }

    fn rest(&mut self) -> String {
        let deadline = Instant::now() + PATIENCE;
        while self.next(deadline).is_some() {}
        std::mem::take(&mut self.seen)
    }
}

impl Uwarp {
    pub(crate) fn start(args: &[&str]) -> Uwarp {
        Self::start_with(Command::new(env!("CARGO_BIN_EXE_uwarp")).args(args))
    }

    pub(crate) fn start_with(command: &mut Command) -> Uwarp {
        let mut child = command
            .env_remove("UWARP_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().map(Lines::new);
        let stderr = Lines::new(child.stderr.take().unwrap());
        Uwarp {
            child,
            stdout,
            stderr,
        }
    }

    /// Starts a command that SIGINT, SIGTERM and SIGHUP end. A shell without job control would
    /// otherwise start it with SIGINT ignored.
    pub(crate) fn start_interruptible(args: &[&str]) -> Uwarp {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_uwarp")]);
        Self::start_with(command.args(args))
    }

    /// Starts an rping server on a free port. Returns the process and its address.
    pub(crate) fn server(args: &[&str]) -> (Uwarp, SocketAddr) {
        let base = ["rping", "-s", "-a", "127.0.0.1", "-p", "0", "-d"];
        let mut server = Self::start(&[&base, args].concat());
        let line = server.stdout_until("rdma_listen ");
        let addr = line.rsplit(' ').next().unwrap().parse().unwrap();
        (server, addr)
    }

    pub(crate) fn stdout_until(&mut self, text: &str) -> String {
        self.stdout.as_mut().unwrap().until(text)
    }

    /// Returns the lines of stdout that were taken so far.
    pub(crate) fn stdout_so_far(&self) -> &str {
        &self.stdout.as_ref().unwrap().seen
    }

    /// Returns the next line that contains `text`, or `None` if the command ends without one.
    pub(crate) fn stdout_until_its_end(&mut self, text: &str) -> Option<String> {
        self.stdout.as_mut().unwrap().until_the_end(text)
    }

    pub(crate) fn stderr_until(&mut self, text: &str) -> String {
        self.stderr.until(text)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits until the command ends. Panics after [`PATIENCE`].
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.kill();
                panic!(
                    "it does not end:\n{}\n{}",
                    self.stdout.as_mut().unwrap().rest(),
                    self.stderr.rest()
                );
            }
            thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.stdout.as_mut().map(Lines::rest).unwrap_or_default();
        Ended {
            status,
            stdout,
            stderr: self.stderr.rest(),
        }
    }
}

impl Drop for Uwarp {
    fn drop(&mut self) {
        // This fails if the process has already ended, which is harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an output whose reader is closed before the process starts. If the reader closed later,
/// short output might already be written.
pub(crate) fn without_reader() -> Stdio {
    // Dropping the reader would not suffice, because a process that another test starts now may
    // hold a copy of it.
    let (reader, output) = UnixStream::pair().unwrap();
    reader.shutdown(Shutdown::Both).unwrap();
    OwnedFd::from(output).into()
}

/// Runs `uwarp` to its end.
#[track_caller]
pub(crate) fn uwarp(args: &[&str]) -> Ended {
    Uwarp::start(args).end()
}

/// Runs an rping client against `server` to its end.
#[track_caller]
pub(crate) fn client(server: SocketAddr, args: &[&str]) -> Ended {
    let (ip, port) = (server.ip().to_string(), server.port().to_string());
    uwarp(&[&["rping", "-c", "-a", &ip, "-p", &port], args].concat())
}

/// Temporary file, removed on drop.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str) -> TempFile {
        TempFile(std::env::temp_dir().join(format!("uwarp-cli-{}-{name}", std::process::id())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a path below this temporary path. It does not exist, unless the test has created it.
    /// A fixed path might exist on this machine.
    #[allow(dead_code, reason = "not every test that includes this needs it")]
    pub(crate) fn below(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Temporary directory, removed with its content on drop.
pub(crate) struct TempDir(TempFile);

impl TempDir {
    pub(crate) fn new(name: &str) -> TempDir {
        let dir = TempDir(TempFile::new(name));
        std::fs::create_dir(dir.path()).unwrap();
        dir
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path());
    }
}
