//! Helpers that make frames and wait for frames.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr,
    UdpPacket, UdpRepr,
};

use crate::LlpError;
use crate::smol::Packet;
use crate::wire::{HEADER, Received, Wire};

/// Time limit after which a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV4: u16 = 0x0800;

pub(super) const US: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const KERNEL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// A frame that was received.
pub(super) struct Frame {
    pub(super) header: [u8; HEADER],
    pub(super) packet: Vec<u8>,
    pub(super) received: Received,
}

impl Frame {
    pub(super) fn kind(&self) -> u16 {
        u16::from_be_bytes([self.header[12], self.header[13]])
    }

    pub(super) fn source(&self) -> [u8; 6] {
        self.header[6..12].try_into().unwrap()
    }

    /// Verifies the checksums of a UDP datagram in an IPv4 frame, and returns its destination port
    /// and data. `None` for other frames.
    pub(super) fn udp(&self) -> Option<(u16, Vec<u8>)> {
        if self.kind() != IPV4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(&self.packet).unwrap();
        assert!(ip.verify_checksum());
        if ip.next_header() != IpProtocol::Udp {
            return None;
        }
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
        assert_ne!(udp.checksum(), 0);
        assert!(
            udp.verify_checksum(&from, &to),
            "the checksum is not complete"
        );
        Some((udp.dst_port(), udp.payload().to_vec()))
    }
}

/// Waits until the wire is readable.
pub(super) fn wait_readable(wire: &dyn Wire) {
    let fd = wire.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    assert!(
        poll(&mut fds, Some(&timeout)).unwrap() > 0,
        "nothing arrives"
    );
}

/// Receives frames until `wanted` accepts one, and returns its result.
pub(super) fn receive<T>(wire: &dyn Wire, mut wanted: impl FnMut(Frame) -> Option<T>) -> T {
    let mut packet = Packet::new(1500);
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "only other frames arrived");
        match next(wire, &mut packet).unwrap() {
            Some(frame) => {
                if let Some(found) = wanted(frame) {
                    return found;
                }
            }
            None => wait_readable(wire),
        }
    }
}

/// Receives a frame, if there is one.
pub(super) fn next(wire: &dyn Wire, packet: &mut Packet) -> Result<Option<Frame>, LlpError> {
    let mut header = [0; HEADER];
    Ok(match wire.recv(&mut header, packet)? {
        Received::Nothing => None,
        received => Some(Frame {
            header,
            packet: packet.bytes().to_vec(),
            received,
        }),
    })
}

/// Receives until an error occurs, and returns it.
pub(super) fn receive_error(wire: &dyn Wire) -> LlpError {
    let mut packet = Packet::new(1500);
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no error arrives");
        match next(wire, &mut packet) {
            Ok(Some(_)) => {}
            Ok(None) => wait_readable(wire),
            Err(error) => return error,
        }
    }
}

pub(super) fn header(to: [u8; 6], from: [u8; 6], kind: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// Answers the kernel's ARP request for [`US`], and returns the kernel's MAC address.
pub(super) fn answer_arp(wire: &dyn Wire) -> [u8; 6] {
    receive(wire, |frame| {
        if frame.kind() != ARP {
            return None;
        }
        let asked = ArpRepr::parse(&ArpPacket::new_checked(&frame.packet).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr,
            source_protocol_addr: KERNEL,
            target_protocol_addr: US,
            ..
        } = asked
        else {
            return None;
        };
        assert_eq!(source_hardware_addr.0, frame.source());
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(wire.mac()),
            source_protocol_addr: US,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: KERNEL,
        };
        let mut bytes = vec![0; answer.buffer_len()];
        answer.emit(&mut ArpPacket::new_unchecked(&mut bytes));
        let header = header(source_hardware_addr.0, wire.mac(), ARP);
        assert!(wire.send(&header, &bytes).unwrap());
        Some(source_hardware_addr.0)
    })
}

/// Makes an IPv4 packet with `payload`.
pub(super) fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let ip = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: protocol,
        payload_len: payload.len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; ip.buffer_len() + payload.len()];
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes);
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    packet.payload_mut().copy_from_slice(payload);
    bytes
}

/// Makes a UDP datagram in an IPv4 packet.
pub(super) fn udp(from: Ipv4Addr, to: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let repr = UdpRepr {
        src_port: 6000,
        dst_port: port,
    };
    let mut bytes = vec![0; repr.header_len() + payload.len()];
    repr.emit(
        &mut UdpPacket::new_unchecked(&mut bytes),
        &IpAddress::Ipv4(from),
        &IpAddress::Ipv4(to),
        payload.len(),
        |room| room.copy_from_slice(payload),
        &ChecksumCapabilities::default(),
    );
    ipv4(from, to, IpProtocol::Udp, &bytes)
}
