//! Protocol monitor. It reads the packets of each host before the switch applies faults, and
//! reports violations of the RFCs. Its parser is `uwarp-oracle`, which shares no code with the
//! stack.

mod stream;

use std::collections::BTreeMap;

use uwarp_oracle::{
    CRC, ENHANCED, Framing, MARKERS, NO_DEPTH, REJECT, REPLY, REQUEST, StartupFrame,
};

use crate::packet;
use stream::Messages;

/// Returns the IRD that a startup frame announces, if it announces one.
fn ird(frame: &StartupFrame) -> Option<u16> {
    let ird = frame.depths()?.0 & NO_DEPTH;
    (ird != NO_DEPTH).then_some(ird)
}

/// Returns the private data of the program, without the enhanced connection data.
fn said(frame: &StartupFrame) -> &[u8] {
    let skip = if frame.is(ENHANCED) { 4 } else { 0 };
    frame.private_data.get(skip..).unwrap_or_default()
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
    startup: Option<StartupFrame>,
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
            said: said(pair.sides[0].startup.as_ref()?).to_vec(),
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
        if reply.is(REJECT) {
            self.over = true;
            return Ok(());
        }
        // The peer's frame selects the Markers of this side. CRCs are on if either side wants them.
        let framing = Framing {
            markers: [reply, request][side].is(MARKERS),
            crc: request.is(CRC) || reply.is(CRC),
        };
        let depth = ird([reply, request][side]);
        loop {
            let [first, second] = &mut self.sides;
            let (me, peer) = if side == 0 {
                (first, second)
            } else {
                (second, first)
            };
            let fpdu = framing.read(&me.bytes, me.position);
            let Some(fpdu) = fpdu.map_err(|error| error.to_string())? else {
                // The rest may never arrive, because the connection can end here.
                let begun = framing.check_incomplete(&me.bytes, me.position);
                return begun.map_err(|error| error.to_string());
            };
            framing.check(&fpdu).map_err(|error| error.to_string())?;
            if side == 1 && peer.messages.fpdus == 0 {
                return Err("the responder sends an FPDU before the initiator's first".to_owned());
            }
            me.bytes.drain(..fpdu.len);
            me.position += fpdu.len as u64;
            me.messages.next(&fpdu.ulpdu)?;
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
        let key = [REQUEST, REPLY][side];
        let me = &mut self.sides[side];
        let startup = StartupFrame::parse(key, &me.bytes).map_err(|error| error.to_string())?;
        let Some((startup, len)) = startup else {
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
    use uwarp_oracle::{Fpdus, Untagged};

    use super::*;
    use crate::packet::tests::segment;

    /// Returns a Request with the private data `hi`.
    fn request() -> Vec<u8> {
        StartupFrame::new(REQUEST, CRC, 1, b"hi").bytes()
    }

    /// Returns a packet from the initiator with this sequence number and these flags.
    fn packet(number: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = segment(payload);
        packet[33] = flags;
        packet::renumber(&mut packet, Some(number), None);
        packet
    }

    /// Returns a packet from the responder.
    fn answer(number: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = packet(number, flags, payload);
        // Swaps the addresses and then the ports, which keeps the checksums.
        packet[12..20].rotate_left(4);
        packet[20..24].rotate_left(2);
        packet
    }

    #[test]
    fn a_wrong_marker_of_a_cut_fpdu_is_a_violation() {
        // The first FPDU begins with a Marker; the second Marker is in it. Both are whole in 516
        // bytes, and the FPDU is longer.
        for (marker_lie, len, is_found) in [(0, 516, false), (4, 516, true), (4, 3, false)] {
            let mut monitor = Monitor::default();
            monitor.observe(&packet(99, packet::SYN, b""));
            monitor.observe(&answer(199, packet::SYN, b""));
            monitor.observe(&packet(100, 0x10, &request()));
            let reply = StartupFrame::new(REPLY, CRC | MARKERS, 1, b"").bytes();
            monitor.observe(&answer(200, 0x10, &reply));
            let mut fpdus = Fpdus::new(true, true);
            fpdus.marker_lie = marker_lie;
            let fpdu = fpdus.seal(&Untagged::send(1).with(&[0; 600]));
            let begin = 100 + u32::try_from(request().len()).unwrap();
            monitor.observe(&packet(begin, 0x10, &fpdu[..len]));
            assert_eq!(monitor.take_finding().is_some(), is_found, "{len}");
        }
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
