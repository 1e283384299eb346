//! Datagrams of queue pairs (`engine/src/datagram.rs`), and the Global Route Header that the
//! receiver gets (InfiniBand Architecture Specification, annex A17 for RoCE v2; RFC 791, RFC 8200).

/// Number of bytes before the payload.
const HEADER: usize = 56;
/// Maximum number of bytes of the payload.
const LONGEST: usize = 4096;

/// Returns the header that the stack writes for what this datagram says, and its payload. `None`:
/// the datagram is dropped.
///
/// The header differs from the one that was read in what has no meaning: unknown flags, a reserved
/// byte, and Immediate Data without its flag.
#[must_use]
pub fn read(datagram: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if !(HEADER..=HEADER + LONGEST).contains(&datagram.len()) || !datagram.starts_with(b"uwUD\x01")
    {
        return None;
    }
    let (head, payload) = datagram.split_at(HEADER);
    let mut head = head.to_vec();
    head[5] &= 3;
    head[7] = 0;
    if head[5] & 1 == 0 {
        head[20..24].fill(0);
    }
    Some((head, payload))
}

/// Returns the IPv4 address that is mapped to an IPv6 address (RFC 4291 section 2.5.5.2).
fn ipv4(addr: &[u8]) -> Option<&[u8]> {
    addr.strip_prefix(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF])
}

/// Returns the Global Route Header for a datagram with this header and so many bytes of payload.
#[must_use]
pub fn route_header(head: &[u8], payload: usize) -> Vec<u8> {
    let (class, from, to) = (head[6], &head[24..40], &head[40..56]);
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    // UDP has a header of 8 bytes.
    let udp = 8 + HEADER + payload;
    if let (Some(from), Some(to)) = (ipv4(from), ipv4(to)) {
        let mut ip = vec![0x45, class];
        ip.extend(length(20 + udp));
        // Identification, fragment, hops, UDP, checksum.
        ip.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        ip.extend([from, to].concat());
        let mut sum = 0_u16;
        for word in ip.chunks(2) {
            let (more, carries) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
            sum = more + u16::from(carries);
        }
        ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
        return [vec![0; 20], ip].concat();
    }
    let mut ip = vec![0x60 | class >> 4, class << 4, 0, 0];
    ip.extend(length(udp));
    ip.extend([17, 64]);
    ip.extend([from, to].concat());
    ip
}
