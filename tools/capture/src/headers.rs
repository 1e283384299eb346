//! Synthesizes IP and TCP headers for kernel connections, whose real headers are not visible.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader,
    TcpOptionElement,
};

use crate::{Direction, Interface, LinkType};

/// Maximum payload in bytes of an IPv4 packet with 20 bytes of IP header and 20 bytes of TCP
/// header. IPv6 would allow 20 bytes more.
pub(crate) const MAX_SEGMENT: usize = 65_535 - 40;

/// Window in every synthesized segment, in units of 2^`WINDOW_SHIFT` bytes.
const WINDOW: u16 = u16::MAX;
/// Window scale option of both SYNs. It makes the window 8 MiB minus 128 bytes.
const WINDOW_SHIFT: u8 = 7;
/// TTL of IPv4 packets and hop limit of IPv6 packets.
const TTL: u8 = 64;

/// Kind of a segment. It determines the flags besides ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A SYN with the MSS option. `ack` is false in the first SYN, which acknowledges nothing.
    Syn {
        mss: u16,
        ack: bool,
    },
    Data {
        push: bool,
    },
    Fin,
    Reset,
}

/// Sequence and acknowledgement number of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
}

/// Source and destination address. Both have the same IP version.
#[derive(Debug, Clone, Copy)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// Writes the segments of one direction of a connection.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    addresses: Addresses,
    ports: (u16, u16),
    direction: Direction,
}

impl SegmentWriter {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, direction: Direction) -> Self {
        let addresses = match (from.ip().to_canonical(), to.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Addresses::V4(from, to),
            (from, to) => Addresses::V6(as_v6(from), as_v6(to)),
        };
        Self {
            addresses,
            ports: (from.port(), to.port()),
            direction,
        }
    }

    /// Records a segment. Does nothing if `payload` is longer than [`MAX_SEGMENT`].
    pub(crate) fn write(
        &self,
        interface: &Interface,
        kind: Kind,
        numbers: Numbers,
        payload: &[u8],
    ) {
        let mut tcp = self.tcp_header(kind, numbers);
        let Ok(ip_payload) = u16::try_from(tcp.header_len() + payload.len()) else {
            return;
        };
        match self.addresses {
            Addresses::V4(from, to) => {
                let (from, to) = (from.octets(), to.octets());
                let Ok(mut ip) = Ipv4Header::new(ip_payload, TTL, IpNumber::TCP, from, to) else {
                    return;
                };
                ip.header_checksum = ip.calc_header_checksum();
                let Ok(checksum) = tcp.calc_checksum_ipv4_raw(from, to, payload) else {
                    return;
                };
                tcp.checksum = checksum;
                let parts = [&ip.to_bytes()[..], &tcp.to_bytes(), payload];
                self.record(interface, EtherType::IPV4, parts);
            }
            Addresses::V6(from, to) => {
                let (from, to) = (from.octets(), to.octets());
                let ip = Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: ip_payload,
                    next_header: IpNumber::TCP,
                    hop_limit: TTL,
                    source: from,
                    destination: to,
                };
                let Ok(checksum) = tcp.calc_checksum_ipv6_raw(from, to, payload) else {
                    return;
                };
                tcp.checksum = checksum;
                let parts = [&ip.to_bytes()[..], &tcp.to_bytes(), payload];
                self.record(interface, EtherType::IPV6, parts);
            }
        }
    }

    fn tcp_header(&self, kind: Kind, numbers: Numbers) -> TcpHeader {
        let (source, destination) = self.ports;
        let mut tcp = TcpHeader::new(source, destination, numbers.seq, WINDOW);
        tcp.ack = true;
        match kind {
            Kind::Syn { mss, ack } => {
                tcp.syn = true;
                tcp.ack = ack;
                let options = [
                    TcpOptionElement::MaximumSegmentSize(mss),
                    TcpOptionElement::Noop,
                    TcpOptionElement::WindowScale(WINDOW_SHIFT),
                ];
                // Eight bytes of options always fit into the header.
                let _ = tcp.set_options(&options);
            }
            Kind::Data { push } => tcp.psh = push,
            Kind::Fin => tcp.fin = true,
            Kind::Reset => tcp.rst = true,
        }
        if tcp.ack {
            tcp.acknowledgment_number = numbers.ack;
        }
        tcp
    }

    /// Records a packet. On an Ethernet interface, adds an Ethernet header with locally
    /// administered addresses. They end in 1 for this side and in 2 for the peer.
    fn record(&self, interface: &Interface, ether_type: EtherType, [ip, tcp, data]: [&[u8]; 3]) {
        match interface.link() {
            LinkType::RawIp => interface.packet(self.direction, &[ip, tcp, data]),
            LinkType::Ethernet => {
                let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
                let (source, destination) = match self.direction {
                    Direction::Inbound => (there, here),
                    Direction::Outbound | Direction::Unknown => (here, there),
                };
                let ethernet = Ethernet2Header {
                    source,
                    destination,
                    ether_type,
                };
                interface.packet(self.direction, &[&ethernet.to_bytes(), ip, tcp, data]);
            }
        }
    }
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
