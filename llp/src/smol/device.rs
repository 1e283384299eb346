//! What smoltcp takes for a network card: the inbox of one connection, and the way out.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;
use smoltcp::wire::TcpSeqNumber;

use super::burst::{BURST_MTU, allow_fragments, name_own_mss, raise_mss_of_peer, tcp_at};
use super::dataless::{DatalessSegment, part_fin};
use super::join::{Joiner, data_of};
use super::mailbox::Mailbox;
use super::packet::{Packet, Spares};
use super::segment::FlowKey;
use super::stack::{Route, Stack};
use super::window::{Peer, after};
use super::window_fixup::WindowFixup;

/// Bytes of TCP's header on a segment with data.
const TCP_HEADER: usize = 20;

/// Bytes of the headers of IPv6 and TCP with data.
const MOST_HEADERS: usize = 60;

/// The link end of one connection.
pub(crate) struct Device {
    /// Packets taken from the mailbox, not yet seen by smoltcp.
    pub(crate) inbox: VecDeque<Packet>,
    used: Vec<Packet>,
    transmitter: Transmitter,
    checksums: ChecksumCapabilities,
    pub(crate) peer: Peer,
    /// What smoltcp takes for the MTU. It asks once, when an interface is made.
    pub(crate) mtu: usize,
    /// The inbox at the other end was full when smoltcp last wanted to send; when there is room,
    /// our signal is raised.
    pub(crate) held_back: bool,
    /// Acknowledgements that say again that these bytes arrived, and nothing else, are dropped. At
    /// the third one smoltcp 0.14 would retransmit fast. When nothing but a FIN is unacknowledged,
    /// it sends nothing then, and stops the timer that would have sent the FIN again: if that was
    /// lost, both ends would wait for ever.
    pub(crate) skip_repeats: Option<u64>,
    /// The connection stands, so that what acknowledges bytes which never left is answered, and dropped (RFC 9293
    /// section 3.10.7.4). smoltcp 0.14 looks at what is in its send buffer, sent or not: it would take those
    /// bytes for arrived, and never send them.
    pub(crate) stands: bool,
    /// Such a segment was dropped and not answered yet.
    challenged: bool,
    /// Sends even into a full inbox: last words, for which nobody will come back.
    pub(crate) urgent: bool,
    mailbox: Arc<Mailbox>,
}

struct Transmitter {
    stack: Arc<Stack>,
    cut: Cut,
    spares: Spares,
    route: Route,
    window_fixup: WindowFixup,
    joiner: Joiner,
    path_mtu: usize,
    /// What tells the packets apart that may be fragmented.
    ident: u16,
}

/// How long the segments on the wire are to be that a burst is cut into.
#[derive(Default)]
struct Cut {
    /// The most that a segment on the wire may carry; 0 on a link that cuts nothing.
    emss: usize,
    /// What those of the segment carry that was handed over last, so that each begins with an FPDU.
    each: usize,
}

impl Cut {
    /// For the next segment, or one that is sent again. Most segments are like those before.
    fn octets(&self, again: bool) -> usize {
        let alike = self.each > self.emss / 2;
        if (again && !alike) || self.each == 0 {
            self.emss
        } else {
            self.each.min(self.emss)
        }
    }
}

impl Transmitter {
    /// Sends a packet, cut into segments of so many bytes where it is longer; 0 for one that must not be cut.
    fn transmit(&mut self, mut packet: Packet, cut: usize) {
        if cut > 0 {
            let data = data_of(&packet);
            let segment = if data > cut { cut } else { 0 };
            packet.left.segment = u16::try_from(segment).unwrap_or(u16::MAX);
        }
        self.stack.transmit(packet, &mut self.route);
    }

    fn take_packet(&mut self) -> Packet {
        self.spares.take(&self.stack.pool)
    }
}

impl Device {
    /// For a connection whose packets leave by `route`.
    pub(crate) fn new(stack: Arc<Stack>, mailbox: Arc<Mailbox>, route: Route) -> Self {
        let checksums = stack.checksums();
        let mtu = if stack.settings.bursts {
            BURST_MTU
        } else {
            stack.settings.mtu
        };
        let (spares, window_fixup) = (Spares::default(), WindowFixup::default());
        let transmitter = Transmitter {
            stack,
            cut: Cut::default(),
            spares,
            route,
            window_fixup,
            joiner: Joiner::default(),
            path_mtu: usize::MAX,
            ident: 0,
        };
        Self {
            inbox: VecDeque::new(),
            used: Vec::new(),
            transmitter,
            checksums,
            peer: Peer::default(),
            mtu,
            held_back: false,
            skip_repeats: None,
            stands: false,
            challenged: false,
            urgent: false,
            mailbox,
        }
    }

    /// Keeps the buffers of what was received for what will be sent.
    pub(crate) fn recycle(&mut self) {
        let Transmitter { stack, spares, .. } = &mut self.transmitter;
        spares.refill(&mut self.used, &stack.pool);
    }

    /// Gives all buffers back, when the connection ends.
    pub(crate) fn release(&mut self) {
        self.used.extend(self.inbox.drain(..));
        self.recycle();
        let Transmitter {
            stack,
            spares,
            route,
            ..
        } = &mut self.transmitter;
        spares.release(&stack.pool);
        route.inbox = None;
    }

    /// Whether the inbox at the other end is full: what smoltcp sends would be held back.
    pub(crate) fn holds_back(&mut self) -> bool {
        let Transmitter { stack, route, .. } = &self.transmitter;
        self.held_back = !self.urgent && stack.is_full(route, &self.mailbox);
        self.held_back
    }

    /// What smoltcp sends until [`Self::segment_is_made`] is one segment of so many bytes, for which
    /// [`Self::holds_back`] just found room.
    pub(crate) fn expect_segment(&mut self, octets: usize) {
        self.transmitter.joiner.expect(octets);
    }

    /// Whether smoltcp has made a part of the segment that is expected.
    pub(crate) fn segment_is_cut(&self) -> bool {
        self.transmitter.joiner.waits()
    }

    /// Sends what there is of the segment that was expected.
    pub(crate) fn segment_is_made(&mut self) {
        if let Some(part) = self.transmitter.joiner.finish() {
            let cut = self.transmitter.cut.octets(false);
            self.transmitter.transmit(part, cut);
        }
    }

    /// The segment that is handed over next is to be cut into those of `each` bytes, and what is sent of no such
    /// segment into those of `emss`; on a link that cuts.
    pub(crate) fn set_cut(&mut self, emss: usize, each: usize) {
        if self.transmitter.stack.settings.bursts {
            self.transmitter.cut = Cut { emss, each };
        }
    }

    /// The path takes no longer segments than of `emss`, also of what is sent again.
    pub(crate) fn limit_cut(&mut self, emss: usize) {
        let cut = &mut self.transmitter.cut;
        cut.emss = cut.emss.min(emss);
    }

    /// Whether the last of the `handed` bytes that were put into the send buffer was ever sent.
    pub(crate) fn all_left(&self, handed: u64) -> bool {
        let WindowFixup { syn, sent_to, .. } = &self.transmitter.window_fixup;
        syn.map(|syn| after(syn, handed)) == *sent_to
    }

    /// How many of the `handed` bytes were never sent.
    pub(crate) fn unsent(&self, handed: u64) -> usize {
        let WindowFixup { syn, sent_to, .. } = self.transmitter.window_fixup;
        syn.map_or(0, |syn| {
            let (end, sent) = (after(syn, handed), sent_to.unwrap_or(after(syn, 0)));
            if sent < end { end - sent } else { 0 }
        })
    }

    /// Whether something was sent again since this was last asked.
    pub(crate) fn take_resent(&mut self) -> bool {
        mem::take(&mut self.transmitter.window_fixup.resent)
    }

    /// Longer packets than this need fragmentation on their path.
    pub(crate) fn set_path_mtu(&mut self, path_mtu: usize) {
        self.transmitter.path_mtu = path_mtu;
    }

    /// Asks the peer to acknowledge again what it has acknowledged (RFC 9293 section 3.8.4), when
    /// `queued` of the `handed` bytes are not.
    pub(crate) fn ask(&mut self, key: &FlowKey, handed: u64, queued: usize) {
        let WindowFixup { syn, .. } = self.transmitter.window_fixup;
        let start = syn.map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        self.say_nothing_new(key, start.map(|start| start - 1), false);
    }

    /// Sends the FIN again, which was the last to leave.
    pub(crate) fn repeat_fin(&mut self, key: &FlowKey) {
        self.say_nothing_new(key, self.transmitter.window_fixup.last_left(), true);
    }

    fn say_nothing_new(&mut self, key: &FlowKey, seq: Option<TcpSeqNumber>, fin: bool) {
        let Transmitter { window_fixup, .. } = &self.transmitter;
        let (Some(seq), Some((ack, window))) = (seq, window_fixup.no_news()) else {
            return;
        };
        let segment = DatalessSegment {
            from: key.local,
            to: key.remote,
            seq,
            ack,
            window,
            fin,
        };
        let mut packet = self.transmitter.take_packet();
        segment.write(&mut packet, &self.checksums);
        let Transmitter { stack, route, .. } = &mut self.transmitter;
        stack.transmit(packet, route);
    }

    /// What smoltcp sends from now on by itself, when `queued` of the `handed` bytes are not
    /// acknowledged: whether a probe of the peer's window would have nothing to carry.
    pub(crate) fn before_egress(&mut self, handed: u64, queued: usize) {
        let probes = self.peer.window == 0 && queued > 0 && self.all_left(handed);
        let window_fixup = &mut self.transmitter.window_fixup;
        let start = window_fixup
            .syn
            .map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        window_fixup.empty_probe = start.filter(|_| probes).map(|start| start - 1);
    }

    /// The rest is in answer to what arrives.
    pub(crate) fn after_egress(&mut self) {
        self.transmitter.window_fixup.empty_probe = None;
    }

    /// What the peer has told us last of what it has and of its window, when `queued` of the `handed`
    /// bytes are not acknowledged, and `received` bytes arrived, a FIN counted as one.
    pub(crate) fn said_last(
        &self,
        key: &FlowKey,
        (handed, queued): (u64, usize),
        received: u64,
    ) -> Option<DatalessSegment> {
        let WindowFixup { syn, .. } = self.transmitter.window_fixup;
        Some(DatalessSegment {
            from: key.remote,
            to: key.local,
            seq: after(self.peer.syn?, received),
            ack: after(syn?, handed.wrapping_sub(queued as u64)),
            window: self.peer.window_field(),
            fin: false,
        })
    }

    /// Puts a segment of the peer's into the inbox.
    pub(crate) fn hear_again(&mut self, said: DatalessSegment) {
        let mut packet = self.transmitter.take_packet();
        said.write(&mut packet, &self.checksums);
        self.inbox.push_back(packet);
    }

    /// Whether what arrives acknowledges what never left.
    fn acknowledges_unsent(&self) -> bool {
        let next = self.transmitter.window_fixup.send_next();
        next.is_some_and(|next| self.peer.acknowledges_beyond(next))
    }

    /// Tells a peer that has acknowledged what never left how far we are; once for all that came together.
    pub(crate) fn answer_challenge(&mut self, key: &FlowKey) {
        if mem::take(&mut self.challenged) {
            self.say_nothing_new(key, self.transmitter.window_fixup.send_next(), false);
        }
    }

    /// Whether what arrives says nothing but that these bytes arrived.
    fn only_repeats(&self, octets: u64) -> bool {
        let syn = self.transmitter.window_fixup.syn;
        syn.is_some_and(|syn| self.peer.only_repeats(after(syn, octets)))
    }

    /// The segment just shown to smoltcp had these effects; see [`Peer::arrived`].
    pub(crate) fn arrived(&mut self, states: (State, State), handed: u64, queued: usize) {
        let syn = self.transmitter.window_fixup.syn;
        self.peer.arrived(states, syn, handed, queued);
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let packet = loop {
            let mut packet = self.inbox.pop_front()?;
            if let Some(fin) = part_fin(packet.octets_mut(), &self.checksums) {
                let mut second = self.transmitter.take_packet();
                fin.write(&mut second, &self.checksums);
                self.inbox.push_front(second);
            }
            let acknowledged = self.transmitter.window_fixup.acknowledged();
            self.peer.arrives(packet.octets(), acknowledged);
            if self.transmitter.stack.settings.bursts {
                let octets = packet.octets_mut();
                raise_mss_of_peer(octets, BURST_MTU - tcp_at(octets) - TCP_HEADER);
            }
            if self.stands && self.acknowledges_unsent() {
                self.challenged = true;
                self.peer.unheard();
                self.used.push(packet);
                continue;
            }
            match self.skip_repeats {
                Some(octets) if self.only_repeats(octets) => self.used.push(packet),
                _ => break packet,
            }
        };
        self.transmitter.window_fixup.arrived(packet.octets());
        Some((
            RxToken {
                packet,
                used: &mut self.used,
            },
            TxToken(&mut self.transmitter),
        ))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        // There was room for the segment when it was begun. What others put there since must not
        // divide it; a queue takes some packets more than it asks for.
        let begun = self.transmitter.joiner.expects();
        (begun || !self.holds_back()).then_some(TxToken(&mut self.transmitter))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = self.checksums.clone();
        capabilities
    }
}

/// A packet that arrived.
pub(crate) struct RxToken<'a> {
    packet: Packet,
    used: &'a mut Vec<Packet>,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(self.packet.octets());
        self.used.push(self.packet);
        result
    }
}

/// The right to send one packet.
pub(crate) struct TxToken<'a>(&'a mut Transmitter);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let this = self.0;
        let settings = &this.stack.settings;
        let (checksums, bursts) = (settings.checksums, settings.bursts);
        // A first part is to have room for the second.
        let most = if bursts { BURST_MTU } else { settings.mtu };
        let room = (this.joiner.expected() + MOST_HEADERS).min(most).max(len);
        let mut packet = this.spares.take_for(room, &this.stack.pool);
        let octets = packet.resize(len);
        let result = f(octets);
        let sent_to = this.window_fixup.sent_to;
        this.window_fixup.leaving(octets, checksums);
        let again = this.window_fixup.sent_to == sent_to;
        let mut cut = 0;
        let mut longest = octets.len();
        if bursts {
            cut = this.cut.octets(again);
            let headers = tcp_at(octets) + TCP_HEADER;
            name_own_mss(octets, settings.mtu.saturating_sub(headers));
            longest = longest.min(headers + cut);
        }
        if longest > this.path_mtu {
            this.ident = this.ident.wrapping_add(1);
            allow_fragments(octets, this.ident);
        }
        if this.joiner.expects() {
            for part in this.joiner.pass(packet, checksums).into_iter().flatten() {
                this.transmit(part, cut);
            }
            if let Some(used) = this.joiner.take_used() {
                this.stack.pool.give_one(used);
            }
        } else {
            this.transmit(packet, cut);
        }
        result
    }
}
