//! The software RNIC of the process: one device, shared by all contexts and opened at first use.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use uwarp_verbs::capture::{Capture, CaptureOptions};
use uwarp_verbs::environment::unknown_variables;
use uwarp_verbs::llp::DeviceSpec;
use uwarp_verbs::llp::kernel::KernelSettings;
use uwarp_verbs::messages;
use uwarp_verbs::{Device, Progress, Rendezvous, RendezvousOptions};

use crate::at_exit::at_exit;
use crate::device::Devices;
use crate::environment::Environment;
use crate::gids::{self, GidEntry};
use crate::per_process::PerProcess;
use crate::persona::Persona;
use crate::qp::pair::PairSettings;

/// The device of a process, and what programs see of it.
#[derive(Clone)]
pub(crate) struct Rnic {
    pub(crate) device: Device,
    /// Devices that programs see. All of them are the one device.
    pub(crate) devices: &'static Devices,
    pub(crate) gids: Arc<[GidEntry]>,
    /// Place where queue pairs are called by their numbers; `None` on an iWARP device.
    pub(crate) rendezvous: Option<Rendezvous>,
    pub(crate) pairs: PairSettings,
}

static RNIC: PerProcess<Rnic> = PerProcess::new();
/// Value of `UWARP_PORT_OFFSET`, set when the device is opened.
static PORT_OFFSET: AtomicU16 = AtomicU16::new(0);
/// Value of `UWARP_QUIET`, set when the device is opened.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Returns the device of this process, as [`get`] does.
pub(crate) fn device() -> Option<Device> {
    get().map(|rnic| rnic.device)
}

/// Returns the RNIC of this process. If it cannot be opened, prints the reason and returns `None`;
/// the next call tries again.
pub(crate) fn get() -> Option<Rnic> {
    let opened = RNIC.get_or_make(|inherited| open(inherited.map(|rnic| rnic.devices)));
    match opened {
        Ok(rnic) => Some(rnic.clone()),
        Err(error) => {
            warn(format_args!("{error}"));
            None
        }
    }
}

/// Returns what a look at the files of the device shows. It neither opens the device of this
/// process nor creates a capture, because a shell or `ls` may look before the program does. A
/// network in user space can only be shown by opening it, with its capture.
pub(crate) fn look() -> Option<Rnic> {
    if let Some(rnic) = RNIC.get() {
        return Some(rnic.clone());
    }
    static LOOK: PerProcess<Rnic> = PerProcess::new();
    let looked = LOOK.get_or_make(|_| -> Result<Rnic, Option<String>> {
        let mut environment = Environment::read()?;
        QUIET.store(environment.chosen.quiet, Ordering::Relaxed);
        if environment.chosen.device.is_user_space() {
            return Err(None);
        }
        // Without a thread.
        environment.chosen.settings.progress = Progress::Manual;
        Ok(Rnic::open(environment, None, None)?)
    });
    match looked {
        Ok(rnic) => Some(rnic.clone()),
        Err(None) => get(),
        Err(Some(error)) => {
            warn(format_args!("{error}"));
            None
        }
    }
}

/// Opens the device with the settings from the environment. `inherited`: devices of the parent
/// process, if it has any. Then the log is already started, and the file in `UWARP_PCAP` is the
/// parent's.
fn open(inherited: Option<&'static Devices>) -> Result<Rnic, String> {
    let mut environment = Environment::read()?;
    QUIET.store(environment.chosen.quiet, Ordering::Relaxed);
    if inherited.is_none() {
        crate::log::start()?;
        for unknown in unknown_variables() {
            warn(format_args!("{unknown}"));
        }
    }
    PORT_OFFSET.store(environment.chosen.port_offset, Ordering::Relaxed);
    let capture = environment.chosen.pcap.take().map(|path| {
        let path = capture_file(path, inherited.map(|_| std::process::id()));
        let name = path.display().to_string();
        let options = CaptureOptions::default()
            .spawn(|name, run| uwarp_verbs::llp::thread::spawn(name, run).map(drop))
            .on_problem(move |what| warn(format_args!("{name}: {what}; all traffic goes on")));
        options.create(&path).map_err(|error| {
            format!(
                "the capture file {} cannot be created: {error}",
                path.display()
            )
        })
    });
    let capture = capture.transpose()?;
    let rnic = Rnic::open(environment, capture.as_ref(), inherited)?;
    if inherited.is_none() {
        at_exit(confirm_at_exit);
    }
    Ok(rnic)
}

/// Waits at exit until the Writes of the peers that were placed are confirmed. A peer would
/// otherwise take one of them for one that has failed.
extern "C" fn confirm_at_exit() {
    const LIMIT: Duration = Duration::from_millis(20);
    if let Some(rnic) = RNIC.get() {
        rnic.device.finish_confirmations(LIMIT);
    }
}

impl Rnic {
    /// Opens an RNIC. A child of a fork passes the `inherited` devices of its parent, because
    /// programs keep the pointers to them.
    pub(crate) fn open(
        environment: Environment,
        capture: Option<&Capture>,
        inherited: Option<&'static Devices>,
    ) -> Result<Self, String> {
        let Environment {
            chosen,
            persona,
            pairs,
        } = environment;
        let spec = chosen.device;
        let only = fixed_address(&spec);
        let network = spec
            .open(capture, KernelSettings::default())
            .map_err(|error| format!("{spec} cannot be opened: {error}"))?;
        let device = Device::open(Arc::clone(&network), chosen.settings)
            .map_err(|error| error.to_string())?;
        let devices = inherited.unwrap_or_else(|| Devices::new(&chosen.names, persona));
        let gids = match devices.persona() {
            Persona::Iwarp => {
                let mac = device.gid(0).map_err(|error| error.to_string())?;
                gids::iwarp(mac, &network.info())
            }
            Persona::Roce => gids::roce(&network.info(), only),
        };
        let rendezvous = match devices.persona() {
            Persona::Iwarp => None,
            Persona::Roce => {
                let options = RendezvousOptions::default().addr(only);
                let options = options
                    .ports(chosen.oob_ports)
                    .any_source(chosen.oob_any_source);
                let made = device.rendezvous(options);
                Some(made.map_err(|error| error.to_string())?)
            }
        };
        Ok(Rnic {
            device,
            devices,
            gids,
            rendezvous,
            pairs,
        })
    }

    /// Returns the node GUID of the device with this index, in network byte order.
    pub(crate) fn node_guid(&self, index: usize) -> u64 {
        u64::from_ne_bytes(node_guid(self.device.query().node_guid, index))
    }
}

/// Returns the node GUID of the device with this index. `first`: GUID of the first device, which
/// has FF FE between the two halves of a MAC address. The other devices have lower numbers there,
/// so that no other machine has their GUIDs.
fn node_guid(first: [u8; 8], index: usize) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h] = first;
    let [d, e] = u16::from_be_bytes([d, e])
        .wrapping_sub(index as u16)
        .to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Returns the address of `tcp:ADDR`, if it is one that peers can connect to.
fn fixed_address(spec: &DeviceSpec) -> Option<IpAddr> {
    let addresses = spec.addresses();
    let mut addresses = addresses.into_iter().filter(|addr| !addr.is_unspecified());
    addresses.next().filter(|_| !spec.is_user_space())
}

/// Path of the capture file. A child's file has the process ID as a suffix.
fn capture_file(path: PathBuf, child: Option<u32>) -> PathBuf {
    let Some(process) = child else { return path };
    let mut name = path.into_os_string();
    name.push(format!(".{process}"));
    name.into()
}

/// Number added to the ports that programs name. Set when the device is opened.
pub(crate) fn port_offset() -> u16 {
    PORT_OFFSET.load(Ordering::Relaxed)
}

/// Prints a message on standard error, unless `UWARP_QUIET` is set. Never blocks: a message may be
/// dropped and counted instead.
pub(crate) fn warn(message: core::fmt::Arguments<'_>) {
    warn_about(None, message);
}

/// Prints a message about a peer, like [`warn`].
pub(crate) fn warn_about(peer: Option<SocketAddr>, message: core::fmt::Arguments<'_>) {
    if !QUIET.load(Ordering::Relaxed) {
        // The program may have closed standard error.
        let _ = messages::print(peer.map(|peer| peer.ip()), &format!("uwarp: {message}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_a_node_guid_of_its_own_and_the_first_has_that_of_the_rnic() {
        let first = [2, 0, 0, 0xff, 0xfe, 0, 0, 7];
        assert_eq!(node_guid(first, 0), first);
        assert_eq!(node_guid(first, 1), [2, 0, 0, 0xff, 0xfd, 0, 0, 7]);
        assert_eq!(node_guid(first, 255), [2, 0, 0, 0xfe, 0xff, 0, 0, 7]);
    }

    #[test]
    fn the_address_of_the_kernels_tcp_is_fixed_and_those_of_a_stack_in_user_space_are_not() {
        for (spec, due) in [
            ("tcp", None),
            ("tcp:127.0.0.1", Some("127.0.0.1")),
            ("tcp:2001:db8::1", Some("2001:db8::1")),
            ("tcp:0.0.0.0", None),
            ("unix:@a,@b,ip=192.0.2.1/24", None),
        ] {
            let found = fixed_address(&spec.parse().unwrap());
            assert_eq!(found, due.map(|addr| addr.parse().unwrap()), "{spec}");
        }
    }

    #[test]
    fn a_child_has_a_capture_file_of_its_own() {
        let file = |child| capture_file("/tmp/one.pcapng".into(), child);
        assert_eq!(file(None), PathBuf::from("/tmp/one.pcapng"));
        assert_eq!(file(Some(7)), PathBuf::from("/tmp/one.pcapng.7"));
    }
}
