//! Joins two segments that smoltcp made only because its send buffer is a ring.
//!
//! smoltcp 0.14 sends only contiguous bytes of its buffer. If the ring ends in the middle of a
//! segment, smoltcp makes two segments, which may cut an FPDU. That happens once in each round of
//! the buffer. smoltcp makes both parts in direct succession, so the first can wait for the second.

use smoltcp::wire::{IpAddress, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket};

use super::packet::Packet;

/// Joins the parts of one announced segment.
#[derive(Default)]
pub(crate) struct Joiner {
    /// Number of data bytes in the announced segment, or 0 if none is announced.
    expected: usize,
    first: Option<Packet>,
    /// Buffer of a second part whose bytes were copied to the first.
    used: Option<Packet>,
}

/// Offsets of the TCP header and of the data in a packet made by smoltcp.
fn layout(packet: &[u8]) -> Option<(usize, usize)> {
    let tcp = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => usize::from(packet.first()? & 0xf) * 4,
        IpVersion::Ipv6 => 40,
    };
    let data = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
    (data <= packet.len()).then_some((tcp, data))
}

/// Number of data bytes in a packet.
pub(crate) fn data_of(packet: &Packet) -> usize {
    layout(packet.bytes()).map_or(0, |(_, at)| packet.bytes().len() - at)
}

impl Joiner {
    /// Announces that the next data belongs to a segment of `bytes` bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.expected = bytes;
    }

    /// Returns true if a segment is announced.
    pub(crate) fn expects(&self) -> bool {
        self.expected > 0
    }

    /// Number of data bytes in the announced segment, or 0.
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// Takes the buffer of a second part that was joined to the first, for reuse.
    pub(crate) fn take_used(&mut self) -> Option<Packet> {
        self.used.take()
    }

    /// Returns true if the first part waits for the second.
    pub(crate) fn waits(&self) -> bool {
        self.first.is_some()
    }

    /// Ends the announcement. Returns the first part if it still waits.
    pub(crate) fn finish(&mut self) -> Option<Packet> {
        self.expected = 0;
        self.first.take()
    }

    /// Processes an outgoing packet: keeps a first part, and joins the second part to it. Returns
    /// the packets to send now, in order.
    pub(crate) fn pass(&mut self, packet: Packet, checksums: bool) -> [Option<Packet>; 2] {
        if self.expected == 0 {
            return [Some(packet), None];
        }
        match self.first.take() {
            None => {
                let data = data_of(&packet);
                if data == 0 || data >= self.expected {
                    return [Some(packet), None];
                }
                self.first = Some(packet);
                [None, None]
            }
            Some(mut first) => {
                // smoltcp may make a retransmission between the parts. Its data does not fit into
                // the segment.
                let fits = data_of(&first) + data_of(&packet) <= self.expected;
                if fits && join(&mut first, &packet, checksums).is_some() {
                    self.used = Some(packet);
                    [Some(first), None]
                } else {
                    [Some(first), Some(packet)]
                }
            }
        }
    }
}

/// Appends the data of `second` to `first`. Other fields of the header are those of `second`, which
/// is newer. Returns `None`, and changes nothing, if `second` does not directly follow `first`.
fn join(first: &mut Packet, second: &Packet, checksums: bool) -> Option<()> {
    let (tcp_at, data_at) = layout(first.bytes())?;
    let old = first.bytes().len();
    let seq = TcpPacket::new_checked(first.bytes().get(tcp_at..)?)
        .ok()?
        .seq_number();
    let (second_tcp, second_data) = layout(second.bytes())?;
    let follows = {
        let tcp = TcpPacket::new_checked(second.bytes().get(second_tcp..)?).ok()?;
        tcp.seq_number() == seq + (old - data_at)
    };
    if !follows || (second_tcp, second_data) != (tcp_at, data_at) {
        return None;
    }
    let (header, data) = second.bytes().split_at(data_at);
    let len = u16::try_from(old + data.len()).ok()?;
    let bytes = first.extend(data.len());
    bytes[..data_at].copy_from_slice(header);
    bytes[old..].copy_from_slice(data);
    let (source, destination): (IpAddress, IpAddress) = if bytes[0] >> 4 == 4 {
        let mut ip = Ipv4Packet::new_unchecked(&mut *bytes);
        ip.set_total_len(len);
        if checksums {
            ip.fill_checksum();
        }
        (ip.src_addr().into(), ip.dst_addr().into())
    } else {
        let mut ip = Ipv6Packet::new_unchecked(&mut *bytes);
        ip.set_payload_len(len - 40);
        (ip.src_addr().into(), ip.dst_addr().into())
    };
    let mut tcp = TcpPacket::new_unchecked(&mut bytes[tcp_at..]);
    tcp.set_seq_number(seq);
    if checksums {
        tcp.fill_checksum(&source, &destination);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpRepr, TcpSeqNumber};

    const SEQ: i32 = i32::MAX - 2;

    fn packet(seq: i32, data: &[u8], v6: bool) -> Packet {
        let tcp = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control: TcpControl::Psh,
            seq_number: TcpSeqNumber(seq),
            ack_number: Some(TcpSeqNumber(9)),
            window_len: 7,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: data,
        };
        let addr = |last| match v6 {
            true => IpAddress::v6(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
            false => IpAddress::v4(192, 0, 2, last as u8),
        };
        let ip = IpRepr::new(addr(1), addr(2), IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut packet = Packet::new(0);
        let bytes = packet.resize(ip.buffer_len());
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut *bytes, &checksums);
        let mut view = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
        tcp.emit(&mut view, &addr(1), &addr(2), &checksums);
        packet
    }

    #[test]
    fn two_parts_leave_as_the_segment_that_smoltcp_would_have_made_of_both() {
        for v6 in [false, true] {
            let mut joiner = Joiner::default();
            joiner.expect(11);
            let none = joiner.pass(packet(SEQ, b"first ", v6), true);
            assert!(none.iter().all(Option::is_none) && joiner.waits());
            let second = packet(SEQ.wrapping_add(6), b"parts", v6);
            let [Some(whole), None] = joiner.pass(second, true) else {
                panic!("it is one");
            };
            assert_eq!(whole.bytes(), packet(SEQ, b"first parts", v6).bytes());
            assert!(joiner.finish().is_none());
            assert!(joiner.take_used().is_some());
        }
    }

    #[test]
    fn a_whole_segment_one_without_data_and_an_unexpected_one_leave_at_once() {
        let mut joiner = Joiner::default();
        assert!(joiner.pass(packet(0, b"any", false), true)[0].is_some());
        joiner.expect(3);
        assert!(joiner.pass(packet(0, b"any", false), true)[0].is_some());
        assert!(joiner.pass(packet(0, b"", false), true)[0].is_some());
        assert!(!joiner.waits());
    }

    #[test]
    fn parts_that_do_not_fit_together_leave_as_they_are() {
        let mut joiner = Joiner::default();
        joiner.expect(10);
        joiner.pass(packet(0, b"one", false), true);
        let [Some(one), Some(other)] = joiner.pass(packet(4, b"other", false), true) else {
            panic!("they are two");
        };
        assert_eq!(one.bytes(), packet(0, b"one", false).bytes());
        assert_eq!(other.bytes(), packet(4, b"other", false).bytes());
    }

    #[test]
    fn parts_that_together_exceed_the_segment_leave_as_they_are() {
        let mut joiner = Joiner::default();
        joiner.expect(5);
        joiner.pass(packet(0, b"one", false), true);
        let [Some(one), Some(other)] = joiner.pass(packet(3, b"two", false), true) else {
            panic!("they are two");
        };
        assert_eq!(one.bytes(), packet(0, b"one", false).bytes());
        assert_eq!(other.bytes(), packet(3, b"two", false).bytes());
    }

    #[test]
    fn a_part_without_a_second_is_given_back() {
        let mut joiner = Joiner::default();
        joiner.expect(10);
        joiner.pass(packet(0, b"one", false), true);
        assert_eq!(
            joiner.finish().unwrap().bytes(),
            packet(0, b"one", false).bytes()
        );
        assert!(joiner.pass(packet(3, b"more", false), true)[0].is_some());
    }
}
