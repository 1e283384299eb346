//! Runs the examples as a person with two terminals does. Programs have a time limit, and those
//! that still run at the end of a test are killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time after which a program is considered to hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running program. Dropping this kills it.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

/// Status and output of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    pub(crate) fn start(program: &str, args: &[&str]) -> Running {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, stdout) = channel();
        let out = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut err = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut said = String::new();
            let _ = err.read_to_string(&mut said);
            said
        });
        Running {
            stdin: child.stdin.take(),
            child,
            stdout,
            stderr: Some(stderr),
        }
    }

    /// Starts a server on a free port. Returns it with its address.
    pub(crate) fn server(program: &str) -> (Running, String) {
        let server = Running::start(program, &["server", "127.0.0.1:0"]);
        let line = server.line();
        let addr = line
            .strip_prefix("listening on ")
            .expect("where it listens");
        (server, addr.to_owned())
    }

    /// Waits for the next line of the program's output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.stdout.recv_timeout(PATIENCE).expect("no more lines")
    }

    /// Writes a line to the program's standard input.
    pub(crate) fn type_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes the program's standard input, and waits until it ends.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        self.stdin = None;
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let mut stdout = String::new();
        while let Ok(line) = self.stdout.recv_timeout(PATIENCE) {
            stdout += &line;
            stdout.push('\n');
        }
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Ended {
            code: status.code(),
            stdout,
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn client(program: &str, addr: &str, more: &[&str]) -> String {
    let ended = Running::start(program, &[&["client", addr], more].concat()).end();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "");
    ended.stdout
}
