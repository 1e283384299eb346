//! [`AttachError`] and [`OpenError`]: errors of attaching to an Ethernet, with messages that say
//! how to solve the problem.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::LlpError;

/// Size of an interface name with its final NUL: IFNAMSIZ of `netdevice(7)`.
const NAME_BYTES: usize = 16;

/// Name of a network interface: 1 to 15 bytes, none of them a blank, `/`, `:`, `,` or `%`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterfaceName {
    bytes: [u8; NAME_BYTES],
    len: u8,
}

impl InterfaceName {
    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl FromStr for InterfaceName {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, &'static str> {
        if name.is_empty() {
            return Err("the name of an interface is empty");
        }
        if name.len() >= NAME_BYTES {
            return Err("the name of an interface has at most 15 bytes");
        }
        // The kernel's rules. In addition `%` is excluded, because the kernel would replace `%d` by
        // a number.
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || "/:,%".contains(c);
        if name.contains(forbidden) || name == "." || name == ".." {
            return Err("the name of an interface has no blank, `/`, `:`, `,` or `%`");
        }
        let mut bytes = [0; NAME_BYTES];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        Ok(Self {
            bytes,
            len: u8::try_from(name.len()).unwrap_or(0),
        })
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Reason why a network could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A network in user space could not be attached to its interface or socket.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A setting is out of range, or a system call failed.
    #[error(transparent)]
    Llp(#[from] LlpError),
}

/// Reason why attaching to a TAP device, a raw socket or a Unix datagram socket failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// `/dev/net/tun` does not exist.
    #[error(
        "a TAP device needs /dev/net/tun, which does not exist: load the kernel module (`modprobe \
         tun` as root) or give it to the container (`--device /dev/net/tun`); the devices `tcp` \
         and `unix` work without it"
    )]
    NoTun,
    /// This user has no permission to open `/dev/net/tun`.
    #[error(
        "a TAP device needs /dev/net/tun, and this user may not open it: run `chmod 666 \
         /dev/net/tun` as root (the mode that most systems have); the devices `tcp` and `unix` \
         work without it"
    )]
    TunDenied,
    /// This user has no permission to create a TAP device.
    #[error(
        "creating the TAP device {name} needs the right CAP_NET_ADMIN: let root create it for you \
         (`ip tuntap add {name} mode tap user $USER`), or run in a network namespace of your own \
         (`unshare -Urn`), or give the right to the program (`setcap cap_net_admin+ep PROGRAM`); \
         the devices `tcp` and `unix` work without it"
    )]
    TapCreation {
        /// Name of the TAP device.
        name: InterfaceName,
    },
    /// An existing TAP device belongs to another user.
    #[error(
        "the TAP device {name} belongs to another user, and using it needs the right \
         CAP_NET_ADMIN: let root create it again for you (`ip link del {name}`, then `ip tuntap \
         add {name} mode tap user $USER`); the devices `tcp` and `unix` work without it"
    )]
    TapOwner {
        /// Name of the TAP device.
        name: InterfaceName,
    },
    /// This user has no permission to open a raw socket.
    #[error(
        "a raw socket needs the right CAP_NET_RAW: run as root, or in a network namespace of your \
         own (`unshare -Urn`), or give the right to the program (`setcap cap_net_raw+ep \
         PROGRAM`); the devices `tcp` and `unix` work without it"
    )]
    RawSocket,
    /// The interface does not exist.
    #[error(
        "there is no interface {name} in this network namespace; `ip link` lists the existing \
         ones, and `ip link add {name} type veth peer name PEER` creates one"
    )]
    NoInterface {
        /// Name that was not found.
        name: InterfaceName,
    },
    /// An interface with that name exists and is not a usable TAP device.
    #[error(
        "{name} exists and is not a single-queue TAP device: choose another name, or use \
         `raw:{name}` if it is one end of a veth pair"
    )]
    NotTap {
        /// Name of the interface.
        name: InterfaceName,
    },
    /// Another process is attached to the TAP device.
    #[error("the TAP device {name} is in use by another process; each process needs its own")]
    TapBusy {
        /// Name of the TAP device.
        name: InterfaceName,
    },
    /// The interface does not carry Ethernet frames.
    #[error(
        "{name} is not an Ethernet interface; for the loopback interface use the device `tcp`, \
         else one end of a veth pair"
    )]
    NotEthernet {
        /// Name of the interface.
        name: InterfaceName,
    },
    /// The interface is down, and this user has no permission to bring it up.
    #[error(
        "the interface {name} is down, and bringing it up needs the right CAP_NET_ADMIN: `ip link \
         set {name} up` as root; the devices `tcp` and `unix` work without it"
    )]
    Down {
        /// Name of the interface.
        name: InterfaceName,
    },
    /// The interface's MTU is smaller than the MTU in the settings, or cannot be changed.
    #[error(
        "the interface {name} has an MTU of {has} and cannot be used with mtu={wanted}: `ip link \
         set {name} mtu {wanted}` first (within the limits that `ip -d link show {name}` names), \
         or leave mtu= out"
    )]
    Mtu {
        /// Name of the interface.
        name: InterfaceName,
        /// MTU of the interface in bytes.
        has: usize,
        /// MTU in the settings, in bytes.
        wanted: usize,
    },
    /// The MAC address in the settings is the same as that of the kernel's end.
    #[error(
        "the kernel's end of {name} has the same MAC address; choose another one, or leave mac= \
         out for a random one"
    )]
    SameMac {
        /// Name of the interface.
        name: InterfaceName,
    },
    /// An address in the settings also belongs to the kernel.
    #[error(
        "the kernel has the address {addr} too, on {name}, and would answer instead of uwarp (it \
         resets connections that it does not know): `ip addr del {addr}/{prefix} dev {name}`, or \
         choose another address for ip="
    )]
    KernelOwns {
        /// Address that the kernel also has.
        addr: IpAddr,
        /// Length of its network prefix in bits.
        prefix: u8,
        /// Interface that has the address.
        name: InterfaceName,
    },
    /// The kernel treats an address in the settings as its own because of a route of type `local`.
    #[error(
        "the kernel takes packets for {addr} as its own, by a route of type `local`, and would \
         answer instead of uwarp: remove it (`ip route show table local` lists them), or choose \
         another address for ip="
    )]
    KernelRoutes {
        /// Address that the kernel also has.
        addr: IpAddr,
    },
    /// Another process receives at the local path.
    #[error(
        "another process receives at the LOCAL path; stop it, or choose another path (LOCAL \
         belongs to this process, REMOTE to the other end)"
    )]
    SocketInUse,
    /// The file at the local path is not a socket.
    #[error("the file at the LOCAL path is not a socket and was not touched; choose another path")]
    NotSocket,
    /// This user has no permission to create or replace the socket at the local path.
    #[error(
        "this user may not create a socket at the LOCAL path, or not replace the one there; choose \
         a path in a directory of your own"
    )]
    SocketDenied,
    /// The directory of the local path does not exist.
    #[error("the directory of the LOCAL path does not exist; create it, or choose another path")]
    NoDirectory,
    /// A path is empty or too long for a socket address.
    #[error(
        "the path of a Unix socket has from 1 to 107 bytes; a relative path may be short enough"
    )]
    PathLength,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_as_the_kernel_would() {
        for name in ["a", "uw0", "enp0s31f6", "123456789012345", "br-1.2@x"] {
            assert_eq!(name.parse::<InterfaceName>().unwrap().to_string(), name);
        }
        for name in [
            "",
            "1234567890123456",
            "a b",
            "a/b",
            "a:0",
            ".",
            "..",
            "tap%d",
            "a,b",
            "a\0b",
        ] {
            assert!(name.parse::<InterfaceName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_missing_right_is_named_with_the_way_to_get_it_and_the_devices_that_need_none() {
        let name = "uw0".parse().unwrap();
        for (error, right) in [
            (AttachError::TapCreation { name }, "CAP_NET_ADMIN"),
            (
                AttachError::TapOwner { name },
                "ip tuntap add uw0 mode tap user",
            ),
            (AttachError::RawSocket, "CAP_NET_RAW"),
            (AttachError::Down { name }, "CAP_NET_ADMIN"),
            (AttachError::TunDenied, "/dev/net/tun"),
            (AttachError::NoTun, "modprobe tun"),
        ] {
            let text = error.to_string();
            assert!(text.contains(right), "{text}");
            assert!(
                text.contains("the devices `tcp` and `unix` work without it"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_command_that_takes_the_address_from_the_kernel_can_be_pasted() {
        let error = AttachError::KernelOwns {
            addr: IpAddr::from([192, 0, 2, 1]),
            prefix: 24,
            name: "veth0".parse().unwrap(),
        };
        let text = error.to_string();
        assert!(
            text.contains("`ip addr del 192.0.2.1/24 dev veth0`"),
            "{text}"
        );
    }
}
