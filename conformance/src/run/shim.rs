//! A command that is the target. It is started for each case and ended with it.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// A running target.
pub(super) struct Shim(Child);

impl Shim {
    /// Starts it with the address to connect to.
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
            .map(Shim)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // An error is ignored: a process that has already ended only needs the wait.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
