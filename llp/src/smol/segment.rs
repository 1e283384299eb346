//! Fields of received segments for the demultiplexer, and the segments that it sends by itself.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpProtocol, IpRepr, IpVersion, Ipv4Packet, Ipv6Packet, TcpControl, TcpOption, TcpPacket,
    TcpRepr, TcpSeqNumber,
};

use super::packet::Packet;

/// TTL or hop limit of packets that the demultiplexer sends.
const HOP_LIMIT: u8 = 64;

/// Both ends of a connection, as seen from one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// Fields of a received segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// Addresses from the point of view of the receiving stack.
    pub(crate) key: FlowKey,
    pub(crate) syn: bool,
    pub(crate) ack: Option<TcpSeqNumber>,
    pub(crate) rst: bool,
    pub(crate) fin: bool,
    pub(crate) seq: TcpSeqNumber,
    pub(crate) payload: usize,
    /// Value of the MSS option, which only a SYN carries.
    pub(crate) mss: Option<u16>,
    /// Value of the window scale option, which only a SYN carries.
    pub(crate) window_scale: Option<u8>,
}

/// Returns source address, destination address and TCP segment of an IP packet. `None` for a
/// fragment or another protocol.
fn tcp_of(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    // smoltcp would panic on an empty packet when it reads the version.
    packet.first()?;
    match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            let whole = !ip.more_frags() && ip.frag_offset() == 0;
            (whole && ip.next_header() == IpProtocol::Tcp).then(|| {
                (
                    IpAddr::V4(ip.src_addr()),
                    IpAddr::V4(ip.dst_addr()),
                    ip.payload(),
                )
            })
        }
        IpVersion::Ipv6 => {
            let ip = Ipv6Packet::new_checked(packet).ok()?;
            (ip.next_header() == IpProtocol::Tcp).then(|| {
                (
                    IpAddr::V6(ip.src_addr()),
                    IpAddr::V6(ip.dst_addr()),
                    ip.payload(),
                )
            })
        }
    }
}

/// Returns true if the checksums of a TCP segment and of its IP header are correct.
pub(crate) fn is_intact(packet: &[u8]) -> bool {
    let header = match Ipv4Packet::new_checked(packet) {
        Ok(ip) if ip.version() == 4 => ip.verify_checksum(),
        _ => true,
    };
    let tcp = tcp_of(packet).and_then(|(source, destination, bytes)| {
        let tcp = TcpPacket::new_checked(bytes).ok()?;
        Some(tcp.verify_checksum(&source.into(), &destination.into()))
    });
    header && tcp == Some(true)
}

impl Segment {
    /// Parses an IP packet. Returns `None` if it is not a complete TCP segment.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let (source, destination, bytes) = tcp_of(packet)?;
        let tcp = TcpPacket::new_checked(bytes).ok()?;
        let (mss, window_scale) = if tcp.syn() {
            syn_options(tcp.options())
        } else {
            (None, None)
        };
        Some(Self {
            key: FlowKey {
                local: SocketAddr::new(destination, tcp.dst_port()),
                remote: SocketAddr::new(source, tcp.src_port()),
            },
            syn: tcp.syn(),
            ack: tcp.ack().then(|| tcp.ack_number()),
            rst: tcp.rst(),
            fin: tcp.fin(),
            seq: tcp.seq_number(),
            payload: tcp.payload().len(),
            mss,
            window_scale,
        })
    }

    /// Returns the reset that answers a segment for which no connection exists (RFC 9293 section
    /// 3.10.7.1). `None` if the segment is itself a reset, which is never answered.
    pub(crate) fn reset(&self) -> Option<Answer> {
        if self.rst {
            return None;
        }
        Some(match self.ack {
            Some(ack) => Answer {
                control: TcpControl::Rst,
                seq: ack,
                ack: None,
            },
            None => Answer {
                control: TcpControl::Rst,
                seq: TcpSeqNumber(0),
                ack: Some(self.end()),
            },
        })
    }

    /// Returns the acknowledgement for a FIN that arrives after the owner dropped the connection.
    pub(crate) fn acknowledgement(&self) -> Option<Answer> {
        let seq = self.ack?;
        Some(Answer {
            control: TcpControl::None,
            seq,
            ack: Some(self.end()),
        })
    }

    /// Returns the sequence number after the segment.
    fn end(&self) -> TcpSeqNumber {
        self.seq + self.payload + usize::from(self.syn) + usize::from(self.fin)
    }
}

/// Returns the values of the MSS and window scale options of a SYN.
pub(crate) fn syn_options(mut options: &[u8]) -> (Option<u16>, Option<u8>) {
    let mut found = (None, None);
    while let Ok((rest, option)) = TcpOption::parse(options) {
        match option {
            TcpOption::MaxSegmentSize(mss) => found.0 = Some(mss),
            TcpOption::WindowScale(shift) => found.1 = Some(shift),
            TcpOption::EndOfList => break,
            _ => {}
        }
        options = rest;
    }
    found
}

/// A segment without data that a stack sends by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    control: TcpControl,
    seq: TcpSeqNumber,
    ack: Option<TcpSeqNumber>,
}

impl Answer {
    /// Creates the challenge ACK for a segment of a handshake (RFC 5961 section 3.2).
    pub(crate) fn challenge(seq: TcpSeqNumber, ack: TcpSeqNumber) -> Self {
        Self {
            control: TcpControl::None,
            seq,
            ack: Some(ack),
        }
    }

    /// Writes the segment as an IP packet from `key.local` to `key.remote`.
    pub(crate) fn write(
        &self,
        key: &FlowKey,
        checksums: &ChecksumCapabilities,
        packet: &mut Packet,
    ) {
        let tcp = TcpRepr {
            src_port: key.local.port(),
            dst_port: key.remote.port(),
            control: self.control,
            seq_number: self.seq,
            ack_number: self.ack,
            window_len: 0,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let (source, destination) = (key.local.ip().into(), key.remote.ip().into());
        let ip = IpRepr::new(
            source,
            destination,
            IpProtocol::Tcp,
            tcp.buffer_len(),
            HOP_LIMIT,
        );
        let buffer = packet.resize(ip.buffer_len());
        ip.emit(&mut *buffer, checksums);
        if let Some(bytes) = buffer.get_mut(ip.header_len()..) {
            tcp.emit(
                &mut TcpPacket::new_unchecked(bytes),
                &source,
                &destination,
                checksums,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(v6: bool) -> FlowKey {
        let text = if v6 {
            ["[2001:db8::1]:7", "[2001:db8::2]:9"]
        } else {
            ["192.0.2.1:7", "192.0.2.2:9"]
        };
        FlowKey {
            local: text[0].parse().unwrap(),
            remote: text[1].parse().unwrap(),
        }
    }

    fn written(answer: Answer, key: &FlowKey) -> Packet {
        let mut packet = Packet::new(0);
        answer.write(key, &ChecksumCapabilities::default(), &mut packet);
        packet
    }

    #[test]
    fn what_is_written_is_read_back_from_the_other_side() {
        for v6 in [false, true] {
            let key = key(v6);
            let answer = Answer {
                control: TcpControl::Rst,
                seq: TcpSeqNumber(5),
                ack: Some(TcpSeqNumber(6)),
            };
            let read = Segment::parse(written(answer, &key).bytes()).unwrap();
            assert_eq!(
                read.key,
                FlowKey {
                    local: key.remote,
                    remote: key.local
                }
            );
            assert!(read.rst && !read.syn && !read.fin);
            assert_eq!(
                (read.seq, read.ack),
                (TcpSeqNumber(5), Some(TcpSeqNumber(6)))
            );
        }
    }

    #[test]
    fn a_reset_of_a_syn_acknowledges_it_and_a_reset_is_never_answered() {
        let segment = Segment {
            key: key(false),
            syn: true,
            ack: None,
            rst: false,
            fin: false,
            seq: TcpSeqNumber(41),
            payload: 0,
            mss: None,
            window_scale: None,
        };
        assert_eq!(segment.reset().unwrap().ack, Some(TcpSeqNumber(42)));
        assert!(
            Segment {
                rst: true,
                ..segment
            }
            .reset()
            .is_none()
        );
    }

    #[test]
    fn a_segment_with_any_bit_flipped_is_not_intact() {
        let answer = Answer {
            control: TcpControl::Rst,
            seq: TcpSeqNumber(5),
            ack: Some(TcpSeqNumber(6)),
        };
        for v6 in [false, true] {
            let packet = written(answer, &key(v6));
            let mut bytes = packet.bytes().to_vec();
            assert!(is_intact(&bytes));
            // The IPv6 header has no checksum, but TCP's checksum covers its addresses.
            let first = if v6 { 8 } else { 0 };
            for bit in first * 8..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_intact(&bytes), "{v6} {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn no_bytes_and_cut_packets_are_no_segment() {
        let answer = Answer {
            control: TcpControl::None,
            seq: TcpSeqNumber(0),
            ack: None,
        };
        let packet = written(answer, &key(false));
        for end in 0..packet.bytes().len() {
            assert!(Segment::parse(&packet.bytes()[..end]).is_none(), "{end}");
        }
    }
}
