//! Links to a victim with TCP in user space, on which an attacker can send any IP packet.
//!
//! ```text
//!   Datagrams   victim a <--- b switch c ---> d host of the honest peers
//!                    ^--------- attacker
//!   Tap         victim <--- interface uw0, which is the kernel's: honest peers and raw sockets
//! ```
//! The honest peers' address is the victim's router. So the victim answers attackers of any
//! address by way of it, and there the answers are dropped: all addresses of attackers are silent.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use uwarp_verbs::llp::DeviceSpec;
use uwarp_verbs::llp::kernel::KernelSettings;
use uwarp_verbs::{Device, Settings};

use crate::Result;
use crate::honest::Origin;
use crate::victim::{Confined, Victim};

/// Addresses of the victim: IPv4 and IPv6.
pub(crate) const VICTIM: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// Addresses of the honest peers.
const HONEST: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// MAC addresses of the victim and of the host of the honest peers.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Interface of the kernel's end of the TAP device.
const INTERFACE: &str = "uw0";

/// Kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// Unix datagrams, which need no right.
    Datagrams,
    /// A TAP device. The process must be in a network namespace of its own.
    Tap,
}

/// A link, which ends when it is dropped.
pub(crate) struct Link {
    attacker: Attacker,
    /// Switch of the link, which ends before its sockets are removed.
    _switch: Option<Switch>,
}

/// Way of an attacker's packets to the victim.
enum Attacker {
    /// Frames to the victim's socket.
    Frames(UnixDatagram),
    /// Packets for the kernel to route, by IP version.
    Packets([Socket; 2]),
}

impl Link {
    /// Starts a victim and its link. Also returns the place of its honest peers.
    pub(crate) fn start(kind: LinkKind) -> Result<(Link, Victim, Origin)> {
        match kind {
            LinkKind::Datagrams => Link::over_datagrams(),
            LinkKind::Tap => Link::over_tap(),
        }
    }

    fn over_datagrams() -> Result<(Link, Victim, Origin)> {
        let directory = Directory::new()?;
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| directory.0.join(name));
        let switch = Switch::start(directory, [&a, &b, &c, &d])?;
        let device = format!("unix:{},{}", a.display(), b.display());
        let victim = victim(&device)?;
        let spec = format!("unix:{},{}{}", d.display(), c.display(), keys(HONEST, 1));
        let network = spec
            .parse::<DeviceSpec>()?
            .open(None, KernelSettings::default())?;
        let host = Device::open(network, Settings::default())?;
        let socket = UnixDatagram::unbound()?;
        socket.connect(&a)?;
        let link = Link {
            attacker: Attacker::Frames(socket),
            _switch: Some(switch),
        };
        Ok((link, victim, Origin::Host(host)))
    }

    fn over_tap() -> Result<(Link, Victim, Origin)> {
        ip("link set lo up")?;
        let victim = victim(&format!("tap:{INTERFACE}"))?;
        ip(&format!("addr add {}/24 dev {INTERFACE}", HONEST[0]))?;
        // With duplicate address detection the address could not be used for a second.
        ip(&format!("addr add {}/64 dev {INTERFACE} nodad", HONEST[1]))?;
        let raw = |domain| {
            // The packets have their IP headers (raw(7), IPPROTO_RAW).
            Socket::new(domain, Type::RAW, Some(Protocol::from(255)))
        };
        let link = Link {
            attacker: Attacker::Packets([raw(Domain::IPV4)?, raw(Domain::IPV6)?]),
            _switch: None,
        };
        Ok((link, victim, Origin::Kernel))
    }

    /// Sends an IP packet to the victim. A link that is full may drop it.
    pub(crate) fn send(&self, packet: &[u8], to: IpAddr) -> Result<()> {
        let sent = match &self.attacker {
            Attacker::Frames(socket) => {
                let kind: u16 = if to.is_ipv4() { 0x0800 } else { 0x86DD };
                let frame = [&MACS[0][..], &MACS[1], &kind.to_be_bytes(), packet].concat();
                socket.send(&frame)
            }
            Attacker::Packets(sockets) => {
                let socket = &sockets[usize::from(to.is_ipv6())];
                socket.send_to(packet, &SocketAddr::new(to, 0).into())
            }
        };
        match sent {
            Err(error) if error.raw_os_error() == Some(NO_BUFFER) => Ok(()),
            sent => Ok(sent.map(drop)?),
        }
    }
}

/// Error of a send to an interface whose queue is full (ENOBUFS).
const NO_BUFFER: i32 = 105;

/// Starts a victim on this device.
fn victim(device: &str) -> Result<Victim> {
    let keys = keys(VICTIM, 0);
    let device = format!("{device}{keys},gw={},gw={}", HONEST[0], HONEST[1]);
    Victim::start_at(&device, VICTIM[0], [0, 0], Confined::Not)
}

/// Keys of a device with these addresses.
fn keys([v4, v6]: [&str; 2], host: usize) -> String {
    let mac = MACS[host].map(|byte| format!("{byte:02x}")).join(":");
    format!(",ip={v4}/24,ip={v6}/64,mac={mac}")
}

fn ip(arguments: &str) -> Result<()> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).env("PATH", path);
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("ip {arguments}: {said}").into());
    }
    Ok(())
}

/// Directory of the sockets, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwarp-robustness-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory)?;
        Ok(Directory(directory))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Threads that carry frames between the victim and the host of the honest peers.
struct Switch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _directory: Directory,
}

impl Switch {
    fn start(directory: Directory, [a, b, c, d]: [&Path; 4]) -> Result<Switch> {
        let mut switch = Switch {
            stop: Arc::default(),
            threads: Vec::new(),
            _directory: directory,
        };
        let (of_victim, of_honest) = (UnixDatagram::bind(b)?, UnixDatagram::bind(c)?);
        switch.carry(of_victim, d, is_for_honest)?;
        switch.carry(of_honest, a, |_| true)?;
        Ok(switch)
    }

    /// Starts a thread that carries the frames of one socket for which `wanted` returns true.
    fn carry(&mut self, socket: UnixDatagram, to: &Path, wanted: fn(&[u8]) -> bool) -> Result<()> {
        /// Time after which the thread looks whether it has to end.
        const LOOK: Duration = Duration::from_millis(100);
        let to = to.to_owned();
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_write_timeout(Some(LOOK))?;
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            let mut frame = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                match socket.recv(&mut frame) {
                    // A frame to an end that is gone is lost, as on a cable.
                    Ok(len) if wanted(&frame[..len]) => drop(socket.send_to(&frame[..len], &to)),
                    Ok(_) => {}
                    Err(error)
                        if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => return,
                }
            }
        }));
        Ok(())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns true for a frame of the victim to the honest peers. Its answers to attackers are not.
fn is_for_honest(frame: &[u8]) -> bool {
    let own = |at: usize, addr: &[u8]| frame.get(at..at + addr.len()) == Some(addr);
    match frame.get(12..14) {
        Some([0x08, 0x00]) => own(30, &[192, 0, 2, 2]),
        Some([0x86, 0xDD]) => {
            let ours = [0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
            // Neighbour discovery uses multicast and link-local addresses.
            own(38, &ours) || own(38, &[0xFF]) || own(38, &[0xFE, 0x80])
        }
        _ => true,
    }
}
