//! IPv4 packets with a TCP segment, as a middlebox sees them.

/// Octets of an IPv4 header without options, which is all that the stacks send.
const IP: usize = 20;
/// FIN and PSH, which belong to the end of a segment.
const AT_END: u8 = 0x09;

/// Where the payload of the segment begins; `None` for what is no TCP segment.
pub(crate) fn payload_at(packet: &[u8]) -> Option<usize> {
    let is_tcp = packet.len() >= IP + 20 && packet[0] == 0x45 && packet[9] == 6;
    let at = IP + usize::from(*packet.get(IP + 12)? >> 4) * 4;
    (is_tcp && at <= packet.len()).then_some(at)
}

/// The last octet of the destination address, which is the number of the host.
pub(crate) fn destination(packet: &[u8]) -> Option<u8> {
    packet.get(19).copied()
}

/// What it is, in short.
pub(crate) fn describe(packet: &[u8]) -> String {
    let Some(at) = payload_at(packet) else {
        return format!("{} octets", packet.len());
    };
    let tcp = &packet[IP..];
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let names = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, 'A')];
    let flags: String = (names.iter())
        .filter(|(bit, _)| tcp[13] & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    format!(
        "{}:{} > {}:{} {flags} seq {:08x} ack {:08x} win {} len {}",
        packet[15],
        port(0),
        packet[19],
        port(2),
        word(4),
        word(8),
        port(14),
        packet.len() - at
    )
}

/// Cuts a segment in two, the first one with `first` octets of payload, as a middlebox may that knows TCP.
pub(crate) fn split(packet: &[u8], first: usize) -> Option<[Vec<u8>; 2]> {
    let at = payload_at(packet)?;
    if first == 0 || at + first >= packet.len() {
        return None;
    }
    let mut head = packet[..at + first].to_vec();
    let mut tail = packet[..at].to_vec();
    tail.extend_from_slice(&packet[at + first..]);
    head[IP + 13] &= !AT_END;
    let seq = u32::from_be_bytes(packet[IP + 4..IP + 8].try_into().ok()?);
    let seq = seq.wrapping_add(u32::try_from(first).ok()?);
    tail[IP + 4..IP + 8].copy_from_slice(&seq.to_be_bytes());
    for part in [&mut head, &mut tail] {
        let len = u16::try_from(part.len()).ok()?;
        part[2..4].copy_from_slice(&len.to_be_bytes());
        fix_checksums(part);
    }
    Some([head, tail])
}

/// Makes the checksums of IP and TCP right for what the packet holds.
pub(crate) fn fix_checksums(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = checksum(0, &packet[..IP]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[IP + 16..IP + 18].fill(0);
    let len = u32::try_from(packet.len() - IP).unwrap_or_default();
    // The pseudo-header: both addresses, the protocol, the length.
    let mut pseudo = packet[12..20].to_vec();
    pseudo.extend_from_slice(&[0, 6]);
    pseudo.extend_from_slice(&u16::try_from(len).unwrap_or_default().to_be_bytes());
    let sum = checksum(sum_of(0, &pseudo), &packet[IP..]);
    packet[IP + 16..IP + 18].copy_from_slice(&sum.to_be_bytes());
}

fn sum_of(sum: u32, octets: &[u8]) -> u32 {
    octets.chunks(2).fold(sum, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]))
    })
}

fn checksum(sum: u32, octets: &[u8]) -> u16 {
    let mut sum = sum_of(sum, octets);
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
        packet[32] = 5 << 4;
        packet[33] = 0x19;
        packet.extend_from_slice(payload);
        let len = u16::try_from(packet.len()).unwrap();
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        fix_checksums(&mut packet);
        packet
    }

    #[test]
    fn the_parts_of_a_segment_have_its_octets_and_only_the_last_its_fin() {
        let whole = segment(b"abcdefg");
        let [head, tail] = split(&whole, 3).unwrap();
        assert_eq!((&head[40..], &tail[40..]), (&b"abc"[..], &b"defg"[..]));
        assert_eq!((head[33], tail[33]), (0x10, 0x19));
        assert_eq!(tail[24..28], 2u32.to_be_bytes());
        assert!(split(&whole, 0).is_none() && split(&whole, 7).is_none());
    }

    #[test]
    fn checksums_that_are_right_add_up_to_nothing() {
        let packet = segment(b"odd");
        assert_eq!(checksum(0, &packet[..20]), 0);
        let mut pseudo = packet[12..20].to_vec();
        pseudo.extend_from_slice(&[0, 6, 0, 23]);
        assert_eq!(checksum(sum_of(0, &pseudo), &packet[20..]), 0);
    }
}
