//! The option `--device`: the network that a command uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use uwarp_conformance::{Config, KernelTcp, LlpTcp};
use uwarp_verbs::llp::kernel::KernelSettings;
use uwarp_verbs::llp::{DeviceSpec, Network};
use uwarp_verbs::{AsyncEvent, Device, Settings};

use crate::common::Recording;
use crate::failure::Failure;
use crate::output::notice;
use crate::signals::remove_socket_files_on_signals;

/// Option of every command that opens a device.
#[derive(Args, Debug)]
#[command(next_help_heading = "Protocol and capture")]
pub(crate) struct DeviceOption {
    /// The network: tcp, tcp:ADDR, tap:NAME,ip=ADDR, raw:INTERFACE,ip=ADDR or
    /// unix:LOCAL,REMOTE,ip=ADDR (--help explains them)
    ///
    /// tcp:127.0.0.1
    ///   The kernel's TCP, with the local address to use (optional).
    ///   congestion=NAME may follow the address: a congestion control of the
    ///   kernel. The default is the system's, but reno within this host if
    ///   the system's is BBR. Needs no privilege.
    /// tap:uw0,ip=192.0.2.1/24
    ///   TCP/IP in this process on a TAP device, which exists or is created;
    ///   the kernel is the other end. Needs /dev/net/tun, and CAP_NET_ADMIN
    ///   or a device that root has created for you.
    /// raw:veth0,ip=192.0.2.1/24
    ///   The same on a raw socket on an interface, best one end of a veth
    ///   pair. The kernel must not have the address. Needs CAP_NET_RAW.
    /// unix:/tmp/a,/tmp/b,ip=192.0.2.1/24
    ///   The same on Ethernet frames in Unix datagrams, received at the
    ///   first path and sent to the second. The other end is QEMU's
    ///   -netdev dgram or another uwarp. Needs no privilege.
    ///
    /// The last three take more keys, in any order: ip= again (IPv6 too),
    /// gw=ADDR, mtu=BYTES, mac=XX:XX:XX:XX:XX:XX (not raw),
    /// congestion=none|reno|cubic, offload=auto|off (not unix),
    /// recovery=timer|early (retransmit lost data after a second, or as soon
    /// as the loss shows; on tap and raw only with offload=off). For tests:
    /// loss=, duplicate=, reorder=, corrupt= (probabilities, 0 to 1) and
    /// seed=NUMBER.
    #[arg(
        long = "device",
        value_name = "DEVICE",
        default_value = "tcp",
        env = "UWARP_DEVICE",
        hide_env_values = true,
        verbatim_doc_comment
    )]
    spec: DeviceSpec,
}

impl DeviceOption {
    /// Opens the device.
    pub(crate) fn open(
        &self,
        settings: Settings,
        recording: Option<&Recording>,
    ) -> Result<Device, Failure> {
        open(&self.spec, settings, recording)
    }

    /// Selects the network of the conformance suite. It is either TCP/IP in this process, or the
    /// kernel's TCP with the address that the option names, if any.
    pub(crate) fn configure(&self, config: &mut Config) -> Result<(), Failure> {
        config.network = if self.spec.is_user_space() {
            Arc::new(LlpTcp::new(network(
                &self.spec,
                KernelSettings::default(),
                None,
            )?))
        } else {
            let source = self.spec.addresses().first().copied();
            Arc::new(KernelTcp { source })
        };
        Ok(())
    }

    /// Default address of a server: the device's only address, or all addresses if it has several
    /// or none.
    pub(crate) fn listen_ip(&self) -> IpAddr {
        match self.spec.addresses()[..] {
            [addr] => addr,
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns true if the option names addresses of this machine.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.spec.addresses().is_empty()
    }

    /// Returns true if the device has its own TCP/IP.
    pub(crate) fn is_user_space(&self) -> bool {
        self.spec.is_user_space()
    }

    /// Default source address of a client. `None` if the device has its own TCP/IP, which chooses
    /// the address.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        if self.spec.is_user_space() {
            return None;
        }
        let addr = self.spec.addresses().first().copied();
        addr.map(|addr| SocketAddr::new(addr, 0))
    }
}

/// Silence after which TCP probes the peer. Without probes a command would wait forever for a peer
/// whose machine has failed.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Opens a device on the network that `spec` names.
pub(crate) fn open(
    spec: &DeviceSpec,
    settings: Settings,
    recording: Option<&Recording>,
) -> Result<Device, Failure> {
    let kernel = KernelSettings::default().keepalive(Some(KEEPALIVE));
    let network = network(spec, kernel, recording)?;
    Device::open(network, settings).map_err(|error| Failure::because(error.to_string()))
}

fn network(
    spec: &DeviceSpec,
    kernel: KernelSettings,
    recording: Option<&Recording>,
) -> Result<Arc<dyn Network>, Failure> {
    if spec.has_socket_file() {
        remove_socket_files_on_signals();
    }
    spec.open(recording.map(|recording| &recording.capture), kernel)
        .map_err(|error| Failure::because(format!("{spec} cannot be opened: {error}")))
}

/// Handles the pending events of the device. Prints each address conflict and each shortage of
/// resources at a listener.
///
/// # Errors
/// The network has failed permanently.
pub(crate) fn check_network(device: &Device) -> Result<(), Failure> {
    while let Some(event) = device.poll_event() {
        match event {
            AsyncEvent::DeviceFatal { error } => return Err(Failure::because(error.to_string())),
            AsyncEvent::AddressConflict { error } | AsyncEvent::ListenerShort { error, .. } => {
                notice(format_args!("uwarp: {error}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(text: &str) -> DeviceOption {
        DeviceOption {
            spec: text.parse().unwrap(),
        }
    }

    #[test]
    fn a_server_listens_at_the_only_address_or_at_all() {
        for (text, addr) in [
            ("tcp", "0.0.0.0"),
            ("tcp:127.0.0.1", "127.0.0.1"),
            ("tcp:::1", "::1"),
            ("tap:uw0,ip=192.0.2.1/24", "192.0.2.1"),
            ("unix:a,b,ip=2001:db8::1", "2001:db8::1"),
            ("raw:veth0,ip=192.0.2.1,ip=2001:db8::1", "0.0.0.0"),
        ] {
            assert_eq!(option(text).listen_ip().to_string(), addr, "{text}");
        }
    }

    #[test]
    fn only_the_kernel_is_told_where_to_connect_from() {
        let source = option("tcp:127.0.0.1").source();
        assert_eq!(source, Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(option("tcp").source(), None);
        assert_eq!(option("tap:uw0,ip=192.0.2.1").source(), None);
    }
}
