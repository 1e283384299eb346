//! The network device of a smoltcp interface: the inbox of one connection, and its way out.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;
use smoltcp::wire::TcpSeqNumber;

use super::burst::{BURST_MTU, allow_fragments, name_own_mss, raise_mss_of_peer, tcp_at};
use super::challenge::{ChallengeLimit, Expected, Verdict};
use super::dataless::{DatalessSegment, part_fin};
use super::join::{Joiner, data_of};
use super::mailbox::Mailbox;
use super::packet::{Packet, Spares};
use super::segment::{self, FlowKey};
use super::stack::{Route, Stack};
use super::window::{Peer, after};
use super::window_fixup::WindowFixup;

/// Size of the TCP header of a segment with data, in bytes.
const TCP_HEADER: usize = 20;

/// Size of the headers of an IPv6 segment with data, in bytes.
const MOST_HEADERS: usize = 60;

/// Network device of one connection.
pub(crate) struct Device {
    /// Packets taken from the mailbox that smoltcp has not processed yet.
    pub(crate) inbox: VecDeque<Packet>,
    used: Vec<Packet>,
    transmitter: Transmitter,
    checksums: ChecksumCapabilities,
    pub(crate) peer: Peer,
    /// MTU that smoltcp sees. It reads the value once, when an interface is created.
    pub(crate) mtu: usize,
    /// The inbox at the other end was full when smoltcp last wanted to send. This connection's
    /// signal is raised when there is room.
    pub(crate) held_back: bool,
    /// Drop acknowledgements that only repeat that this many bytes arrived. At the third one
    /// smoltcp 0.14 would start a fast retransmit. If only a FIN is unacknowledged, it then sends
    /// nothing, and stops the timer that would have sent the FIN again. If the FIN was lost, both
    /// ends would wait forever.
    pub(crate) skip_repeats: Option<u64>,
    /// Numbers that the next segment of the peer must have. `None` before the peer's SYN and after
    /// the end.
    pub(crate) expected: Option<Expected>,
    /// A segment with other numbers was dropped and not answered yet.
    challenged: bool,
    challenges: ChallengeLimit,
    /// Send even if the inbox is full, because the connection ends and cannot try again.
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
    /// Identification of packets that may be fragmented.
    ident: u16,
}

/// Length of the wire segments that a burst is cut into.
#[derive(Default)]
struct Cut {
    /// Longest segment on the wire; 0 on a link that cuts nothing.
    emss: usize,
    /// Length of the segments of the burst handed over last, chosen so that each begins with an
    /// FPDU.
    each: usize,
}

impl Cut {
    /// Segment length for the next burst, or for one that is sent `again`. Most bursts have the
    /// segment length of the one before.
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
    /// Sends a packet. If it has more than `cut` bytes of data, the link cuts it into such
    /// segments; with 0 it must not be cut.
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
    /// Creates the device of a connection whose packets take `route`.
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
            expected: None,
            challenged: false,
            challenges: ChallengeLimit::default(),
            urgent: false,
            mailbox,
        }
    }

    /// Keeps the buffers of received packets for packets to be sent.
    pub(crate) fn recycle(&mut self) {
        let Transmitter { stack, spares, .. } = &mut self.transmitter;
        spares.refill(&mut self.used, &stack.pool);
    }

    /// Returns all buffers when the connection ends.
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

    /// Returns true if the inbox at the other end is full, so that nothing can be sent now. The
    /// signal is then raised when there is room.
    pub(crate) fn hold_back_if_full(&mut self) -> bool {
        let Transmitter { stack, route, .. } = &self.transmitter;
        self.held_back = !self.urgent && stack.subscribe_if_full(route, &self.mailbox);
        self.held_back
    }

    /// Announces that smoltcp's packets until [`Self::end_segment`] are one segment of `octets`
    /// bytes. [`Self::hold_back_if_full`] has just found room for it.
    pub(crate) fn expect_segment(&mut self, octets: usize) {
        self.transmitter.joiner.expect(octets);
    }

    /// Returns true if smoltcp has made only a part of the announced segment.
    pub(crate) fn has_partial_segment(&self) -> bool {
        self.transmitter.joiner.waits()
    }

    /// Sends what there is of the announced segment.
    pub(crate) fn end_segment(&mut self) {
        if let Some(part) = self.transmitter.joiner.finish() {
            let cut = self.transmitter.cut.octets(false);
            self.transmitter.transmit(part, cut);
        }
    }

    /// Sets the segment length of the next burst to `each` bytes, and that of other packets to
    /// `emss`. Does nothing on a link that does not cut.
    pub(crate) fn set_cut(&mut self, emss: usize, each: usize) {
        if self.transmitter.stack.settings.bursts {
            self.transmitter.cut = Cut { emss, each };
        }
    }

    /// Limits segments to `emss` bytes because of the path, also those of retransmissions.
    pub(crate) fn limit_cut(&mut self, emss: usize) {
        let cut = &mut self.transmitter.cut;
        cut.emss = cut.emss.min(emss);
    }

    /// Returns true if all of the `handed` bytes put into the send buffer were sent at least once.
    pub(crate) fn all_sent_once(&self, handed: u64) -> bool {
        let WindowFixup { syn, sent_to, .. } = &self.transmitter.window_fixup;
        syn.map(|syn| after(syn, handed)) == *sent_to
    }

    /// Number of the `handed` bytes that were never sent.
    pub(crate) fn unsent(&self, handed: u64) -> usize {
        let WindowFixup { syn, sent_to, .. } = self.transmitter.window_fixup;
        syn.map_or(0, |syn| {
            let (end, sent) = (after(syn, handed), sent_to.unwrap_or(after(syn, 0)));
            if sent < end { end - sent } else { 0 }
        })
    }

    /// Returns true if anything was sent again since the last call.
    pub(crate) fn take_resent(&mut self) -> bool {
        mem::take(&mut self.transmitter.window_fixup.resent)
    }

    /// Sets the packet length above which packets need fragmentation on the path.
    pub(crate) fn set_path_mtu(&mut self, path_mtu: usize) {
        self.transmitter.path_mtu = path_mtu;
    }

    /// Makes the peer repeat its last acknowledgement (RFC 9293 section 3.8.4). `queued` of the
    /// `handed` bytes are unacknowledged.
    pub(crate) fn request_ack(&mut self, key: &FlowKey, handed: u64, queued: usize) {
        let WindowFixup { syn, .. } = self.transmitter.window_fixup;
        let start = syn.map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        let last = self.transmitter.window_fixup.last_ack();
        self.send_dataless(key, start.map(|start| start - 1), last, false);
    }

    /// Sends the FIN again, which was sent last.
    pub(crate) fn repeat_fin(&mut self, key: &FlowKey) {
        let window_fixup = &self.transmitter.window_fixup;
        let (seq, last) = (window_fixup.last_left(), window_fixup.last_ack());
        self.send_dataless(key, seq, last, true);
    }

    /// Sends a segment without data, with this acknowledgement number and window field.
    fn send_dataless(
        &mut self,
        key: &FlowKey,
        seq: Option<TcpSeqNumber>,
        ack: Option<(TcpSeqNumber, u16)>,
        fin: bool,
    ) {
        let (Some(seq), Some((ack, window))) = (seq, ack) else {
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

    /// Prepares for packets that smoltcp sends by itself. `queued` of the `handed` bytes are
    /// unacknowledged. Finds out whether a probe of the peer's window would carry no data, and
    /// where that window ends.
    pub(crate) fn before_egress(&mut self, handed: u64, queued: usize) {
        let probes = self.peer.window == 0 && queued > 0 && self.all_sent_once(handed);
        let window_fixup = &mut self.transmitter.window_fixup;
        let start = window_fixup
            .syn
            .map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        window_fixup.empty_probe = start.filter(|_| probes).map(|start| start - 1);
        window_fixup.peer_window_end = start.map(|start| start + self.peer.window);
    }

    /// Ends the preparation: later packets are answers to arrivals.
    pub(crate) fn after_egress(&mut self) {
        self.transmitter.window_fixup.empty_probe = None;
        self.transmitter.window_fixup.peer_window_end = None;
    }

    /// Rebuilds the last acknowledgement of the peer, with its window. `queued` of the `handed`
    /// bytes are unacknowledged, and `received` bytes arrived, including the FIN.
    pub(crate) fn last_ack_of_peer(
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

    /// Puts a segment into the inbox as if the peer had sent it.
    pub(crate) fn replay(&mut self, said: DatalessSegment) {
        let mut packet = self.transmitter.take_packet();
        said.write(&mut packet, &self.checksums);
        self.inbox.push_back(packet);
    }

    /// Acceptable acknowledgement numbers (RFC 5961 section 5.2). `queued` of the `handed` bytes
    /// are unacknowledged.
    pub(crate) fn acceptable_acks(
        &self,
        handed: u64,
        queued: usize,
    ) -> Option<(TcpSeqNumber, TcpSeqNumber)> {
        let window_fixup = &self.transmitter.window_fixup;
        let start = after(window_fixup.syn?, handed.wrapping_sub(queued as u64));
        Some((start - self.peer.largest_window, window_fixup.send_next()?))
    }

    /// Judges an arriving segment, and notes that it needs an answer. Returns true if it has to be
    /// dropped.
    fn rejects(&mut self, packet: &Packet) -> bool {
        let Some(expected) = &self.expected else {
            return false;
        };
        let verdict = expected.judge(packet.octets());
        // A damaged segment is dropped without an answer.
        self.challenged |= verdict == Verdict::Challenge
            && (!self.checksums.tcp.rx() || segment::is_intact(packet.octets()));
        verdict != Verdict::Pass
    }

    /// Sends a challenge ACK for segments that were dropped: one for all that arrived together, and
    /// none beyond the limit.
    pub(crate) fn answer_challenge(&mut self, key: &FlowKey, now: Instant) {
        if !mem::take(&mut self.challenged) {
            return;
        }
        let Some(Expected { receive_next, .. }) = self.expected else {
            return;
        };
        let window_fixup = &self.transmitter.window_fixup;
        // Without a window, smoltcp has not acknowledged the peer's SYN yet, and soon does.
        let window = window_fixup.window_from(receive_next, self.peer.scales);
        let seq = window_fixup.send_next();
        if window.is_some() && self.challenges.take(now) {
            let ack = window.map(|window| (receive_next, window));
            self.send_dataless(key, seq, ack, false);
        }
    }

    /// Returns true if the arriving segment says only that these bytes arrived.
    fn only_repeats(&self, octets: u64) -> bool {
        let syn = self.transmitter.window_fixup.syn;
        syn.is_some_and(|syn| self.peer.only_repeats(after(syn, octets)))
    }

    /// Records the effects of the segment just shown to smoltcp. See [`Peer::arrived`].
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
            if self.rejects(&packet) {
                self.used.push(packet);
                continue;
            }
            let acknowledged = self.transmitter.window_fixup.acknowledged();
            self.peer.arrives(packet.octets(), acknowledged);
            if self.transmitter.stack.settings.bursts {
                let octets = packet.octets_mut();
                raise_mss_of_peer(octets, BURST_MTU - tcp_at(octets) - TCP_HEADER);
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
        // There was room when the segment was begun. Packets that others added since must not
        // divide it; a queue takes a few packets beyond its limit.
        let begun = self.transmitter.joiner.expects();
        (begun || !self.hold_back_if_full()).then_some(TxToken(&mut self.transmitter))
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

/// Permission to send one packet.
pub(crate) struct TxToken<'a>(&'a mut Transmitter);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let this = self.0;
        let settings = &this.stack.settings;
        let (checksums, bursts) = (settings.checksums, settings.bursts);
        // The first part needs room for the second.
        let most = if bursts { BURST_MTU } else { settings.mtu };
        let room = (this.joiner.expected() + MOST_HEADERS).min(most).max(len);
        let mut packet = this.spares.take_for(room, &this.stack.pool);
        let octets = packet.resize(len);
        let result = f(octets);
        let sent_to = this.window_fixup.sent_to;
        this.window_fixup.fix_outgoing(octets, checksums);
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
