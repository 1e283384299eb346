//! Processes that are killed when this process ends.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Request = (Command, Sender<io::Result<Child>>);

/// Starts `program` so that the kernel kills it when this process ends, whatever the cause.
///
/// The kernel sends the signal when the *thread* that started the program ends. Therefore one
/// thread that never ends starts all programs.
///
/// # Errors
/// As for [`Command::spawn`].
pub(crate) fn spawn(
    program: &std::ffi::OsStr,
    configure: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (send, requests) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        send
    });
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    configure(&mut command);
    let (answer, answered) = channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    spawner.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

/// A process that is killed on drop.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // This fails only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_process_is_killed_when_its_owner_is_dropped() {
        let child = spawn("sleep".as_ref(), |command| {
            command.arg("1000").stdin(Stdio::null());
        });
        let Ok(child) = child else {
            return; // no setpriv: not a Linux with util-linux
        };
        let id = child.id();
        drop(Owned(child));
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }
}
