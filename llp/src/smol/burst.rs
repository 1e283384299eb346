//! Segments that are longer than those on the wire, for a link that has them cut.
//!
//! smoltcp makes no segment that is longer than what the MTU and the MSS of the peer allow. Where the other side of the
//! link cuts segments (TCP segmentation offload), it is to make them of nearly 64 KiB all the same: it is told an
//! MTU of 65535 bytes, and that the peer's MSS allows as much. What it makes of that in its own SYN is put right here,
//! so that the peer hears the MSS that the wire has; and every burst says of what size its segments on the wire are
//! to be, which is never above the MSS that the peer has named.

use smoltcp::wire::Ipv4Packet;

/// The MTU that smoltcp is told: IPv4 has no longer packets.
pub(crate) const BURST_MTU: usize = 65535;

/// The least MSS of a peer with which bursts are made. Below it, one would be hundreds of frames.
const LEAST_MSS: u16 = 500;

/// Whether a peer that has named this MSS is sent bursts.
pub(crate) fn bursts_with(mss: u16) -> bool {
    mss >= LEAST_MSS
}

const SYN: u8 = 2;

/// Where TCP's header begins in an IP packet without extensions.
pub(crate) fn tcp_at(packet: &[u8]) -> usize {
    match packet.first().map(|octet| octet >> 4) {
        Some(4) => usize::from(packet[0] & 0xf) * 4,
        _ => 40,
    }
}

/// The value of the MSS option of a SYN, to be read and changed; `None` without one.
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

/// What a SYN of ours is to say, on a wire whose segments carry `octets` of data.
pub(crate) fn name_own_mss(packet: &mut [u8], octets: usize) {
    if let Some(mss) = mss_option(packet) {
        *mss = u16::try_from(octets).unwrap_or(u16::MAX).to_be_bytes();
    }
}

/// Has smoltcp believe that a peer whose SYN this is takes segments of `octets`.
pub(crate) fn raise_mss_of_peer(packet: &mut [u8], octets: usize) {
    if let Some(mss) = mss_option(packet)
        && bursts_with(u16::from_be_bytes(*mss))
    {
        *mss = u16::try_from(octets).unwrap_or(u16::MAX).to_be_bytes();
    }
}

/// Lets routers cut an IPv4 packet. smoltcp forbids it, and all its packets have the same
/// identification, which must not be when they are cut (RFC 6864 section 4).
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

    /// A SYN, or another segment, with these options.
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
        // No SYN, no MSS, an MSS that is too small for bursts, and options that are none.
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
