//! Corrects what smoltcp promises the peer about its window.
//!
//! smoltcp 0.14 tells the peer, in two ways, of more room than it then accepts. The surplus is
//! thrown away, and the stream stands still for the second that a retransmission takes. With full
//! windows and a peer on another core both happen many times in a gigabyte.
//! * The window field is rounded down to its scale, so that the end of the window can move back by
//!   some octets when the window slides (RFC 7323 section 2.4 warns of it). A peer that has not
//!   heard yet has filled them. So every segment that leaves names one unit less than smoltcp
//!   remembers: that end never moves back.
//! * A zero-window probe carries the window of the moment, but only what other segments say is
//!   remembered. So a probe repeats what the last other segment named.
//!
//! And it corrects the sequence number of bare acknowledgements. After its timer fired, smoltcp gives
//! them the one from which it sends again. A peer that has more than that discards them (RFC 9293
//! section 3.10.7.4), and if its timer has fired too, both ends repeat themselves for ever. So they
//! name the end of what ever left, a FIN included: SND.NXT.

use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

/// What the two ends last told each other about their windows.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Acknowledgement number and window field of the last segment that was no probe.
    last: Option<(TcpSeqNumber, u16)>,
    /// Whether the peer's last segment closed its window.
    peer_closed_window: bool,
    /// The sequence number of our SYN.
    pub(crate) syn: Option<TcpSeqNumber>,
    /// The sequence number after the last octet of the stream that ever left.
    pub(crate) sent_to: Option<TcpSeqNumber>,
    /// The sequence number after all that ever left, a FIN too.
    next: Option<TcpSeqNumber>,
    /// Octets of the stream left that had left before.
    pub(crate) resent: bool,
}

/// Source, destination and where TCP begins in an IP packet without options or extensions, which is
/// what smoltcp sends.
fn split(packet: &mut [u8]) -> Option<(IpAddress, IpAddress, TcpPacket<&mut [u8]>)> {
    let (source, destination, at): (IpAddress, IpAddress, usize) = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4Packet::new_checked(&*packet).ok()?;
            (
                ip.src_addr().into(),
                ip.dst_addr().into(),
                usize::from(ip.header_len()),
            )
        }
        _ => {
            let ip = Ipv6Packet::new_checked(&*packet).ok()?;
            (ip.src_addr().into(), ip.dst_addr().into(), ip.header_len())
        }
    };
    let tcp = TcpPacket::new_checked(packet.get_mut(at..)?).ok()?;
    Some((source, destination, tcp))
}

impl Promises {
    /// What we last acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<TcpSeqNumber> {
        self.last.map(|(ack, _)| ack)
    }

    /// Notes the window of a segment that arrived.
    pub(crate) fn arrived(&mut self, packet: &[u8]) {
        let header = match packet.first().map(|octet| octet >> 4) {
            Some(4) => usize::from(packet[0] & 0xf) * 4,
            _ => 40,
        };
        if let Some(&[high, low]) = packet.get(header + 14..header + 16) {
            self.peer_closed_window = high == 0 && low == 0;
        }
    }

    /// Corrects a segment that is about to leave.
    pub(crate) fn leaving(&mut self, packet: &mut [u8], checksums: bool) {
        let Some((source, destination, mut tcp)) = split(packet) else {
            return;
        };
        // With the peer's window closed, a single octet can only be a probe.
        let payload = tcp
            .as_ref()
            .len()
            .saturating_sub(usize::from(tcp.header_len()));
        let end = tcp.seq_number() + payload;
        if payload > 0 && self.sent_to.is_none_or(|sent| sent < end) {
            self.sent_to = Some(end);
        } else if payload > 0 {
            self.resent = true;
        }
        let end = end + usize::from(tcp.fin());
        if tcp.syn() {
            self.next = None;
        } else if payload > 0 || tcp.fin() {
            self.next = Some(self.next.map_or(end, |next| next.max(end)));
        } else if let Some(next) = self.next
            && end < next
            && !tcp.rst()
        {
            tcp.set_seq_number(next);
            if checksums {
                tcp.fill_checksum(&source, &destination);
            }
        }
        match self.last {
            Some((ack, window)) if self.peer_closed_window && payload == 1 => {
                tcp.set_ack_number(ack);
                tcp.set_window_len(window);
                if checksums {
                    tcp.fill_checksum(&source, &destination);
                }
            }
            // The window of a SYN is not scaled, and it is the smaller for that.
            _ if tcp.syn() => {
                self.last = None;
                self.syn = Some(tcp.seq_number());
            }
            _ => {
                let old = tcp.window_len();
                let new = old.saturating_sub(1);
                tcp.set_window_len(new);
                if checksums {
                    tcp.set_checksum(adjusted(tcp.checksum(), old, new));
                }
                self.last = Some((tcp.ack_number(), new));
            }
        }
    }
}

/// The checksum after one of the 16-bit words it covers was changed: RFC 1624 section 3.
fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpRepr};

    fn segment(payload: &[u8], ack: i32, window: u16, v6: bool) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control: TcpControl::None,
            seq_number: TcpSeqNumber(7),
            ack_number: Some(TcpSeqNumber(ack)),
            window_len: window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let addr = |last| match v6 {
            true => IpAddress::v6(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
            false => IpAddress::v4(192, 0, 2, last as u8),
        };
        let ip = IpRepr::new(addr(1), addr(2), IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut packet = vec![0; ip.buffer_len()];
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut packet[..], &checksums);
        let mut view = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
        tcp.emit(&mut view, &addr(1), &addr(2), &checksums);
        packet
    }

    fn promised(packet: &[u8]) -> (i32, u16) {
        let (source, destination, tcp) = split_copy(packet);
        let tcp = TcpPacket::new_checked(&tcp[..]).unwrap();
        assert!(tcp.verify_checksum(&source, &destination));
        (tcp.ack_number().0, tcp.window_len())
    }

    fn split_copy(packet: &[u8]) -> (IpAddress, IpAddress, Vec<u8>) {
        let mut copy = packet.to_vec();
        let (source, destination, tcp) = split(&mut copy).unwrap();
        (source, destination, tcp.into_inner().to_vec())
    }

    #[test]
    fn a_probe_into_a_closed_window_repeats_what_was_promised_before() {
        for v6 in [false, true] {
            let mut promises = Promises::default();
            promises.arrived(&segment(b"", 1, 0, v6));
            let mut update = segment(b"", 100, 50, v6);
            promises.leaving(&mut update, true);
            assert_eq!(promised(&update), (100, 49));
            let mut probe = segment(b"x", 110, 900, v6);
            promises.leaving(&mut probe, true);
            assert_eq!(promised(&probe), (100, 49));
        }
    }

    #[test]
    fn an_acknowledgement_names_the_end_of_what_ever_left() {
        for v6 in [false, true] {
            let mut promises = Promises::default();
            promises.leaving(&mut segment(b"0123456789", 100, 50, v6), true);
            promises.leaving(&mut segment(b"0123", 100, 50, v6), true);
            let mut ack = segment(b"", 110, 50, v6);
            promises.leaving(&mut ack, true);
            assert_eq!(promised(&ack), (110, 49));
            let (_, _, tcp) = split_copy(&ack);
            let tcp = TcpPacket::new_checked(&tcp[..]).unwrap();
            assert_eq!(tcp.seq_number(), TcpSeqNumber(17));
        }
    }

    #[test]
    fn a_single_octet_into_an_open_window_is_no_probe() {
        let mut promises = Promises::default();
        promises.leaving(&mut segment(b"", 100, 50, false), true);
        promises.arrived(&segment(b"", 1, 1, false));
        let mut octet = segment(b"x", 110, 900, false);
        promises.leaving(&mut octet, true);
        assert_eq!(promised(&octet), (110, 899));
    }

    #[test]
    fn every_window_is_named_one_unit_smaller_with_a_valid_checksum() {
        for window in [0, 1, 2, 255, 256, 257, 32768, u16::MAX] {
            let mut packet = segment(b"some octets", 5, window, false);
            Promises::default().leaving(&mut packet, true);
            assert_eq!(promised(&packet), (5, window.saturating_sub(1)));
        }
    }

    #[test]
    fn octets_that_are_no_packet_change_nothing() {
        let mut promises = Promises::default();
        for end in 0..40 {
            let mut cut = segment(b"", 1, 0, false);
            cut.truncate(end);
            promises.arrived(&cut);
            promises.leaving(&mut cut, true);
        }
        assert!(promises.last.is_none());
    }
}
