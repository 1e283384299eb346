//! The way out: from an IP packet to a frame on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_capture::{Direction, Interface};

use super::addresses::Addresses;
use super::arp;
use super::counters::Counters;
use super::events::Events;
use super::frame::{self, EtherType, Mac};
use super::icmp;
use super::neighbours::{Ask, Claim, Due, Neighbours, Released, Way};
use super::offload;
use super::outqueue::{OutQueue, Sent};
use super::receive::Receiver;
use super::thread;
use crate::smol::{
    Clock, FaultInjector, Link, Mailbox, Notice, Packet, Pool, Route, Signal, Stack,
};
use crate::wire::{HEADER, Wire};
use crate::{LlpError, NetworkEvent};

/// What the connections of a host and the thread of its link share.
///
/// # Locks
/// `receiver` is only ever tried, never waited for, so it comes before all others. While
/// `neighbours` is held, the queue of `out` and that of an inbox may be locked, and nothing else.
/// No call of the wire is made under either of them.
pub(super) struct Shared {
    pub(super) wire: Box<dyn Wire>,
    /// Whether the wire cuts segments and completes checksums.
    pub(super) offloads: bool,
    pub(super) addresses: Addresses,
    pub(super) pool: Arc<Pool>,
    pub(super) tap: Option<Interface>,
    pub(super) mtu: usize,
    /// Faults in what arrives.
    pub(super) faults: Option<Arc<FaultInjector>>,
    pub(super) receiver: Mutex<Receiver>,
    neighbours: Mutex<Neighbours>,
    /// Neighbours that are being looked for; a hint that saves the lock.
    incomplete: AtomicUsize,
    pub(super) out: OutQueue,
    pub(super) events: Events,
    pub(super) counters: Counters,
    /// Wakes the thread up.
    pub(super) wake: Signal,
    pub(super) stop: AtomicBool,
    pub(super) down: AtomicBool,
    /// When the owner of a connection last took in what had arrived, in nanoseconds since `origin`.
    pub(super) polled_at: AtomicU64,
    pub(super) origin: Instant,
    /// What its timers run by: the clock of the machine where it has a thread.
    pub(super) clock: Arc<dyn Clock>,
    /// When our addresses are announced, until they were.
    announce_at: Mutex<Option<Instant>>,
    stack: OnceLock<Weak<Stack>>,
}

/// Our addresses are announced so long after it was asked whether anybody has them.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(100);

/// What a [`Shared`] is made of.
pub(super) struct Parts {
    pub(super) wire: Box<dyn Wire>,
    pub(super) addresses: Addresses,
    pub(super) pool: Arc<Pool>,
    pub(super) tap: Option<Interface>,
    pub(super) mtu: usize,
    pub(super) faults: Option<Arc<FaultInjector>>,
    pub(super) neighbours: Neighbours,
    pub(super) out: OutQueue,
    pub(super) clock: Arc<dyn Clock>,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Result<Arc<Self>, LlpError> {
        let Parts {
            wire,
            addresses,
            pool,
            tap,
            mtu,
            faults,
            neighbours,
            out,
            clock,
        } = parts;
        let origin = clock.now();
        Ok(Arc::new(Self {
            offloads: wire.offloads(),
            wire,
            addresses,
            pool,
            tap,
            mtu,
            faults,
            receiver: Mutex::new(Receiver::new(origin)),
            neighbours: Mutex::new(neighbours),
            incomplete: AtomicUsize::new(0),
            out,
            events: Events::default(),
            counters: Counters::default(),
            wake: Signal::new()?,
            stop: AtomicBool::new(false),
            down: AtomicBool::new(false),
            polled_at: AtomicU64::new(0),
            origin,
            clock,
            announce_at: Mutex::new(Some(origin + ANNOUNCE_AFTER)),
            stack: OnceLock::new(),
        }))
    }

    /// Whose link it is.
    pub(super) fn belongs_to(&self, stack: &Arc<Stack>) {
        // It was made for this one stack and is told once.
        let _ = self.stack.set(Arc::downgrade(stack));
        self.wake.raise();
    }

    pub(super) fn stack(&self) -> Option<Arc<Stack>> {
        self.stack.get().and_then(Weak::upgrade)
    }

    pub(super) fn mac(&self) -> Mac {
        self.addresses.mac()
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// The wire is gone.
    pub(super) fn fail(&self, error: LlpError) {
        let error = match error {
            LlpError::Io { op: why, errno } => LlpError::LinkDown { why, errno },
            other => other,
        };
        if self.down.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(link = %self.wire.describe(), %error, "the link has failed");
        if let Some(stack) = self.stack() {
            stack.fail(error);
        }
        self.events.tell(NetworkEvent::Down(error));
        self.wake.raise();
    }

    /// Somebody else uses an address of ours.
    pub(super) fn conflict(&self, error: LlpError) {
        if self.events.tell(NetworkEvent::AddressConflict(error)) {
            tracing::warn!(link = %self.wire.describe(), %error, "address conflict");
        }
    }

    /// Sends an IP packet to the neighbour `hop`.
    pub(super) fn send_to(&self, hop: IpAddr, packet: Packet) {
        let (way, ask) = {
            let mut neighbours = self.neighbours.lock();
            let found = neighbours.way(hop, packet, self.clock.now());
            self.count_incomplete(&neighbours);
            found
        };
        match way {
            Way::To(mac, packet) => {
                self.put(&frame::header(mac, self.mac(), EtherType::of(hop)), packet);
            }
            Way::Waits => {}
            Way::Dropped(packet) => self.drop_unsent(packet),
        }
        if let Some(ask) = ask {
            self.ask(ask);
            // Its answer may never come: the thread has to ask again.
            self.wake.raise();
        }
    }

    fn count_incomplete(&self, neighbours: &Neighbours) {
        let count = neighbours.incomplete();
        self.incomplete.store(count, Ordering::Release);
    }

    fn drop_unsent(&self, packet: Packet) {
        self.counters.add(|counters| &counters.unsent);
        self.pool.give_one(packet);
    }

    /// Asks for a neighbour.
    fn ask(&self, ask: Ask) {
        let mut packet = self.pool.take_one();
        let source = self.addresses.source_for(ask.addr);
        let header = arp::write_question(ask, source, self.mac(), &mut packet);
        self.put(&header, packet);
    }

    /// Tells everybody who is listening, or `to` who asked, that `own` is our address.
    pub(super) fn answer(&self, own: IpAddr, to: Option<(IpAddr, Mac)>) {
        let mut packet = self.pool.take_one();
        let header = arp::write_answer(own, self.mac(), to, &mut packet);
        self.put(&header, packet);
    }

    /// Asks whether anybody has our addresses already.
    pub(super) fn probe(&self) {
        for own in self.addresses.all() {
            let mut packet = self.pool.take_one();
            let ask = Ask {
                addr: own,
                to: None,
            };
            let header = arp::write_question(ask, None, self.mac(), &mut packet);
            self.put(&header, packet);
        }
    }

    /// Announces our addresses when it is time; says when it will be.
    pub(super) fn announce_at(&self, now: Instant) -> Option<Instant> {
        let due = {
            let mut at = self.announce_at.lock();
            match *at {
                Some(due) if due <= now => at.take(),
                later => return later,
            }
        };
        if due.is_some() {
            self.announce();
        }
        None
    }

    /// Tells all hosts our addresses, but for those that somebody else has.
    fn announce(&self) {
        for own in self.addresses.all() {
            if !self.events.is_in_conflict(own) {
                self.answer(own, None);
            }
        }
    }

    /// Sends a frame, or has it wait for the wire.
    pub(super) fn put(&self, header: &[u8; HEADER], packet: Packet) {
        if self.is_down() {
            return self.pool.give_one(packet);
        }
        match self.out.send(&*self.wire, header, packet) {
            Ok(Sent::Done(packet)) => self.sent(header, packet),
            Ok(Sent::Waits) => self.wake.raise(),
            Ok(Sent::Dropped(packet)) => self.drop_unsent(packet),
            Err(error) => self.fail(error),
        }
        self.mind();
    }

    fn sent(&self, header: &[u8; HEADER], mut packet: Packet) {
        if let Some(tap) = &self.tap {
            // As it would be on a cable, but for the cuts.
            packet.complete();
            tap.packet(Direction::Outbound, &[header, packet.octets()]);
        }
        self.pool.give_one(packet);
    }

    /// Sends what waits for the wire, as far as it goes.
    pub(super) fn flush(&self) {
        if self.is_down() {
            return;
        }
        let sent = |header: &[u8; HEADER], packet| self.sent(header, packet);
        if let Err(error) = self.out.flush(&*self.wire, sent) {
            self.fail(error);
        }
    }

    /// Somebody said where `addr` is: what waited for that goes out.
    pub(super) fn hear(&self, addr: IpAddr, mac: Mac, claim: Claim) {
        if !self.addresses.is_on_link(addr) || !frame::is_station(mac) {
            return;
        }
        let header = frame::header(mac, self.mac(), EtherType::of(addr));
        let held_back = {
            let mut neighbours = self.neighbours.lock();
            let Some(released) = neighbours.hear(addr, mac, claim, self.clock.now()) else {
                return;
            };
            self.count_incomplete(&neighbours);
            // In the queue before anybody finds the neighbour known, so that the order is kept.
            for packet in released.packets {
                if let Some(packet) = self.out.push(header, packet) {
                    self.drop_unsent(packet);
                }
            }
            released.held_back
        };
        self.flush();
        if self.out.is_busy() {
            self.wake.raise();
        }
        for sender in held_back {
            sender.raise();
        }
    }

    /// Does what is due in the cache of neighbours.
    pub(super) fn tick(&self, now: Instant) {
        let Due { asks, unreachable } = {
            let mut neighbours = self.neighbours.lock();
            let due = neighbours.tick(now);
            self.count_incomplete(&neighbours);
            due
        };
        for ask in asks {
            self.ask(ask);
        }
        for (hop, released) in unreachable {
            self.unreachable(hop, released);
        }
    }

    /// Nobody answers for `hop`: connections that begin fail, those that stand go on trying.
    fn unreachable(&self, hop: IpAddr, released: Released) {
        tracing::debug!(%hop, "no answer from this neighbour");
        for packet in released.packets {
            self.drop_unsent(packet);
        }
        for sender in released.held_back {
            sender.raise();
        }
        if let Some(stack) = self.stack() {
            stack.notify(
                |key| self.addresses.next_hop(key.remote.ip()) == Some(hop),
                |key| Notice::EndHandshake(LlpError::Unreachable { addr: key.remote }),
            );
        }
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.neighbours.lock().deadline()
    }

    /// Nanoseconds since this was made; never 0.
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }
}

/// The destination of an IP packet of ours.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(IpAddr::V4(Ipv4Addr::from(octets)))
        }
        _ => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        }
    }
}

/// The link of one stack, with its thread if it has one.
pub(super) struct EthernetLink {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the thread.
    process: u32,
}

impl EthernetLink {
    /// Starts the thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, LlpError> {
        let thread = thread::start(Arc::clone(shared))?;
        Ok(Self {
            shared: Arc::clone(shared),
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        })
    }

    /// Without a thread: somebody delivers frames, and looks after its timers.
    pub(super) fn without_thread(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            thread: Mutex::new(None),
            process: std::process::id(),
        }
    }
}

impl Link for EthernetLink {
    fn send(&self, mut packet: Packet, route: &mut Route) {
        if self.shared.offloads {
            offload::begin(&mut packet);
        }
        if let (Some(own), Some(end)) = (&route.own, icmp::end_of_segment(packet.octets())) {
            own.note_sent(end);
        }
        if route.hop.is_none() {
            let to = destination(packet.octets());
            route.hop = to.and_then(|to| self.shared.addresses.next_hop(to));
        }
        match route.hop {
            Some(hop) => self.shared.send_to(hop, packet),
            None => self.shared.drop_unsent(packet),
        }
    }

    fn reaches(&self, addr: IpAddr) -> bool {
        self.shared.addresses.next_hop(addr).is_some()
    }

    fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        self.shared.addresses.next_hop(to)
    }

    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        self.shared.addresses.source_for(to)
    }

    fn subscribe_if_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool {
        if self.shared.is_down() {
            return false;
        }
        if self.shared.out.subscribe_if_full(sender) {
            return true;
        }
        match route.hop {
            Some(hop) if self.shared.incomplete.load(Ordering::Acquire) > 0 => {
                self.shared.neighbours.lock().subscribe_if_full(hop, sender)
            }
            _ => false,
        }
    }

    fn poll(&self, stack: &Stack) {
        let now = self.shared.nanos(self.shared.clock.now());
        self.shared.polled_at.store(now, Ordering::Relaxed);
        self.shared.drain(stack);
        self.shared.flush();
        self.shared.mind();
    }

    fn takes_in(&self) -> bool {
        true
    }

    fn close(&self) {
        if self.process != std::process::id() {
            // In the child of a fork: its thread is with the parent, as the descriptor that wakes it.
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.raise();
        let thread = self.thread.lock().take();
        // The thread itself may be at it, when it tells that the link has failed.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn describe(&self) -> String {
        self.shared.wire.describe()
    }
}

impl Drop for EthernetLink {
    fn drop(&mut self) {
        self.close();
    }
}
