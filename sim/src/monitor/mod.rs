//! Protocol monitor. It reads the packets of each host before the switch applies faults, and
//! reports violations of the RFCs. It has its own parser, so that it does not share faults with the
//! stack.

mod fpdu;
mod stream;

use std::collections::BTreeMap;

use crate::packet;
use fpdu::Framing;
use stream::Messages;

/// Length in bytes of an MPA Request or Reply without its private data (RFC 5044 section 7.1.1).
const STARTUP: usize = 20;
/// Flag M of a startup frame. The constants below are its other flags.
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// Value of IRD and ORD that means "not negotiated" (RFC 6581 section 9.1). Smaller values are
/// depths.
const NO_DEPTH: u16 = 0x3FFF;

/// An MPA Request or Reply.
#[derive(Clone, Debug)]
struct Startup {
    flags: u8,
    private_data: Vec<u8>,
}

impl Startup {
    /// Parses a startup frame at the start of `bytes`. Returns the frame with its length, or `None`
    /// if it is incomplete.
    fn read(bytes: &[u8], key: &[u8]) -> Result<Option<(Self, usize)>, String> {
        if bytes.len() < STARTUP {
            return Ok(None);
        }
        if bytes[..16] != *key {
            return Err("a startup frame has a wrong key".to_owned());
        }
        let end = STARTUP + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
        let startup = |bytes: &[u8]| Startup {
            flags: bytes[16],
            private_data: bytes[STARTUP..end].to_vec(),
        };
        Ok(bytes.get(..end).map(|bytes| (startup(bytes), end)))
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the IRD that the frame announces, if it announces one.
    fn ird(&self) -> Option<u16> {
        let bytes = self
            .private_data
            .first_chunk()
            .filter(|_| self.is(ENHANCED));
        let ird = bytes.map(|bytes| u16::from_be_bytes(*bytes) & NO_DEPTH);
        ird.filter(|ird| *ird != NO_DEPTH)
    }

    /// Returns the private data of the program, without the enhanced connection data.
    fn said(&self) -> &[u8] {
        let skip = if self.is(ENHANCED) { 4 } else { 0 };
        self.private_data.get(skip..).unwrap_or_default()
    }
}

/// State of one direction of a connection.
#[derive(Default)]
struct Side {
    /// Sequence number of the first byte, once known.
    first: Option<u32>,
    /// Sequence number of the next byte.
    next: Option<u32>,
    /// Bytes that have not been parsed yet.
    bytes: Vec<u8>,
    startup: Option<Startup>,
    /// Sequence number of the first byte after the startup frame.
    begin: Option<u32>,
    /// Number of bytes parsed after the startup frame.
    position: u64,
    messages: Messages,
}

/// Both directions of a connection, the initiator's first.
#[derive(Default)]
struct Pair {
    sides: [Side; 2],
    /// True if the connection is no longer parsed, because it was rejected or a violation was
    /// found.
    over: bool,
}

/// Change to bytes of a connection that TCP does not detect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// Private data of the program that requested the connection.
    pub(crate) said: Vec<u8>,
    /// True if the change is in an MPA Request or Reply, which no CRC covers.
    pub(crate) in_startup: bool,
}

/// Monitor of all connections.
#[derive(Default)]
pub(crate) struct Monitor {
    /// Connections by the flow of their initiator.
    pairs: BTreeMap<[u8; 6], Pair>,
    found: Option<String>,
}

impl Monitor {
    /// Takes the first violation found.
    pub(crate) fn take_finding(&mut self) -> Option<String> {
        self.found.take()
    }

    /// Reads a packet as its sender sent it, and records a violation.
    pub(crate) fn observe(&mut self, packet: &[u8]) {
        let (Some(flow), Some(at), Some(number), Some(flags)) = (
            packet::flow(packet),
            packet::payload_at(packet),
            packet::sequence(packet),
            packet::flags(packet),
        ) else {
            return;
        };
        if flags & packet::SYN != 0 {
            self.observe_syn(flow, number.wrapping_add(1));
            return;
        }
        let Some((pair, side)) = self.pair(flow) else {
            return;
        };
        if pair.over || !pair.sides[side].append_new(number, &packet[at..]) {
            return;
        }
        if let Err(error) = pair.read(side) {
            pair.over = true;
            let what = packet::describe(packet);
            self.found.get_or_insert(format!("{what}: {error}"));
        }
    }

    fn pair(&mut self, flow: [u8; 6]) -> Option<(&mut Pair, usize)> {
        let side = usize::from(!self.pairs.contains_key(&flow));
        let key = if side == 0 {
            flow
        } else {
            packet::reverse(flow)
        };
        self.pairs.get_mut(&key).map(|pair| (pair, side))
    }

    /// Handles a SYN: of a new connection, of the responder, or a retransmission.
    fn observe_syn(&mut self, flow: [u8; 6], next: u32) {
        match self.pair(flow) {
            Some((pair, 1)) => {
                pair.sides[1].set_first(next);
            }
            Some((pair, _))
                if pair.sides[0].bytes.is_empty() && pair.sides[0].next == Some(next) => {}
            _ => {
                let mut pair = Pair::default();
                pair.sides[0].set_first(next);
                self.pairs.insert(flow, pair);
            }
        }
    }

    /// Records that some of these bytes are about to be changed. Returns the affected connection,
    /// or `None` if no byte of the stream is affected.
    pub(crate) fn record_damage(
        &mut self,
        flow: [u8; 6],
        number: u32,
        len: usize,
    ) -> Option<Damaged> {
        let (pair, side) = self.pair(flow)?;
        // The keep-alive packet of many TCP stacks carries one byte that precedes the stream. The
        // receiver ignores this byte.
        let end = number.wrapping_add(u32::try_from(len).ok()?);
        if end.wrapping_sub(pair.sides[side].first?).cast_signed() <= 0 {
            return None;
        }
        let begin = pair.sides[side].begin;
        let in_startup = begin.is_none_or(|begin| number.wrapping_sub(begin).cast_signed() < 0);
        // After damage to a startup frame, the monitor does not know what the two sides negotiate.
        pair.over |= in_startup;
        Some(Damaged {
            said: pair.sides[0].startup.as_ref()?.said().to_vec(),
            in_startup,
        })
    }
}

impl Side {
    /// Records the sequence number of the first byte, unless it is already known.
    fn set_first(&mut self, first: u32) {
        self.first.get_or_insert(first);
        self.next.get_or_insert(first);
    }

    /// Appends the new bytes of a segment. Returns true if there were any.
    fn append_new(&mut self, number: u32, payload: &[u8]) -> bool {
        let Some(next) = &mut self.next else {
            return false;
        };
        // Hosts send their bytes in sequence, so there is never a gap.
        let known = next.wrapping_sub(number) as usize;
        let new = payload.get(known..).unwrap_or_default();
        self.bytes.extend_from_slice(new);
        *next = next.wrapping_add(u32::try_from(new.len()).unwrap_or_default());
        !new.is_empty()
    }
}

impl Pair {
    /// Parses and checks all complete frames of one side.
    fn read(&mut self, side: usize) -> Result<(), String> {
        if self.sides[side].startup.is_none() && !self.read_startup(side)? {
            return Ok(());
        }
        let [Some(request), Some(reply)] = self.sides.each_ref().map(|side| side.startup.as_ref())
        else {
            return match self.sides[side].bytes.len() {
                0 => Ok(()),
                _ => Err("FPDUs before the MPA Reply".to_owned()),
            };
        };
        if reply.is(REJECTED) {
            self.over = true;
            return Ok(());
        }
        // The peer's frame selects the Markers of this side. CRCs are on if either side wants them.
        let framing = Framing {
            markers: [reply, request][side].is(MARKERS),
            crc: request.is(CRC) || reply.is(CRC),
        };
        let depth = [reply, request][side].ird();
        loop {
            let [first, second] = &mut self.sides;
            let (me, peer) = if side == 0 {
                (first, second)
            } else {
                (second, first)
            };
            let Some((ulpdu, len)) = framing.next(&me.bytes, me.position)? else {
                return Ok(());
            };
            if side == 1 && peer.messages.fpdus == 0 {
                return Err("the responder sends an FPDU before the initiator's first".to_owned());
            }
            me.bytes.drain(..len);
            me.position += len as u64;
            me.messages.next(&ulpdu)?;
            let asked = me.messages.asked - peer.messages.answered.min(me.messages.asked);
            if depth.is_some_and(|depth| asked > u64::from(depth)) {
                return Err(format!(
                    "{asked} Reads are in flight, more than the peer's IRD {depth:?}"
                ));
            }
            if peer.messages.asked < me.messages.answered {
                return Err("a Read or Atomic Response without a Request".to_owned());
            }
        }
    }

    /// Parses the startup frame of a side. Returns true once it is complete.
    fn read_startup(&mut self, side: usize) -> Result<bool, String> {
        let key = [&b"MPA ID Req Frame"[..], b"MPA ID Rep Frame"][side];
        let me = &mut self.sides[side];
        let Some((startup, len)) = Startup::read(&me.bytes, key)? else {
            return Ok(false);
        };
        me.bytes.drain(..len);
        let behind = u32::try_from(me.bytes.len()).unwrap_or_default();
        me.begin = me.next.map(|next| next.wrapping_sub(behind));
        me.startup = Some(startup);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::segment;

    /// Returns a Request with the private data `hi`.
    fn request() -> Vec<u8> {
        let mut bytes = b"MPA ID Req Frame\x40\x01\x00\x02".to_vec();
        bytes.extend_from_slice(b"hi");
        bytes
    }

    /// Returns a packet from the initiator with this sequence number and these flags.
    fn packet(number: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = segment(payload);
        packet[33] = flags;
        packet::renumber(&mut packet, Some(number), None);
        packet
    }

    #[test]
    fn a_keep_alive_before_the_request_has_no_byte_that_can_be_damaged() {
        let mut monitor = Monitor::default();
        monitor.observe(&packet(99, packet::SYN, b""));
        let flow = packet::flow(&segment(b"")).unwrap();
        monitor.observe(&packet(99, 0x10, &[0]));
        assert_eq!(monitor.record_damage(flow, 99, 1), None);
        monitor.observe(&packet(100, 0x10, &request()));
        let damaged = |in_startup| Damaged {
            said: b"hi".to_vec(),
            in_startup,
        };
        // A retransmission may cover bytes that the receiver still lacks.
        assert_eq!(monitor.record_damage(flow, 122, 8), Some(damaged(false)));
        assert_eq!(monitor.record_damage(flow, 121, 8), Some(damaged(true)));
    }
}
