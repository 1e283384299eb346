//! Protection against forged segments of an attacker who cannot see the connection's packets (RFC
//! 5961).
//!
//! Such an attacker knows the addresses and ports, or tries them, and guesses sequence numbers.
//! smoltcp 0.14 resets a connection for a RST anywhere in its window. With a window of 256 KiB,
//! 16,384 guesses cover all sequence numbers. So every segment is checked here before smoltcp
//! processes it:
//! * A RST passes if it has exactly the next expected sequence number. Any other RST in the window
//!   is dropped and answered by a challenge ACK. A RST outside the window is dropped (section 3.2).
//! * A SYN is dropped and answered by a challenge ACK (section 4.2).
//! * An acknowledgement must lie between SND.UNA - MAX.SND.WND and SND.NXT. A segment with a number
//!   outside this range is dropped, including its data, and answered by a challenge ACK (section
//!   5.2). smoltcp itself accepts acknowledgements of any bytes in its send buffer, even unsent
//!   ones. It would treat the unsent bytes as received and never send them.
//!
//! If the peer has indeed reset or forgotten the connection, it answers the challenge ACK with a
//! RST that has exactly the expected number.
//!
//! In SYN-RECEIVED only the first rule applies, because smoltcp itself accepts just one
//! acknowledgement number then. In SYN-SENT no rule applies: smoltcp itself requires that a RST
//! acknowledges the SYN.

use smoltcp::time::{Duration, Instant};
use smoltcp::wire::TcpSeqNumber;

use super::burst::tcp_at;

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Maximum number of challenge ACKs of one connection in [`INTERVAL`]. This is the rate that RFC
/// 5961 section 7 suggests, 10 in 5 seconds. A reset by the peer needs one challenge ACK. The
/// second one is for a reset that arrives in the same second as another cause, such as a repeated
/// SYN.
///
/// Each connection has its own count. An attacker with another connection could see that a common
/// count is used up, and so learn that a guess was in the window.
const CHALLENGES: u8 = 2;

/// Time for which [`CHALLENGES`] are counted.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sequence and acknowledgement numbers that a segment of the peer can have. They are known once
/// the peer's SYN has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// Next expected sequence number: RCV.NXT.
    pub(crate) receive_next: TcpSeqNumber,
    /// Number of bytes that the peer may send from `receive_next` on: RCV.WND.
    pub(crate) receive_window: usize,
    /// Lowest and highest acceptable acknowledgement number. `None` in SYN-RECEIVED.
    pub(crate) acks: Option<(TcpSeqNumber, TcpSeqNumber)>,
}

/// Decision about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The segment is passed to smoltcp.
    Pass,
    /// The segment is dropped without an answer.
    Drop,
    /// The segment is dropped and answered by a challenge ACK.
    Challenge,
}

impl Expected {
    /// Decides about a segment. A packet without a complete TCP header passes, because smoltcp
    /// rejects it.
    #[inline]
    pub(crate) fn judge(&self, packet: &[u8]) -> Verdict {
        let header = packet.get(tcp_at(packet)..).and_then(<[u8]>::first_chunk);
        let Some(&[_, _, _, _, e, f, g, h, a, b, c, d, _, flags]) = header else {
            return Verdict::Pass;
        };
        if flags & RST != 0 {
            return self.judge_reset(TcpSeqNumber(i32::from_be_bytes([e, f, g, h])));
        }
        let Some((lowest, highest)) = self.acks else {
            return Verdict::Pass;
        };
        let ack = TcpSeqNumber(i32::from_be_bytes([a, b, c, d]));
        let in_range = lowest <= ack && ack <= highest;
        // A segment without the ACK bit passes, because smoltcp drops it.
        if flags & SYN != 0 || (flags & ACK != 0 && !in_range) {
            Verdict::Challenge
        } else {
            Verdict::Pass
        }
    }

    /// Decides about a RST. The number just after the window counts as in the window: a peer that
    /// has filled the window sends its RST with that number.
    fn judge_reset(&self, seq: TcpSeqNumber) -> Verdict {
        let end = self.receive_next + self.receive_window;
        if seq == self.receive_next {
            Verdict::Pass
        } else if self.receive_next < seq && seq <= end {
            Verdict::Challenge
        } else {
            Verdict::Drop
        }
    }
}

/// Limits the challenge ACKs of one connection (RFC 5961 section 7).
#[derive(Debug)]
pub(crate) struct ChallengeLimit {
    /// End of the current interval.
    until: Instant,
    left: u8,
}

impl Default for ChallengeLimit {
    fn default() -> Self {
        Self {
            until: Instant::ZERO,
            left: 0,
        }
    }
}

impl ChallengeLimit {
    /// Counts a challenge ACK. Returns true if it may be sent.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if now >= self.until {
            self.until = now + INTERVAL;
            self.left = CHALLENGES;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Llp;
    use crate::smol::connection::Scene;
    use crate::smol::packet::Packet;
    use crate::smol::segment::{FlowKey, Segment};
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;

    /// Makes a segment without options.
    fn segment(seq: TcpSeqNumber, ack: TcpSeqNumber, flags: u8, v6: bool) -> Vec<u8> {
        let (version, at) = if v6 { (0x60, 40) } else { (0x45, 20) };
        let mut packet = vec![0; at + 20];
        packet[0] = version;
        packet[at + 4..at + 8].copy_from_slice(&seq.0.to_be_bytes());
        packet[at + 8..at + 12].copy_from_slice(&ack.0.to_be_bytes());
        packet[at + 12..at + 14].copy_from_slice(&[5 << 4, flags]);
        packet
    }

    fn moved(number: TcpSeqNumber, by: i64) -> TcpSeqNumber {
        TcpSeqNumber((i64::from(number.0) + by) as i32)
    }

    /// Returns the signed distance between two serial numbers (RFC 1982).
    fn distance(from: TcpSeqNumber, to: TcpSeqNumber) -> i64 {
        i64::from(to.0.wrapping_sub(from.0))
    }

    fn any_number() -> impl Strategy<Value = TcpSeqNumber> {
        any::<i32>().prop_map(TcpSeqNumber)
    }

    proptest! {
        #[test]
        fn rfc_5961_sections_3_2_and_4_2_and_5_2(
            receive_next in any_number(),
            receive_window in prop_oneof![Just(0_usize), 0..2_usize << 18],
            lowest in any_number(),
            acks in prop_oneof![Just(0_i64), 0..1_i64 << 20],
            handshake: bool,
            flags in 0..64_u8,
            seq in prop_oneof![-3..4_i64, -600_000..600_000_i64, any::<i32>().prop_map(i64::from)],
            beyond: bool,
            ack in prop_oneof![-3..4_i64, -2_000_000..2_000_000_i64],
            v6: bool,
        ) {
            let highest = moved(lowest, acks);
            let expected = Expected {
                receive_next,
                receive_window,
                acks: (!handshake).then_some((lowest, highest)),
            };
            let window = receive_window as i64;
            let seq = moved(receive_next, if beyond { seq + window } else { seq });
            let ack = moved(if beyond { highest } else { lowest }, ack);
            let offset = distance(receive_next, seq);
            let verdict = expected.judge(&segment(seq, ack, flags, v6));
            let acceptable = distance(lowest, ack) >= 0 && distance(ack, highest) >= 0;
            let right = if flags & RST != 0 {
                match offset {
                    0 => Verdict::Pass,
                    offset if offset > 0 && offset <= window => Verdict::Challenge,
                    _ => Verdict::Drop,
                }
            } else if !handshake && (flags & SYN != 0 || flags & ACK != 0 && !acceptable) {
                Verdict::Challenge
            } else {
                Verdict::Pass
            };
            prop_assert_eq!(verdict, right);
        }
    }

    #[test]
    fn rfc_5961_7_two_challenges_in_a_second() {
        let mut limit = ChallengeLimit::default();
        for second in [0, 1, 2, 3600] {
            let at = |millis| Instant::from_millis(1000 * second + millis);
            let taken = [0, 1, 2, 500, 999].map(|millis| limit.take(at(millis)));
            assert_eq!(taken, [true, true, false, false, false]);
        }
    }

    /// A segment with a wrong checksum is dropped before its numbers are considered.
    #[test]
    fn a_damaged_reset_is_dropped_without_a_challenge() {
        for v6 in [false, true] {
            let mut scene = Scene::new(v6);
            scene.client.drive();
            let expected = scene.client.expected().unwrap();
            let key = FlowKey {
                local: scene.client.peer_addr(),
                remote: scene.client.local_addr(),
            };
            let mut reset = Packet::new(100);
            let segment = Segment {
                key,
                syn: false,
                ack: Some(expected.receive_next + 5),
                rst: false,
                fin: false,
                seq: TcpSeqNumber(0),
                payload: 0,
                mss: None,
                window_scale: None,
            };
            let checksums = ChecksumCapabilities::default();
            let answer = segment.reset().unwrap();
            answer.write(&key, &checksums, &mut reset);
            let len = reset.bytes().len();
            let mut deliver = |bytes: &[u8]| {
                let mut packet = Packet::new(100);
                packet.resize(len).copy_from_slice(bytes);
                assert!(scene.client.mailbox().deliver(packet).is_ok());
                scene.packets();
                scene.client.drive();
                assert_eq!(scene.client.lost(), None);
                scene.packets().len()
            };
            // A damaged window field, and a damaged checksum.
            for at in [len - 6, len - 4] {
                let mut damaged = reset.bytes().to_vec();
                damaged[at] ^= 1;
                assert_eq!(deliver(&damaged), 0);
            }
            assert_eq!(deliver(reset.bytes()), 1);
        }
    }

    #[test]
    fn cut_packets_are_left_to_smoltcp() {
        let expected = Expected {
            receive_next: TcpSeqNumber(7),
            receive_window: 0,
            acks: None,
        };
        for v6 in [false, true] {
            let packet = segment(TcpSeqNumber(9), TcpSeqNumber(9), RST, v6);
            let header = if v6 { 40 } else { 20 };
            for end in 0..header + 14 {
                assert_eq!(expected.judge(&packet[..end]), Verdict::Pass);
            }
            assert_eq!(expected.judge(&packet), Verdict::Drop);
        }
    }
}
