//! Attachment to a TAP device: the kernel of this machine is at the other end.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{AttachError, InterfaceName, OpenError};
use super::interface::Interface;
use super::owner::refuse_addresses_of_the_kernel;
use super::scatter::Overflow;
use super::vnet;
use super::{HEADER, Received, Wire, random_mac, sys};
use crate::LlpError;
use crate::ethernet::{EthernetNetwork, LinkSettings};
use crate::smol::{Packet, PacketOffload};

impl EthernetNetwork {
    /// Creates a host on the TAP device with this name. If the device does not exist, it is
    /// created, and removed when this network is closed. The kernel's end of the device still needs
    /// an address in the same network: `ip addr add 192.0.2.2/24 dev NAME`.
    ///
    /// `mac` is the MAC address of the host; `None` means a random one.
    ///
    /// # Errors
    /// [`OpenError::Attach`] if a privilege is missing, if the interface is not a TAP device or is
    /// in use, or if the kernel has one of the addresses.
    pub fn tap(
        name: InterfaceName,
        mac: Option<[u8; 6]>,
        settings: &LinkSettings,
    ) -> Result<Self, OpenError> {
        let wire = TapWire::open(
            name,
            mac,
            settings.mtu,
            &settings.addresses,
            settings.offloads(),
        )?;
        Ok(Self::open(Box::new(wire), settings)?)
    }
}

/// Attachment to a TAP device.
pub(crate) struct TapWire {
    tun: OwnedFd,
    interface: Interface,
    mac: [u8; 6],
    overflow: Overflow,
    /// True if a virtio-net header precedes every frame.
    offload: bool,
}

impl TapWire {
    pub(crate) fn open(
        name: InterfaceName,
        mac: Option<[u8; 6]>,
        mtu: Option<usize>,
        addresses: &[(IpAddr, u8)],
        offload: bool,
    ) -> Result<Self, OpenError> {
        refuse_addresses_of_the_kernel(addresses)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(opening)?;
        let existed = Interface::find(name)?.is_some();
        let offload = sys::attach_tap(&tun, &name, offload)
            .map_err(|errno| attaching(errno, name, existed))?;
        let interface = Interface::find(name)?.ok_or(AttachError::NoInterface { name })?;
        match mtu {
            Some(mtu) if !existed => interface.set_mtu(mtu)?,
            mtu => interface.allow_mtu(mtu)?,
        }
        if mac.is_some() && interface.ethernet_address()? == mac {
            return Err(AttachError::SameMac { name }.into());
        }
        interface.ensure_up()?;
        Ok(Self {
            tun,
            interface,
            mac: mac.unwrap_or_else(random_mac),
            overflow: Overflow::new(),
            offload,
        })
    }

    #[cfg(test)]
    pub(super) fn interface_mut(&mut self) -> &mut Interface {
        &mut self.interface
    }
}

/// Converts an error of opening `/dev/net/tun`.
fn opening(errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => AttachError::NoTun.into(),
        Errno::ACCESS | Errno::PERM => AttachError::TunDenied.into(),
        errno => LlpError::from_local_errno("open /dev/net/tun", errno).into(),
    }
}

/// Converts an error of attaching to the TAP device `name`. `existed` is true if an interface had
/// this name before.
fn attaching(errno: Errno, name: InterfaceName, existed: bool) -> OpenError {
    match errno {
        Errno::PERM | Errno::ACCESS if existed => AttachError::TapOwner { name }.into(),
        Errno::PERM | Errno::ACCESS => AttachError::TapCreation { name }.into(),
        Errno::BUSY => AttachError::TapBusy { name }.into(),
        Errno::INVAL if existed => AttachError::NotTap { name }.into(),
        errno => LlpError::from_local_errno("attach to the TAP device", errno).into(),
    }
}

impl Wire for TapWire {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        offload: PacketOffload,
    ) -> Result<bool, LlpError> {
        let vnet = vnet::outgoing(packet, offload);
        let frame = [
            IoSlice::new(&vnet),
            IoSlice::new(header),
            IoSlice::new(packet),
        ];
        let [_, plain @ ..] = &frame;
        let frame = if self.offload { &frame[..] } else { plain };
        loop {
            match rustix::io::writev(&self.tun, frame) {
                Ok(_) => {
                    self.interface.record_success();
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                // The kernel has no memory for the frame now, or rejects the frame. The frame is
                // lost.
                Err(Errno::NOBUFS | Errno::NOMEM | Errno::INVAL) => return Ok(true),
                // EIO: the interface is down. EBADFD: the interface was deleted.
                Err(errno) => {
                    return self
                        .interface
                        .judge("write to the TAP device", errno)
                        .map(|()| true);
                }
            }
        }
    }

    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        let read = |into: &mut [IoSliceMut<'_>]| rustix::io::readv(&self.tun, into);
        let usual = packet.capacity();
        let mut vnet = vnet::PLAIN;
        let prefix: &mut [u8] = if self.offload { &mut vnet } else { &mut [] };
        match self.overflow.receive(prefix, header, packet, usual, read) {
            Ok(true) => Ok(match vnet::incoming(&vnet, packet.bytes()) {
                Some(sums) => {
                    packet.offload.sums = sums;
                    Received::Frame
                }
                None => Received::Nothing,
            }),
            Ok(false) | Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(errno) => self
                .interface
                .judge("read from the TAP device", errno)
                .map(|()| Received::Nothing),
        }
    }

    fn offloads(&self) -> bool {
        self.offload
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.interface.mtu().unwrap_or(super::MIN_MTU)
    }

    fn has_problem(&self) -> bool {
        self.interface.has_problem()
    }

    fn check(&self) -> Result<bool, LlpError> {
        self.interface.check()
    }

    fn describe(&self) -> String {
        format!("TAP {}", self.interface.name())
    }
}
