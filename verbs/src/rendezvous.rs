//! Queue pairs that are connected by their numbers, without a connection manager.
//!
//! Many RDMA programs exchange the numbers and addresses of their QPs themselves, and then bring
//! each QP to RTR and RTS. iWARP has no such connection. So the number of a QP tells where it can
//! be called:
//!
//! ```text
//!   number of a QP (24 bits) = port of a rendezvous (16 bits) | index (8 bits)
//! ```
//!
//! A [`Rendezvous`] owns one TCP port for each 256 QPs. When a QP has been told its peer
//! ([`Qp::pair`]), one side calls the port of the other with an ordinary MPA Request, whose private
//! data names both QPs (`hello.rs`). `meeting.rs` decides who calls and which call is taken.
//!
//! A rendezvous has no thread: it is a `RequestSink` of ordinary listeners, and its timers are
//! those of the QPs.
//!
//! Locks: that of a QP is taken without that of the rendezvous, and the other way round.

mod meeting;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_llp::{BoundPort, LlpError};
use uwarp_mpa::StartupError;

use self::meeting::Offer;
pub(crate) use self::meeting::PairMeeting;
pub use self::meeting::{PairError, PairOptions, PeerQp};
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::hello::{Answer, Hello};
use uwarp_engine::times::earlier;

use crate::cm::{ConnectRequest, Listening, RequestSink};
use crate::connection::inner::QpInner;
use crate::datagram::port::{DatagramPort, QpDirectory};
use crate::device::{Device, DeviceError, DeviceInner};
use uwarp_engine::limits::{Number, Place};
use uwarp_engine::setters;

/// Number of QPs of one port.
const INDICES: u32 = 256;
/// Number that is not given, because InfiniBand has it for multicast.
const MULTICAST: u32 = 0x00FF_FFFF;
/// Maximum number of ports that are tried for datagrams, if other programs have the ports of UDP.
const ATTEMPTS: u32 = 16;
/// Number of calls that may wait for their QPs. A later one waits in the listener.
const BACKLOG: u32 = 1024;

/// Options of a [`Rendezvous`]. Default: ports that the system chooses, at all addresses of the
/// network, and callers at the addresses of their QPs only.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RendezvousOptions {
    /// Address to listen at. `None`: all addresses of the network, of both families if the network
    /// has both.
    pub addr: Option<IpAddr>,
    /// Ports to listen at, each for 256 QPs. `None`: the network chooses. Ports below 1024 are not
    /// used.
    pub ports: Option<RangeInclusive<u16>>,
    /// Accepts the call of a QP from any address. False: only from the address that the program has
    /// given for it ([`PeerQp::addr`]). Set it if addresses are translated between the two (NAT).
    pub any_source: bool,
}

setters! { RendezvousOptions {
    addr: Option<IpAddr>,
    ports: Option<RangeInclusive<u16>>,
    any_source: bool,
} }

/// Place where QPs that are connected by their numbers are called
/// ([`QpBuilder::rendezvous`](crate::QpBuilder::rendezvous)). It listens from the first
/// [`Qp::pair`](crate::Qp::pair) on, and as long as it or a QP of it exists.
#[derive(Clone)]
pub struct Rendezvous {
    inner: ForkGuarded<Arc<RendezvousInner>>,
}

pub(crate) struct RendezvousInner {
    this: Weak<RendezvousInner>,
    device: Arc<DeviceInner>,
    options: RendezvousOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ports: Vec<Port>,
    /// Numbers of the QPs that may hold a call that they have not taken.
    holding: BTreeSet<u32>,
    /// Time at which the first call that may be held has to be rejected.
    expiry: Option<Instant>,
}

/// Place and number of a new QP. One for datagrams also has a port.
pub(crate) type Taken = (Place, Number, Option<Arc<DatagramPort>>);

/// A QP with its meeting.
struct Member {
    qp: Weak<QpInner>,
    meeting: Weak<PairMeeting>,
}

/// A TCP port with the QPs whose numbers begin with it.
struct Port {
    addr: SocketAddr,
    number: u16,
    /// Index at which the search for the next number begins. A number is not soon given again, so
    /// that a late call for its former QP finds none.
    next: u32,
    qps: HashMap<u32, Member>,
    /// The port, until it listens.
    bound: Option<Box<dyn BoundPort>>,
    listening: Option<Listening>,
    /// UDP port of the same number, from the first QP for datagrams on.
    datagrams: Option<Arc<DatagramPort>>,
    /// The UDP port belongs to another program.
    lacks_datagrams: bool,
}

impl Device {
    /// Creates a place where QPs that are connected by their numbers are called.
    ///
    /// # Errors
    /// [`DeviceError::Inherited`] after a fork.
    pub fn rendezvous(&self, options: RendezvousOptions) -> Result<Rendezvous, DeviceError> {
        let device = self.inner()?;
        let inner = Arc::new_cyclic(|this| RendezvousInner {
            this: Weak::clone(this),
            device: Arc::clone(device),
            options,
            state: Mutex::default(),
        });
        Ok(Rendezvous {
            inner: ForkGuarded::new(inner),
        })
    }
}

impl Rendezvous {
    /// Returns true if the rendezvous belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.inner.unguarded().device, device)
    }

    /// Returns the shared part of the rendezvous.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    pub(crate) fn inner(&self) -> Result<&Arc<RendezvousInner>, Inherited> {
        self.inner.get()
    }
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous")
            .field("options", &self.inner.unguarded().options)
            .finish_non_exhaustive()
    }
}

impl State {
    fn port_of(&mut self, number: u32) -> Option<&mut Port> {
        let mut ports = self.ports.iter_mut();
        ports.find(|port| u32::from(port.number) == number >> 8)
    }
}

impl Port {
    fn new(bound: Box<dyn BoundPort>, first: u32) -> Self {
        Port {
            addr: bound.local_addr(),
            number: bound.local_addr().port(),
            next: first % INDICES,
            qps: HashMap::new(),
            bound: Some(bound),
            listening: None,
            datagrams: None,
            lacks_datagrams: false,
        }
    }

    /// Takes the next free number of the port.
    fn take_number(
        &mut self,
        device: &DeviceInner,
    ) -> Result<Option<(Place, Number)>, DeviceError> {
        for _ in 0..INDICES {
            let number = u32::from(self.number) << 8 | self.next;
            self.next = (self.next + 1) % INDICES;
            if number != MULTICAST
                && let Some(taken) = device.take_qp_number(number)?
            {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }
}

impl RendezvousInner {
    /// Takes the number of a new QP.
    pub(crate) fn take_number(&self) -> Result<Taken, DeviceError> {
        let mut state = self.state.lock();
        // The last port is the one most likely to have a free number.
        for port in state.ports.iter_mut().rev() {
            if let Some((place, number)) = port.take_number(&self.device)? {
                return Ok((place, number, None));
            }
        }
        let bound = self.reserve(&state.ports)?;
        // Different processes begin with different indices. Two QPs with one number may not agree
        // on who calls if each side sees other addresses.
        let mut port = Port::new(bound, self.first_index());
        let taken = port.take_number(&self.device)?;
        state.ports.push(port);
        let (place, number) = taken.ok_or_else(|| self.no_number())?;
        Ok((place, number, None))
    }

    fn no_number(&self) -> DeviceError {
        DeviceError::Limit {
            what: "QPs",
            limit: self.device.settings.limits.max_qp,
        }
    }

    /// Takes the number of a new QP for datagrams, at a port that receives datagrams.
    pub(crate) fn take_datagram_number(&self) -> Result<Taken, DeviceError> {
        let mut state = self.state.lock();
        for port in state.ports.iter_mut().rev() {
            if let Some(taken) = self.take_datagram_number_of(port)? {
                return Ok(taken);
            }
        }
        for _ in 0..ATTEMPTS {
            let bound = self.reserve(&state.ports)?;
            let mut port = Port::new(bound, self.first_index());
            let taken = self.take_datagram_number_of(&mut port);
            state.ports.push(port);
            if let Some(taken) = taken? {
                return Ok(taken);
            }
        }
        Err(self.no_number())
    }

    /// Takes the next free number of the port, if the port of UDP is free.
    fn take_datagram_number_of(&self, port: &mut Port) -> Result<Option<Taken>, DeviceError> {
        if port.lacks_datagrams {
            return Ok(None);
        }
        // Before a socket is opened: all numbers of the port may be taken.
        let Some((place, number)) = port.take_number(&self.device)? else {
            return Ok(None);
        };
        let datagrams = match &port.datagrams {
            Some(datagrams) => Arc::clone(datagrams),
            None => {
                let socket = match self.device.network.datagrams(port.addr) {
                    Ok(socket) => socket,
                    Err(LlpError::AddressInUse { .. }) => {
                        port.lacks_datagrams = true;
                        return Ok(None);
                    }
                    Err(error) => return Err(error.into()),
                };
                let this: Weak<dyn QpDirectory> = Weak::<RendezvousInner>::clone(&self.this);
                let any_source = self.options.any_source;
                let opened = DatagramPort::open(&self.device, this, socket, any_source)?;
                Arc::clone(port.datagrams.insert(opened))
            }
        };
        Ok(Some((place, number, Some(datagrams))))
    }

    /// Reserves another port.
    fn reserve(&self, taken: &[Port]) -> Result<Box<dyn BoundPort>, DeviceError> {
        let Some(ports) = &self.options.ports else {
            return self.reserve_at(0).map_err(DeviceError::from);
        };
        let mut last = LlpError::Exhausted {
            op: "take a port for queue pairs",
            what: "free ports of the range for queue pairs",
        };
        for number in ports.clone().filter(|number| *number >= 1024) {
            if taken.iter().any(|port| port.number == number) {
                continue;
            }
            match self.reserve_at(number) {
                Ok(bound) => return Ok(bound),
                // The port is in use by another process.
                Err(LlpError::AddressInUse { .. }) => {}
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn reserve_at(&self, port: u16) -> Result<Box<dyn BoundPort>, LlpError> {
        let reserve = |addr| self.device.network.reserve(SocketAddr::new(addr, port));
        match self.options.addr {
            Some(addr) => reserve(addr),
            // A machine may have no IPv6.
            None => match reserve(Ipv6Addr::UNSPECIFIED.into()) {
                Err(error @ LlpError::AddressInUse { .. }) => Err(error),
                Err(_) => reserve(Ipv4Addr::UNSPECIFIED.into()),
                bound => bound,
            },
        }
    }

    /// Index at which the numbers of a port begin.
    fn first_index(&self) -> u32 {
        (self.device.random() % u64::from(INDICES)) as u32
    }

    /// Makes a new QP known under its number.
    pub(crate) fn enter(&self, qp: &Arc<QpInner>, meeting: &Arc<PairMeeting>) {
        let mut state = self.state.lock();
        let number = qp.ctx.qp_num;
        if let Some(port) = state.port_of(number) {
            let (qp, meeting) = (Arc::downgrade(qp), Arc::downgrade(meeting));
            port.qps.insert(number, Member { qp, meeting });
        }
    }

    /// Listens at the port of this number.
    fn listen(&self, number: u32) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let Some(port) = state.port_of(number) else {
            return Ok(());
        };
        if port.listening.is_none() {
            let bound = match port.bound.take() {
                Some(bound) => bound,
                // An earlier call could not listen, and has lost the port.
                None => self.reserve_at(port.number)?,
            };
            let sink: Weak<RendezvousInner> = Weak::clone(&self.this);
            port.listening = Some(Listening::open(&self.device, bound, BACKLOG, sink)?);
        }
        Ok(())
    }

    /// Returns the QP of this number, and its meeting.
    fn member(&self, number: u32) -> Option<(Arc<QpInner>, Arc<PairMeeting>)> {
        let mut state = self.state.lock();
        let member = state.port_of(number)?.qps.get(&number)?;
        Some((member.qp.upgrade()?, member.meeting.upgrade()?))
    }
}

impl QpDirectory for RendezvousInner {
    fn qp(&self, number: u32) -> Option<Arc<QpInner>> {
        self.member(number).map(|(qp, _)| qp)
    }
}

impl DeviceInner {
    /// Returns a random number. It follows from the seed of the device, if it has one.
    fn random(&self) -> u64 {
        let seed = self.settings.seed;
        seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()))
    }
}

impl RequestSink for RendezvousInner {
    fn request(&self, request: ConnectRequest) {
        let hello = match Hello::from_bytes(request.private_data()) {
            Ok(hello) => hello,
            Err(answer) => return refuse(request, answer),
        };
        let Some((qp, meeting)) = self.member(hello.peer) else {
            return refuse(request, Answer::NoSuchPair);
        };
        // Noted first, so that the call is found when its time is over.
        let mut state = self.state.lock();
        state.holding.insert(hello.peer);
        state.expiry = earlier(state.expiry, Some(request.deadline()));
        drop(state);
        let rejected = meeting.offer(&qp, Offer { hello, request });
        if let Some((request, answer)) = rejected {
            refuse(request, answer);
        }
    }

    fn failed(&self, peer: SocketAddr, error: StartupError) {
        tracing::debug!(%peer, %error, "a call at a rendezvous failed");
    }

    fn expire(&self, now: Instant) {
        let holding = {
            let mut state = self.state.lock();
            if state.expiry.is_none_or(|expiry| now < expiry) {
                return;
            }
            state.expiry = None;
            std::mem::take(&mut state.holding)
        };
        for number in holding {
            let held = self.member(number);
            let held = held.and_then(|(qp, meeting)| meeting.expire_offer(&qp, now));
            if held.is_some() {
                let mut state = self.state.lock();
                state.holding.insert(number);
                state.expiry = earlier(state.expiry, held);
            }
        }
    }
}

/// Rejects a call.
pub(crate) fn refuse(request: ConnectRequest, answer: Answer) {
    let peer = request.peer_addr();
    tracing::debug!(%peer, ?answer, "a call by number is rejected");
    // The private data fits into every Reply.
    let _ = request.reject(&answer.to_bytes());
}
