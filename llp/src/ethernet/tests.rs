//! Tests of a host on an Ethernet. The test sends and receives frames at the other end of its
//! cable.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

use super::arp::{self, Kind};
use super::frame::{self, BROADCAST, EtherType, Mac};
use super::neighbours::{Ask, Timing};
use super::*;
use crate::smol::{ChecksumState, Clock, FlowKey, Packet, PacketOffload, Segment};
use crate::wire::{HEADER, MemoryWire, Received, Wire};
use crate::{Llp, LlpError, Network, NetworkEvent, NetworkWatcher, Piece, Recv};

mod frames;
mod icmp;
mod neighbours;
mod offload;
mod wire;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];
/// Time without progress after which a test counts as hanging.
const STALLED: Duration = Duration::from_secs(40);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn settings(last: u8) -> LinkSettings {
    LinkSettings {
        addresses: vec![
            (IpAddr::from([192, 0, 2, last]), 24),
            (ip(&format!("2001:db8::{last}")), 64),
        ],
        gateways: vec![ip("192.0.2.254")],
        ..LinkSettings::default()
    }
}

/// Creates a host and the raw end of its cable.
fn host_and_wire() -> (EthernetNetwork, MemoryWire) {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    (
        EthernetNetwork::open(Box::new(own), &settings(1)).unwrap(),
        far,
    )
}

/// Waits until a descriptor is readable.
fn readable(fd: BorrowedFd<'_>) {
    readable_one_of(fd, fd);
}

fn readable_one_of(one: BorrowedFd<'_>, other: BorrowedFd<'_>) {
    let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = Timespec::try_from(STALLED).unwrap();
    let ready = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
    assert!(
        ready > 0,
        "nothing arrived for {STALLED:?}: a packet or a wake-up was lost"
    );
}

/// Returns the result of `pick` for the first frame from the host that `pick` accepts.
fn next<T>(wire: &MemoryWire, pick: impl Fn(&[u8; HEADER], &[u8]) -> Option<T>) -> T {
    next_after(wire, || readable(wire.fd()), pick)
}

/// Does the same as [`next`], but calls `wait` while there is no frame.
fn next_after<T>(
    wire: &MemoryWire,
    mut wait: impl FnMut(),
    pick: impl Fn(&[u8; HEADER], &[u8]) -> Option<T>,
) -> T {
    loop {
        let (mut header, mut packet) = ([0; HEADER], Packet::new(0));
        match wire.recv(&mut header, &mut packet).unwrap() {
            Received::Nothing => wait(),
            _ => {
                if let Some(found) = pick(&header, packet.bytes()) {
                    return found;
                }
            }
        }
    }
}

fn send(wire: &MemoryWire, kind: EtherType, packet: &[u8]) {
    let header = frame::header(OWN, PEER, kind);
    while !wire.send(&header, packet).unwrap() {
        std::thread::yield_now();
    }
}

/// Makes the host learn the MAC address of `addr`, by a question for the host's own address. Waits
/// for the answer.
fn introduce(wire: &MemoryWire, addr: &str) {
    let mut packet = Packet::new(0);
    let own = if addr.contains(':') {
        "2001:db8::1"
    } else {
        "192.0.2.1"
    };
    let ask = Ask {
        addr: ip(own),
        to: None,
    };
    let header = arp::write_question(ask, Some(ip(addr)), PEER, &mut packet);
    assert!(wire.send(&header, packet.bytes()).unwrap());
    next(wire, |header, bytes| {
        let (to, _, kind) = frame::parse(header);
        let message = match kind? {
            EtherType::Arp => arp::parse_arp(bytes)?,
            _ => arp::parse_ndp(bytes)?,
        };
        let answers = matches!(message.kind, Kind::Answer { .. });
        (to == PEER && answers && message.sender == Some((ip(own), OWN))).then_some(())
    });
}

fn packet_with(source: &str, destination: &str, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let (source, destination): (IpAddress, IpAddress) = (ip(source).into(), ip(destination).into());
    let ip = IpRepr::new(source, destination, protocol, payload.len(), 64);
    let mut bytes = vec![0; ip.header_len() + payload.len()];
    ip.emit(&mut bytes[..], &ChecksumCapabilities::default());
    bytes[ip.header_len()..].copy_from_slice(payload);
    bytes
}

fn ping_v4(data: &[u8]) -> Vec<u8> {
    let echo = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq_no: 9,
        data,
    };
    let mut bytes = vec![0; echo.buffer_len()];
    let mut packet = Icmpv4Packet::new_unchecked(&mut bytes[..]);
    echo.emit(&mut packet, &ChecksumCapabilities::default());
    packet_with("192.0.2.2", "192.0.2.1", IpProtocol::Icmp, &bytes)
}

/// Returns the data of the next answer to a ping from 192.0.2.2.
fn pong_v4(wire: &MemoryWire) -> Vec<u8> {
    next(wire, |header, bytes| {
        let icmp = Ipv4Packet::new_checked(bytes).ok()?;
        let right = frame::parse(header) == (PEER, OWN, Some(EtherType::Ipv4));
        if !right || icmp.next_header() != IpProtocol::Icmp {
            return None;
        }
        assert!(icmp.verify_checksum());
        let icmp = Icmpv4Packet::new_checked(icmp.payload()).ok()?;
        match Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()).ok()? {
            Icmpv4Repr::EchoReply {
                ident: 7,
                seq_no: 9,
                data,
            } => Some(data.to_vec()),
            _ => None,
        }
    })
}

/// Starts a connection. Returns it and its SYN, as received at the raw end.
fn syn(host: &EthernetNetwork, wire: &MemoryWire, to: &str) -> (Box<dyn Llp>, Vec<u8>) {
    let client = host.connect(None, to.parse().unwrap()).unwrap();
    let syn = next(wire, |_, bytes| {
        Segment::parse(bytes)?.syn.then(|| bytes.to_vec())
    });
    (client, syn)
}

fn key_of(llp: &dyn Llp) -> FlowKey {
    FlowKey {
        local: llp.local_addr(),
        remote: llp.peer_addr(),
    }
}

fn failure(client: &mut dyn Llp) -> LlpError {
    loop {
        client.clear_readiness();
        client.drive();
        match client.connect_progress() {
            Ok(stands) => assert!(!stands),
            Err(error) => return error,
        }
        readable(client.fd());
    }
}
