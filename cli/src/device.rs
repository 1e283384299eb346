//! `--device`: which network a command uses.

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

/// The option of every command that opens a device.
#[derive(Args, Debug)]
#[command(next_help_heading = "Protocol and capture")]
pub(crate) struct DeviceOption {
    /// The network: tcp, tcp:ADDR, tap:NAME,ip=ADDR, raw:INTERFACE,ip=ADDR or
    /// unix:LOCAL,REMOTE,ip=ADDR (--help explains them)
    ///
    /// tcp:127.0.0.1
    ///   The kernel's TCP, and the address of this machine to use, if any;
    ///   with it also congestion=NAME, by the kernel's name
    ///   (otherwise the system's, but reno within this host where that is BBR). Needs no right.
    /// tap:uw0,ip=192.0.2.1/24
    ///   TCP/IP in this process on a TAP device that exists or is created;
    ///   the kernel is the other end. Needs /dev/net/tun, and
    ///   CAP_NET_ADMIN or a device that root has made for you.
    /// raw:veth0,ip=192.0.2.1/24
    ///   The same on a raw socket on an interface, best one end of a veth
    ///   pair. The kernel must not have the address. Needs CAP_NET_RAW.
    /// unix:/tmp/a,/tmp/b,ip=192.0.2.1/24
    ///   The same on Ethernet frames in Unix datagrams, received at the
    ///   first path and sent to the second: QEMU's -netdev dgram, or
    ///   another uwarp. Needs no right.
    ///
    /// The last three take more, in any order: ip= again (IPv6 too),
    /// gw=ADDR, mtu=OCTETS, mac=XX:XX:XX:XX:XX:XX (not raw),
    /// congestion=none|reno|cubic, offload=auto|off (not unix),
    /// recovery=timer|early (what is lost is sent again after a second, or
    /// as soon as it shows; on tap and raw only with offload=off), and for
    /// tests loss=, duplicate=, reorder=, corrupt= (probabilities, 0 to 1)
    /// and seed=NUMBER.
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
    /// Opens it.
    pub(crate) fn open(
        &self,
        settings: Settings,
        recording: Option<&Recording>,
    ) -> Result<Device, Failure> {
        open(&self.spec, settings, recording)
    }

    /// Lets the conformance suite speak over it: the TCP of the kernel, from this address if there is one, or one of our own.
    pub(crate) fn use_for(&self, config: &mut Config) -> Result<(), Failure> {
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

    /// Where a server listens unless it is told: at the device's only address, else at all of them.
    pub(crate) fn listen_ip(&self) -> IpAddr {
        match self.spec.addresses()[..] {
            [addr] => addr,
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Whether it names addresses of this machine.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.spec.addresses().is_empty()
    }

    /// Whether it brings a TCP/IP of its own.
    pub(crate) fn is_user_space(&self) -> bool {
        self.spec.is_user_space()
    }

    /// Where a client connects from unless it is told: a TCP/IP of our own knows best.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        if self.spec.is_user_space() {
            return None;
        }
        let addr = self.spec.addresses().first().copied();
        addr.map(|addr| SocketAddr::new(addr, 0))
    }
}

/// How long a TCP connection may be silent before the peer is asked whether it is still there:
/// a peer whose machine is gone must not keep a command waiting for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Opens a device on the network that was named.
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

/// Says what has happened to the network of the device, if anything.
///
/// # Errors
/// When it has failed for good.
pub(crate) fn look_at_network(device: &Device) -> Result<(), Failure> {
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
