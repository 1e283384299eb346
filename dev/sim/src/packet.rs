//! IPv4 and IPv6 packets with a TCP segment, as seen by a middlebox.

/// FIN and PSH. When a segment is split, only the last part keeps them.
const AT_END: u8 = 0x09;
pub(crate) const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// SYN, RST and URG. Segments with one of these flags are not joined.
const NOT_DATA: u8 = 0x26;

/// Returns the length of the IP header. The stacks send no options and no extension headers.
pub(crate) fn ip_len(packet: &[u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => Some(20),
        6 if packet.len() >= 40 => Some(40),
        _ => None,
    }
}

/// Returns both addresses, which are at the end of the IP header.
fn addresses(packet: &[u8]) -> Option<&[u8]> {
    let end = ip_len(packet)?;
    let long = if end == 20 { 8 } else { 32 };
    packet.get(end - long..end)
}

/// Returns the offset of the payload of a TCP segment; `None` for other packets.
pub(crate) fn payload_at(packet: &[u8]) -> Option<usize> {
    let ip = ip_len(packet)?;
    let protocol = packet[if ip == 20 { 9 } else { 6 }];
    let at = ip + usize::from(*packet.get(ip + 12)? >> 4) * 4;
    (protocol == 6 && at >= ip + 20 && at <= packet.len()).then_some(at)
}

/// Returns the last byte of the destination address, which is the host number.
pub(crate) fn destination(packet: &[u8]) -> Option<u8> {
    addresses(packet)?.last().copied()
}

/// Returns the last byte of the source address.
fn source(packet: &[u8]) -> Option<u8> {
    let both = addresses(packet)?;
    both.get(both.len() / 2 - 1).copied()
}

/// Returns a key for the connection and the direction of the packet.
pub(crate) fn flow(packet: &[u8]) -> Option<[u8; 6]> {
    let ip = ip_len(packet)?;
    payload_at(packet)?;
    let ports = packet.get(ip..ip + 4)?;
    let mut flow = [source(packet)?, destination(packet)?, 0, 0, 0, 0];
    flow[2..].copy_from_slice(ports);
    Some(flow)
}

/// Returns the sequence number of a segment that [`payload_at`] accepts.
pub(crate) fn sequence(packet: &[u8]) -> Option<u32> {
    let ip = ip_len(packet)?;
    let bytes = packet.get(ip + 4..ip + 8)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the acknowledgement number, if the segment has one.
pub(crate) fn acknowledges(packet: &[u8]) -> Option<u32> {
    payload_at(packet)?;
    let ip = ip_len(packet).filter(|_| flags(packet).is_some_and(|flags| flags & ACK != 0))?;
    let bytes = packet.get(ip + 8..ip + 12)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the flags of a segment that [`payload_at`] accepts.
pub(crate) fn flags(packet: &[u8]) -> Option<u8> {
    packet.get(ip_len(packet)? + 13).copied()
}

/// Returns the flow of the opposite direction.
pub(crate) fn reverse([from, to, a, b, c, d]: [u8; 6]) -> [u8; 6] {
    [to, from, c, d, a, b]
}

/// Formats a short description for the log.
pub(crate) fn describe(packet: &[u8]) -> String {
    let (Some(at), Some(ip)) = (payload_at(packet), ip_len(packet)) else {
        return format!("{} bytes", packet.len());
    };
    let tcp = &packet[ip..];
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let names = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, 'A')];
    let flags: String = (names.iter())
        .filter(|(bit, _)| tcp[13] & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    format!(
        "{}:{} > {}:{} {flags} seq {:08x} ack {:08x} win {} len {}",
        source(packet).unwrap_or_default(),
        port(0),
        destination(packet).unwrap_or_default(),
        port(2),
        word(4),
        word(8),
        port(14),
        packet.len() - at
    )
}

/// Cuts a segment in two as a TCP middlebox may. The first part has `first` bytes of payload.
pub(crate) fn split(packet: &[u8], first: usize) -> Option<[Vec<u8>; 2]> {
    let (at, ip) = (payload_at(packet)?, ip_len(packet)?);
    if first == 0 || at + first >= packet.len() {
        return None;
    }
    let mut head = packet[..at + first].to_vec();
    let mut tail = packet[..at].to_vec();
    tail.extend_from_slice(&packet[at + first..]);
    head[ip + 13] &= !AT_END;
    let seq = sequence(packet)?.wrapping_add(u32::try_from(first).ok()?);
    tail[ip + 4..ip + 8].copy_from_slice(&seq.to_be_bytes());
    for part in [&mut head, &mut tail] {
        fix_length(part)?;
        fix_checksums(part);
    }
    Some([head, tail])
}

/// Joins two consecutive segments as a TCP middlebox may, and keeps the acknowledgement and the
/// window of the second. Returns `None` if they cannot be joined or the packet would be longer than
/// `mtu`.
pub(crate) fn join(first: &[u8], second: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let (at, then) = (payload_at(first)?, payload_at(second)?);
    let (long, more) = (first.len() - at, second.len() - then);
    let follows = sequence(first)?.wrapping_add(u32::try_from(long).ok()?) == sequence(second)?;
    let data = flags(first)? & (NOT_DATA | 1) == 0 && flags(second)? & NOT_DATA == 0;
    let alike = at == then && flow(first)? == flow(second)?;
    if !(follows && data && alike) || long == 0 || more == 0 || first.len() + more > mtu {
        return None;
    }
    let mut whole = second[..then].to_vec();
    let ip = ip_len(first)?;
    whole[ip + 4..ip + 8].copy_from_slice(&first[ip + 4..ip + 8]);
    whole.extend_from_slice(&first[at..]);
    whole.extend_from_slice(&second[then..]);
    fix_length(&mut whole)?;
    fix_checksums(&mut whole);
    Some(whole)
}

/// Changes the sequence or the acknowledgement number, and sets correct lengths and checksums.
pub(crate) fn renumber(packet: &mut [u8], sequence: Option<u32>, acknowledged: Option<u32>) {
    let Some(ip) = ip_len(packet) else {
        return;
    };
    for (at, number) in [(4, sequence), (8, acknowledged)] {
        if let Some(number) = number {
            packet[ip + at..ip + at + 4].copy_from_slice(&number.to_be_bytes());
        }
    }
    let _ = fix_length(packet);
    fix_checksums(packet);
}

/// Sets the length field of IP as for a packet of `len` bytes, headers included. Updates the
/// checksum of an IPv4 header. The checksum of TCP is not updated and may be wrong afterwards.
pub(crate) fn set_length(packet: &mut [u8], len: usize) {
    let Some(ip) = ip_len(packet) else {
        return;
    };
    let (at, len) = if ip == 20 { (2, len) } else { (4, len - ip) };
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    packet[at..at + 2].copy_from_slice(&len.to_be_bytes());
    fix_header(packet);
}

/// Returns true if lengths and checksums are correct, so that TCP accepts the packet.
pub(crate) fn is_right(packet: &[u8]) -> bool {
    let Some(ip) = ip_len(packet).filter(|ip| packet.len() >= ip + 20) else {
        return false;
    };
    let word = |at| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let len = if ip == 20 { word(2) } else { ip + word(4) };
    let Some(packet) = packet.get(..len).filter(|_| len >= ip + 20) else {
        return false;
    };
    let header = ip != 20 || checksum(0, &packet[..ip]) == 0;
    header && checksum(pseudo_header(packet, ip), &packet[ip..]) == 0
}

fn fix_length(packet: &mut [u8]) -> Option<()> {
    let (at, len) = match ip_len(packet)? {
        20 => (2, packet.len()),
        ip => (4, packet.len() - ip),
    };
    packet[at..at + 2].copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
    Some(())
}

/// Sets the checksums of IP and TCP to match the content.
pub(crate) fn fix_checksums(packet: &mut [u8]) {
    let Some(ip) = ip_len(packet) else {
        return;
    };
    fix_header(packet);
    packet[ip + 16..ip + 18].fill(0);
    let sum = checksum(pseudo_header(packet, ip), &packet[ip..]);
    packet[ip + 16..ip + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the checksum of the IPv4 header; IPv6 has none.
fn fix_header(packet: &mut [u8]) {
    if ip_len(packet) == Some(20) {
        packet[10..12].fill(0);
        let sum = checksum(0, &packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns the sum of the pseudo-header: both addresses, the protocol and the length.
fn pseudo_header(packet: &[u8], ip: usize) -> u32 {
    let len = u16::try_from(packet.len() - ip).unwrap_or_default();
    sum_of(6 + u32::from(len), addresses(packet).unwrap_or_default())
}

fn sum_of(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]))
    })
}

fn checksum(sum: u32, bytes: &[u8]) -> u16 {
    let mut sum = sum_of(sum, bytes);
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn segment(payload: &[u8]) -> Vec<u8> {
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
    fn the_parts_of_a_segment_have_its_bytes_and_only_the_last_its_fin() {
        let whole = segment(b"abcdefg");
        let [head, tail] = split(&whole, 3).unwrap();
        assert_eq!((&head[40..], &tail[40..]), (&b"abc"[..], &b"defg"[..]));
        assert_eq!((head[33], tail[33]), (0x10, 0x19));
        assert_eq!(tail[24..28], 2u32.to_be_bytes());
        assert!(split(&whole, 0).is_none() && split(&whole, 7).is_none());
    }

    #[test]
    fn the_parts_of_a_segment_joined_are_the_segment() {
        let whole = segment(b"abcdefg");
        let [head, tail] = split(&whole, 3).unwrap();
        assert_eq!(join(&head, &tail, 1500).unwrap(), whole);
        assert!(join(&head, &tail, whole.len() - 1).is_none());
        assert!(join(&tail, &head, 1500).is_none());
    }

    #[test]
    fn checksums_that_are_right_add_up_to_nothing() {
        let packet = segment(b"odd");
        assert_eq!(checksum(0, &packet[..20]), 0);
        let mut pseudo = packet[12..20].to_vec();
        pseudo.extend_from_slice(&[0, 6, 0, 23]);
        assert_eq!(checksum(sum_of(0, &pseudo), &packet[20..]), 0);
        assert!(is_right(&packet) && !is_right(&packet[..42]));
    }
}
