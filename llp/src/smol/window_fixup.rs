//! Corrects what smoltcp promises the peer about its window.
//!
//! smoltcp 0.14 tells the peer, in two ways, of more room than it then accepts. The surplus is
//! thrown away, and the stream stands still for the second that a retransmission takes. With full
//! windows and a peer on another core both happen many times in a gigabyte.
//! * The window field is rounded down to its scale, so that the end of the window can move back by
//!   some bytes when the window slides (RFC 7323 section 2.4 warns of it). A peer that has not
//!   heard yet has filled them. So every segment that leaves names one unit less than smoltcp
//!   remembers: that end never moves back.
//! * A zero-window probe carries the window of the moment, but only what other segments say is
//!   remembered. So a probe repeats what the last other segment named.
//!
//! And it corrects the sequence number of bare acknowledgements. After its timer fired, smoltcp gives
//! them the one from which it sends again. A peer that has more than that discards them (RFC 9293
//! section 3.10.7.4), and if its timer has fired too, both ends repeat themselves for ever. So they
//! name the end of what ever left, a FIN included: SND.NXT.
//!
//! One kind of them is a question: the probe of a closed window when all bytes have left, so that
//! smoltcp has none to probe with. It names an byte that the peer has acknowledged, because it is
//! answered only where it is not acceptable.

use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

/// What the two ends last told each other about their windows.
#[derive(Debug, Default)]
pub(crate) struct WindowFixup {
    /// Acknowledgement number and window field of the last segment that was no probe.
    last: Option<(TcpSeqNumber, u16)>,
    /// What our SYN acknowledged, if it was the answer to one.
    answered: Option<TcpSeqNumber>,
    /// Whether the peer's last segment closed its window.
    peer_closed_window: bool,
    /// The sequence number of our SYN.
    pub(crate) syn: Option<TcpSeqNumber>,
    /// The sequence number after the last byte of the stream that ever left.
    pub(crate) sent_to: Option<TcpSeqNumber>,
    /// The sequence number after all that ever left, a FIN too.
    next: Option<TcpSeqNumber>,
    /// While a probe has nothing to carry: the sequence number before what is not acknowledged.
    pub(crate) empty_probe: Option<TcpSeqNumber>,
    /// Bytes of the stream left that had left before.
    pub(crate) resent: bool,
}

/// Source, destination and TCP's segment in an IP packet without extensions, which is what smoltcp
/// sends.
pub(crate) fn split(packet: &mut [u8]) -> Option<(IpAddress, IpAddress, TcpPacket<&mut [u8]>)> {
    let (source, destination, protocol, range): (IpAddress, IpAddress, _, _) =
        match packet.first()? >> 4 {
            4 => {
                let ip = Ipv4Packet::new_checked(&*packet).ok()?;
                let range = usize::from(ip.header_len())..usize::from(ip.total_len());
                (
                    ip.src_addr().into(),
                    ip.dst_addr().into(),
                    ip.next_header(),
                    range,
                )
            }
            _ => {
                let ip = Ipv6Packet::new_checked(&*packet).ok()?;
                let range = ip.header_len()..ip.total_len();
                (
                    ip.src_addr().into(),
                    ip.dst_addr().into(),
                    ip.next_header(),
                    range,
                )
            }
        };
    if protocol != IpProtocol::Tcp {
        return None;
    }
    let tcp = TcpPacket::new_checked(packet.get_mut(range)?).ok()?;
    Some((source, destination, tcp))
}

impl WindowFixup {
    /// What we last acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<TcpSeqNumber> {
        self.last.map(|(ack, _)| ack)
    }

    /// Acknowledgement number and window field for a segment that has no news, as the last had them.
    pub(crate) fn no_news(&self) -> Option<(TcpSeqNumber, u16)> {
        // Room for one unit of the scale there is: nothing has come since.
        self.last.or(self.answered.map(|ack| (ack, 1)))
    }

    /// The sequence number behind all that ever left: SND.NXT.
    pub(crate) fn send_next(&self) -> Option<TcpSeqNumber> {
        self.next.or(self.syn.map(|syn| syn + 1))
    }

    /// The sequence number of the last byte or FIN that left.
    pub(crate) fn last_left(&self) -> Option<TcpSeqNumber> {
        self.next.map(|next| next - 1)
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

    /// Which other sequence number a segment without data is to have.
    fn seq_of_bare(&self, tcp: &TcpPacket<&mut [u8]>) -> Option<TcpSeqNumber> {
        if tcp.rst() {
            return None;
        }
        let says = (tcp.ack_number(), tcp.window_len().saturating_sub(1));
        if self.last == Some(says) && self.empty_probe.is_some() {
            return self.empty_probe;
        }
        self.next.filter(|next| tcp.seq_number() < *next)
    }

    /// Corrects a segment that is about to leave.
    pub(crate) fn leaving(&mut self, packet: &mut [u8], checksums: bool) {
        let Some((source, destination, mut tcp)) = split(packet) else {
            return;
        };
        // With the peer's window closed, a single byte can only be a probe.
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
        } else if let Some(seq) = self.seq_of_bare(&tcp) {
            tcp.set_seq_number(seq);
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
                self.answered = tcp.ack().then(|| tcp.ack_number());
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
    use smoltcp::wire::{IpRepr, TcpControl, TcpRepr};

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
            let mut window_fixup = WindowFixup::default();
            window_fixup.arrived(&segment(b"", 1, 0, v6));
            let mut update = segment(b"", 100, 50, v6);
            window_fixup.leaving(&mut update, true);
            assert_eq!(promised(&update), (100, 49));
            let mut probe = segment(b"x", 110, 900, v6);
            window_fixup.leaving(&mut probe, true);
            assert_eq!(promised(&probe), (100, 49));
        }
    }

    #[test]
    fn an_acknowledgement_names_the_end_of_what_ever_left() {
        for v6 in [false, true] {
            let mut window_fixup = WindowFixup::default();
            window_fixup.leaving(&mut segment(b"0123456789", 100, 50, v6), true);
            window_fixup.leaving(&mut segment(b"0123", 100, 50, v6), true);
            let mut ack = segment(b"", 110, 50, v6);
            window_fixup.leaving(&mut ack, true);
            assert_eq!(promised(&ack), (110, 49));
            assert_eq!(sequence(&ack), TcpSeqNumber(17));
        }
    }

    fn sequence(packet: &[u8]) -> TcpSeqNumber {
        let (_, _, tcp) = split_copy(packet);
        TcpPacket::new_checked(&tcp[..]).unwrap().seq_number()
    }

    #[test]
    fn a_probe_that_has_nothing_to_carry_names_what_the_peer_has() {
        for v6 in [false, true] {
            let mut window_fixup = WindowFixup::default();
            window_fixup.leaving(&mut segment(b"0123456789", 100, 50, v6), true);
            window_fixup.arrived(&segment(b"", 1, 0, v6));
            window_fixup.empty_probe = Some(TcpSeqNumber(11));
            // Something new is an acknowledgement, which has to be acceptable.
            let mut news = segment(b"", 110, 50, v6);
            window_fixup.leaving(&mut news, true);
            assert_eq!(sequence(&news), TcpSeqNumber(17));
            let mut probe = segment(b"", 110, 50, v6);
            window_fixup.leaving(&mut probe, true);
            assert_eq!(sequence(&probe), TcpSeqNumber(11));
            assert_eq!(promised(&probe), (110, 49));
            window_fixup.empty_probe = None;
            let mut again = segment(b"", 110, 50, v6);
            window_fixup.leaving(&mut again, true);
            assert_eq!(sequence(&again), TcpSeqNumber(17));
        }
    }

    #[test]
    fn a_single_octet_into_an_open_window_is_no_probe() {
        let mut window_fixup = WindowFixup::default();
        window_fixup.leaving(&mut segment(b"", 100, 50, false), true);
        window_fixup.arrived(&segment(b"", 1, 1, false));
        let mut octet = segment(b"x", 110, 900, false);
        window_fixup.leaving(&mut octet, true);
        assert_eq!(promised(&octet), (110, 899));
    }

    #[test]
    fn every_window_is_named_one_unit_smaller_with_a_valid_checksum() {
        for window in [0, 1, 2, 255, 256, 257, 32768, u16::MAX] {
            let mut packet = segment(b"some octets", 5, window, false);
            WindowFixup::default().leaving(&mut packet, true);
            assert_eq!(promised(&packet), (5, window.saturating_sub(1)));
        }
    }

    #[test]
    fn octets_that_are_no_packet_change_nothing() {
        let mut window_fixup = WindowFixup::default();
        for end in 0..40 {
            let mut cut = segment(b"", 1, 0, false);
            cut.truncate(end);
            window_fixup.arrived(&cut);
            window_fixup.leaving(&mut cut, true);
        }
        assert!(window_fixup.last.is_none());
    }
}
