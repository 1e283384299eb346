//! Checksums of packets on a wire that cuts TCP segments and completes their checksums.

use std::net::IpAddr;

use crate::smol::{ChecksumState, Packet};
use crate::wire::ones_complement_sum;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const IPV4_CHECKSUM: usize = 10;
/// Offset of the addresses in the IPv4 header. They end where the TCP header begins.
const IPV4_ADDRESSES: usize = 12;
/// Offset of the addresses in the IPv6 header. They end where the TCP header begins.
const IPV6_ADDRESSES: usize = 8;
/// Offset of the checksum in the TCP header.
const TCP_CHECKSUM: u16 = 16;
const TCP: u16 = 6;

/// Prepares an outgoing TCP segment without checksums for a wire that completes TCP checksums.
/// Computes the checksum of the IP header, which the wire does not compute. Sets the TCP checksum
/// to the sum of the pseudo-header (RFC 9293 section 3.1).
pub(super) fn begin(packet: &mut Packet) {
    let bytes = packet.bytes_mut();
    let len = bytes.len();
    let (start, addresses) = match bytes.first().map(|byte| byte >> 4) {
        Some(4) => {
            let Some(header) = bytes.first_chunk_mut::<IPV4_HEADER>() else {
                return;
            };
            header[IPV4_CHECKSUM..][..2].fill(0);
            let sum = !ones_complement_sum(header);
            header[IPV4_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
            (IPV4_HEADER, IPV4_ADDRESSES)
        }
        _ => (IPV6_HEADER, IPV6_ADDRESSES),
    };
    let Some((ip, tcp)) = bytes.split_at_mut_checked(start) else {
        return;
    };
    let at = usize::from(TCP_CHECKSUM);
    let Some(field) = tcp.get_mut(at..at + 2) else {
        return;
    };
    let length = u16::try_from(len - start).unwrap_or(u16::MAX);
    let parts = [ones_complement_sum(&ip[addresses..]), TCP, length];
    let sum: u32 = parts.into_iter().map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    field.copy_from_slice(&u16::try_from(sum).unwrap_or(u16::MAX).to_be_bytes());
    packet.offload.sums = ChecksumState::Partial {
        start: u16::try_from(start).unwrap_or(0),
        offset: TCP_CHECKSUM,
    };
}

/// Returns true if the checksum is partial and at the offset of the TCP checksum.
pub(super) fn is_of_tcp(sums: ChecksumState) -> bool {
    matches!(
        sums,
        ChecksumState::Partial {
            offset: TCP_CHECKSUM,
            ..
        }
    )
}

/// Returns true if the checksum of a received TCP segment needs no further verification.
pub(super) fn is_verified(sums: ChecksumState) -> bool {
    sums != ChecksumState::Complete
}

/// Returns true if the checksum of a TCP segment between these addresses is correct.
pub(super) fn is_intact(tcp: &[u8], (from, to): (IpAddr, IpAddr)) -> bool {
    let addresses = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => ones_complement_sum(&addr.octets()),
        IpAddr::V6(addr) => ones_complement_sum(&addr.octets()),
    };
    let length = u16::try_from(tcp.len()).unwrap_or(u16::MAX);
    let parts = [
        addresses(from),
        addresses(to),
        TCP,
        length,
        ones_complement_sum(tcp),
    ];
    let sum: u32 = parts.into_iter().map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr};

    use crate::smol::Segment;

    fn packet(data: usize, v6: bool, checksums: &ChecksumCapabilities) -> Packet {
        let payload: Vec<u8> = (0..data).map(|at| (at % 251) as u8).collect();
        let tcp = TcpRepr {
            src_port: 0xfffe,
            dst_port: 7,
            control: TcpControl::Psh,
            seq_number: smoltcp::wire::TcpSeqNumber(-5),
            ack_number: Some(smoltcp::wire::TcpSeqNumber(9)),
            window_len: 0xffff,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &payload,
        };
        let addr = |last| match v6 {
            true => IpAddress::v6(0x2001, 0xdb8, 0, 0, 0xffff, 0xffff, 0xffff, last),
            false => IpAddress::v4(192, 255, 255, last as u8),
        };
        let ip = IpRepr::new(addr(1), addr(2), IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut packet = Packet::new(0);
        let bytes = packet.resize(ip.buffer_len());
        ip.emit(&mut *bytes, checksums);
        let mut view = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
        tcp.emit(&mut view, &addr(1), &addr(2), checksums);
        packet
    }

    #[test]
    fn what_is_begun_here_and_completed_there_is_what_tcp_would_have_made() {
        for v6 in [false, true] {
            for data in [0, 1, 2, 3, 1460, 60_001, 65_475] {
                let whole = packet(data, v6, &ChecksumCapabilities::default());
                let mut begun = packet(data, v6, &ChecksumCapabilities::ignored());
                begin(&mut begun);
                begun.complete();
                assert_eq!(begun.bytes(), whole.bytes(), "{v6} {data}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_packet_are_left_alone() {
        let whole = packet(0, false, &ChecksumCapabilities::ignored());
        for end in 0..38 {
            let mut cut = Packet::new(0);
            cut.resize(end).copy_from_slice(&whole.bytes()[..end]);
            begin(&mut cut);
            assert_eq!(cut.offload.sums, ChecksumState::Complete, "{end}");
        }
    }

    #[test]
    fn a_segment_with_any_bit_flipped_is_not_intact() {
        for v6 in [false, true] {
            let packet = packet(5, v6, &ChecksumCapabilities::default());
            let key = Segment::parse(packet.bytes()).unwrap().key;
            let way = (key.remote.ip(), key.local.ip());
            let mut tcp = packet.bytes()[if v6 { 40 } else { 20 }..].to_vec();
            assert!(is_intact(&tcp, way));
            for bit in 0..tcp.len() * 8 {
                tcp[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_intact(&tcp, way), "{v6} {bit}");
                tcp[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
