//! Devices with kernel TCP on the other side. Starts the processes that measure each figure.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use super::child::{CardOptions, MemoryOptions, Wire};
use super::figures::{Direction, Of, Work};
use super::sys;
use crate::ours::{self, Metric, Uwarp};
use crate::process;
use crate::raw::{self, Kind, Load};
use crate::sample::Sample;

const MTU: u16 = 1500;
const TAP: &str = "uwtap0";
/// Interface of the stack in user space, and interface of the kernel.
const VETH: [&str; 2] = ["uwveth0", "uwveth1"];
/// Option in `--device` that switches offloads off, for plain frames.
const PLAIN: &str = ",offload=off";
/// Size of each buffer of a bare socket with plain frames. Of the sizes from 128 KiB to 4 MiB, 256
/// KiB was as fast as any.
const BUFFER_OF_FRAMES: usize = 256 << 10;
/// Size of each buffer of a bare socket with offloads. 512 KiB to 1 MiB were the fastest sizes.
const BUFFER_OF_OFFLOAD: usize = 512 << 10;

impl Wire {
    /// Returns the name in tables.
    pub(super) fn told(self) -> &'static str {
        match self {
            Wire::Tap => "TAP",
            Wire::Raw => "raw socket",
        }
    }

    /// Returns the interface of the stack in user space.
    fn interface(self) -> &'static str {
        match self {
            Wire::Tap => TAP,
            Wire::Raw => VETH[0],
        }
    }

    /// Returns the address of the kernel, and the address of the stack in user space.
    fn addresses(self) -> [Ipv4Addr; 2] {
        let first = match self {
            Wire::Tap => 1,
            Wire::Raw => 129,
        };
        [first, first + 1].map(|last| Ipv4Addr::new(192, 0, 2, last))
    }
}

/// Runs the command `ip` with these arguments.
fn ip(arguments: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    process::output(&mut command, Duration::from_secs(10))
        .map(drop)
        .map_err(|error| io::Error::other(format!("ip {arguments}: {error}")))
}

/// Creates the devices in the network namespace of this program.
fn make_devices() -> io::Result<()> {
    let [tap, _] = Wire::Tap.addresses();
    ip(&format!("tuntap add dev {TAP} mode tap"))?;
    ip(&format!("addr add {tap}/25 dev {TAP}"))?;
    ip(&format!("link set {TAP} mtu {MTU} up"))?;
    let [ours, theirs] = VETH;
    let [veth, _] = Wire::Raw.addresses();
    ip(&format!(
        "link add {ours} mtu {MTU} type veth peer name {theirs} mtu {MTU}"
    ))?;
    ip(&format!("link set {ours} address {MAC}"))?;
    ip(&format!("addr add {veth}/25 dev {theirs}"))?;
    ip(&format!("link set {ours} up"))?;
    ip(&format!("link set {theirs} up"))
}

/// Servers and settings for all figures.
pub(super) struct Lab {
    uwarp: Uwarp,
    /// True if the measured command has an option to switch offloads off. A command without this
    /// option has no offloads.
    pub(super) has_offload: bool,
    time: Duration,
    with_loss: Duration,
    loopback: raw::Server,
    /// Raw servers on kernel TCP at the addresses of the devices.
    raw: BTreeMap<Wire, raw::Server>,
}

impl Lab {
    pub(super) fn new(uwarp: Uwarp, time: Duration, with_loss: Duration) -> io::Result<Self> {
        make_devices()?;
        let (congestion, pinning) = (uwarp.congestion.as_deref(), &uwarp.pinning);
        let mut raw = BTreeMap::new();
        for wire in [Wire::Tap, Wire::Raw] {
            let [kernel, _] = wire.addresses();
            let server = raw::Server::start_at(&kernel.to_string(), congestion, pinning)?;
            raw.insert(wire, server);
        }
        Ok(Lab {
            has_offload: knows_offload(&uwarp)?,
            loopback: raw::Server::start(congestion, pinning)?,
            raw,
            uwarp,
            time,
            with_loss,
        })
    }

    /// Measures a figure once. `round` is the seed of random losses.
    pub(super) fn measure(&self, of: &Of, round: u64) -> io::Result<Sample> {
        match *of {
            Of::Loopback(kind, size) => self.loopback.measure(kind, size, self.time),
            Of::Memory {
                who,
                mtu,
                threads,
                loss,
                congestion,
            } => {
                let time = if loss > 0.0 {
                    self.with_loss
                } else {
                    self.time
                };
                let link = MemoryOptions {
                    who,
                    mtu,
                    threads,
                    loss,
                    seed: round,
                    buffer: BUFFER_OF_FRAMES,
                    congestion,
                    seconds: time.as_secs_f64(),
                };
                // The last packets of a stream with losses may be delayed by timers of TCP.
                let most = time + Duration::from_secs(100);
                raw::sample(&mut link.command(&self.uwarp.pinning)?, most)
            }
            Of::Device {
                wire,
                offload,
                direction,
                work,
            } => {
                if wire == Wire::Raw {
                    // If the user-space end of the veth pair has no offloads, the kernel must
                    // segment and compute checksums on its own end.
                    sys::set_offloads(VETH[1], offload)?;
                }
                match work {
                    Work::Bare(kind, size) => self.bare(wire, offload, direction, kind, size),
                    Work::Ours(args, metric) => {
                        // Latencies are measured anyway, because a small frame is the same with and
                        // without offloads.
                        if offload && !self.has_offload && metric != Metric::Latency {
                            return Err(io::Error::other(NO_OFFLOAD));
                        }
                        let server = self.ours(wire, offload, direction)?;
                        server.measure(args, metric, self.time)
                    }
                }
            }
        }
    }

    fn bare(
        &self,
        wire: Wire,
        offload: bool,
        direction: Direction,
        kind: Kind,
        size: usize,
    ) -> io::Result<Sample> {
        let [_, addr] = wire.addresses();
        let card = CardOptions {
            wire,
            name: wire.interface().to_owned(),
            offload,
            mtu: MTU,
            addr,
            mac: MAC.parse().map_err(|()| io::Error::other(MAC))?,
            buffer: if offload {
                BUFFER_OF_OFFLOAD
            } else {
                BUFFER_OF_FRAMES
            },
        };
        let Uwarp {
            pinning,
            congestion,
            ..
        } = &self.uwarp;
        let time = self.time;
        let load = Load { kind, size, time };
        match direction {
            Direction::Out => {
                let Some(SocketAddr::V4(to)) = self.raw.get(&wire).map(|server| server.addr) else {
                    return Err(io::Error::other("no raw server"));
                };
                raw::sample(&mut card.client(pinning, to, load)?, time)
            }
            Direction::In => {
                let (_running, addr) = raw::started(&mut card.server(pinning)?)?;
                raw::measure(addr, congestion.as_deref(), pinning, load)
            }
        }
    }

    /// Starts `uwarp perf` as a server on the receiving side.
    fn ours(&self, wire: Wire, offload: bool, direction: Direction) -> io::Result<ours::Server> {
        let [kernel, _] = wire.addresses();
        let kernel = self.uwarp.kernel(&kernel.to_string());
        let stack = self.device(wire, offload);
        match direction {
            Direction::Out => ours::Server::between(&self.uwarp, true, &kernel, &stack),
            Direction::In => ours::Server::between(&self.uwarp, true, &stack, &kernel),
        }
    }

    fn device(&self, wire: Wire, offload: bool) -> String {
        let [_, addr] = wire.addresses();
        let interface = wire.interface();
        let plain = if offload || !self.has_offload {
            ""
        } else {
            PLAIN
        };
        match wire {
            Wire::Tap => format!("tap:{interface},ip={addr}/25,mac={MAC}{plain}"),
            Wire::Raw => format!("raw:{interface},ip={addr}/25{plain}"),
        }
    }
}

/// Reason for a missing figure with offloads.
pub(super) const NO_OFFLOAD: &str = "this uwarp has no offloads yet";
/// MAC address of all stacks on the device. It must not change, because the kernel caches it.
const MAC: &str = "02:00:00:00:00:02";

/// Returns true if the command accepts the option that switches offloads off. The option names a
/// device without an address, so the command reports an error and opens no device.
fn knows_offload(uwarp: &Uwarp) -> io::Result<bool> {
    let mut command = Command::new(&uwarp.path);
    let said = command
        .args(["perf", "--device", &format!("tap:{TAP}{PLAIN}")])
        .output()?;
    Ok(takes_offload(&String::from_utf8_lossy(&said.stderr)))
}

fn takes_offload(said: &str) -> bool {
    !said.contains("no key `offload`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_offloads_says_so() {
        let lacks = "error: invalid value: there is no key `offload`\n  expected: one of ip= gw=";
        assert!(!takes_offload(lacks));
        assert!(takes_offload(
            "error: invalid value: the address is missing"
        ));
    }
}
