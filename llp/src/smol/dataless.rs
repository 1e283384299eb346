//! Segments without data that smoltcp does not make by itself.
//!
//! One use is to split a received segment with data and a FIN into two. smoltcp 0.14 discards data
//! beyond its receive window, and then places the FIN directly after the data that it keeps. The
//! stream would end early without an error. (Another smoltcp may send such segments, after repeated
//! acknowledgements.) A FIN in a separate segment counts only after all data before it has arrived.

use std::net::SocketAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::packet::Packet;
use super::window_fixup::split;

const HOP_LIMIT: u8 = 64;

/// An acknowledgement without data, optionally with a FIN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatalessSegment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: TcpSeqNumber,
    pub(crate) ack: TcpSeqNumber,
    /// Value of the window field.
    pub(crate) window: u16,
    pub(crate) fin: bool,
}

impl DatalessSegment {
    /// Writes this segment into `packet`.
    pub(crate) fn write(&self, packet: &mut Packet, checksums: &ChecksumCapabilities) {
        let tcp = TcpRepr {
            src_port: self.from.port(),
            dst_port: self.to.port(),
            control: if self.fin {
                TcpControl::Fin
            } else {
                TcpControl::None
            },
            seq_number: self.seq,
            ack_number: Some(self.ack),
            window_len: self.window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let (from, to) = (self.from.ip().into(), self.to.ip().into());
        let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
        let bytes = packet.resize(ip.buffer_len());
        ip.emit(&mut *bytes, checksums);
        let mut segment = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
        tcp.emit(&mut segment, &from, &to, checksums);
    }
}

/// Removes the FIN from a segment with data. Returns the segment with the FIN that has to follow,
/// or `None` if the packet is not such a segment.
pub(crate) fn part_fin(
    packet: &mut [u8],
    checksums: &ChecksumCapabilities,
) -> Option<DatalessSegment> {
    if !has_fin(packet) {
        return None;
    }
    let (from, to, mut tcp) = split(packet)?;
    let data = tcp.as_ref().len() - usize::from(tcp.header_len());
    if data == 0 || !tcp.ack() || tcp.rst() || tcp.syn() {
        return None;
    }
    if checksums.tcp.rx() && !tcp.verify_checksum(&from, &to) {
        return None;
    }
    tcp.set_fin(false);
    if checksums.tcp.rx() {
        tcp.fill_checksum(&from, &to);
    }
    Some(DatalessSegment {
        from: SocketAddr::new(from.into(), tcp.src_port()),
        to: SocketAddr::new(to.into(), tcp.dst_port()),
        seq: tcp.seq_number() + data,
        ack: tcp.ack_number(),
        window: tcp.window_len(),
        fin: true,
    })
}

/// Returns true if the FIN bit is set in an IP packet without extensions.
fn has_fin(packet: &[u8]) -> bool {
    let at = match packet.first().map(|byte| byte >> 4) {
        Some(4) => usize::from(packet[0] & 0xf) * 4,
        _ => 40,
    };
    packet.get(at + 13).is_some_and(|flags| flags & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dataless(v6: bool, fin: bool) -> DatalessSegment {
        let (from, to) = if v6 {
            ("[2001:db8::1]:7", "[2001:db8::2]:9")
        } else {
            ("192.0.2.1:7", "192.0.2.2:9")
        };
        DatalessSegment {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            seq: TcpSeqNumber(i32::MAX - 2),
            ack: TcpSeqNumber(-5),
            window: 70,
            fin,
        }
    }

    fn written(dataless: &DatalessSegment) -> Vec<u8> {
        let mut packet = Packet::new(100);
        dataless.write(&mut packet, &ChecksumCapabilities::default());
        packet.bytes().to_vec()
    }

    /// Makes a segment with `data` bytes and a FIN, and appends `padding` bytes after the IP
    /// packet.
    fn closing(v6: bool, data: usize, padding: usize) -> Vec<u8> {
        let mut packet = written(&dataless(v6, true));
        packet.extend(vec![7; data]);
        let bytes = u16::try_from(20 + data).unwrap();
        if v6 {
            packet[4..6].copy_from_slice(&bytes.to_be_bytes());
        } else {
            packet[2..4].copy_from_slice(&(20 + bytes).to_be_bytes());
        }
        let (from, to, mut tcp) = split(&mut packet).unwrap();
        tcp.fill_checksum(&from, &to);
        packet.extend(vec![0; padding]);
        packet
    }

    fn fin_and_valid(packet: &mut [u8]) -> (bool, bool) {
        let (from, to, tcp) = split(packet).unwrap();
        (tcp.fin(), tcp.verify_checksum(&from, &to))
    }

    #[test]
    fn a_fin_comes_behind_its_data() {
        let checksums = ChecksumCapabilities::default();
        for v6 in [false, true] {
            for (data, padding) in [(1, 0), (1, 5), (1000, 0)] {
                let mut packet = closing(v6, data, padding);
                let fin = part_fin(&mut packet, &checksums).unwrap();
                assert_eq!(fin_and_valid(&mut packet), (false, true));
                assert_eq!(fin.seq, dataless(v6, true).seq + data);
                assert_eq!(
                    (fin.from, fin.to),
                    (dataless(v6, true).from, dataless(v6, true).to)
                );
                assert_eq!((fin.ack, fin.window), (TcpSeqNumber(-5), 70));
                assert_eq!(fin_and_valid(&mut written(&fin)), (true, true));
                assert!(part_fin(&mut packet, &checksums).is_none());
            }
        }
    }

    #[test]
    fn what_has_no_data_no_fin_or_damage_stays_as_it_is() {
        let checksums = ChecksumCapabilities::default();
        for v6 in [false, true] {
            let mut damaged = closing(v6, 9, 0);
            *damaged.last_mut().unwrap() ^= 1;
            for mut packet in [
                written(&dataless(v6, true)),
                written(&dataless(v6, false)),
                damaged,
            ] {
                let before = packet.clone();
                assert!(part_fin(&mut packet, &checksums).is_none());
                assert_eq!(packet, before);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parted_or_left_alone(mut packet: Vec<u8>, head in 0_u8..=255) {
            if let Some(first) = packet.first_mut() {
                *first = head;
            }
            part_fin(&mut packet, &ChecksumCapabilities::ignored());
        }
    }
}
