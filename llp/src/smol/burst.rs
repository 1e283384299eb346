//! Segments that are longer than the wire allows, for a link that cuts them.
//!
//! smoltcp makes no segment longer than the MTU and the peer's MSS allow. If the other side of the
//! link cuts segments (TCP segmentation offload), smoltcp should still make segments of nearly 64
//! KiB. So smoltcp is given an MTU of 65535 bytes, and an equally large MSS in the peer's SYN. The
//! MSS in smoltcp's own SYN is corrected here, so that the peer sees the MSS of the wire. Every
//! burst is passed on with the size of its segments on the wire, which is never above the peer's
//! MSS.

use smoltcp::wire::Ipv4Packet;

/// MTU that smoltcp is given on a link that cuts segments: the size of the longest IPv4 packet.
pub(crate) const BURST_MTU: usize = 65535;

/// Smallest MSS of a peer for which bursts are used. With a smaller MSS a burst would become
/// hundreds of frames.
const LEAST_MSS: u16 = 500;

/// Returns true if bursts are used for a peer with this MSS.
pub(crate) fn bursts_with(mss: u16) -> bool {
    mss >= LEAST_MSS
}

const SYN: u8 = 2;

/// Offset of the TCP header in an IP packet without extensions.
pub(crate) fn tcp_at(packet: &[u8]) -> usize {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => usize::from(packet[0] & 0xf) * 4,
        _ => 40,
    }
}

/// Returns the value of a SYN's MSS option, or `None` if there is no such option.
fn mss_option(packet: &mut [u8]) -> Option<&mut [u8; 2]> {
    let at = tcp_at(packet);
    let header = packet.get(at..at + 20)?;
    let (flags, end) = (header[13], at + usize::from(header[12] >> 4) * 4);
    if flags & SYN == 0 {
        return None;
    }
    let mut options = packet.get_mut(at + 20..end)?;
    loop {
        let (kind, length) = (*options.first()?, options.get(1).copied().unwrap_or(0));
        let skip = match (kind, length) {
            (0, _) => return None,
            (1, _) => 1,
            (2, 4) => return options.get_mut(2..4)?.first_chunk_mut(),
            (_, 2..) => usize::from(length),
            _ => return None,
        };
        options = options.get_mut(skip..)?;
    }
}

/// Sets the MSS option in a SYN of this host to `bytes`, the data bytes of a segment on the wire.
pub(crate) fn name_own_mss(packet: &mut [u8], bytes: usize) {
    if let Some(mss) = mss_option(packet) {
        *mss = u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    }
}

/// Raises the MSS option in the peer's SYN to `bytes`, so that smoltcp makes bursts. Leaves an MSS
/// that is too small for bursts unchanged.
pub(crate) fn raise_mss_of_peer(packet: &mut [u8], bytes: usize) {
    if let Some(mss) = mss_option(packet)
        && bursts_with(u16::from_be_bytes(*mss))
    {
        *mss = u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    }
}

/// Allows routers to fragment an IPv4 packet, and sets its identification. smoltcp forbids
/// fragmentation and gives all packets the same identification. Packets that may be fragmented need
/// different identifications (RFC 6864 section 4).
pub(crate) fn allow_fragments(packet: &mut [u8], ident: u16) {
    let Ok(mut ip) = Ipv4Packet::new_checked(packet) else {
        return;
    };
    ip.set_dont_frag(false);
    ip.set_ident(ident);
    ip.fill_checksum();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smol::segment::Segment;

    /// Makes a segment with these flags and options.
    fn segment(flags: u8, options: &[u8], v6: bool) -> Vec<u8> {
        let at = if v6 { 40 } else { 20 };
        let mut packet = vec![0; at + 20];
        packet[0] = if v6 { 0x60 } else { 0x45 };
        packet[at + 12] = ((20 + options.len()) as u8 / 4) << 4;
        packet[at + 13] = flags;
        packet.extend(options);
        if v6 {
            (packet[5], packet[6]) = (20 + options.len() as u8, 6);
        } else {
            (packet[3], packet[9]) = (packet.len() as u8, 6);
        }
        packet
    }

    fn mss(packet: &[u8]) -> Option<u16> {
        Segment::parse(packet).unwrap().mss
    }

    #[test]
    fn the_mss_of_a_syn_is_found_behind_other_options_and_changed() {
        for v6 in [false, true] {
            for before in [&[][..], &[1, 3, 3, 7], &[1, 1, 4, 2]] {
                let options = [before, &[2, 4, 5, 180]].concat();
                let mut packet = segment(SYN, &options, v6);
                raise_mss_of_peer(&mut packet, 65_495);
                assert_eq!(mss(&packet), Some(65_495));
                name_own_mss(&mut packet, 1460);
                assert_eq!(packet, segment(SYN, &options, v6));
            }
        }
    }

    #[test]
    fn nothing_else_is_changed() {
        // Cases: no SYN, no MSS option, an MSS after the end of the options, an MSS too small for
        // bursts, and malformed options.
        for (flags, options) in [
            (16, &[2, 4, 5, 180][..]),
            (SYN, &[3, 3, 7, 0]),
            (SYN, &[0, 2, 4, 5, 180, 0, 0, 0]),
            (SYN, &[2, 4, 1, 243]),
            (SYN, &[5, 0, 5, 180]),
            (SYN, &[1, 1, 1, 2]),
            (SYN, &[5, 200, 5, 180]),
        ] {
            let mut packet = segment(flags, options, false);
            raise_mss_of_peer(&mut packet, 65_495);
            assert_eq!(packet, segment(flags, options, false), "{options:?}");
        }
        let whole = segment(SYN, &[2, 4, 5, 180], false);
        for end in 0..whole.len() {
            let mut cut = whole[..end].to_vec();
            raise_mss_of_peer(&mut cut, 65_495);
            assert_eq!(cut, whole[..end]);
        }
    }
}
