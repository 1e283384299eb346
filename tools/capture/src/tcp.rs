//! Finds the TCP segment in a packet, for tests and for the decoder.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, LaxNetSlice, LaxSlicedPacket, TcpOptionElement, TcpSlice, TransportSlice,
};

use crate::reader::Packet;

/// Loopback of BSD and macOS. The header is a 4-byte address family in host byte order.
const NULL: u16 = 0;
/// Loopback of BSD with the address family in network byte order.
const LOOP: u16 = 108;
const ETHERNET: u16 = 1;
/// Number of raw IP in BSD. Some tools write this number into files.
const RAW_BSD: u16 = 12;
const RAW: u16 = 101;
/// Linux "cooked" capture, as `tcpdump -i any` writes it, in the older form.
const LINUX_SLL: u16 = 113;
/// Linux "cooked" capture in the newer form.
const LINUX_SLL2: u16 = 276;
const IPV4: u16 = 228;
const IPV6: u16 = 229;

/// TCP segment over IPv4 or IPv6. It borrows its data from a [`Packet`].
#[derive(Debug, Clone)]
pub struct TcpSegment<'a> {
    /// Address of the sender.
    pub source: SocketAddr,
    /// Address of the receiver.
    pub destination: SocketAddr,
    /// Sequence number of the first byte, or of the SYN or FIN.
    pub seq: u32,
    /// Acknowledgement number. 0 in the first SYN.
    pub ack_number: u32,
    /// Window field of the header, without scaling.
    pub window: u16,
    /// SYN flag.
    pub syn: bool,
    /// ACK flag.
    pub ack: bool,
    /// FIN flag.
    pub fin: bool,
    /// RST flag.
    pub rst: bool,
    /// PSH flag.
    pub psh: bool,
    /// Value of the MSS option, if there is one.
    pub mss: Option<u16>,
    /// Captured part of the payload.
    pub payload: &'a [u8],
    /// Length of the payload on the wire.
    pub len: usize,
    tcp: TcpSlice<'a>,
}

impl Packet {
    /// Returns the TCP segment in this packet. Returns `None` if the packet contains another
    /// protocol, is a fragment, or is truncated within the headers. Also returns `None` for link
    /// types other than Ethernet, raw IP, Linux cooked and BSD loopback.
    pub fn tcp(&self) -> Option<TcpSegment<'_>> {
        let sliced = slice(self.link, &self.data)?;
        // `carried` is the payload length according to the IP header. It is 0 in a packet that
        // segmentation offload has not segmented yet.
        let (source, destination, carried) = match sliced.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => (
                IpAddr::V4(ip.header().source_addr()),
                IpAddr::V4(ip.header().destination_addr()),
                usize::from(ip.header().total_len()).saturating_sub(ip.header().slice().len()),
            ),
            LaxNetSlice::Ipv6(ip) => (
                IpAddr::V6(ip.header().source_addr()),
                IpAddr::V6(ip.header().destination_addr()),
                usize::from(ip.header().payload_length())
                    .saturating_sub(ip.extensions().slice().len()),
            ),
            LaxNetSlice::Arp(_) => return None,
        };
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
            return None;
        };
        let mss = tcp.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
            _ => None,
        });
        Some(TcpSegment {
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack_number: tcp.acknowledgment_number(),
            window: tcp.window_size(),
            syn: tcp.syn(),
            ack: tcp.ack(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            psh: tcp.psh(),
            mss,
            payload: tcp.payload(),
            len: carried
                .saturating_sub(tcp.header_slice().len())
                .max(tcp.payload().len()),
            tcp,
        })
    }
}

impl Packet {
    /// Returns true if this packet is a fragment of an IP packet of any protocol.
    pub fn is_fragment(&self) -> bool {
        let sliced = slice(self.link, &self.data);
        match sliced.as_ref().and_then(|sliced| sliced.net.as_ref()) {
            Some(LaxNetSlice::Ipv4(ip)) => ip.is_payload_fragmented(),
            Some(LaxNetSlice::Ipv6(ip)) => ip.is_payload_fragmented(),
            Some(LaxNetSlice::Arp(_)) | None => false,
        }
    }
}

impl TcpSegment<'_> {
    /// Returns true if the TCP checksum is correct. In a capture of a real interface it is often
    /// wrong for two reasons: the network adapter fills it in after the capture, or the packet was
    /// truncated.
    pub fn checksum_is_right(&self) -> bool {
        let computed = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self
                .tcp
                .calc_checksum_ipv4(source.octets(), destination.octets())
                .ok(),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self
                .tcp
                .calc_checksum_ipv6(source.octets(), destination.octets())
                .ok(),
            _ => None,
        };
        computed.is_some_and(|computed| same_sum(computed, self.tcp.checksum()))
    }
}

/// Returns true if two checksums are equal. In ones' complement, all zeros and all ones both mean
/// zero, and the Linux kernel writes all ones (RFC 1071).
fn same_sum(one: u16, other: u16) -> bool {
    one % 0xffff == other % 0xffff
}

fn slice(link: u16, data: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    match link {
        ETHERNET => LaxSlicedPacket::from_ethernet(data).ok(),
        NULL | LOOP => LaxSlicedPacket::from_ip(data.get(4..)?).ok(),
        RAW_BSD | RAW | IPV4 | IPV6 => LaxSlicedPacket::from_ip(data).ok(),
        // In a header of 16 bytes, bytes 14 and 15 are the Ethernet protocol number.
        LINUX_SLL => {
            let (header, rest) = data.split_at_checked(16)?;
            ether_type(header.get(14..)?, rest)
        }
        // In a header of 20 bytes, bytes 0 and 1 are the Ethernet protocol number.
        LINUX_SLL2 => {
            let (header, rest) = data.split_at_checked(20)?;
            ether_type(header, rest)
        }
        _ => None,
    }
}

fn ether_type<'a>(number: &[u8], rest: &'a [u8]) -> Option<LaxSlicedPacket<'a>> {
    let number = u16::from_be_bytes(*number.first_chunk()?);
    Some(LaxSlicedPacket::from_ether_type(EtherType(number), rest))
}

#[cfg(test)]
#[path = "tcp/tests.rs"]
mod tests;
