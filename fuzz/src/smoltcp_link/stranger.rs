//! Packets from a third host that has observed a connection and sends into it.

use crate::input::Input;

/// Length in bytes of an IPv4 header without options.
const IP: usize = 20;

/// Builds a packet like the observed one, but with other sequence numbers, flags, options or
/// payload. Does not correct the checksums.
pub(super) fn segment(seen: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let what = input.flags();
    let header = seen
        .get(IP + 12)
        .map_or(0, |offset| usize::from(offset >> 4) * 4);
    let Some(head) = seen.get(..IP + header).filter(|_| header >= 20) else {
        return input.slice(200).to_vec();
    };
    let mut packet = head.to_vec();
    let mut shift = |at: usize, by: i16| {
        let field: [u8; 4] = packet[at..at + 4].try_into().expect("4 bytes");
        let field = u32::from_be_bytes(field).wrapping_add(i32::from(by) as u32);
        packet[at..at + 4].copy_from_slice(&field.to_be_bytes());
    };
    if what(0) {
        shift(IP + 4, input.u16() as i16);
    }
    if what(1) {
        shift(IP + 8, input.u16() as i16);
    }
    if what(2) {
        packet[IP + 13] = input.u8();
    }
    if what(3) {
        packet[IP + 14..IP + 16].copy_from_slice(&input.u16().to_be_bytes());
    }
    if what(4) {
        // With another source port, the packet is for a new connection or for none.
        packet[IP..IP + 2].copy_from_slice(&(50_000 + u16::from(input.u8())).to_be_bytes());
    }
    if what(5) {
        let options = input.slice(40);
        packet.truncate(IP + 20);
        packet.extend_from_slice(options);
        packet.resize(packet.len().next_multiple_of(4), 0);
        packet[IP + 12] = ((packet.len() - IP) / 4 * 16) as u8;
    }
    if what(6) {
        packet.extend_from_slice(input.slice(1200));
    }
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    if what(7) {
        // Changes a byte of the headers.
        let at = usize::from(input.u8()) % (IP + 20);
        packet[at] ^= input.u8();
    }
    packet
}
