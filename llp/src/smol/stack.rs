//! One host on a link: finds the connection or listener for a packet, and chooses free ports.

use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip::SipHasher24;
use smoltcp::phy::{Checksum, ChecksumCapabilities};

use super::backlog::Backlog;
use super::clock::{Clock, Epoch};
use super::handshakes::{Handshake, Handshakes};
pub(crate) use super::link::{Link, Route};
use super::mailbox::{Mailbox, Notice};
use super::packet::{Packet, Pool};
use super::segment::{self, Answer, FlowKey, Segment};
use super::settings::StackSettings;
use super::syn_ack::SynAnswerer;
use super::table::{Flow, Listening, MAX_LINGERING, Table};
use super::user::Users;
use crate::LlpError;

/// Range of the ports that the stack chooses (RFC 6335 section 6).
pub(super) const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;

/// Time for which the stack answers the peer's FIN after the owner dropped a closed connection.
const LINGER: Duration = Duration::from_secs(60);

/// A host on a link, with its connections and listeners.
pub(crate) struct Stack {
    table: RwLock<Table>,
    addresses: Vec<IpAddr>,
    link: Box<dyn Link>,
    pub(crate) users: Users,
    pub(crate) handshakes: Handshakes,
    /// Sockets that answer SYNs and are not in use. A thread takes one out while it uses it.
    answerers: Mutex<Vec<SynAnswerer>>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) epoch: Epoch,
    pub(crate) settings: StackSettings,
    random: Random,
}

/// Destination of a packet. It is found under the table's lock and used after the lock was
/// released.
enum Destination {
    Connection(Arc<Mailbox>),
    /// A SYN to a listener.
    Listener(Arc<Backlog>),
    /// Another segment to a listener, which may belong to a handshake.
    Handshake(Arc<Backlog>),
    Answer(Answer),
    Nobody,
}

impl Stack {
    /// Creates a host with these addresses at one end of `link`.
    pub(crate) fn new(
        addresses: Vec<IpAddr>,
        link: Box<dyn Link>,
        pool: Arc<Pool>,
        clock: Arc<dyn Clock>,
        settings: StackSettings,
    ) -> Self {
        let ports = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let random = Random::new(settings.seed);
        let offset = u16::try_from(random.next() % ports).unwrap_or(0);
        let next_port = EPHEMERAL.start().saturating_add(offset);
        let table = Table {
            next_port,
            ..Table::default()
        };
        let epoch = Epoch::starting(clock.now());
        Self {
            table: RwLock::new(table),
            addresses,
            link,
            users: Users::default(),
            handshakes: Handshakes::new(settings.connect_timeout),
            answerers: Mutex::default(),
            pool,
            clock,
            epoch,
            settings,
            random,
        }
    }

    /// Returns a random number for initial sequence numbers and ports. It is unpredictable unless
    /// the settings have a seed.
    pub(crate) fn random(&self) -> u64 {
        self.random.next()
    }

    /// Returns the addresses of the host.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Returns true if the host has this address.
    pub(crate) fn has(&self, addr: IpAddr) -> bool {
        self.addresses.contains(&addr)
    }

    /// Returns the link to which the host is attached.
    pub(crate) fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Returns the checksums that smoltcp has to compute and verify on this link.
    pub(crate) fn checksums(&self) -> ChecksumCapabilities {
        let what = if self.settings.checksums {
            Checksum::Both
        } else {
            Checksum::None
        };
        let mut capabilities = ChecksumCapabilities::ignored();
        capabilities.ipv4 = what;
        capabilities.tcp = what;
        capabilities
    }

    /// Returns the local address for a connection to `to`.
    pub(crate) fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError> {
        if let Some(error) = self.fault() {
            return Err(error);
        }
        if !self.has(to.ip()) && !self.link.reaches(to.ip()) {
            return Err(LlpError::Unreachable { addr: to });
        }
        let fits = |addr: &&IpAddr| addr.is_ipv4() == to.is_ipv4();
        self.link
            .source_for(to.ip())
            .or_else(|| self.addresses.iter().find(fits).copied())
            .ok_or(LlpError::Unreachable { addr: to })
    }

    /// Registers a connection that this host makes. If the local port is 0, a free one is chosen.
    pub(crate) fn register(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        mailbox: &Arc<Mailbox>,
    ) -> Result<FlowKey, LlpError> {
        let now = self.clock.now();
        let mut table = self.table.write();
        if let Some(error) = table.fault {
            return Err(error);
        }
        if local.port() != 0 {
            let key = FlowKey { local, remote };
            match table.flows.get(&key) {
                Some(Flow::Lingering { until }) if *until <= now => {}
                Some(_) => return Err(LlpError::AddressInUse { addr: local }),
                None => {}
            }
            table.flows.insert(key, Flow::Live(Arc::clone(mailbox)));
            return Ok(key);
        }
        for _ in EPHEMERAL {
            let port = table.next_port;
            table.next_port = if port == *EPHEMERAL.end() {
                *EPHEMERAL.start()
            } else {
                port + 1
            };
            let key = FlowKey {
                local: SocketAddr::new(local.ip(), port),
                remote,
            };
            if !table.flows.contains_key(&key) && !table.listeners.contains_key(&port) {
                table.flows.insert(key, Flow::Live(Arc::clone(mailbox)));
                return Ok(key);
            }
        }
        Err(LlpError::Exhausted {
            op: "connect",
            what: "free local ports",
        })
    }

    /// Registers a connection that a listener accepts. If another connection has this pair of
    /// addresses, returns that connection's inbox instead.
    pub(crate) fn register_passive(
        &self,
        key: FlowKey,
        mailbox: &Arc<Mailbox>,
    ) -> Result<(), Arc<Mailbox>> {
        let mut table = self.table.write();
        if let Some(Flow::Live(other)) = table.flows.get(&key) {
            return Err(Arc::clone(other));
        }
        table.end_lingering(&key);
        table.flows.insert(key, Flow::Live(Arc::clone(mailbox)));
        Ok(())
    }

    /// Removes a connection. With `linger`, its pair of addresses stays in use for [`LINGER`], and
    /// FINs of the peer are answered.
    pub(crate) fn unregister(&self, key: &FlowKey, mailbox: &Arc<Mailbox>, linger: bool) {
        let now = self.clock.now();
        let mut table = self.table.write();
        let ours =
            matches!(table.flows.get(key), Some(Flow::Live(live)) if Arc::ptr_eq(live, mailbox));
        if !ours {
            return;
        }
        if linger {
            if table.lingering >= MAX_LINGERING {
                table.forget_lingering(now);
            }
            table.flows.insert(
                *key,
                Flow::Lingering {
                    until: now + LINGER,
                },
            );
            table.lingering += 1;
        } else {
            table.flows.remove(key);
        }
    }

    /// Reserves a local address that no listener or other reservation has. Port 0 means a free
    /// port. Connections to the address are refused until [`Self::listen`].
    pub(crate) fn reserve(&self, at: SocketAddr) -> Result<SocketAddr, LlpError> {
        let addr = (!at.ip().is_unspecified()).then_some(at.ip());
        if addr.is_some_and(|addr| !self.has(addr)) {
            return Err(LlpError::AddressUnavailable { addr: at });
        }
        let mut table = self.table.write();
        if let Some(error) = table.fault {
            return Err(error);
        }
        let port = match at.port() {
            0 => table.free_port().ok_or(LlpError::Exhausted {
                op: "take a local address",
                what: "free local ports",
            })?,
            port => port,
        };
        let listeners = table.listeners.entry(port).or_default();
        let same = |other: &Listening| addr.is_none() || other.addr.is_none() || other.addr == addr;
        if listeners.iter().any(same) {
            return Err(LlpError::AddressInUse { addr: at });
        }
        let backlog = None;
        listeners.push(Listening { addr, backlog });
        Ok(SocketAddr::new(at.ip(), port))
    }

    /// Listens at a reserved address.
    pub(crate) fn listen(&self, at: SocketAddr, backlog: &Arc<Backlog>) -> Result<(), LlpError> {
        let mut table = self.table.write();
        if let Some(error) = table.fault {
            return Err(error);
        }
        if let Some(listening) = table.listening_at(at) {
            listening.backlog = Some(Arc::clone(backlog));
        }
        Ok(())
    }

    /// Stops listening. The address stays reserved.
    pub(crate) fn unlisten(&self, at: SocketAddr) {
        self.handshakes.remove_port(at.port());
        if let Some(listening) = self.table.write().listening_at(at) {
            listening.backlog = None;
        }
    }

    /// Ends the reservation of a local address.
    pub(crate) fn release(&self, at: SocketAddr) {
        let addr = (!at.ip().is_unspecified()).then_some(at.ip());
        let mut table = self.table.write();
        if let Entry::Occupied(mut entry) = table.listeners.entry(at.port()) {
            entry.get_mut().retain(|listening| listening.addr != addr);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// Returns the error if the link is down permanently.
    pub(crate) fn fault(&self) -> Option<LlpError> {
        self.table.read().fault
    }

    /// Records that the link is down permanently. All connections end with `error`, and no new ones
    /// are made.
    pub(crate) fn fail(&self, error: LlpError) {
        let (connections, listeners) = {
            let mut table = self.table.write();
            if table.fault.is_some() {
                return;
            }
            table.fault = Some(error);
            let listeners: Vec<_> = (table.listeners.values().flatten())
                .filter_map(|listening| listening.backlog.clone())
                .collect();
            (table.live(|_| true), listeners)
        };
        for (_, connection) in connections {
            connection.notify(Notice::End(error));
        }
        for listener in listeners {
            listener.signal.raise();
        }
    }

    /// Sends a notice to every connection whose addresses satisfy `concerns`.
    pub(crate) fn notify(
        &self,
        concerns: impl Fn(&FlowKey) -> bool,
        notice: impl Fn(&FlowKey) -> Notice,
    ) {
        let picked = self.table.read().live(concerns);
        for (key, mailbox) in picked {
            mailbox.notify(notice(&key));
        }
    }

    /// Limits the length of every connection's packets. Returns true if this lowers the limit of at
    /// least one connection.
    pub(crate) fn limit_mtu(&self, mtu: usize) -> bool {
        let connections = self.table.read().live(|_| true);
        let news = connections
            .iter()
            .filter(|(_, mailbox)| mailbox.limit_mtu(mtu));
        news.count() > 0
    }

    /// Returns the number of connections, without those that linger.
    pub(crate) fn connections(&self) -> usize {
        self.table.read().live(|_| true).len()
    }

    /// Returns the inbox of the connection with these addresses.
    pub(crate) fn connection(&self, key: &FlowKey) -> Option<Arc<Mailbox>> {
        match self.table.read().flows.get(key)? {
            Flow::Live(mailbox) => Some(Arc::clone(mailbox)),
            Flow::Lingering { .. } => None,
        }
    }

    /// Creates the route of a connection to `remote` with the inbox `own`.
    pub(crate) fn route(&self, remote: IpAddr, own: &Arc<Mailbox>) -> Route {
        Route {
            local: self.has(remote),
            inbox: None,
            hop: self.link.next_hop(remote),
            own: Some(Arc::clone(own)),
        }
    }

    /// Receives packets from the link and delivers them.
    pub(crate) fn poll(&self) {
        self.link.poll(self);
    }

    /// Returns true if packets of the connection with the inbox `sender` have to wait. In that
    /// case, the signal of `sender` is raised once packets may be sent.
    pub(crate) fn subscribe_if_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool {
        route.subscribe_if_full(sender)
            || (!route.local && self.link.subscribe_if_full(route, sender))
    }

    /// Sends a packet of this host.
    pub(crate) fn transmit(&self, packet: Packet, route: &mut Route) {
        if route.local {
            self.receive(packet, route);
        } else {
            self.link.send(packet, route);
        }
    }

    /// Delivers a received packet to its connection or listener, or answers it. `route` belongs to
    /// the sender, and caches the receiver's inbox. The sender may be on this same stack.
    pub(crate) fn receive(&self, packet: Packet, route: &mut Route) {
        let Err(packet) = route.deliver(packet) else {
            return;
        };
        let Some(segment) = Segment::parse(packet.bytes()) else {
            return self.pool.give_one(packet);
        };
        match self.destination(&segment) {
            Destination::Connection(mailbox) => match mailbox.deliver(packet) {
                Ok(()) => route.inbox = Some(mailbox),
                // The connection was closed a moment ago. The sender's next packet gets an answer.
                Err(packet) => self.pool.give_one(packet),
            },
            // smoltcp verifies the checksums of packets for a connection. The checksums of other
            // packets are verified here.
            Destination::Listener(_) | Destination::Handshake(_) | Destination::Answer(_)
                if self.settings.checksums && !segment::is_intact(packet.bytes()) =>
            {
                self.pool.give_one(packet);
            }
            Destination::Listener(backlog) => {
                self.answer_syn(&segment, &packet, &backlog);
                self.pool.give_one(packet);
            }
            Destination::Handshake(_) if segment.rst => {
                let window = self.settings.receive_buffer;
                match self.handshakes.reset(&segment, window) {
                    Some(answer) => self.answer(&segment.key, answer, packet),
                    None => self.pool.give_one(packet),
                }
            }
            Destination::Handshake(backlog) => {
                self.deliver_to_handshake(&segment, packet, &backlog);
            }
            Destination::Answer(answer) => self.answer(&segment.key, answer, packet),
            Destination::Nobody => self.pool.give_one(packet),
        }
    }

    /// Delivers a segment for which no connection was found at a listener's address.
    fn deliver_to_handshake(&self, segment: &Segment, packet: Packet, backlog: &Backlog) {
        let (window, now) = (self.settings.receive_buffer, self.clock.now());
        let delivered = match self.handshakes.completed_by(segment, window, now) {
            Some(handshake) => backlog.deliver(segment.key, handshake, packet),
            // The listener registers the connection before it removes the handshake. It may have
            // done both since the table was searched.
            None => match self.connection(&segment.key) {
                Some(mailbox) => mailbox.deliver(packet),
                None => return self.refuse(packet),
            },
        };
        if let Err(packet) = delivered {
            self.pool.give_one(packet);
        }
    }

    /// Answers a SYN to a listener, and stores the handshake.
    fn answer_syn(&self, segment: &Segment, packet: &Packet, backlog: &Backlog) {
        let (now, syn) = (self.clock.now(), packet.bytes());
        let seed = || self.random();
        let Some(handshake) = self.handshakes.find_or_begin(segment, syn, now, seed) else {
            return;
        };
        let Some(syn_ack) = self.syn_ack(&segment.key, &handshake) else {
            return;
        };
        let Some(own) = Segment::parse(syn_ack.bytes()) else {
            return;
        };
        // A SYN begins a new connection during TIME-WAIT (RFC 9293 section 3.6.1). The further
        // segments of the handshake must not be taken for segments of the old one.
        self.table.write().end_lingering(&segment.key);
        if self.handshakes.store(segment, handshake, own.seq, now) {
            // The listener has a new deadline.
            backlog.signal.raise();
        }
        self.transmit_to(&segment.key, syn_ack);
    }

    /// Repeats the SYN|ACKs that are due.
    pub(crate) fn repeat_syn_acks(&self) {
        let Some(at) = self.handshakes.deadline() else {
            return;
        };
        let now = self.clock.now();
        if at <= now {
            for (key, handshake) in self.handshakes.take_due(now) {
                if let Some(syn_ack) = self.syn_ack(&key, &handshake) {
                    self.transmit_to(&key, syn_ack);
                }
            }
        }
    }

    /// Makes the SYN|ACK of a handshake.
    fn syn_ack(&self, key: &FlowKey, handshake: &Handshake) -> Option<Packet> {
        let spare = self.answerers.lock().pop();
        let mut answerer = spare.unwrap_or_else(|| SynAnswerer::new(&self.settings));
        let syn_ack = answerer.answer(self, key, handshake);
        let mut spares = self.answerers.lock();
        if spares.is_empty() {
            spares.push(answerer);
        }
        syn_ack
    }

    /// Sends a packet that belongs to no connection yet.
    fn transmit_to(&self, key: &FlowKey, packet: Packet) {
        let remote = key.remote.ip();
        let mut route = Route {
            local: self.has(remote),
            hop: self.link.next_hop(remote),
            ..Route::default()
        };
        self.transmit(packet, &mut route);
    }

    /// Answers a segment with a reset, unless it is a reset itself.
    pub(crate) fn refuse(&self, packet: Packet) {
        match Segment::parse(packet.bytes()).and_then(|s| Some((s.key, s.reset()?))) {
            Some((key, answer)) => self.answer(&key, answer, packet),
            None => self.pool.give_one(packet),
        }
    }

    fn destination(&self, segment: &Segment) -> Destination {
        if !self.has(segment.key.local.ip()) {
            return Destination::Nobody;
        }
        let table = self.table.read();
        let answer =
            |answer: Option<Answer>| answer.map_or(Destination::Nobody, Destination::Answer);
        let opening = segment.syn && segment.ack.is_none() && !segment.rst;
        match table.flows.get(&segment.key) {
            Some(Flow::Live(mailbox)) => return Destination::Connection(Arc::clone(mailbox)),
            Some(Flow::Lingering { .. }) if !opening => {
                if segment.rst || (segment.payload == 0 && !segment.fin) {
                    return Destination::Nobody;
                }
                // Data that no program can read any more is answered by a reset, as in any TCP.
                let fin_only = segment.payload == 0;
                return answer(if fin_only {
                    segment.acknowledgement()
                } else {
                    segment.reset()
                });
            }
            _ => {}
        }
        match table.listener(segment.key.local) {
            Some(backlog) if opening => Destination::Listener(Arc::clone(backlog)),
            Some(backlog) => Destination::Handshake(Arc::clone(backlog)),
            None => answer(segment.reset()),
        }
    }

    /// Sends an answer of the stack, in the buffer of the packet that it answers.
    fn answer(&self, key: &FlowKey, answer: Answer, mut packet: Packet) {
        answer.write(key, &self.checksums(), &mut packet);
        let local = self.has(key.remote.ip());
        let mut route = Route {
            local,
            ..Route::default()
        };
        self.transmit(packet, &mut route);
    }
}

/// Source of random numbers: SipHash-2-4 of 0, 1, 2, ... under a secret key. Hosts see some of the
/// numbers as initial sequence numbers, and must not be able to compute the others from them. With
/// a seed, the numbers are predictable, for simulation.
struct Random {
    function: SipHasher24,
    /// Number of numbers generated.
    given: AtomicU64,
}

impl Random {
    fn new(seed: Option<u64>) -> Self {
        let function = match seed {
            Some(seed) => SipHasher24::new_with_keys(seed, 0),
            None => SipHasher24::new_with_key(&secret()),
        };
        Random {
            function,
            given: AtomicU64::new(0),
        }
    }

    fn next(&self) -> u64 {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        self.function.hash(&number.to_le_bytes())
    }
}

/// Returns random bytes of the system.
fn secret() -> [u8; 16] {
    let mut key = [0; 16];
    loop {
        match getrandom(&mut key, GetRandomFlags::empty()) {
            // The system gives up to 256 bytes whole.
            Ok(_) => return key,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "no random numbers from getrandom; using those of std");
                let word = || RandomState::new().hash_one(0).to_ne_bytes();
                let (low, high) = key.split_at_mut(8);
                low.copy_from_slice(&word());
                high.copy_from_slice(&word());
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::TcpSeqNumber;

    use super::*;
    use crate::Network;
    use crate::smol::MemoryNetwork;
    use crate::smol::signal::Signal;

    /// Computed by a separate implementation of SipHash-2-4 in Python.
    #[test]
    fn random_numbers_of_a_seed_are_siphash_2_4_of_their_positions() {
        let random = Random::new(Some(0x0706_0504_0302_0100));
        let numbers: [u64; 3] = core::array::from_fn(|_| random.next());
        assert_eq!(
            numbers,
            [
                0x02f4_c034_ec7d_04fa,
                0x9467_5481_14ca_a8c6,
                0x415e_4cc8_a754_51eb
            ]
        );
    }

    #[test]
    fn stacks_without_a_seed_have_other_numbers() {
        let [one, two] = [Random::new(None), Random::new(None)];
        assert!((0..4).any(|_| one.next() != two.next()));
    }

    /// The table is searched before the connection is registered, and the handshakes after the
    /// listener has removed the handshake.
    #[test]
    fn a_segment_between_a_handshake_and_its_connection_reaches_the_connection() {
        let (a, b) = MemoryNetwork::pair(&Default::default()).unwrap();
        let at = "192.0.2.2:7".parse().unwrap();
        let mut listener = b.listen(at, 1).unwrap();
        let mut client = a.connect(None, at).unwrap();
        assert!(client.connect_progress().unwrap());
        let mut server = listener.try_accept().unwrap().unwrap();
        server.drive();
        let remote = client.local_addr();
        let answer = Answer::challenge(TcpSeqNumber(5), TcpSeqNumber(6));
        let mut packet = Packet::new(0);
        let sent = FlowKey {
            local: remote,
            remote: at,
        };
        answer.write(&sent, &b.stack().checksums(), &mut packet);
        let segment = Segment::parse(packet.bytes()).unwrap();
        let mailbox = b.stack().connection(&segment.key).unwrap();
        assert!(!mailbox.has_packets());
        let backlog = Backlog::new(1, Signal::new().unwrap());
        b.stack().deliver_to_handshake(&segment, packet, &backlog);
        assert!(mailbox.has_packets());
    }
}
