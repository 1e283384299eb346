//! Sending direction of the link: from an IP packet to a frame on the wire.

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
use super::neighbours::{Ask, Claim, Due, Neighbours, Released, Resolution};
use super::offload;
use super::outqueue::{OutQueue, Sent};
use super::receive::Receiver;
use super::thread;
use crate::smol::{
    Clock, FaultInjector, Link, Mailbox, Notice, Packet, Pool, Route, Signal, Stack,
};
use crate::wire::{HEADER, Wire};
use crate::{LlpError, NetworkEvent};

/// State shared by the connections of a host and the thread of its link.
///
/// # Locks
/// `receiver` is locked only by `try_lock`, and before all others. While `neighbours` is locked,
/// only the queue of `out` or the queue of an inbox may be locked. No call of the wire is made
/// while `neighbours` or one of these queues is locked.
pub(super) struct Shared {
    pub(super) wire: Box<dyn Wire>,
    /// True if the wire cuts segments and completes checksums.
    pub(super) offloads: bool,
    pub(super) addresses: Addresses,
    pub(super) pool: Arc<Pool>,
    pub(super) tap: Option<Interface>,
    pub(super) mtu: usize,
    /// Faults to inject into received packets.
    pub(super) faults: Option<Arc<FaultInjector>>,
    pub(super) receiver: Mutex<Receiver>,
    neighbours: Mutex<Neighbours>,
    /// Number of neighbours whose MAC address is not known yet. While it is 0, callers need not
    /// lock `neighbours`.
    incomplete: AtomicUsize,
    pub(super) out: OutQueue,
    pub(super) events: Events,
    pub(super) counters: Counters,
    /// Signal that wakes the link's thread.
    pub(super) wake: Signal,
    pub(super) stop: AtomicBool,
    pub(super) down: AtomicBool,
    /// Time at which the owner of a connection last received frames from the wire, in nanoseconds
    /// since `origin`.
    pub(super) polled_at: AtomicU64,
    pub(super) origin: Instant,
    /// Clock for the timers. It is the system's clock if the link has a thread.
    pub(super) clock: Arc<dyn Clock>,
    /// Time at which the addresses will be announced. `None` after the announcement.
    announce_at: Mutex<Option<Instant>>,
    stack: OnceLock<Weak<Stack>>,
}

/// Time between the probe for an address and its announcement.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(100);

/// Arguments of [`Shared::new`].
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

    /// Sets the stack of the link.
    pub(super) fn set_stack(&self, stack: &Arc<Stack>) {
        // `set` succeeds because this method is called only once.
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

    /// Records that the wire has failed, ends all connections and reports the event.
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

    /// Reports that another host uses an own address.
    pub(super) fn conflict(&self, error: LlpError) {
        if self.events.tell(NetworkEvent::AddressConflict(error)) {
            tracing::warn!(link = %self.wire.describe(), %error, "address conflict");
        }
    }

    /// Sends an IP packet to the neighbour `hop`.
    pub(super) fn send_to(&self, hop: IpAddr, packet: Packet) {
        let (resolution, ask) = {
            let mut neighbours = self.neighbours.lock();
            let found = neighbours.resolve(hop, packet, self.clock.now());
            self.count_incomplete(&neighbours);
            found
        };
        match resolution {
            Resolution::To(mac, packet) => {
                self.put(&frame::header(mac, self.mac(), EtherType::of(hop)), packet);
            }
            Resolution::Waits => {}
            Resolution::Dropped(packet) => self.drop_unsent(packet),
        }
        if let Some(ask) = ask {
            self.ask(ask);
            // The thread has to repeat the question if no answer arrives.
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

    /// Sends a question for the MAC address of a neighbour.
    fn ask(&self, ask: Ask) {
        let mut packet = self.pool.take_one();
        let source = self.addresses.source_for(ask.addr);
        let header = arp::write_question(ask, source, self.mac(), &mut packet);
        self.put(&header, packet);
    }

    /// Announces the own address `own` to all hosts, or answers the question of `to`.
    pub(super) fn answer(&self, own: IpAddr, to: Option<(IpAddr, Mac)>) {
        let mut packet = self.pool.take_one();
        let header = arp::write_answer(own, self.mac(), to, &mut packet);
        self.put(&header, packet);
    }

    /// Sends probes, which ask whether other hosts use the own addresses.
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

    /// Announces the addresses if the announcement is due. Returns its time if it is still in the
    /// future.
    pub(super) fn announce_if_due(&self, now: Instant) -> Option<Instant> {
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

    /// Announces all own addresses, except those that another host uses.
    fn announce(&self) {
        for own in self.addresses.all() {
            if !self.events.is_in_conflict(own) {
                self.answer(own, None);
            }
        }
    }

    /// Sends a frame, or queues it for the wire.
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
        self.wake_if_problem();
    }

    fn sent(&self, header: &[u8; HEADER], mut packet: Packet) {
        if let Some(tap) = &self.tap {
            // The capture shows complete checksums, as on a cable, but segments before the kernel
            // cuts them.
            packet.complete();
            tap.packet(Direction::Outbound, &[header, packet.bytes()]);
        }
        self.pool.give_one(packet);
    }

    /// Sends queued frames until the wire accepts no more.
    pub(super) fn flush(&self) {
        if self.is_down() {
            return;
        }
        let sent = |header: &[u8; HEADER], packet| self.sent(header, packet);
        if let Err(error) = self.out.flush(&*self.wire, sent) {
            self.fail(error);
        }
    }

    /// Records that `addr` has the MAC address `mac`, and sends the packets that waited for it.
    pub(super) fn record_neighbour(&self, addr: IpAddr, mac: Mac, claim: Claim) {
        if !self.addresses.is_on_link(addr) || !frame::is_station(mac) {
            return;
        }
        let header = frame::header(mac, self.mac(), EtherType::of(addr));
        let held_back = {
            let mut neighbours = self.neighbours.lock();
            let Some(released) = neighbours.record(addr, mac, claim, self.clock.now()) else {
                return;
            };
            self.count_incomplete(&neighbours);
            // To keep the order, these packets enter the queue while `neighbours` is locked, before
            // other packets can be sent to this neighbour.
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
            sender.signal.raise();
        }
    }

    /// Runs the timers of the neighbour cache.
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

    /// Handles a neighbour that does not answer. Connection attempts through it fail. Established
    /// connections continue to retransmit.
    fn unreachable(&self, hop: IpAddr, released: Released) {
        tracing::debug!(%hop, "no answer from this neighbour");
        for packet in released.packets {
            self.drop_unsent(packet);
        }
        for sender in released.held_back {
            sender.signal.raise();
        }
        if let Some(stack) = self.stack() {
            stack.notify(
                |key| self.addresses.next_hop(key.remote.ip()) == Some(hop),
                |key| Notice::EndHandshake(LlpError::Unreachable { addr: key.remote }),
            );
        }
    }

    /// Returns the time at which [`tick`](Self::tick) must be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.neighbours.lock().deadline()
    }

    /// Returns the nanoseconds since `origin`, at least 1.
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }
}

/// Returns the destination address of an outgoing IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let bytes: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(IpAddr::V4(Ipv4Addr::from(bytes)))
        }
        _ => {
            let bytes: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
    }
}

/// Link of one stack, and the owner of the link's thread.
pub(super) struct EthernetLink {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Id of the process that created the link.
    process: u32,
}

impl EthernetLink {
    /// Creates a link and starts its thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, LlpError> {
        let thread = thread::start(Arc::clone(shared))?;
        Ok(Self {
            shared: Arc::clone(shared),
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        })
    }

    /// Creates a link without a thread. The carrier delivers its frames and runs its timers.
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
        if let (Some(own), Some(end)) = (&route.own, icmp::end_of_segment(packet.bytes())) {
            own.note_sent(end);
        }
        if route.hop.is_none() {
            let to = destination(packet.bytes());
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
        self.shared.wake_if_problem();
    }

    fn takes_in(&self) -> bool {
        true
    }

    fn close(&self) {
        if self.process != std::process::id() {
            // In the child of a fork, the thread and its wake-up descriptor belong to the parent.
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.raise();
        let thread = self.thread.lock().take();
        // The thread itself may call this function when it reports a failure of the link. A thread
        // cannot join itself.
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
