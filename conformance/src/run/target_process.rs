//! A command that acts as the target. The suite starts it for a case and ends it with the case.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Running process of a command.
pub(super) struct TargetProcess(Child);

impl TargetProcess {
    /// Starts the command with the address to which it has to connect.
    pub(super) fn start(command: &str, at: SocketAddr) -> io::Result<Self> {
        let (host, port, addr) = (at.ip().to_string(), at.port().to_string(), at.to_string());
        let mut placed = false;
        let mut words = command.split_whitespace().map(|word| {
            let filled = word
                .replace("{host}", &host)
                .replace("{port}", &port)
                .replace("{addr}", &addr);
            placed |= filled != word;
            filled
        });
        let program = words
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is empty"))?;
        let mut arguments: Vec<String> = words.collect();
        if !placed {
            arguments.push(addr.clone());
        }
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(TargetProcess)
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        // Ignores an error: the process may already have ended, and `wait` still reaps it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
