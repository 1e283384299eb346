//! Corrects the window and the sequence numbers in segments that smoltcp sends.
//!
//! smoltcp 0.14 offers the peer more room than it then accepts, in two cases. The surplus bytes are
//! discarded, and the stream stops for a second until they are retransmitted. With full windows and
//! a peer on another core, both cases happen many times per gigabyte:
//! * The window field is rounded down to a multiple of the scale. So the end of the window can move
//!   back by some bytes when the window slides (RFC 7323 section 2.4 warns of this). The peer may
//!   have sent these bytes before it receives the update. Therefore every segment offers one unit
//!   of the scale less than smoltcp does. smoltcp then accepts all bytes up to the end of every
//!   window that these segments offered.
//! * A zero-window probe carries the current window, but smoltcp remembers only the windows in
//!   other segments. Therefore a probe repeats the window of the last segment that was not a probe.
//!
//! The second correction concerns the sequence number of smoltcp's acknowledgements without data.
//! After its timer fired, smoltcp gives them the number from which it retransmits. A peer that has
//! received more bytes discards such acknowledgements (RFC 9293 section 3.10.7.4). If the peer's
//! timer has fired too, both ends retransmit forever. So these segments get SND.NXT, the number
//! after all bytes sent and the FIN.
//!
//! A RST that ends a connection gets SND.NXT too, but no number after the end of the peer's window.
//! It then has exactly the number that the peer expects, unless bytes were lost (RFC 5961 section
//! 3.2).
//!
//! One acknowledgement without data does not get SND.NXT: the probe of a closed window when all
//! bytes were sent, and smoltcp therefore has no byte to probe with. This probe gets the number of
//! an acknowledged byte, because the peer answers only an unacceptable segment.

use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

use super::segment::syn_options;

/// State for the corrections: the windows and sequence numbers of the segments sent so far.
#[derive(Debug, Default)]
pub(crate) struct WindowFixup {
    /// Acknowledgement number and window field of the last segment that was not a probe.
    last: Option<(TcpSeqNumber, u16)>,
    /// Acknowledgement number of this side's SYN, if it answered the peer's SYN.
    answered: Option<TcpSeqNumber>,
    /// Window in bytes that this side's SYN offered.
    syn_window: u16,
    /// Window scale shift that this side's SYN announced.
    shift: u8,
    /// True if the peer's last segment closed its window.
    peer_closed_window: bool,
    /// Sequence number of this side's SYN.
    pub(crate) syn: Option<TcpSeqNumber>,
    /// Sequence number after the last byte of the stream that was ever sent.
    pub(crate) sent_to: Option<TcpSeqNumber>,
    /// Sequence number after all bytes and the FIN that were ever sent.
    next: Option<TcpSeqNumber>,
    /// Sequence number for a window probe without data: that of the last acknowledged byte. Set
    /// only while such a probe may be sent.
    pub(crate) empty_probe: Option<TcpSeqNumber>,
    /// Sequence number after the end of the peer's window. Set only while smoltcp sends on its own
    /// initiative.
    pub(crate) peer_window_end: Option<TcpSeqNumber>,
    /// True if stream bytes were sent again since the flag was last cleared.
    pub(crate) resent: bool,
}

/// Returns source, destination and TCP segment of an IP packet without extension headers. smoltcp
/// sends only such packets.
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
    /// Returns the last acknowledgement number that was sent.
    pub(crate) fn acknowledged(&self) -> Option<TcpSeqNumber> {
        self.last.map(|(ack, _)| ack)
    }

    /// Returns the acknowledgement number and window field of the last segment, to repeat them.
    pub(crate) fn last_ack(&self) -> Option<(TcpSeqNumber, u16)> {
        // Without `last`, the last segment of smoltcp was a SYN, which acknowledged only the peer's
        // SYN. It offered at least one unit of the scale, so a window field of 1 promises nothing
        // new.
        self.last.or(self.answered.map(|ack| (ack, 1)))
    }

    /// Returns the window field for a segment that acknowledges `ack`, which may be later than the
    /// last acknowledgement. The end of the window stays the same or, because of rounding, moves
    /// forward by less than one unit of the scale. smoltcp accepts these bytes as well, at least
    /// until its next acknowledgement. `scales` is true if the peer's SYN had the window scale
    /// option. Returns `None` if nothing was acknowledged yet.
    pub(crate) fn window_from(&self, ack: TcpSeqNumber, scales: bool) -> Option<u16> {
        let shift = if scales { self.shift } else { 0 };
        let end = match (self.last, self.answered) {
            (Some((last, window)), _) => last + (usize::from(window) << shift),
            (None, Some(answered)) => answered + usize::from(self.syn_window),
            (None, None) => return None,
        };
        let room = if end > ack { end - ack } else { 0 };
        Some(u16::try_from(room.div_ceil(1 << shift)).unwrap_or(u16::MAX))
    }

    /// Returns SND.NXT: the sequence number after all bytes and the FIN that were ever sent.
    pub(crate) fn send_next(&self) -> Option<TcpSeqNumber> {
        self.next.or(self.syn.map(|syn| syn + 1))
    }

    /// Returns the sequence number of the last byte, or of the FIN, that was sent.
    pub(crate) fn last_left(&self) -> Option<TcpSeqNumber> {
        self.next.map(|next| next - 1)
    }

    /// Records whether a received segment closes the peer's window.
    pub(crate) fn arrived(&mut self, packet: &[u8]) {
        let header = match packet.first().map(|byte| byte >> 4) {
            Some(4) => usize::from(packet[0] & 0xf) * 4,
            _ => 40,
        };
        if let Some(&[high, low]) = packet.get(header + 14..header + 16) {
            self.peer_closed_window = high == 0 && low == 0;
        }
    }

    /// Returns the corrected sequence number for a segment without data, or `None` if it is already
    /// correct.
    fn seq_of_dataless(&self, tcp: &TcpPacket<&mut [u8]>) -> Option<TcpSeqNumber> {
        if tcp.rst() {
            let end = self.peer_window_end?;
            let next = self.next.map(|next| next.min(end));
            return next.filter(|next| tcp.seq_number() < *next);
        }
        let says = (tcp.ack_number(), tcp.window_len().saturating_sub(1));
        if self.last == Some(says) && self.empty_probe.is_some() {
            return self.empty_probe;
        }
        self.next.filter(|next| tcp.seq_number() < *next)
    }

    /// Corrects an outgoing segment and records its numbers.
    pub(crate) fn fix_outgoing(&mut self, packet: &mut [u8], checksums: bool) {
        let Some((source, destination, mut tcp)) = split(packet) else {
            return;
        };
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
        } else if let Some(seq) = self.seq_of_dataless(&tcp) {
            tcp.set_seq_number(seq);
            if checksums {
                tcp.fill_checksum(&source, &destination);
            }
        }
        match self.last {
            // While the peer's window is closed, a segment with one byte counts as a probe: smoltcp
            // sends no other new bytes then.
            Some((ack, window)) if self.peer_closed_window && payload == 1 => {
                tcp.set_ack_number(ack);
                tcp.set_window_len(window);
                if checksums {
                    tcp.fill_checksum(&source, &destination);
                }
            }
            // The window of a SYN is not scaled and stays as it is.
            _ if tcp.syn() => {
                self.last = None;
                self.answered = tcp.ack().then(|| tcp.ack_number());
                self.syn = Some(tcp.seq_number());
                self.syn_window = tcp.window_len();
                let (_, shift) = syn_options(tcp.options_mut());
                self.shift = shift.unwrap_or(0);
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

/// Updates a checksum after a change of one 16-bit word that it covers (RFC 1624 section 3).
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
            window_fixup.fix_outgoing(&mut update, true);
            assert_eq!(promised(&update), (100, 49));
            let mut probe = segment(b"x", 110, 900, v6);
            window_fixup.fix_outgoing(&mut probe, true);
            assert_eq!(promised(&probe), (100, 49));
        }
    }

    #[test]
    fn an_acknowledgement_names_the_end_of_what_ever_left() {
        for v6 in [false, true] {
            let mut window_fixup = WindowFixup::default();
            window_fixup.fix_outgoing(&mut segment(b"0123456789", 100, 50, v6), true);
            window_fixup.fix_outgoing(&mut segment(b"0123", 100, 50, v6), true);
            let mut ack = segment(b"", 110, 50, v6);
            window_fixup.fix_outgoing(&mut ack, true);
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
            window_fixup.fix_outgoing(&mut segment(b"0123456789", 100, 50, v6), true);
            window_fixup.arrived(&segment(b"", 1, 0, v6));
            window_fixup.empty_probe = Some(TcpSeqNumber(11));
            // A segment with a new acknowledgement is not a probe, and has to be acceptable.
            let mut news = segment(b"", 110, 50, v6);
            window_fixup.fix_outgoing(&mut news, true);
            assert_eq!(sequence(&news), TcpSeqNumber(17));
            let mut probe = segment(b"", 110, 50, v6);
            window_fixup.fix_outgoing(&mut probe, true);
            assert_eq!(sequence(&probe), TcpSeqNumber(11));
            assert_eq!(promised(&probe), (110, 49));
            window_fixup.empty_probe = None;
            let mut again = segment(b"", 110, 50, v6);
            window_fixup.fix_outgoing(&mut again, true);
            assert_eq!(sequence(&again), TcpSeqNumber(17));
        }
    }

    fn reset(seq: i32, v6: bool) -> Vec<u8> {
        let mut packet = segment(b"", 100, 50, v6);
        let (source, destination, mut tcp) = split(&mut packet).unwrap();
        tcp.set_rst(true);
        tcp.set_seq_number(TcpSeqNumber(seq));
        tcp.fill_checksum(&source, &destination);
        packet
    }

    #[test]
    fn rfc_5961_3_2_a_reset_has_the_number_that_the_peer_expects() {
        for v6 in [false, true] {
            let mut window_fixup = WindowFixup::default();
            window_fixup.fix_outgoing(&mut segment(b"0123456789", 100, 50, v6), true);
            // Cases: a number that smoltcp rewound, a correct number, and three different ends of
            // the peer's window.
            for (seq, window_end, right) in [
                (7, 1000, 17),
                (17, 1000, 17),
                (7, 17, 17),
                (7, 16, 16),
                (17, 7, 17),
            ] {
                window_fixup.peer_window_end = Some(TcpSeqNumber(window_end));
                let mut packet = reset(seq, v6);
                window_fixup.fix_outgoing(&mut packet, true);
                assert_eq!(sequence(&packet), TcpSeqNumber(right));
                promised(&packet);
            }
            // A reset in answer to a segment keeps the number that the segment acknowledges.
            window_fixup.peer_window_end = None;
            let mut answer = reset(9, v6);
            window_fixup.fix_outgoing(&mut answer, true);
            assert_eq!(sequence(&answer), TcpSeqNumber(9));
        }
    }

    #[test]
    fn rfc_5961_3_2_a_challenge_moves_the_end_of_the_window_by_less_than_a_unit() {
        let mut window_fixup = WindowFixup::default();
        assert_eq!(window_fixup.window_from(TcpSeqNumber(7), true), None);
        (window_fixup.answered, window_fixup.shift) = (Some(TcpSeqNumber(100)), 3);
        window_fixup.syn_window = 65_535;
        let window = |window_fixup: &WindowFixup, ack: i32, scales| {
            window_fixup.window_from(TcpSeqNumber(ack), scales)
        };
        assert_eq!(window(&window_fixup, 100, true), Some(8192));
        assert_eq!(window(&window_fixup, 110, false), Some(65_525));
        window_fixup.last = Some((TcpSeqNumber(100), 50));
        for (ack, scales, right) in [
            (100, true, 50),
            (101, true, 50),
            (107, true, 50),
            (108, true, 49),
            (499, true, 1),
            (500, true, 0),
            (503, true, 0),
            (103, false, 47),
        ] {
            assert_eq!(window(&window_fixup, ack, scales), Some(right), "{ack}");
        }
    }

    #[test]
    fn a_single_byte_into_an_open_window_is_no_probe() {
        let mut window_fixup = WindowFixup::default();
        window_fixup.fix_outgoing(&mut segment(b"", 100, 50, false), true);
        window_fixup.arrived(&segment(b"", 1, 1, false));
        let mut byte = segment(b"x", 110, 900, false);
        window_fixup.fix_outgoing(&mut byte, true);
        assert_eq!(promised(&byte), (110, 899));
    }

    #[test]
    fn every_window_is_named_one_unit_smaller_with_a_valid_checksum() {
        for window in [0, 1, 2, 255, 256, 257, 32768, u16::MAX] {
            let mut packet = segment(b"some octets", 5, window, false);
            WindowFixup::default().fix_outgoing(&mut packet, true);
            assert_eq!(promised(&packet), (5, window.saturating_sub(1)));
        }
    }

    #[test]
    fn bytes_that_are_no_packet_change_nothing() {
        let mut window_fixup = WindowFixup::default();
        for end in 0..40 {
            let mut cut = segment(b"", 1, 0, false);
            cut.truncate(end);
            window_fixup.arrived(&cut);
            window_fixup.fix_outgoing(&mut cut, true);
        }
        assert!(window_fixup.last.is_none());
    }
}
