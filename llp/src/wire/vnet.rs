//! The virtio-net header in front of a frame, and the checksum that it leaves to its reader
//! (Virtual I/O Device version 1.2, section 5.1.6; `packet(7)`: PACKET_VNET_HDR).

use super::HEADER;

/// Octets of the header without the field for merged buffers.
pub(super) const VNET_HEADER: usize = 10;

/// A header that asks for nothing: a whole frame with complete checksums.
pub(super) const PLAIN: [u8; VNET_HEADER] = [0; VNET_HEADER];

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum is only begun.
const NEEDS_CSUM: u8 = 1;

/// Completes the checksum of a packet as the header says. `false`: the header makes no sense for
/// this packet, which is then damaged.
pub(super) fn complete(vnet: &[u8; VNET_HEADER], packet: &mut [u8]) -> bool {
    let [flags, _gso, _, _, _, _, s0, s1, o0, o1] = *vnet;
    if flags & NEEDS_CSUM == 0 {
        return true;
    }
    // In the byte order of the machine; `start` counts from the beginning of the frame.
    let start = usize::from(u16::from_ne_bytes([s0, s1]));
    let offset = usize::from(u16::from_ne_bytes([o0, o1]));
    let Some(covered) = start
        .checked_sub(HEADER)
        .and_then(|start| packet.get_mut(start..))
    else {
        return false;
    };
    if offset + 2 > covered.len() {
        return false;
    }
    // The field holds the sum of the pseudo-header, which belongs to what is summed up.
    let sum = match !ones_complement_sum(covered) {
        // For UDP, 0 would mean that there is none; for TCP the two are the same number.
        0 => 0xffff,
        sum => sum,
    };
    if let Some(field) = covered.get_mut(offset..offset + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    true
}

/// The sum of RFC 1071 over the octets, not complemented.
fn ones_complement_sum(octets: &[u8]) -> u16 {
    let (words, rest) = octets.as_chunks::<4>();
    let mut sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum += u64::from(u32::from_be_bytes(last));
    // 2^16 is 1 here, so that the upper parts are added to the lower ones.
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

    /// RFC 1071 as it is written there, one 16-bit word after the other.
    fn slow_sum(octets: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in octets.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn a_packet_that_needs_nothing_is_left_alone() {
        let mut packet = [1, 2, 3];
        assert!(complete(&PLAIN, &mut packet));
        assert_eq!(packet, [1, 2, 3]);
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
        ] {
            assert!(
                !complete(&header(start, offset), &mut [0; 20]),
                "{start} {offset}"
            );
        }
        assert!(complete(&header(14, 18), &mut [0; 20]));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_rfc_1071(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
            // 0 and 0xffff are the same number in this arithmetic, but only zeroes sum up to 0.
            prop_assert_eq!(ones_complement_sum(&octets), slow_sum(&octets));
        }

        #[test]
        fn a_completed_packet_sums_up_to_ones(
            mut octets in proptest::collection::vec(any::<u8>(), 40..300),
            start in 0usize..20,
            offset in 0usize..9,
            pseudo in any::<u16>(),
        ) {
            let offset = offset * 2;
            octets[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
            prop_assert!(complete(&header(HEADER + start, offset), &mut octets));
            // What a receiver does: the covered octets and the pseudo-header.
            let mut all = octets[start..].to_vec();
            if all.len() % 2 == 1 {
                all.push(0);
            }
            all.extend(pseudo.to_be_bytes());
            prop_assert_eq!(slow_sum(&all), 0xffff);
        }
    }
}
