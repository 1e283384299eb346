//! The virtio-net header before a frame, and the completion of partial checksums that it describes
//! (Virtual I/O Device version 1.2, section 5.1.6; `packet(7)`: PACKET_VNET_HDR).

use super::HEADER;
use crate::smol::{ChecksumState, PacketOffload};

/// Size of the header in bytes, without the field for merged buffers.
pub(super) const VNET_HEADER: usize = 10;

/// Header without any offload: for a frame that is not cut and has complete checksums.
pub(super) const PLAIN: [u8; VNET_HEADER] = [0; VNET_HEADER];

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum is partial.
const NEEDS_CSUM: u8 = 1;

/// VIRTIO_NET_HDR_F_DATA_VALID: the checksum was verified.
const DATA_VALID: u8 = 2;

/// VIRTIO_NET_HDR_GSO_TCPV4: a TCP segment over IPv4 that has to be cut.
const GSO_TCPV4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6: a TCP segment over IPv6 that has to be cut.
const GSO_TCPV6: u8 = 4;

/// Offset of the checksum in the TCP header.
const TCP_CHECKSUM: u16 = 16;
/// Offset of the header length in the TCP header.
const TCP_OFFSET: usize = 12;

/// Returns the header that offloads the work in `offload` to the receiver of a packet. Without a
/// partial checksum, the header offloads nothing. A packet that is not TCP, or is too short, is not
/// cut.
pub(super) fn outgoing(packet: &[u8], offload: PacketOffload) -> [u8; VNET_HEADER] {
    let ChecksumState::Partial { start, offset } = offload.sums else {
        return PLAIN;
    };
    let from_frame = |at: usize| u16::try_from(HEADER + at).unwrap_or(0).to_ne_bytes();
    let [s0, s1] = from_frame(usize::from(start));
    let [o0, o1] = offset.to_ne_bytes();
    let length = packet.get(usize::from(start) + TCP_OFFSET);
    let (gso, headers, segment) = match (offload.segment, length) {
        (1.., Some(length)) if offset == TCP_CHECKSUM => {
            let gso = match packet.first().map(|byte| byte >> 4) {
                Some(4) => GSO_TCPV4,
                _ => GSO_TCPV6,
            };
            let headers = usize::from(start) + usize::from(length >> 4) * 4;
            (gso, from_frame(headers), offload.segment)
        }
        _ => (0, [0; 2], 0),
    };
    let ([h0, h1], [g0, g1]) = (headers, segment.to_ne_bytes());
    [NEEDS_CSUM, gso, h0, h1, g0, g1, s0, s1, o0, o1]
}

/// Returns the state of a packet's checksums according to the header. `None` if the header does not
/// fit the packet, which then has to be dropped.
pub(super) fn incoming(vnet: &[u8; VNET_HEADER], packet: &[u8]) -> Option<ChecksumState> {
    let [flags, _gso, _, _, _, _, s0, s1, o0, o1] = *vnet;
    if flags & NEEDS_CSUM == 0 {
        let vouched = flags & DATA_VALID != 0;
        return Some(if vouched {
            ChecksumState::Verified
        } else {
            ChecksumState::Complete
        });
    }
    // Fields are in native byte order, and `start` counts from the beginning of the frame.
    let start = usize::from(u16::from_ne_bytes([s0, s1])).checked_sub(HEADER)?;
    let offset = u16::from_ne_bytes([o0, o1]);
    let inside = start + usize::from(offset) + 2 <= packet.len();
    let start = u16::try_from(start).ok()?;
    inside.then_some(ChecksumState::Partial { start, offset })
}

/// Completes a packet's checksum if it is partial.
pub(crate) fn complete(packet: &mut [u8], sums: ChecksumState) {
    let ChecksumState::Partial { start, offset } = sums else {
        return;
    };
    let Some(covered) = packet.get_mut(usize::from(start)..) else {
        return;
    };
    // The checksum field already holds the sum of the pseudo-header, so that summing all bytes
    // includes it.
    let sum = match !ones_complement_sum(covered) {
        // For UDP, 0 would mean that there is no checksum. For TCP, both values are equal.
        0 => 0xffff,
        sum => sum,
    };
    let offset = usize::from(offset);
    if let Some(field) = covered.get_mut(offset..offset + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns the one's complement sum of the bytes (RFC 1071), not inverted.
pub(crate) fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum += u64::from(u32::from_be_bytes(last));
    // In one's complement arithmetic 2^16 equals 1, so the upper bits are added to the lower 16
    // bits.
    while let carry @ 1.. = sum >> 16 {
        sum = (sum & 0xffff) + carry;
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(start: usize, offset: usize) -> [u8; VNET_HEADER] {
        let (start, offset) = ((start as u16).to_ne_bytes(), (offset as u16).to_ne_bytes());
        [
            NEEDS_CSUM, 0, 0, 0, 0, 0, start[0], start[1], offset[0], offset[1],
        ]
    }

    /// Computes the sum of RFC 1071 in the simplest way, one 16-bit word after the other.
    fn slow_sum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn a_packet_that_needs_nothing_is_left_alone() {
        let mut packet = [1, 2, 3];
        for (flags, sums) in [
            (0, ChecksumState::Complete),
            (DATA_VALID, ChecksumState::Verified),
        ] {
            let mut vnet = PLAIN;
            vnet[0] = flags;
            assert_eq!(incoming(&vnet, &packet), Some(sums));
            complete(&mut packet, sums);
            assert_eq!(packet, [1, 2, 3]);
        }
    }

    #[test]
    fn a_header_that_points_outside_the_packet_is_refused() {
        let whole = HEADER + 20;
        for (start, offset) in [
            (0, 0),
            (13, 0),
            (whole + 1, 0),
            (whole, 0),
            (14, 19),
            (14, 65535),
            (65535, 65535),
        ] {
            let sums = incoming(&header(start, offset), &[0; 20]);
            assert_eq!(sums, None, "{start} {offset}");
        }
        let last = ChecksumState::Partial {
            start: 0,
            offset: 18,
        };
        assert_eq!(incoming(&header(14, 18), &[0; 20]), Some(last));
    }

    #[test]
    fn what_is_left_to_the_reader_stands_in_the_header_as_virtio_has_it() {
        // Returns flags, GSO type, length of all headers, segment size, and start and offset of the
        // checksum.
        let fields = |vnet: [u8; VNET_HEADER]| {
            let word = |at: usize| u16::from_ne_bytes([vnet[at], vnet[at + 1]]);
            (vnet[0], vnet[1], word(2), word(4), word(6), word(8))
        };
        for (version, start, gso) in [(4, 20, 1), (6, 40, 4)] {
            let mut packet = vec![0; 3000];
            packet[0] = version << 4;
            packet[start + 12] = 8 << 4;
            let sums = ChecksumState::Partial {
                start: start as u16,
                offset: 16,
            };
            let begun = |segment| fields(outgoing(&packet, PacketOffload { sums, segment }));
            let start = 14 + start as u16;
            assert_eq!(begun(0), (1, 0, 0, 0, start, 16));
            assert_eq!(begun(1460), (1, gso, start + 32, 1460, start, 16));
            let whole = PacketOffload {
                sums: ChecksumState::Complete,
                segment: 1460,
            };
            assert_eq!(outgoing(&packet, whole), PLAIN);
            let cut = PacketOffload {
                sums,
                segment: 1460,
            };
            assert_eq!(fields(outgoing(&packet[..30], cut)).1, 0);
            assert_eq!(incoming(&outgoing(&packet, cut), &packet), Some(sums));
        }
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_rfc_1071(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            // 0 and 0xffff are equal in this arithmetic, but both functions return 0 only for
            // zeros.
            prop_assert_eq!(ones_complement_sum(&bytes), slow_sum(&bytes));
        }

        #[test]
        fn a_completed_packet_sums_up_to_ones(
            mut bytes in proptest::collection::vec(any::<u8>(), 40..300),
            start in 0usize..20,
            offset in 0usize..9,
            pseudo in any::<u16>(),
        ) {
            let offset = offset * 2;
            bytes[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
            let sums = incoming(&header(HEADER + start, offset), &bytes).unwrap();
            complete(&mut bytes, sums);
            // A receiver adds up the covered bytes and the pseudo-header in the same way.
            let mut all = bytes[start..].to_vec();
            if all.len() % 2 == 1 {
                all.push(0);
            }
            all.extend(pseudo.to_be_bytes());
            prop_assert_eq!(slow_sum(&all), 0xffff);
        }
    }
}
