//! Network device of a smoltcp interface: it receives from the inbox of one connection and sends to
//! the link.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities};
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
use super::syn_ack::capabilities;
use super::window::{Peer, after};
use super::window_fixup::WindowFixup;

/// Size of the TCP header of a segment with data, in bytes.
const TCP_HEADER: usize = 20;

/// Size of the headers of an IPv6 segment with data, in bytes.
const MOST_HEADERS: usize = 60;

/// Network device of one connection.
pub(crate) struct Device {
    /// Packets that were taken from `mailbox` but that smoltcp has not processed yet.
    pub(crate) inbox: VecDeque<Packet>,
    used: Vec<Packet>,
    transmitter: Transmitter,
    checksums: ChecksumCapabilities,
    pub(crate) peer: Peer,
    /// MTU that smoltcp sees. smoltcp reads it once, when an interface is created.
    pub(crate) mtu: usize,
    /// True if the inbox at the other end, or a queue of the link, was full when smoltcp last tried
    /// to send. This connection's signal is raised when there is room again.
    pub(crate) held_back: bool,
    /// If set, repeated acknowledgements of exactly this many stream bytes are dropped. At the
    /// third repetition smoltcp 0.14 would start a fast retransmit. If only a FIN is
    /// unacknowledged, smoltcp then sends nothing, and stops the timer that would have sent the FIN
    /// again. If the FIN was lost, both ends would wait forever.
    pub(crate) skip_repeats: Option<u64>,
    /// Numbers that the peer's next segment can have. `None` before the peer's SYN arrives and
    /// after the connection has ended.
    pub(crate) expected: Option<Expected>,
    /// True if the challenge ACK for a dropped segment was not sent yet.
    challenged: bool,
    challenges: ChallengeLimit,
    /// True if packets are sent even if the inbox at the other end, or a queue of the link, is
    /// full, because the connection ends and cannot try again.
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
    /// True while packets are dropped, because they were sent before the connection was created.
    muted: bool,
    /// Identification of packets that may be fragmented.
    ident: u16,
}

/// Lengths of the wire segments into which bursts are cut.
#[derive(Default)]
struct Cut {
    /// Longest segment on the wire; 0 on a link that does not cut.
    emss: usize,
    /// Segment length of the burst handed over last, chosen so that each segment begins with an
    /// FPDU.
    each: usize,
}

impl Cut {
    /// Segment length for the next packet of smoltcp. `again`: the packet has no new bytes. A
    /// retransmitted packet may belong to an older burst, for which `each` was not computed.
    /// Segment lengths of bursts are usually similar, so `each` is still used, but only if it is
    /// more than half of EMSS.
    fn bytes(&self, again: bool) -> usize {
        let alike = self.each > self.emss / 2;
        if (again && !alike) || self.each == 0 {
            self.emss
        } else {
            self.each.min(self.emss)
        }
    }
}

impl Transmitter {
    /// Sends a packet. The link cuts it into segments of `cut` bytes if its data is longer. If
    /// `cut` is 0, the packet is not cut.
    fn transmit(&mut self, mut packet: Packet, cut: usize) {
        if cut > 0 {
            let data = data_of(&packet);
            let segment = if data > cut { cut } else { 0 };
            packet.offload.segment = u16::try_from(segment).unwrap_or(u16::MAX);
        }
        if self.muted {
            return self.stack.pool.give_one(packet);
        }
        self.stack.transmit(packet, &mut self.route);
    }

    fn take_packet(&mut self) -> Packet {
        self.spares.take(&self.stack.pool)
    }
}

impl Device {
    /// Creates the device of a connection whose packets use `route`.
    pub(crate) fn new(stack: Arc<Stack>, mailbox: Arc<Mailbox>, route: Route) -> Self {
        let capabilities = capabilities(&stack.settings, stack.checksums());
        let (spares, window_fixup) = (Spares::default(), WindowFixup::default());
        let transmitter = Transmitter {
            stack,
            cut: Cut::default(),
            spares,
            route,
            window_fixup,
            joiner: Joiner::default(),
            path_mtu: usize::MAX,
            muted: false,
            ident: 0,
        };
        Self {
            inbox: VecDeque::new(),
            used: Vec::new(),
            transmitter,
            checksums: capabilities.checksum,
            peer: Peer::default(),
            mtu: capabilities.max_transmission_unit,
            held_back: false,
            skip_repeats: None,
            expected: None,
            challenged: false,
            challenges: ChallengeLimit::default(),
            urgent: false,
            mailbox,
        }
    }

    /// Begins or ends to drop packets instead of sending them. Meanwhile no packet is held back.
    pub(crate) fn mute(&mut self, muted: bool) {
        self.transmitter.muted = muted;
        self.urgent = muted;
    }

    /// Moves the buffers of processed packets to the spare buffers for sending.
    pub(crate) fn recycle(&mut self) {
        let Transmitter { stack, spares, .. } = &mut self.transmitter;
        spares.refill(&mut self.used, &stack.pool);
    }

    /// Returns all buffers to the stack's pool when the connection ends.
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

    /// Checks whether the inbox at the other end, or a queue of the link, is full. Records the
    /// result in `held_back` and returns it. If true, this connection's signal is raised once there
    /// is room.
    pub(crate) fn hold_back_if_full(&mut self) -> bool {
        let Transmitter { stack, route, .. } = &self.transmitter;
        self.held_back = !self.urgent && stack.subscribe_if_full(route, &self.mailbox);
        self.held_back
    }

    /// Announces that smoltcp's packets until [`Self::end_segment`] form one segment of `bytes`
    /// bytes. Call it only after [`Self::hold_back_if_full`] has returned false.
    pub(crate) fn expect_segment(&mut self, bytes: usize) {
        self.transmitter.joiner.expect(bytes);
    }

    /// Returns true if smoltcp has made only the first part of the announced segment.
    pub(crate) fn has_partial_segment(&self) -> bool {
        self.transmitter.joiner.waits()
    }

    /// Ends the announced segment, and sends its first part if the second is missing.
    pub(crate) fn end_segment(&mut self) {
        if let Some(part) = self.transmitter.joiner.finish() {
            let cut = self.transmitter.cut.bytes(false);
            self.transmitter.transmit(part, cut);
        }
    }

    /// Sets the segment length of the next burst to `each` bytes, and the longest segment to
    /// `emss`. Does nothing on a link that does not cut.
    pub(crate) fn set_cut(&mut self, emss: usize, each: usize) {
        if self.transmitter.stack.settings.bursts {
            self.transmitter.cut = Cut { emss, each };
        }
    }

    /// Limits all segments, including retransmissions, to `emss` bytes because of the path's MTU.
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

    /// Returns true if bytes were sent again since the last call, and clears this flag.
    pub(crate) fn take_resent(&mut self) -> bool {
        mem::take(&mut self.transmitter.window_fixup.resent)
    }

    /// Sets the path's MTU. Routers have to fragment longer packets.
    pub(crate) fn set_path_mtu(&mut self, path_mtu: usize) {
        self.transmitter.path_mtu = path_mtu;
    }

    /// Sends a segment that makes the peer repeat its last acknowledgement (RFC 9293 section
    /// 3.8.4). `queued` of the `handed` bytes are unacknowledged.
    pub(crate) fn request_ack(&mut self, key: &FlowKey, handed: u64, queued: usize) {
        let WindowFixup { syn, .. } = self.transmitter.window_fixup;
        let start = syn.map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        let last = self.transmitter.window_fixup.last_ack();
        self.send_dataless(key, start.map(|start| start - 1), last, false);
    }

    /// Sends the FIN again. The FIN must be the last segment that was sent.
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

    /// Prepares for packets that smoltcp sends on its own initiative. `queued` of the `handed`
    /// bytes are unacknowledged. Records whether the next packet may be a window probe without
    /// data, and where the peer's window ends.
    pub(crate) fn before_egress(&mut self, handed: u64, queued: usize) {
        let probes = self.peer.window == 0 && queued > 0 && self.all_sent_once(handed);
        let window_fixup = &mut self.transmitter.window_fixup;
        let start = window_fixup
            .syn
            .map(|syn| after(syn, handed.wrapping_sub(queued as u64)));
        window_fixup.empty_probe = start.filter(|_| probes).map(|start| start - 1);
        window_fixup.peer_window_end = start.map(|start| start + self.peer.window);
    }

    /// Ends the effect of [`Self::before_egress`]. Later packets are answers to received packets.
    pub(crate) fn after_egress(&mut self) {
        self.transmitter.window_fixup.empty_probe = None;
        self.transmitter.window_fixup.peer_window_end = None;
    }

    /// Rebuilds the last acknowledgement of the peer, with its window. `queued` of the `handed`
    /// bytes are unacknowledged. `received` is the number of bytes received, where a FIN counts as
    /// one.
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

    /// Returns the lowest and highest acceptable acknowledgement number (RFC 5961 section 5.2).
    /// `queued` of the `handed` bytes are unacknowledged.
    pub(crate) fn acceptable_acks(
        &self,
        handed: u64,
        queued: usize,
    ) -> Option<(TcpSeqNumber, TcpSeqNumber)> {
        let window_fixup = &self.transmitter.window_fixup;
        let start = after(window_fixup.syn?, handed.wrapping_sub(queued as u64));
        Some((start - self.peer.largest_window, window_fixup.send_next()?))
    }

    /// Checks a received segment, and records it if it needs a challenge ACK. Returns true if the
    /// segment has to be dropped.
    fn rejects(&mut self, packet: &Packet) -> bool {
        let Some(expected) = &self.expected else {
            return false;
        };
        let verdict = expected.judge(packet.bytes());
        // A damaged segment is dropped without an answer.
        self.challenged |= verdict == Verdict::Challenge
            && (!self.checksums.tcp.rx() || segment::is_intact(packet.bytes()));
        verdict != Verdict::Pass
    }

    /// Sends a challenge ACK if one is due. All dropped segments that arrived together share one
    /// challenge ACK. None is sent beyond the limit.
    pub(crate) fn answer_challenge(&mut self, key: &FlowKey, now: Instant) {
        if !mem::take(&mut self.challenged) {
            return;
        }
        let Some(Expected { receive_next, .. }) = self.expected else {
            return;
        };
        let window_fixup = &self.transmitter.window_fixup;
        // `None` means that smoltcp has not acknowledged the peer's SYN yet. It will do so soon, so
        // no challenge ACK is needed.
        let window = window_fixup.window_from(receive_next, self.peer.scales);
        let seq = window_fixup.send_next();
        if window.is_some() && self.challenges.take(now) {
            let ack = window.map(|window| (receive_next, window));
            self.send_dataless(key, seq, ack, false);
        }
    }

    /// Returns true if the received segment only repeats the acknowledgement of `bytes` stream
    /// bytes.
    fn only_repeats(&self, bytes: u64) -> bool {
        let syn = self.transmitter.window_fixup.syn;
        syn.is_some_and(|syn| self.peer.only_repeats(after(syn, bytes)))
    }

    /// Records the effects of the segment that smoltcp has just processed. See [`Peer::arrived`].
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
            if let Some(fin) = part_fin(packet.bytes_mut(), &self.checksums) {
                let mut second = self.transmitter.take_packet();
                fin.write(&mut second, &self.checksums);
                self.inbox.push_front(second);
            }
            if self.rejects(&packet) {
                self.used.push(packet);
                continue;
            }
            let acknowledged = self.transmitter.window_fixup.acknowledged();
            self.peer.arrives(packet.bytes(), acknowledged);
            if self.transmitter.stack.settings.bursts {
                let bytes = packet.bytes_mut();
                raise_mss_of_peer(bytes, BURST_MTU - tcp_at(bytes) - TCP_HEADER);
            }
            match self.skip_repeats {
                Some(bytes) if self.only_repeats(bytes) => self.used.push(packet),
                _ => break packet,
            }
        };
        self.transmitter.window_fixup.arrived(packet.bytes());
        Some((
            RxToken {
                packet,
                used: &mut self.used,
            },
            TxToken(&mut self.transmitter),
        ))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        // An announced segment is sent without this check, because there was room when it was
        // announced. Other connections may have filled the queue since. If the second part were
        // held back for this reason, the first part would be sent alone. Inboxes and queues accept
        // a few packets beyond the bound.
        let begun = self.transmitter.joiner.expects();
        (begun || !self.hold_back_if_full()).then_some(TxToken(&mut self.transmitter))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let settings = &self.transmitter.stack.settings;
        let mut capabilities = capabilities(settings, self.checksums.clone());
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// A received packet, which smoltcp processes and whose buffer is then reused.
pub(crate) struct RxToken<'a> {
    packet: Packet,
    used: &'a mut Vec<Packet>,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(self.packet.bytes());
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
        // The buffer of the first part needs room for the second.
        let most = if bursts { BURST_MTU } else { settings.mtu };
        let room = (this.joiner.expected() + MOST_HEADERS).min(most).max(len);
        let mut packet = this.spares.take_for(room, &this.stack.pool);
        let bytes = packet.resize(len);
        let result = f(bytes);
        let sent_to = this.window_fixup.sent_to;
        this.window_fixup.fix_outgoing(bytes, checksums);
        let again = this.window_fixup.sent_to == sent_to;
        let mut cut = 0;
        let mut longest = bytes.len();
        if bursts {
            cut = this.cut.bytes(again);
            let headers = tcp_at(bytes) + TCP_HEADER;
            name_own_mss(bytes, settings.mtu.saturating_sub(headers));
            longest = longest.min(headers + cut);
        }
        if longest > this.path_mtu {
            this.ident = this.ident.wrapping_add(1);
            allow_fragments(bytes, this.ident);
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
