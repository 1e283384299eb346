//! Tracks the peer's MSS and window from the headers of its segments, because smoltcp keeps them
//! private.
//!
//! A segment is parsed before smoltcp processes it, and counts only if smoltcp then accepted it. A
//! SYN was accepted if smoltcp's state changed. An acknowledgement was accepted if the send buffer
//! now begins at its number. A segment that lies entirely before the next expected byte (a
//! retransmission, or a late segment) does not count: smoltcp ignores everything in it, even a
//! larger window.

use smoltcp::socket::tcp::State;
use smoltcp::wire::TcpSeqNumber;

use super::segment::Segment;

/// Largest window scale shift (RFC 7323 section 2.3).
const MAX_SHIFT: u8 = 14;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// State of the peer, according to its headers.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// MSS option of the peer's SYN: `Some(None)` for a SYN without it.
    pub(crate) mss: Option<Option<u16>>,
    shift: u8,
    /// True if the peer's SYN had the window scale option. This side's windows are then scaled too.
    pub(crate) scales: bool,
    /// The peer's window in bytes, counted from the first unacknowledged byte.
    pub(crate) window: usize,
    /// Largest window in bytes that the peer ever offered.
    pub(crate) largest_window: usize,
    /// Sequence number of the peer's SYN.
    pub(crate) syn: Option<TcpSeqNumber>,
    /// True if the last segment only repeated an acknowledgement. With bytes in flight, that is a
    /// duplicate acknowledgement (RFC 5681 section 2), which indicates a loss.
    pub(crate) repeated: bool,
    heard: Option<Heard>,
}

/// Fields of the segment that smoltcp is about to process.
#[derive(Debug, Clone, Copy)]
struct Heard {
    seq: TcpSeqNumber,
    bytes: usize,
    ack: TcpSeqNumber,
    window: u16,
    /// MSS and window scale options of a SYN.
    syn: Option<(Option<u16>, Option<u8>)>,
    /// True if the segment has no data, and no flag except ACK.
    pure_ack: bool,
    /// True if the segment has options. They may be SACK blocks, which report bytes received after
    /// a gap.
    options: bool,
}

impl Heard {
    fn read(packet: &[u8]) -> Option<Self> {
        let at = match packet.first()? >> 4 {
            4 => usize::from(packet[0] & 0xf) * 4,
            6 => 40,
            _ => return None,
        };
        let tcp: &[u8; 16] = packet.get(at..)?.first_chunk()?;
        let [_, _, _, _, e, f, g, h, a, b, c, d, offset, flags, high, low] = *tcp;
        let header = at + usize::from(offset >> 4) * 4;
        let syn = if flags & SYN == 0 {
            None
        } else {
            Segment::parse(packet).map(|segment| (segment.mss, segment.window_scale))
        };
        Some(Self {
            seq: TcpSeqNumber(i32::from_be_bytes([e, f, g, h])),
            bytes: packet.len().saturating_sub(header),
            ack: TcpSeqNumber(i32::from_be_bytes([a, b, c, d])),
            window: u16::from_be_bytes([high, low]),
            syn,
            pure_ack: flags & 0x3f == ACK && header == packet.len(),
            options: offset >> 4 > 5,
        })
    }

    /// Returns true if the segment ends at or before `acknowledged` and begins before it.
    fn is_before(&self, acknowledged: TcpSeqNumber) -> bool {
        self.seq < acknowledged && self.seq + self.bytes <= acknowledged
    }
}

impl Peer {
    /// Parses a segment that smoltcp is about to process. `acknowledged` is the last
    /// acknowledgement number that this side has sent.
    #[inline]
    pub(crate) fn arrives(&mut self, packet: &[u8], acknowledged: Option<TcpSeqNumber>) {
        self.heard = Heard::read(packet)
            .filter(|heard| acknowledged.is_none_or(|acknowledged| !heard.is_before(acknowledged)));
    }

    /// Returns true if the parsed segment is a pure acknowledgement of `ack`.
    pub(crate) fn only_repeats(&self, ack: TcpSeqNumber) -> bool {
        self.heard
            .is_some_and(|heard| heard.pure_ack && heard.ack == ack)
    }

    /// Records the segment's fields if smoltcp accepted it. `states` holds smoltcp's state before
    /// and after the segment. `our_syn` is the sequence number of this side's SYN. `handed` bytes
    /// were ever put into the send buffer, and `queued` are in it now.
    pub(crate) fn arrived(
        &mut self,
        states: (State, State),
        our_syn: Option<TcpSeqNumber>,
        handed: u64,
        queued: usize,
    ) {
        self.repeated = false;
        let Some(heard) = self.heard.take() else {
            return;
        };
        if let Some((mss, shift)) = heard.syn {
            let opening = matches!(states.0, State::Listen | State::SynSent);
            if opening && matches!(states.1, State::SynReceived | State::Established) {
                self.mss = Some(mss);
                self.syn = Some(heard.seq);
                self.shift = shift.unwrap_or(0).min(MAX_SHIFT);
                self.scales = shift.is_some();
                // The window of a SYN is not scaled.
                self.offered(usize::from(heard.window));
            }
            return;
        }
        let acknowledged = handed.wrapping_sub(queued as u64);
        let start = our_syn.map(|syn| after(syn, acknowledged));
        if start == Some(heard.ack) {
            let window = usize::from(heard.window) << self.shift;
            self.repeated = heard.pure_ack && (heard.options || window == self.window);
            self.offered(window);
        }
    }

    /// Returns the peer's window as the value of the window field in a segment other than a SYN.
    pub(crate) fn window_field(&self) -> u16 {
        u16::try_from(self.window >> self.shift).unwrap_or(u16::MAX)
    }

    fn offered(&mut self, window: usize) {
        self.window = window;
        self.largest_window = self.largest_window.max(window);
    }
}

/// Returns the sequence number after the first `bytes` bytes of the stream, which begins after the
/// SYN. Sequence numbers wrap at 2^32.
pub(crate) fn after(syn: TcpSeqNumber, bytes: u64) -> TcpSeqNumber {
    let [.., a, b, c, d] = bytes.wrapping_add(1).to_be_bytes();
    TcpSeqNumber(syn.0.wrapping_add(i32::from_be_bytes([a, b, c, d])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUR_SYN: TcpSeqNumber = TcpSeqNumber(-3);
    const OPEN: (State, State) = (State::Established, State::Established);

    /// Makes a segment with `bytes` data bytes that acknowledges 10 bytes.
    fn segment(seq: i32, bytes: usize, window: u16, v6: bool) -> Vec<u8> {
        let (version, at) = if v6 { (0x60, 40) } else { (0x45, 20) };
        let mut packet = vec![0; at + 20 + bytes];
        packet[0] = version;
        packet[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        packet[at + 8..at + 12].copy_from_slice(&after(OUR_SYN, 10).0.to_be_bytes());
        packet[at + 12..at + 14].copy_from_slice(&[5 << 4, ACK]);
        packet[at + 14..at + 16].copy_from_slice(&window.to_be_bytes());
        packet
    }

    #[test]
    fn a_window_counts_unless_its_segment_lies_before_what_was_acknowledged() {
        for v6 in [false, true] {
            for start in [5, i32::MAX - 50] {
                let at = |bytes: i32| start.wrapping_add(bytes);
                let acknowledged = Some(TcpSeqNumber(at(100)));
                for (seq, bytes, counts) in [
                    (at(100), 0, true),
                    (at(100), 7, true),
                    (at(200), 7, true),
                    (at(90), 11, true),
                    (at(90), 10, false),
                    (at(99), 0, false),
                    (at(0), 7, false),
                ] {
                    let mut peer = Peer::default();
                    peer.arrives(&segment(start, 0, 300, v6), None);
                    peer.arrived(OPEN, Some(OUR_SYN), 10, 0);
                    peer.arrives(&segment(seq, bytes, 500, v6), acknowledged);
                    peer.arrived(OPEN, Some(OUR_SYN), 10, 0);
                    let window = if counts { 500 } else { 300 };
                    assert_eq!(peer.window, window, "{seq} {bytes} {v6}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_packet_of_ip_says_nothing() {
        let mut peer = Peer::default();
        let mut packet = segment(5, 0, 500, true);
        packet[0] = 0x70;
        for bytes in [&packet[..], &packet[..30], &[]] {
            peer.arrives(bytes, None);
            peer.arrived(OPEN, Some(OUR_SYN), 10, 0);
        }
        assert_eq!(peer.window, 0);
    }
}
