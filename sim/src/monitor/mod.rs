//! Who looks at the wire: reads what each host sends before anything befalls it, and tells what no RFC allows. It knows
//! the formats by itself, so that a fault of the stack does not hide itself.

mod fpdu;
mod stream;

use std::collections::BTreeMap;

use crate::packet;
use fpdu::Framing;
use stream::Messages;

/// Bytes of an MPA Request or Reply in front of its private data (RFC 5044 section 7.1.1).
const STARTUP: usize = 20;
/// Flags of one.
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// IRD and ORD are numbers below this one, which means that nobody says (RFC 6581 section 9.1).
const NO_DEPTH: u16 = 0x3FFF;

/// An MPA Request or Reply.
#[derive(Clone, Debug)]
struct Startup {
    flags: u8,
    private_data: Vec<u8>,
}

impl Startup {
    /// The one that `octets` begin with, when it is whole, and its length.
    fn read(octets: &[u8], key: &[u8]) -> Result<Option<(Self, usize)>, String> {
        if octets.len() < STARTUP {
            return Ok(None);
        }
        if octets[..16] != *key {
            return Err("a startup frame has another key".to_owned());
        }
        let end = STARTUP + usize::from(u16::from_be_bytes([octets[18], octets[19]]));
        let startup = |octets: &[u8]| Startup {
            flags: octets[16],
            private_data: octets[STARTUP..end].to_vec(),
        };
        Ok(octets.get(..end).map(|octets| (startup(octets), end)))
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The Reads that it says may come.
    fn ird(&self) -> Option<u16> {
        let octets = self
            .private_data
            .first_chunk()
            .filter(|_| self.is(ENHANCED));
        let ird = octets.map(|octets| u16::from_be_bytes(*octets) & NO_DEPTH);
        ird.filter(|ird| *ird != NO_DEPTH)
    }

    /// What the program has said.
    fn said(&self) -> &[u8] {
        let skip = if self.is(ENHANCED) { 4 } else { 0 };
        self.private_data.get(skip..).unwrap_or_default()
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Side {
    /// The number of the first byte; `None` as long as nobody knows.
    first: Option<u32>,
    /// The number of the next byte.
    next: Option<u32>,
    /// Bytes that are not read yet.
    octets: Vec<u8>,
    startup: Option<Startup>,
    /// The number of the first byte behind the startup.
    begin: Option<u32>,
    /// Bytes read behind it.
    position: u64,
    messages: Messages,
}

/// A connection: who asked first.
#[derive(Default)]
struct Pair {
    sides: [Side; 2],
    /// Nobody reads it any more: it was rejected, or something was found.
    over: bool,
}

/// Bytes of a connection were changed, and TCP does not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// What the program has said that asked for the connection.
    pub(crate) said: Vec<u8>,
    /// In an MPA Request or Reply, which no CRC covers.
    pub(crate) in_startup: bool,
}

/// All connections.
#[derive(Default)]
pub(crate) struct Monitor {
    /// By the flow of the initiator.
    pairs: BTreeMap<[u8; 6], Pair>,
    found: Option<String>,
}

impl Monitor {
    /// What was found first.
    pub(crate) fn found(&mut self) -> Option<String> {
        self.found.take()
    }

    /// A packet as its sender has sent it.
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
            self.begins(flow, number.wrapping_add(1));
            return;
        }
        let Some((pair, side)) = self.pair(flow) else {
            return;
        };
        if pair.over || !pair.sides[side].takes(number, &packet[at..]) {
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

    /// A SYN: the first of a connection, or of the side that answers, or one that is sent again.
    fn begins(&mut self, flow: [u8; 6], next: u32) {
        match self.pair(flow) {
            Some((pair, 1)) => {
                pair.sides[1].begins(next);
            }
            Some((pair, _))
                if pair.sides[0].octets.is_empty() && pair.sides[0].next == Some(next) => {}
            _ => {
                let mut pair = Pair::default();
                pair.sides[0].begins(next);
                self.pairs.insert(flow, pair);
            }
        }
    }

    /// Some of these bytes are about to be changed; gives whose they are.
    pub(crate) fn damages(&mut self, flow: [u8; 6], number: u32, len: usize) -> Option<Damaged> {
        let (pair, side) = self.pair(flow)?;
        // An byte before the first of the stream, as the keep-alive of many a TCP has: nobody takes it.
        let end = number.wrapping_add(u32::try_from(len).ok()?);
        if end.wrapping_sub(pair.sides[side].first?).cast_signed() <= 0 {
            return None;
        }
        let begin = pair.sides[side].begin;
        let in_startup = begin.is_none_or(|begin| number.wrapping_sub(begin).cast_signed() < 0);
        // Nobody knows what the two have agreed on then.
        pair.over |= in_startup;
        Some(Damaged {
            said: pair.sides[0].startup.as_ref()?.said().to_vec(),
            in_startup,
        })
    }
}

impl Side {
    /// A SYN says so; the first of them.
    fn begins(&mut self, first: u32) {
        self.first.get_or_insert(first);
        self.next.get_or_insert(first);
    }

    /// Takes what is new of a segment; gives whether anything was.
    fn takes(&mut self, number: u32, payload: &[u8]) -> bool {
        let Some(next) = &mut self.next else {
            return false;
        };
        // Hosts send in order, so there is never a gap.
        let known = next.wrapping_sub(number) as usize;
        let new = payload.get(known..).unwrap_or_default();
        self.octets.extend_from_slice(new);
        *next = next.wrapping_add(u32::try_from(new.len()).unwrap_or_default());
        !new.is_empty()
    }
}

impl Pair {
    /// Reads all that is whole of one side.
    fn read(&mut self, side: usize) -> Result<(), String> {
        if self.sides[side].startup.is_none() && !self.read_startup(side)? {
            return Ok(());
        }
        let [Some(request), Some(reply)] = self.sides.each_ref().map(|side| side.startup.as_ref())
        else {
            return match self.sides[side].octets.len() {
                0 => Ok(()),
                _ => Err("FPDUs before the Reply".to_owned()),
            };
        };
        if reply.is(REJECTED) {
            self.over = true;
            return Ok(());
        }
        // Each says what the other one has to send.
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
            let Some((ulpdu, len)) = framing.next(&me.octets, me.position)? else {
                return Ok(());
            };
            if side == 1 && peer.messages.fpdus == 0 {
                return Err("the responder sends an FPDU before the initiator has".to_owned());
            }
            me.octets.drain(..len);
            me.position += len as u64;
            me.messages.next(&ulpdu)?;
            let asked = me.messages.asked - peer.messages.answered.min(me.messages.asked);
            if depth.is_some_and(|depth| asked > u64::from(depth)) {
                return Err(format!("{asked} Reads are under way, and IRD is {depth:?}"));
            }
            if peer.messages.asked < me.messages.answered {
                return Err("an answer that nobody has asked for".to_owned());
            }
        }
    }

    /// Whether the startup frame of a side is whole now.
    fn read_startup(&mut self, side: usize) -> Result<bool, String> {
        let key = [&b"MPA ID Req Frame"[..], b"MPA ID Rep Frame"][side];
        let me = &mut self.sides[side];
        let Some((startup, len)) = Startup::read(&me.octets, key)? else {
            return Ok(false);
        };
        me.octets.drain(..len);
        let behind = u32::try_from(me.octets.len()).unwrap_or_default();
        me.begin = me.next.map(|next| next.wrapping_sub(behind));
        me.startup = Some(startup);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::segment;

    /// With the key of a Request that says `hi`.
    fn request() -> Vec<u8> {
        let mut octets = b"MPA ID Req Frame\x40\x01\x00\x02".to_vec();
        octets.extend_from_slice(b"hi");
        octets
    }

    /// A packet of the initiator with this number and these flags.
    fn packet(number: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = segment(payload);
        packet[33] = flags;
        packet::renumber(&mut packet, Some(number), None);
        packet
    }

    #[test]
    fn a_keep_alive_before_the_request_has_no_octet_that_can_be_damaged() {
        let mut monitor = Monitor::default();
        monitor.observe(&packet(99, packet::SYN, b""));
        let flow = packet::flow(&segment(b"")).unwrap();
        monitor.observe(&packet(99, 0x10, &[0]));
        assert_eq!(monitor.damages(flow, 99, 1), None);
        monitor.observe(&packet(100, 0x10, &request()));
        let damaged = |in_startup| Damaged {
            said: b"hi".to_vec(),
            in_startup,
        };
        // What is sent again may begin in front of what nobody has.
        assert_eq!(monitor.damages(flow, 122, 8), Some(damaged(false)));
        assert_eq!(monitor.damages(flow, 121, 8), Some(damaged(true)));
    }
}
