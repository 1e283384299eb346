//! The guest: a virtual machine with Linux, siw, rping and the agent.

mod base64;
mod console;
pub(crate) mod image;
mod qemu;
mod shell;

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::failure::{Failure, Result};
use crate::process::{self, Owned};
use console::Console;
use image::Image;
pub use shell::Output;
use shell::{Shell, Ticket};

/// Time limit from QEMU's start until the guest is ready. Booting takes 4 to 10 s on an idle
/// machine.
const BOOT: Duration = Duration::from_secs(180);
/// Time limit from QEMU's start until it has opened its channels.
const CHANNELS: Duration = Duration::from_secs(30);
/// Time limit for a killed command to end.
const KILLED: Duration = Duration::from_secs(30);

/// Attachment of the guest's network device to our side.
#[derive(Clone, Debug)]
pub enum NetDevice {
    /// QEMU's user network. The guest reaches our 127.0.0.1 as 192.0.2.1, and we reach its TCP
    /// ports through forwarded ports.
    User {
        /// Pairs of a port on our 127.0.0.1 and the guest's port.
        forward: Vec<(u16, u16)>,
    },
    /// Frames in Unix datagrams.
    UnixDatagrams {
        /// QEMU's socket, which QEMU creates.
        local: PathBuf,
        /// Our socket.
        remote: PathBuf,
    },
    /// An existing TAP device.
    Tap {
        /// Name of the device.
        ifname: String,
    },
}

/// Configuration of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) net: NetDevice,
    /// `ADDRESS/PREFIX` of eth0.
    pub(crate) addresses: Vec<String>,
    pub(crate) mtu: Option<u16>,
}

/// A running guest. It is killed on drop, and when this process ends.
pub struct Guest {
    // Declared first, so that the machine is killed before its channels close.
    _machine: Owned,
    console: Console,
    shell: Shell,
}

/// A command in the guest. On drop it is killed together with its children.
pub struct GuestProcess<'a> {
    guest: &'a mut Guest,
    ticket: Ticket,
    command: String,
    ended: bool,
}

impl Guest {
    /// Boots a guest with one network device, with these addresses (such as `192.0.2.2/24`) and
    /// this MTU. Waits until the guest and its agent are ready.
    ///
    /// # Errors
    /// Names the step that did not complete in time, with the end of the console's log.
    pub fn boot(
        image: &Image,
        net: &NetDevice,
        addresses: &[String],
        mtu: Option<u16>,
    ) -> Result<(Guest, Agent)> {
        let (guest, agent) = Guest::boot_without_controller(image, net, addresses, mtu)?;
        match Agent::open(agent, BOOT) {
            Ok(agent) => Ok((guest, agent)),
            Err(failure) => Err(guest.with_console(&failure)),
        }
    }

    /// Boots a guest as [`boot`](Self::boot) does, but without an [`Agent`]. Returns the stream to
    /// the agent, which begins with the agent's greeting.
    ///
    /// # Errors
    /// Names the step that did not complete in time, with the end of the console's log.
    pub fn boot_without_controller(
        image: &Image,
        net: &NetDevice,
        addresses: &[String],
        mtu: Option<u16>,
    ) -> Result<(Guest, UnixStream)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwarp-interop-{}-{number}", std::process::id());
        let channels = ["console", "agent", "shell"].map(|channel| format!("{name}-{channel}"));
        let listeners = [
            listen(&channels[0])?,
            listen(&channels[1])?,
            listen(&channels[2])?,
        ];
        let setup = Setup {
            net: net.clone(),
            addresses: addresses.to_vec(),
            mtu,
        };
        let child = process::spawn("qemu-system-x86_64".as_ref(), |command| {
            qemu::arguments(command, image, &setup, &channels);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
        })
        .map_err(|error| Failure::new(format!("QEMU cannot be started: {error}")))?;
        let mut machine = Owned(child);

        let mut connect = |listener: &UnixListener| take(listener, &mut machine);
        let console = Console::follow(connect(&listeners[0])?);
        let (agent, shell) = (connect(&listeners[1])?, connect(&listeners[2])?);
        let with_console =
            |failure: Failure| Failure::new(format!("{failure}; its console:\n{}", console.tail()));
        let shell = Shell::open(shell, BOOT).map_err(with_console)?;
        let guest = Guest {
            _machine: machine,
            console,
            shell,
        };
        Ok((guest, agent))
    }

    /// Runs a shell command and waits for its end.
    ///
    /// # Errors
    /// The command does not end in time and is killed, or the guest is gone.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Output> {
        self.spawn(command)?.wait(timeout)
    }

    /// Starts a shell command.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn spawn(&mut self, command: &str) -> Result<GuestProcess<'_>> {
        let ticket = self.start(command)?;
        Ok(GuestProcess {
            guest: self,
            ticket,
            command: command.to_owned(),
            ended: false,
        })
    }

    fn start(&mut self, command: &str) -> Result<Ticket> {
        let started = self.shell.start(command);
        started.map_err(|failure| self.with_console(&failure))
    }

    /// Returns the kernel's log around its first sign of trouble; `None` if there was none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.console.trouble()
    }

    /// Returns the whole log of the console.
    #[must_use]
    pub fn console(&self) -> String {
        self.console.text()
    }

    fn with_console(&self, failure: &Failure) -> Failure {
        Failure::new(format!("{failure}; its console:\n{}", self.console.tail()))
    }
}

impl GuestProcess<'_> {
    /// Returns the guest, for other commands while this one runs.
    pub fn guest(&mut self) -> &mut Guest {
        self.guest
    }

    /// Waits until a program in the guest listens on a TCP port. Does not connect to the port,
    /// because a connection that is closed at once can kill siw's listener.
    ///
    /// siw never accepts a connection that arrives after its socket listens and before its endpoint
    /// is in the state "listening", and its listener dies with that connection. It holds the lock
    /// of the kernel's network settings (RTNL) from before the one to after the other. Any change
    /// of an interface takes this lock, so the change that follows the look waits for siw.
    ///
    /// # Errors
    /// Nothing listens in time, or the command has ended.
    pub fn wait_listening(&mut self, port: u16, timeout: Duration) -> Result<()> {
        // In /proc/net/tcp, the state 0A is LISTEN.
        let look = format!(
            "grep -q ':{port:04X} [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6 \
             && ip link set eth0 up"
        );
        let deadline = Instant::now() + timeout;
        loop {
            if self.guest.run(&look, timeout)?.code == 0 {
                return Ok(());
            }
            if let Some(output) = self.ticket.wait(Duration::from_millis(50))? {
                self.ended = true;
                return Err(Failure::new(format!(
                    "in the guest, '{}' was to listen on port {port}, but ended with {}:\n{}",
                    self.command, output.code, output.text
                )));
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "in the guest, '{}' does not listen on port {port}",
                    self.command
                )));
            }
        }
    }

    /// Waits until the command ends.
    ///
    /// # Errors
    /// The command does not end in time and is killed (the text has its output), or the guest is
    /// gone.
    pub fn wait(mut self, timeout: Duration) -> Result<Output> {
        let answer = self.ticket.wait(timeout);
        match answer.map_err(|failure| self.guest.with_console(&failure))? {
            Some(output) => {
                self.ended = true;
                Ok(output)
            }
            None => {
                let said = self.kill().map(|output| output.text).unwrap_or_default();
                Err(Failure::new(format!(
                    "in the guest, '{}' did not end within {timeout:?}; it said:\n{said}",
                    self.command
                )))
            }
        }
    }

    /// Kills the command and its children. Returns its output.
    fn kill(&mut self) -> Result<Output> {
        self.ended = true;
        let id = self.ticket.id;
        self.guest
            .start(&format!("kill -9 -$(cat /tmp/{id}.pid)"))?;
        self.ticket
            .wait(KILLED)?
            .ok_or_else(|| Failure::new("a killed command does not end"))
    }
}

impl Drop for GuestProcess<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.kill();
        }
    }
}

/// Listens on a socket with an abstract name, which needs no file.
fn listen(name: &str) -> Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts QEMU's connection. Fails if QEMU ends first.
fn take(listener: &UnixListener, machine: &mut Owned) -> Result<UnixStream> {
    let deadline = Instant::now() + CHANNELS;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = machine.0.try_wait()? {
            let mut said = String::new();
            if let Some(stderr) = &mut machine.0.stderr {
                std::io::Read::read_to_string(stderr, &mut said)?;
            }
            return Err(Failure::new(format!(
                "QEMU ended at once with {status}: {}",
                said.trim()
            )));
        }
        if Instant::now() > deadline {
            return Err(Failure::new("QEMU does not open its channels"));
        }
        thread::sleep(Duration::from_millis(10));
    }
}
