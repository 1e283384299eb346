//! The option `--device`: the network that a command uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use uwarp_conformance::{Config, KernelTcp, LlpTcp};
use uwarp_verbs::llp::kernel::KernelSettings;
use uwarp_verbs::llp::{DeviceSpec, Network};
use uwarp_verbs::options::Chosen;
use uwarp_verbs::{AsyncEvent, Device, Settings};

use crate::common::Recording;
use crate::failure::Failure;
use crate::options::{chosen, of_devices, options_of_table};
use crate::output::notice;
use crate::signals::remove_socket_files_on_signals;

/// Option of every command that opens a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceOption(Chosen);

options_of_table!(DeviceOption, of_devices(|name| name == "device"), chosen);

impl DeviceOption {
    /// Opens the device.
    pub(crate) fn open(
        &self,
        settings: Settings,
        recording: Option<&Recording>,
    ) -> Result<Device, Failure> {
        open(&self.0.device, settings, recording)
    }

    /// Selects the network of the conformance suite. It is either TCP/IP in this process, or the
    /// kernel's TCP with the address that the option names, if any.
    pub(crate) fn configure(&self, config: &mut Config) -> Result<(), Failure> {
        config.network = if self.0.device.is_user_space() {
            Arc::new(LlpTcp::new(network(
                &self.0.device,
                KernelSettings::default(),
                None,
            )?))
        } else {
            let source = self.0.device.addresses().first().copied();
            Arc::new(KernelTcp { source })
        };
        Ok(())
    }

    /// Default address of a server: the device's only address, or all addresses if it has several
    /// or none.
    pub(crate) fn listen_ip(&self) -> IpAddr {
        match self.0.device.addresses()[..] {
            [addr] => addr,
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns true if the option names addresses of this machine.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.0.device.addresses().is_empty()
    }

    /// Returns true if the device has its own TCP/IP.
    pub(crate) fn is_user_space(&self) -> bool {
        self.0.device.is_user_space()
    }

    /// Default source address of a client. `None` if the device has its own TCP/IP, which chooses
    /// the address.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        if self.0.device.is_user_space() {
            return None;
        }
        let addr = self.0.device.addresses().first().copied();
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
        let mut chosen = Chosen::default();
        chosen.device = text.parse().unwrap();
        DeviceOption(chosen)
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
