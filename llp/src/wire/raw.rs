//! Attachment by a raw socket on an interface of the kernel, preferably one end of a veth pair.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmsg, socket_with,
    sockopt,
};

use super::error::{AttachError, InterfaceName, OpenError};
use super::interface::Interface;
use super::owner::refuse_addresses_of_the_kernel;
use super::scatter::Overflow;
use super::vnet::{self, VNET_HEADER};
use super::{HEADER, Received, Wire, filter, sys};
use crate::LlpError;
use crate::ethernet::{EthernetNetwork, LinkSettings};
use crate::smol::{LARGEST, Packet, PacketOffload};

/// Size of the socket's receive buffer in bytes, including the kernel's overhead. It holds about
/// sixty frames of maximum size; the default size holds fewer than three.
const RECEIVE_BUFFER: usize = 8 << 20;

impl EthernetNetwork {
    /// Creates a host on an existing interface by a raw socket. The host uses the interface's MAC
    /// address. The kernel must not have any of the host's IP addresses.
    ///
    /// # Errors
    /// [`OpenError::Attach`] if the program lacks CAP_NET_RAW, if the interface does not exist or
    /// is not an Ethernet, or if the kernel has one of the addresses.
    pub fn raw(name: InterfaceName, settings: &LinkSettings) -> Result<Self, OpenError> {
        let wire = RawWire::open(name, settings.mtu, &settings.addresses, settings.offloads())?;
        Ok(Self::open(Box::new(wire), settings)?)
    }
}

/// Attachment by a raw socket.
pub(crate) struct RawWire {
    socket: OwnedFd,
    interface: Interface,
    mac: [u8; 6],
    overflow: Overflow,
    offload: bool,
}

impl RawWire {
    pub(crate) fn open(
        name: InterfaceName,
        mtu: Option<usize>,
        addresses: &[(IpAddr, u8)],
        offload: bool,
    ) -> Result<Self, OpenError> {
        let interface = Interface::find(name)?.ok_or(AttachError::NoInterface { name })?;
        let mac = interface
            .ethernet_address()?
            .ok_or(AttachError::NotEthernet { name })?;
        // With protocol 0, nothing is received before the filter and the format are set.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| {
                match errno {
                    Errno::PERM | Errno::ACCESS => OpenError::from(AttachError::RawSocket),
                    errno => LlpError::from_local_errno("open a raw socket", errno).into(),
                }
            })?;
        refuse_addresses_of_the_kernel(addresses)?;
        interface.allow_mtu(mtu)?;
        interface.ensure_up()?;
        let failed = |op| move |errno| LlpError::from_local_errno(op, errno);
        sys::use_vnet_header(&socket).map_err(failed("set PACKET_VNET_HDR"))?;
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|(addr, _)| *addr).collect();
        if addresses.iter().any(IpAddr::is_ipv6) {
            // The link then has a link-local address too, for which neighbours ask by NDP.
            addresses.push(link_local(mac).into());
        }
        sys::attach_filter(&socket, &filter::program(&addresses))
            .map_err(failed("attach a filter to the raw socket"))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            // Without CAP_NET_ADMIN, the system's limit (net.core.rmem_max) applies.
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
        }
        sys::bind_to_interface(&socket, interface.index())
            .map_err(failed("bind the raw socket to the interface"))?;
        if addresses.iter().any(IpAddr::is_ipv6) {
            // Without this, a network card would not deliver the multicast frames of NDP.
            sys::take_all_multicast(&socket, interface.index())
                .map_err(failed("ask for multicast frames"))?;
        }
        Ok(Self {
            socket,
            interface,
            mac,
            overflow: Overflow::new(),
            offload,
        })
    }

    #[cfg(test)]
    pub(super) fn interface_mut(&mut self) -> &mut Interface {
        &mut self.interface
    }
}

/// Returns the link-local address that is derived from a MAC address (RFC 4291 appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let pair = |high, low| u16::from_be_bytes([high, low]);
    let (first, third) = (pair(a ^ 0b10, b), pair(0xfe, d));
    Ipv6Addr::new(0xfe80, 0, 0, 0, first, pair(c, 0xff), third, pair(e, f))
}

impl Wire for RawWire {
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
        let mut control = SendAncillaryBuffer::default();
        loop {
            match sendmsg(&self.socket, &frame, &mut control, SendFlags::DONTWAIT) {
                Ok(_) => {
                    self.interface.record_success();
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                // ENOBUFS: the interface's queue has dropped the frame.
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                // The MTU became smaller.
                Err(Errno::MSGSIZE) => {
                    self.interface.lost_for_its_length();
                    return Ok(true);
                }
                Err(Errno::NOMEM) => return Ok(true),
                // ENETDOWN: the interface is down, or was down since the last call. ENXIO: the
                // interface was deleted.
                Err(errno) => {
                    return self
                        .interface
                        .judge("send on the raw socket", errno)
                        .map(|()| true);
                }
            }
        }
    }

    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        let mut vnet = [0; VNET_HEADER];
        let mut ours = false;
        let read = |into: &mut [IoSliceMut<'_>]| {
            let (bytes, outgoing) = sys::receive_frame(&self.socket, into)?;
            ours = outgoing;
            Ok(bytes)
        };
        let usual = packet.capacity();
        match self
            .overflow
            .receive(&mut vnet, header, packet, usual, read)
        {
            Ok(true) => {
                let Some(sums) = vnet::incoming(&vnet, packet.bytes()) else {
                    return Ok(Received::Nothing);
                };
                packet.offload.sums = sums;
                if !self.offload {
                    packet.complete();
                }
                if ours {
                    Ok(Received::FromOwnKernel)
                } else {
                    Ok(Received::Frame)
                }
            }
            Ok(false) | Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(errno) => self
                .interface
                .judge("receive on the raw socket", errno)
                .map(|()| Received::Nothing),
        }
    }

    fn offloads(&self) -> bool {
        self.offload
    }

    fn longest(&self, _: usize) -> usize {
        // The other end of a veth pair sends packets of this size even if this end has no offload.
        LARGEST
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        format!("raw socket on {}", self.interface.name())
    }
}
