//! What smoltcp takes for a network card: the inbox of one connection, and the way out.

use std::collections::VecDeque;
use std::sync::Arc;

use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::mailbox::Mailbox;
use super::packet::{Packet, Spares};
use super::promises::Promises;
use super::segment::Segment;
use super::stack::{Route, Stack};

/// The link end of one connection.
pub(crate) struct Device {
    /// Packets taken from the mailbox, not yet seen by smoltcp.
    pub(crate) inbox: VecDeque<Packet>,
    used: Vec<Packet>,
    transmitter: Transmitter,
    checksums: ChecksumCapabilities,
    /// The MSS option of the peer's SYN: `Some(None)` for a SYN without it.
    pub(crate) peer_mss: Option<Option<u16>>,
    /// The inbox at the other end was full when smoltcp last wanted to send; when there is room,
    /// our signal is raised.
    pub(crate) held_back: bool,
    /// Sends even into a full inbox: last words, for which nobody will come back.
    pub(crate) urgent: bool,
    mailbox: Arc<Mailbox>,
}

struct Transmitter {
    stack: Arc<Stack>,
    spares: Spares,
    route: Route,
    promises: Promises,
}

impl Device {
    /// For a connection whose packets leave by `route`.
    pub(crate) fn new(stack: Arc<Stack>, mailbox: Arc<Mailbox>, route: Route) -> Self {
        let checksums = stack.checksums();
        let (spares, promises) = (Spares::default(), Promises::default());
        let transmitter = Transmitter {
            stack,
            spares,
            route,
            promises,
        };
        Self {
            inbox: VecDeque::new(),
            used: Vec::new(),
            transmitter,
            checksums,
            peer_mss: None,
            held_back: false,
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

    /// smoltcp keeps the peer's MSS to itself, so we read it too.
    fn note_mss(&mut self, packet: &Packet) {
        if let Some(segment) = Segment::parse(packet.octets()).filter(|segment| segment.syn) {
            self.peer_mss = Some(segment.mss);
        }
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let packet = self.inbox.pop_front()?;
        if self.peer_mss.is_none() {
            self.note_mss(&packet);
        }
        self.transmitter.promises.arrived(packet.octets());
        Some((
            RxToken {
                packet,
                used: &mut self.used,
            },
            TxToken(&mut self.transmitter),
        ))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        let Transmitter { stack, route, .. } = &self.transmitter;
        self.held_back = !self.urgent && stack.is_full(route, &self.mailbox);
        (!self.held_back).then_some(TxToken(&mut self.transmitter))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.transmitter.stack.settings.mtu;
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
        let Transmitter {
            stack,
            spares,
            route,
            promises,
        } = self.0;
        let mut packet = spares.take(&stack.pool);
        let octets = packet.resize(len);
        let result = f(octets);
        promises.leaving(octets, stack.settings.checksums);
        stack.transmit(packet, route);
        result
    }
}
