//! Receiving direction of the link: from a frame on the wire to its connection.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use uwarp_capture::Direction;

use super::arp::{self, Kind, Message};
use super::frame::{self, EtherType};
use super::icmp::{self, Quote, Report};
use super::link::Shared;
use super::neighbours::Claim;
use super::offload;
use crate::LlpError;
use crate::smol::{
    ChecksumState, MIN_IPV6_MTU, Notice, Packet, PacketOffload, Route, Segment, Spares, Stack,
};
use crate::wire::{HEADER, Received};

/// Maximum number of frames that one call processes, so that no caller spends long on the packets
/// of other connections.
const TURN: usize = 64;
/// Number of bytes after which one call stops. If a call received a whole window of long packets,
/// later packets would evict the first ones from the processor's cache before the connection's
/// owner reads them.
const TURN_BYTES: usize = 64 << 10;
/// Maximum number of echo requests answered per second.
const ECHOES: u32 = 1000;
/// Maximum number of echo requests answered at once after a pause.
const ECHO_BURST: u32 = 100;
/// Smallest IPv4 path MTU that is accepted from a router: the minimum of RFC 791.
const MIN_IPV4_PATH_MTU: usize = 576;

/// State for receiving, used by one thread at a time.
pub(super) struct Receiver {
    spares: Spares,
    /// Buffer for the next frame.
    next: Option<Packet>,
    echoes: Allowance,
}

impl Receiver {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            spares: Spares::default(),
            next: None,
            echoes: Allowance {
                left: ECHO_BURST,
                since: now,
            },
        }
    }
}

impl Receiver {
    /// Takes a buffer that is large enough for the longest frame that the wire usually receives.
    fn take(&mut self, shared: &Shared) -> Packet {
        let mut packet = self.next.take().unwrap_or_else(|| {
            let bytes = shared.wire.longest(shared.mtu);
            self.spares.take_for(bytes, &shared.pool)
        });
        packet.offload.sums = ChecksumState::Complete;
        packet
    }

    /// Copies a packet into a smaller buffer if the packet fits, because it may wait long in an
    /// inbox. This limits the memory that a peer can occupy.
    fn fit(&mut self, packet: Packet, shared: &Shared) -> Packet {
        let bytes = packet.bytes();
        if bytes.len() > COPIED || !shared.pool.has_smaller(&packet) {
            return packet;
        }
        let mut copy = self.spares.take_for(bytes.len(), &shared.pool);
        copy.resize(bytes.len()).copy_from_slice(bytes);
        copy.offload = packet.offload;
        self.next = Some(packet);
        copy
    }

    /// Keeps a buffer for the next frame, or returns it to the pool.
    fn keep(&mut self, packet: Packet, shared: &Shared) {
        if self.next.is_none() {
            self.next = Some(packet);
        } else {
            shared.pool.give_one(packet);
        }
    }
}

/// Length in bytes of the longest packet that is copied to a smaller buffer.
const COPIED: usize = 16 << 10;

/// Rate limit for answers to echo requests.
struct Allowance {
    left: u32,
    since: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / ECHOES;
        let elapsed = now.saturating_duration_since(self.since);
        let more = u32::try_from(elapsed.as_nanos() / each.as_nanos()).unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(ECHO_BURST);
            self.since = now;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

/// Reason to drop a frame. Each reason has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drop {
    NotForUs,
    Malformed,
    Fragment,
}

/// Result of processing a frame.
enum Verdict {
    /// The frame was processed completely.
    Seen,
    /// The frame contains a TCP segment for this host.
    Tcp,
    /// The frame was turned into an answer, to be sent to this neighbour.
    Answer(IpAddr),
}

impl Shared {
    /// Receives and processes a limited number of frames. Returns their number, or `None` if
    /// another thread is receiving or the link is down.
    pub(super) fn drain(&self, stack: &Stack) -> Option<usize> {
        if self.is_down() {
            return None;
        }
        let mut receiver = self.receiver.try_lock()?;
        let mut header = [0; HEADER];
        let (mut count, mut bytes) = (0, 0);
        while count < TURN && bytes < TURN_BYTES {
            let mut packet = receiver.take(self);
            match self.wire.recv(&mut header, &mut packet) {
                Ok(Received::Nothing) => {
                    receiver.keep(packet, self);
                    return Some(count);
                }
                Ok(Received::Frame) => {
                    bytes += packet.bytes().len() + HEADER;
                    let packet = receiver.fit(packet, self);
                    self.frame(&mut receiver, stack, &header, packet);
                }
                Ok(Received::FromOwnKernel) => {
                    self.frame_of_kernel(stack, &header, &packet);
                    receiver.keep(packet, self);
                }
                Err(error) => {
                    // The lock is released first, because the failure may notify code that calls
                    // the link.
                    std::mem::drop(receiver);
                    self.fail(error);
                    return Some(count);
                }
            }
            count += 1;
        }
        Some(count)
    }

    /// Processes one frame from the carrier. Drops the frame if another one is being processed.
    pub(super) fn deliver(&self, stack: &Stack, header: &[u8; HEADER], bytes: &[u8]) {
        let Some(mut receiver) = self.receiver.try_lock() else {
            return;
        };
        let mut packet = receiver.take(self);
        packet.resize(bytes.len()).copy_from_slice(bytes);
        self.frame(&mut receiver, stack, header, packet);
    }

    /// Processes one received frame: delivers it to a connection, answers it, or drops and counts
    /// it.
    fn frame(
        &self,
        receiver: &mut Receiver,
        stack: &Stack,
        header: &[u8; HEADER],
        mut packet: Packet,
    ) {
        // Checksums are completed for all packets except TCP segments, because the code below
        // verifies them as on a link without offload.
        if self.tap.is_some() || !offload::is_of_tcp(packet.offload.sums) {
            packet.complete();
        }
        if let Some(tap) = &self.tap {
            tap.packet(Direction::Inbound, &[header, packet.bytes()]);
        }
        match self.sort(receiver, stack, header, &mut packet) {
            Ok(Verdict::Tcp) => match &self.faults {
                None => stack.receive(packet, &mut Route::default()),
                Some(faults) => faults.pass(packet, &self.pool, &mut |packet, _| {
                    stack.receive(packet, &mut Route::default());
                }),
            },
            Ok(Verdict::Answer(hop)) => {
                // The offload state describes the request. The answer has complete checksums.
                packet.offload = PacketOffload::default();
                self.send_to(hop, packet);
            }
            Ok(Verdict::Seen) => receiver.keep(packet, self),
            Err(why) => {
                receiver.keep(packet, self);
                self.counters.add(|counters| match why {
                    Drop::NotForUs => &counters.not_for_us,
                    Drop::Malformed => &counters.malformed,
                    Drop::Fragment => &counters.fragments,
                });
            }
        }
    }

    fn sort(
        &self,
        receiver: &mut Receiver,
        stack: &Stack,
        header: &[u8; HEADER],
        packet: &mut Packet,
    ) -> Result<Verdict, Drop> {
        let (destination, source, kind) = frame::parse(header);
        let own = self.addresses.mac();
        if !self.addresses.takes(destination) || !frame::is_station(source) || source == own {
            return Err(Drop::NotForUs);
        }
        // Frames to broadcast and multicast addresses are accepted only for ARP and neighbour
        // discovery.
        let to_us = destination == own;
        match kind {
            None => Err(Drop::NotForUs),
            Some(EtherType::Arp) => {
                let message = arp::parse_arp(packet.bytes()).ok_or(Drop::Malformed)?;
                self.neighbour(message);
                Ok(Verdict::Seen)
            }
            Some(EtherType::Ipv4) => self.ipv4(receiver, stack, packet, to_us),
            Some(EtherType::Ipv6) => self.ipv6(receiver, stack, packet, to_us),
        }
    }

    fn ipv4(
        &self,
        receiver: &mut Receiver,
        stack: &Stack,
        packet: &mut Packet,
        to_us: bool,
    ) -> Result<Verdict, Drop> {
        let ip = Ipv4Packet::new_checked(packet.bytes()).map_err(|_| Drop::Malformed)?;
        if ip.version() != 4 || !ip.verify_checksum() {
            return Err(Drop::Malformed);
        }
        let (from, to) = (IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()));
        if !to_us || !self.addresses.has(to) {
            return Err(Drop::NotForUs);
        }
        self.check_source(from)?;
        if ip.more_frags() || ip.frag_offset() != 0 {
            return Err(Drop::Fragment);
        }
        let protocol = ip.next_header();
        match protocol {
            IpProtocol::Tcp => self.check_tcp(ip.payload(), (from, to), packet.offload.sums)?,
            IpProtocol::Icmp => {
                if let Some((report, quote)) = icmp::report_v4(ip.payload()) {
                    self.report(stack, report, &quote);
                    return Ok(Verdict::Seen);
                }
            }
            _ => return Err(Drop::NotForUs),
        }
        // Bytes after the end of the packet are padding of the frame.
        let len = usize::from(ip.total_len());
        let bytes = packet.resize(len);
        if protocol == IpProtocol::Tcp {
            return Ok(Verdict::Tcp);
        }
        self.echo(receiver, from, bytes, icmp::answer_echo_v4)
    }

    fn ipv6(
        &self,
        receiver: &mut Receiver,
        stack: &Stack,
        packet: &mut Packet,
        to_us: bool,
    ) -> Result<Verdict, Drop> {
        let ip = Ipv6Packet::new_checked(packet.bytes()).map_err(|_| Drop::Malformed)?;
        if ip.version() != 6 {
            return Err(Drop::Malformed);
        }
        let (from_v6, to_v6) = (ip.src_addr(), ip.dst_addr());
        let (from, to) = (IpAddr::V6(from_v6), IpAddr::V6(to_v6));
        let ours = self.addresses.has(to);
        if !ours && !to_v6.is_multicast() {
            return Err(Drop::NotForUs);
        }
        let (protocol, len) = (ip.next_header(), ip.total_len());
        if protocol == IpProtocol::Icmpv6 {
            let message = Icmpv6Packet::new_checked(ip.payload()).map_err(|_| Drop::Malformed)?;
            if message.msg_type().is_ndisc() {
                // Router advertisements are ignored, because the settings name the routers.
                if let Some(message) = arp::parse_ndp(packet.bytes()) {
                    self.neighbour(message);
                }
                return Ok(Verdict::Seen);
            }
        }
        if !ours || !to_us {
            return Err(Drop::NotForUs);
        }
        self.check_source(from)?;
        match protocol {
            IpProtocol::Tcp => self.check_tcp(ip.payload(), (from, to), packet.offload.sums)?,
            IpProtocol::Icmpv6 => {
                if let Some((report, quote)) = icmp::report_v6(ip.payload(), from_v6, to_v6) {
                    self.report(stack, report, &quote);
                    return Ok(Verdict::Seen);
                }
            }
            IpProtocol::Ipv6Frag => return Err(Drop::Fragment),
            _ => return Err(Drop::NotForUs),
        }
        let bytes = packet.resize(len);
        if protocol == IpProtocol::Tcp {
            return Ok(Verdict::Tcp);
        }
        self.echo(receiver, from, bytes, icmp::answer_echo_v6)
    }

    /// Rejects a source address that is not a unicast address, or that is an address of this host.
    fn check_source(&self, from: IpAddr) -> Result<(), Drop> {
        if !frame::is_host(from) || self.addresses.has(from) {
            return Err(Drop::Malformed);
        }
        Ok(())
    }

    /// Answers a ping, in the buffer of the request.
    fn echo(
        &self,
        receiver: &mut Receiver,
        from: IpAddr,
        bytes: &mut [u8],
        answer: impl Fn(&mut [u8]) -> bool,
    ) -> Result<Verdict, Drop> {
        let hop = self.addresses.next_hop(from).ok_or(Drop::NotForUs)?;
        if bytes.len() > self.mtu || !answer(bytes) {
            return Err(Drop::NotForUs);
        }
        if !receiver.echoes.take(self.clock.now()) {
            return Ok(Verdict::Seen);
        }
        self.counters.add(|counters| &counters.echoes);
        Ok(Verdict::Answer(hop))
    }

    /// Processes an ARP or neighbour discovery message.
    fn neighbour(&self, message: Message) {
        let Message {
            kind,
            sender,
            target,
        } = message;
        let for_us = self.addresses.has(target);
        if let Some((addr, mac)) = sender
            && self.addresses.has(addr)
        {
            if mac != self.addresses.mac() {
                self.conflict(LlpError::DuplicateAddress { addr, mac });
            }
            return;
        }
        match (kind, sender) {
            (Kind::Question, Some((addr, mac))) if for_us => {
                self.record_neighbour(addr, mac, Claim::Asks);
                if frame::is_station(mac) {
                    self.answer(target, Some((addr, mac)));
                }
            }
            // Another host probes whether an address of this host is free.
            (Kind::Question, None) if for_us => self.answer(target, None),
            (Kind::Question, Some((addr, mac))) => self.record_neighbour(addr, mac, Claim::Tells),
            (Kind::Question, None) => {}
            (
                Kind::Answer {
                    overrides,
                    solicited,
                },
                Some((addr, mac)),
            ) => {
                // The target of an ARP answer is the host that asked, so only answers to this host
                // are solicited.
                let solicited = solicited && (for_us || target.is_ipv6());
                let claim = match (overrides, solicited) {
                    (false, _) => Claim::AnswerWithoutOverride,
                    (true, true) => Claim::Answer,
                    (true, false) => Claim::Tells,
                };
                self.record_neighbour(addr, mac, claim);
            }
            (Kind::Answer { .. }, None) => {}
        }
    }

    /// Processes an ICMP report about a segment of this host.
    fn report(&self, stack: &Stack, report: Report, quote: &Quote) {
        // SYN and FIN occupy one sequence number each, so two more than the send buffer can be in
        // flight.
        let window = stack.settings.send_buffer + 2;
        let remote = quote.key.remote;
        let Some(mailbox) = stack
            .connection(&quote.key)
            .filter(|mailbox| mailbox.is_in_flight(quote.seq, window))
        else {
            self.counters.add(|counters| &counters.strange_reports);
            return;
        };
        match report {
            Report::TooBig(mtu) => {
                let least = if remote.is_ipv4() {
                    MIN_IPV4_PATH_MTU
                } else {
                    MIN_IPV6_MTU
                };
                if !(least..self.mtu).contains(&mtu) {
                    self.counters.add(|counters| &counters.strange_reports);
                } else if mailbox.limit_mtu(mtu) {
                    tracing::debug!(%remote, mtu, "a router on the path has a smaller MTU");
                }
            }
            Report::Unreachable => {
                mailbox.notify(Notice::EndHandshake(LlpError::Unreachable { addr: remote }));
            }
            Report::Refused => {
                mailbox.notify(Notice::EndHandshake(LlpError::Refused { addr: remote }));
            }
        }
    }

    /// Checks a frame that the kernel of this host sent on the same interface. Reports a conflict
    /// if the kernel uses an address of this stack. Ends the connection if the kernel has reset it.
    fn frame_of_kernel(&self, stack: &Stack, header: &[u8; HEADER], packet: &Packet) {
        let (_, _, kind) = frame::parse(header);
        if kind == Some(EtherType::Arp) {
            let sender = arp::parse_arp(packet.bytes()).and_then(|message| message.sender);
            if let Some((addr, _)) = sender.filter(|(addr, _)| self.addresses.has(*addr)) {
                self.conflict(LlpError::KernelHasAddress { addr });
            }
            return;
        }
        let reset = Segment::parse(packet.bytes()).filter(|segment| segment.rst);
        // The key of a segment is from the receiver's point of view, so `remote` is the sender of
        // the reset.
        let Some(key) = reset.map(|segment| segment.key) else {
            return;
        };
        let (own, peer) = (key.remote, key.local);
        if !self.addresses.has(own.ip()) {
            return;
        }
        if let Some(tap) = &self.tap {
            let comment = "sent by the kernel of this host";
            tap.packet_with_comment(Direction::Outbound, comment, &[header, packet.bytes()]);
        }
        let error = LlpError::KernelHasAddress { addr: own.ip() };
        self.conflict(error);
        stack.notify(
            |key| (key.local, key.remote) == (own, peer),
            |_| Notice::End(error),
        );
    }

    /// Verifies the checksum of a received TCP segment that smoltcp does not verify, or verifies
    /// too late. On a link with offload, these are all segments. On other links, these are SYNs,
    /// because a SYN creates state on this host.
    fn check_tcp(
        &self,
        bytes: &[u8],
        way: (IpAddr, IpAddr),
        sums: ChecksumState,
    ) -> Result<(), Drop> {
        let tcp = TcpPacket::new_checked(bytes).map_err(|_| Drop::Malformed)?;
        let looks = (self.offloads || tcp.syn()) && !offload::is_verified(sums);
        if looks && !offload::is_intact(bytes, way) {
            return Err(Drop::Malformed);
        }
        Ok(())
    }
}
