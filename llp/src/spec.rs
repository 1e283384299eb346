//! [`DeviceSpec`]: the text by which users name a network, such as `tcp` or
//! `tap:uw0,ip=192.0.2.1/24`.

mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_capture::Capture;

use crate::ethernet::{EthernetNetwork, LinkSettings};
use crate::kernel::{KernelNetwork, KernelSettings};
use crate::smol::Congestion;
use crate::wire::MAX_PATH;
use crate::{InterfaceName, Network, OpenError};
use keys::{Keys, LinkKeys};

/// Network that a program uses, in the form that users write.
///
/// * `tcp`: the kernel's TCP.
/// * `tcp:ADDR`: the kernel's TCP, with connections and listeners at this address of the machine.
/// * `tcp:ADDR,congestion=NAME`: the same, with this congestion control (the kernel's name, such as
///   `reno` or `bbr`).
/// * `tap:NAME,ip=ADDR[/PREFIX]...`: smoltcp on a TAP device that exists or is created.
/// * `raw:INTERFACE,ip=ADDR[/PREFIX]...`: smoltcp on a raw socket on an interface.
/// * `unix:LOCAL,REMOTE,ip=ADDR[/PREFIX]...`: smoltcp on Ethernet frames in Unix datagrams,
///   received at the path LOCAL and sent to REMOTE.
///
/// The last three forms take these keys, in any order:
///
/// * `ip=ADDR[/PREFIX]`: an address of this side, IPv4 or IPv6. The key is required and may be
///   repeated. The default prefix is 24 for IPv4 and 64 for IPv6.
/// * `gw=ADDR`: the router for other networks, at most one for each family. It must be in a network
///   of this side.
/// * `mtu=BYTES`: the largest IP packet in bytes, 576 to 65521. The default is that of the
///   interface, or 1500.
/// * `mac=XX:XX:XX:XX:XX:XX`: the MAC address of this side (not with `raw`). It is random by
///   default.
/// * `congestion=none`, `reno`, `cubic`: the reaction to loss. The default is `none` on `unix` and
///   `reno` otherwise.
/// * `recovery=timer`, `early`: when lost bytes are sent again. With `timer`, the default, smoltcp
///   sends them mostly after one second. With `early`, it sends them as soon as the loss is
///   detected. `early` is not available where the kernel may
///   [offload](LinkSettings::early_recovery): on `tap` and `raw` it needs `offload=off` or
///   `corrupt=`.
/// * `offload=auto`, `off`: whether the kernel cuts segments and computes checksums (`tap` and
///   `raw` only). With `auto`, the default, it does so if it can.
/// * `loss=`, `duplicate=`, `reorder=`, `corrupt=`: for tests, the probability (0 to 1) of this
///   fault for each packet.
/// * `seed=NUMBER`: the seed of these random choices.
///
/// A name or a path cannot contain a comma. `Display` gives a text that parses to the same value.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Tcp {
        addr: Option<IpAddr>,
        congestion: Option<String>,
    },
    Tap {
        name: InterfaceName,
        link: LinkKeys,
    },
    Raw {
        name: InterfaceName,
        link: LinkKeys,
    },
    Unix {
        local: String,
        remote: String,
        link: LinkKeys,
    },
}

/// Error in the text of a [`DeviceSpec`]. Its message says what is wrong and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; expected {expected}")]
pub struct SpecError {
    what: String,
    expected: String,
}

impl SpecError {
    fn new(what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            expected: expected.into(),
        }
    }
}

/// Valid forms of the text, for messages.
const FORMS: &str = "`tcp`, `tcp:ADDR`, `tap:NAME,ip=ADDR/PREFIX`, `raw:INTERFACE,ip=ADDR/PREFIX` \
                     or `unix:LOCAL,REMOTE,ip=ADDR/PREFIX`";

impl Default for DeviceSpec {
    /// Returns `tcp`: the kernel's TCP without a fixed address.
    fn default() -> Self {
        Self(Kind::Tcp {
            addr: None,
            congestion: None,
        })
    }
}

impl DeviceSpec {
    /// Returns the addresses of this side that the text contains, in the same order. Empty for
    /// `tcp` without an address, which uses the addresses of the machine.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match &self.0 {
            Kind::Tcp { addr, .. } => addr.iter().copied().collect(),
            Kind::Tap { link, .. } | Kind::Raw { link, .. } | Kind::Unix { link, .. } => {
                link.addresses.iter().map(|(addr, _)| *addr).collect()
            }
        }
    }

    /// Returns true if the network is a TCP stack in this process.
    pub fn is_user_space(&self) -> bool {
        !matches!(self.0, Kind::Tcp { .. })
    }

    /// Returns true if opening the network creates a file: the Unix socket at LOCAL, if that is not
    /// an abstract name. [`remove_socket_files`](crate::remove_socket_files) removes it.
    pub fn has_socket_file(&self) -> bool {
        matches!(&self.0, Kind::Unix { local, .. } if !local.starts_with('@'))
    }

    /// Opens the network. `kernel` holds the settings for the kernel's TCP. A TCP stack in user
    /// space uses only their `keepalive`.
    ///
    /// # Errors
    /// [`OpenError::Attach`] if the interface or the socket cannot be used, with the reason.
    pub fn open(
        &self,
        capture: Option<&Capture>,
        kernel: KernelSettings,
    ) -> Result<Arc<dyn Network>, OpenError> {
        Ok(match &self.0 {
            Kind::Tcp { congestion, .. } => {
                let mut settings = kernel;
                if congestion.is_some() {
                    settings.congestion.clone_from(congestion);
                }
                Arc::new(KernelNetwork::new(settings, capture))
            }
            Kind::Tap { name, link } => Arc::new(EthernetNetwork::tap(
                *name,
                link.mac,
                &link.settings(capture, kernel.keepalive, Congestion::Reno),
            )?),
            Kind::Raw { name, link } => Arc::new(EthernetNetwork::raw(
                *name,
                &link.settings(capture, kernel.keepalive, Congestion::Reno),
            )?),
            Kind::Unix {
                local,
                remote,
                link,
            } => Arc::new(EthernetNetwork::unix(
                Path::new(local),
                Path::new(remote),
                link.mac,
                &link.settings(capture, kernel.keepalive, Congestion::None),
            )?),
        })
    }
}

impl LinkKeys {
    /// Returns the settings for these keys. `congestion` is used if the key is absent. This default
    /// depends on the kind of network: an interface may lead to a shared network, a pair of Unix
    /// sockets does not.
    fn settings(
        &self,
        capture: Option<&Capture>,
        keepalive: Option<Duration>,
        congestion: Congestion,
    ) -> LinkSettings {
        LinkSettings {
            keepalive,
            addresses: self.addresses.clone(),
            gateways: self.gateways.clone(),
            mtu: self.mtu,
            capture: capture.cloned(),
            faults: (self.faults.any()).then_some(self.faults),
            congestion: self.congestion.unwrap_or(congestion),
            early_recovery: self.early_recovery.unwrap_or_default(),
            offload: self.offload.unwrap_or_default(),
            ..LinkSettings::default()
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        match (kind, rest) {
            ("tcp", None) => Ok(Self::default()),
            ("tcp", Some(addr)) => tcp(addr),
            ("tap", Some(rest)) => {
                let mut fields = rest.split(',');
                let name = interface(fields.next())?;
                let link = may_offload(fields)?;
                Ok(Self(Kind::Tap { name, link }))
            }
            ("raw", Some(rest)) => {
                let mut fields = rest.split(',');
                let name = interface(fields.next())?;
                let link = may_offload(fields)?;
                if link.mac.is_some() {
                    return Err(SpecError::new(
                        "a raw socket has the MAC address of its interface, so that mac= cannot be \
                         given",
                        "no mac= (`ip link set INTERFACE address XX:XX:XX:XX:XX:XX` changes it)",
                    ));
                }
                Ok(Self(Kind::Raw { name, link }))
            }
            ("unix", Some(rest)) => {
                let mut fields = rest.split(',');
                let local = path("LOCAL", fields.next())?;
                let remote = path("REMOTE", fields.next())?;
                if local == remote {
                    return Err(SpecError::new(
                        format!("LOCAL and REMOTE are the same path `{local}`"),
                        "two paths: LOCAL of this process, REMOTE of the other end",
                    ));
                }
                let link = Keys::parse(fields)?.finish()?;
                if link.offload.is_some() {
                    return Err(SpecError::new(
                        "Unix datagrams carry plain frames, so that offload= cannot be given",
                        "no offload=",
                    ));
                }
                Ok(Self(Kind::Unix {
                    local,
                    remote,
                    link,
                }))
            }
            ("tap" | "raw" | "unix", None) => Err(SpecError::new(
                format!("`{kind}` says neither where nor with which address"),
                FORMS,
            )),
            _ => Err(SpecError::new(
                format!("there is no device `{kind}`"),
                FORMS,
            )),
        }
    }
}

fn tcp(rest: &str) -> Result<DeviceSpec, SpecError> {
    let (addr, congestion) = match rest.split_once(',') {
        Some((addr, key)) => (addr, Some(kernel_congestion(key)?)),
        None => (rest, None),
    };
    let bare = addr
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(addr);
    let expected = "an address of this machine, such as `tcp:127.0.0.1` or `tcp:::1`";
    let Ok(parsed) = bare.parse() else {
        let what = if addr.parse::<SocketAddr>().is_ok() {
            format!("`{addr}` has a port")
        } else if is_link_local(bare) {
            LINK_LOCAL.into()
        } else {
            format!("`{addr}` is not an IP address")
        };
        return Err(SpecError::new(what, expected));
    };
    if is_link_local(bare) {
        return Err(SpecError::new(LINK_LOCAL, expected));
    }
    Ok(DeviceSpec(Kind::Tcp {
        addr: Some(parsed),
        congestion,
    }))
}

/// Message for a link-local address. A socket needs its zone (RFC 4007 section 6), which an
/// `IpAddr` cannot hold.
const LINK_LOCAL: &str = "a link-local address of IPv6 cannot be the address of the device; `tcp` without an address \
    connects to one with its zone, such as fe80::1%eth0";

/// Returns true if `text` is an IPv6 link-local address, with or without a zone.
fn is_link_local(text: &str) -> bool {
    let addr = text.split_once('%').map_or(text, |(addr, _zone)| addr);
    let addr = addr.parse::<Ipv6Addr>();
    addr.is_ok_and(|addr| addr.is_unicast_link_local())
}

/// Parses `congestion=NAME`, the only key of the kernel's TCP. Only the kernel knows the valid
/// names.
fn kernel_congestion(key: &str) -> Result<String, SpecError> {
    /// Size of a name including its NUL: TCP_CA_NAME_MAX of Linux.
    const NAME: usize = 16;
    let plain = |name: &&str| {
        let letters = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
        (1..NAME).contains(&name.len()) && name.bytes().all(letters)
    };
    let name = key.strip_prefix("congestion=").filter(plain);
    name.map(str::to_owned).ok_or_else(|| {
        SpecError::new(
            format!("`{key}` is no key of the kernel's TCP"),
            "`congestion=NAME`, with a name of net.ipv4.tcp_available_congestion_control",
        )
    })
}

/// Parses the keys of a network whose segmentation and checksums the kernel may do (`tap`, `raw`).
/// Rejects `recovery=early` if the keys permit offload.
fn may_offload<'a>(fields: impl Iterator<Item = &'a str>) -> Result<LinkKeys, SpecError> {
    let link = Keys::parse(fields)?.finish()?;
    let settings = link.settings(None, None, Congestion::default());
    if settings.early_recovery && settings.offloads() {
        return Err(SpecError::new(
            "recovery=early sends single segments again, and with offload the kernel cuts them",
            "offload=off beside it, or no recovery=early",
        ));
    }
    Ok(link)
}

fn interface(field: Option<&str>) -> Result<InterfaceName, SpecError> {
    let name = field.unwrap_or_default();
    if name.contains('=') {
        return Err(SpecError::new(
            format!("`{name}` stands where the name of the interface belongs"),
            "a name first, such as `tap:uw0,ip=192.0.2.1/24`",
        ));
    }
    name.parse()
        .map_err(|why| SpecError::new(format!("`{name}`: {why}"), "a name such as `uw0`"))
}

fn path(which: &str, field: Option<&str>) -> Result<String, SpecError> {
    let expected = "`unix:LOCAL,REMOTE,ip=ADDR/PREFIX`, for example \
                    `unix:/tmp/a,/tmp/b,ip=192.0.2.1/24`";
    let path = field.unwrap_or_default();
    if path.is_empty() || path == "@" || Keys::is_key(path) {
        return Err(SpecError::new(
            format!("the path {which} is missing"),
            expected,
        ));
    }
    if path.len() > MAX_PATH {
        return Err(SpecError::new(
            format!("the path {which} has {} bytes", path.len()),
            format!("at most {MAX_PATH}, which a relative path may be"),
        ));
    }
    if path.contains('\0') {
        return Err(SpecError::new(
            format!("the path {which} contains a NUL"),
            expected,
        ));
    }
    Ok(path.to_owned())
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tcp { addr, congestion } => {
                f.write_str("tcp")?;
                if let Some(addr) = addr {
                    write!(f, ":{addr}")?;
                }
                match congestion {
                    Some(name) => write!(f, ",congestion={name}"),
                    None => Ok(()),
                }
            }
            Kind::Tap { name, link } => write!(f, "tap:{name}{link}"),
            Kind::Raw { name, link } => write!(f, "raw:{name}{link}"),
            Kind::Unix {
                local,
                remote,
                link,
            } => write!(f, "unix:{local},{remote}{link}"),
        }
    }
}
