//! Headers of frames whose segmentation and checksums are left to the kernel. These are the
//! virtio-net header (Virtual I/O Device version 1.2, section 5.1.6) and the TCP options that must
//! agree with it.

/// Length in bytes of the virtio-net header without the field for merged buffers.
pub(super) const HEADER: usize = 10;
/// Length in bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Maximum segment size of one frame. The kernel would segment a frame of 65,536 bytes or more,
/// including its Ethernet header, before it reaches the device (`gso_max_size`). That takes four
/// times as long.
pub(super) const LARGEST: u16 = 65_535 - 40 - ETHERNET as u16;
const _: () = assert!(LARGEST as usize + 40 + ETHERNET < 65_536);

/// Flag VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// Flag VIRTIO_NET_HDR_F_DATA_VALID.
const VALID: u8 = 2;
/// Type VIRTIO_NET_HDR_GSO_TCPV4.
const TCPV4: u8 = 1;
const SYN: u8 = 2;

/// Offsets in a frame with TCP over IPv4: of the TCP header, of its data, and of the end of the
/// data.
struct Tcp {
    at: usize,
    data: usize,
    end: usize,
}

fn tcp(frame: &[u8]) -> Option<Tcp> {
    let ip = frame.get(ETHERNET..)?;
    if frame[12..14] != [8, 0] || ip.first()? >> 4 != 4 || *ip.get(9)? != 6 {
        return None;
    }
    let at = ETHERNET + usize::from(ip[0] & 0xf) * 4;
    let end = ETHERNET + usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let data = at + usize::from(frame.get(at + 12)? >> 4) * 4;
    (data <= end && end <= frame.len()).then_some(Tcp { at, data, end })
}

/// Returns the header for a frame to send, and writes the sum of the pseudo-header into its TCP
/// checksum field. The kernel will cut segments of more than `mss` bytes. In a SYN, replaces the
/// stack's maximum segment size, [`LARGEST`], with `mss`.
pub(super) fn outgoing(frame: &mut [u8], mss: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let Some(Tcp { at, data, end }) = tcp(frame) else {
        return header;
    };
    set_largest(&mut frame[at..data], mss);
    let sum = pseudo_sum(&frame[ETHERNET + 12..ETHERNET + 20], end - at);
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    header[0] = NEEDS_CHECKSUM;
    if end - data > usize::from(mss) {
        header[1] = TCPV4;
        header[2..4].copy_from_slice(&(data as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&mss.to_ne_bytes());
    }
    header[6..8].copy_from_slice(&(at as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
    header
}

/// Returns true if the checksum of an arrived frame need not be verified. In a SYN, replaces the
/// peer's maximum segment size with [`LARGEST`], because the kernel will cut segments that are too
/// long for the peer.
pub(super) fn arrived(header: [u8; HEADER], frame: &mut [u8]) -> bool {
    let Some(Tcp { at, data, .. }) = tcp(frame) else {
        return true;
    };
    let vouched = header[0] & (NEEDS_CHECKSUM | VALID) != 0;
    if vouched {
        set_largest(&mut frame[at..data], LARGEST);
    }
    vouched
}

/// Changes the maximum segment size in a SYN. Does not change other segments.
fn set_largest(tcp: &mut [u8], mss: u16) {
    if tcp[13] & SYN == 0 {
        return;
    }
    let mut at = 20;
    while let Some(&kind) = tcp.get(at) {
        match (kind, tcp.get(at + 1)) {
            (1, _) => at += 1,
            (2, Some(4)) if at + 4 <= tcp.len() => {
                tcp[at + 2..at + 4].copy_from_slice(&mss.to_be_bytes());
                return;
            }
            (2.., Some(&len)) if len >= 2 => at += usize::from(len),
            _ => return,
        }
    }
}

/// Returns the sum of RFC 1071 over the pseudo-header, not complemented: source and destination,
/// the protocol, and the length.
fn pseudo_sum(addresses: &[u8], len: usize) -> u16 {
    let mut sum = 6 + len as u32;
    for pair in addresses.as_chunks::<2>().0 {
        sum += u32::from(u16::from_be_bytes(*pair));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a frame with a TCP segment, which has `data` bytes and one option of 4 bytes after a
    /// NOP.
    fn frame(flags: u8, data: u16) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12] = 8;
        let len = 20 + 28 + data;
        frame.extend([0x45, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend([0; 12]);
        frame.extend([7 << 4, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend([1, 2, 4, 0x05, 0xb4, 0, 0, 0]);
        frame.resize(frame.len() + usize::from(data), 0x5a);
        frame
    }

    #[test]
    fn a_large_segment_is_to_be_cut_and_a_small_one_is_not() {
        let mut large = frame(0x10, 3000);
        let header = outgoing(&mut large, 1460);
        assert_eq!(header[..2], [1, 1]);
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        assert_eq!([field(2), field(4), field(6), field(8)], [62, 1460, 34, 16]);
        // The addresses are 192.0.2.1 and .2: 2 x (0xc000 + 0x0200) + 3. The protocol is 6, and the
        // length 3028.
        let sum = 2 * (0xc000 + 0x0200) + 3 + 6 + 3028_u32;
        let folded = (sum & 0xffff) + (sum >> 16);
        assert_eq!(large[50..52], (folded as u16).to_be_bytes());
        let header = outgoing(&mut frame(0x10, 1460), 1460);
        assert_eq!(header[..6], [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn only_a_syn_has_its_maximum_changed() {
        let maximum = |frame: &[u8]| u16::from_be_bytes([frame[57], frame[58]]);
        let mut syn = frame(2, 0);
        outgoing(&mut syn, 8960);
        assert_eq!(maximum(&syn), 8960);
        assert!(arrived([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut syn));
        assert_eq!(maximum(&syn), LARGEST);
        let mut data = frame(0x10, 5);
        outgoing(&mut data, 536);
        assert_eq!(maximum(&data), 1460);
    }

    #[test]
    fn what_nobody_vouches_for_is_looked_at() {
        assert!(!arrived([0; HEADER], &mut frame(0x10, 5)));
        assert!(arrived([2; HEADER], &mut frame(0x10, 5)));
        // ARP has no checksum.
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(arrived([0; HEADER], &mut arp));
        assert_eq!(outgoing(&mut arp, 1460), [0; HEADER]);
    }

    #[test]
    fn options_that_make_no_sense_are_left_alone() {
        for options in [[2, 0, 0, 0], [3, 1, 0, 0], [2, 4, 1, 2], [9, 200, 0, 0]] {
            let mut tcp = vec![0; 20];
            tcp[13] = SYN;
            tcp.extend(&options[..3]);
            let before = tcp.clone();
            set_largest(&mut tcp, 1000);
            assert_eq!(tcp, before);
        }
    }
}
