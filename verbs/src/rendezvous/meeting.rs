//! The meeting of two QPs that are connected by their numbers: who calls, and which call is taken.
//!
//! Both sides know both numbers. The QP with the smaller one calls first. If it does not reach the
//! other, because of a firewall between them, the other calls in reverse after some time. So two
//! calls may cross:
//!
//! * The side that calls first takes a call in reverse only as long as its own has not sent an MPA
//!   Request. Otherwise it rejects the call in reverse.
//! * The other side takes the proper call in any case, and gives its own up.
//!
//! So at most one of the two calls is taken by both.
//!
//! QPs of two hosts may have the same number. Then the one with the smaller address calls first. If
//! addresses are translated between the hosts, or a host is known by another of its addresses, the
//! two sides may compare different ones: both call first, or neither does. Each side then takes a
//! call only as the side that calls first does, and both call at random times.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_engine::fork_guard::Inherited;
use uwarp_engine::hello::{Answer, Hello, mapped};
use uwarp_engine::state::QpState;
use uwarp_llp::LlpError;
use uwarp_mpa::{ConfigError, Negotiated, Revision, Role, RtrKinds};

use super::{RendezvousInner, refuse};
use crate::cm::{AcceptOptions, ConnectOptions, ConnectRequest, connect_pair};
use crate::connection::inner::{Locked, PeerCharges, QpInner};
use crate::connection::meeting::Meeting;
use crate::device::DeviceError;
use crate::qp::Qp;
use uwarp_engine::connection::Pair;
use uwarp_engine::limits::ReadPlaces;
use uwarp_engine::setters;

/// Ports below this one are never called: they belong to services of the system.
const FIRST_PORT: u16 = 1024;

/// A QP of another process or host, as its program has described it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerQp {
    /// Address of its host. A loopback address stands for this host.
    pub addr: IpAddr,
    /// Its number (24 bits), which it has from its rendezvous.
    pub qp_num: u32,
}

impl PeerQp {
    /// Describes the QP with this number at this address.
    #[must_use]
    pub const fn new(addr: IpAddr, qp_num: u32) -> Self {
        PeerQp { addr, qp_num }
    }

    /// Port of its rendezvous.
    fn port(self) -> u16 {
        u16::try_from(self.qp_num >> 8).unwrap_or(0)
    }
}

/// Options of connecting a QP by its number ([`Qp::pair`]). Default: 16 Reads of the peer, as many
/// Reads of this side as the peer allows, and sends that wait for the peer without limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PairOptions {
    /// Address to call from; `None`: the network chooses. The peer accepts the call only from the
    /// address that its program has for this QP. A peer with a link-local address is looked for on
    /// the interface of this address.
    pub local: Option<SocketAddr>,
    /// IRD: RDMA Reads and atomic operations that the peer may have outstanding.
    pub ird: u16,
    /// Maximum time that a send waits for a connection to the peer. Then it fails with
    /// [`Status::RetryExceeded`](crate::Status::RetryExceeded); an unreliable QP drops it and
    /// completes it with success. `None`: no limit.
    pub patience: Option<Duration>,
    /// Whether a Write completes only when the peer has placed it. `None`: as the QP was built
    /// ([`QpBuilder::placed_writes`](crate::QpBuilder::placed_writes)). No effect on an unreliable
    /// QP.
    pub placed_writes: Option<bool>,
}

setters! { PairOptions {
    local: Option<SocketAddr>,
    ird: u16,
    patience: Option<Duration>,
    placed_writes: Option<bool>,
} }

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions {
            local: None,
            ird: 16,
            patience: None,
            placed_writes: None,
        }
    }
}

/// Error of connecting a QP by its number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// The QP has no number of a rendezvous.
    #[error(
        "the QP was created without a rendezvous, so its number names no port; create it with QpBuilder::rendezvous"
    )]
    NoRendezvous,
    /// The QP is for datagrams, which have no connection.
    #[error("the QP is for datagrams, which need no connection; send with Qp::post_datagram")]
    ForDatagrams,
    /// The QP already has a peer, or had one and was not reset.
    #[error("the QP is in state {state}; pair needs an idle one (reset it, or create another)")]
    QpInUse {
        /// State of the QP.
        state: QpState,
    },
    /// The device speaks MPA revision 1 only, which has no peer-to-peer model.
    #[error("{0}")]
    Options(#[from] ConfigError),
    /// The port of the rendezvous cannot listen.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The QP cannot be connected to itself over this network.
    #[error("the QP cannot be connected to itself: {0}")]
    Llp(#[from] LlpError),
    /// The QP was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
}

/// The peer that a program has given to a QP.
#[derive(Clone, Copy)]
struct GivenPeer {
    peer: PeerQp,
    calls_first: bool,
    local: Option<SocketAddr>,
    ird: u16,
    any_source: bool,
}

/// Meeting of one QP. No other lock is taken while its lock is held. All calls but `end` take it
/// under the lock of the QP.
#[derive(Default)]
pub(crate) struct PairMeeting {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    given: Option<GivenPeer>,
    /// A call that the QP has not taken.
    offer: Option<Offer>,
}

/// A call of a peer, which the QP has not taken.
pub(super) struct Offer {
    pub(super) hello: Hello,
    pub(super) request: ConnectRequest,
}

/// Decision on a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Take,
    /// The QP may take it later: when its program has given it this peer.
    Hold,
    Refuse(Answer),
}

impl Qp {
    /// Connects the QP to the QP with a number, as programs do that exchange numbers by a
    /// connection of their own (`ibv_modify_qp` to RTR and RTS). Returns at once. The other side
    /// does the same with the number of this QP. Both need a [`Rendezvous`](crate::Rendezvous).
    ///
    /// Sends may be posted from now on. They wait until the two QPs have met, at most for
    /// [`PairOptions::patience`]. Receives may have been posted before.
    ///
    /// As on InfiniBand, this side is not told that the peer has gone, and its receives stay
    /// posted. The first send to a peer that has gone fails with
    /// [`Status::RetryExceeded`](crate::Status::RetryExceeded), the others are flushed, and the QP
    /// is in state `Error`. A reset ([`Qp::modify`]) makes it usable again.
    ///
    /// A QP may be connected to itself.
    ///
    /// # Errors
    /// [`PairError`]. Nothing has changed then, except that a QP that was to be connected to itself
    /// is in state `Error` if the connection could not be watched.
    pub fn pair(&self, peer: PeerQp, options: &PairOptions) -> Result<(), PairError> {
        let inner = self.inner()?;
        if inner.ctx.datagrams.is_some() {
            return Err(PairError::ForDatagrams);
        }
        let Some(rendezvous) = self.rendezvous() else {
            return Err(PairError::NoRendezvous);
        };
        let rendezvous = rendezvous.inner()?;
        let Some((_, meeting)) = rendezvous.member(inner.ctx.qp_num) else {
            return Err(PairError::NoRendezvous);
        };
        if inner.device.settings.revision != Revision::Two {
            return Err(ConfigError::PeerToPeerNeedsRevisionTwo.into());
        }
        rendezvous.listen(inner.ctx.qp_num)?;
        meeting.pair(inner, peer, options, rendezvous)
    }

    /// Sets the maximum time that sends wait for a peer that was given by [`Qp::pair`]
    /// ([`PairOptions::patience`]). Does nothing for any other QP.
    pub fn set_patience(&self, patience: Option<Duration>) {
        let Ok(inner) = self.inner() else {
            return;
        };
        let mut locked = inner.lock();
        locked.driven.conn.set_patience(patience);
        if locked.driven.llp.is_some() {
            let due = locked.driven.deadline();
            locked.registration.set_timer(&inner.device.background, due);
        }
        inner.arm_meeting(&mut locked);
    }
}

impl PairMeeting {
    fn given(&self) -> Option<GivenPeer> {
        self.state.lock().given
    }

    fn pair(
        &self,
        qp: &Arc<QpInner>,
        peer: PeerQp,
        options: &PairOptions,
        rendezvous: &RendezvousInner,
    ) -> Result<(), PairError> {
        let ird = if qp.ctx.unreliable { 0 } else { options.ird };
        let options = &options.ird(ird);
        let own = qp.ctx.qp_num;
        let network = &qp.device.network;
        let to = SocketAddr::new(peer.addr, peer.port());
        let source = || network.source_for(to).unwrap_or(peer.addr);
        let own_addr = options.local.map_or_else(source, |local| local.ip());
        let is_here = own_addr == peer.addr || qp.is_of_this_host(peer.addr);
        let is_itself = peer.qp_num == own && is_here;
        let calls_first = (own, mapped(own_addr)) < (peer.qp_num, mapped(peer.addr));
        let mut locked = qp.lock();
        let now = qp.device.now();
        let conn = &mut locked.driven.conn;
        conn.set_now(now);
        let state = conn.state;
        if is_itself {
            return self.pair_with_itself(qp, &mut locked, peer.addr, options);
        }
        let mut pair = Pair::new(calls_first, options.patience, now);
        if peer.qp_num == own {
            // Two devices with one seed must not call at the same times.
            let mut random = DefaultHasher::new();
            (qp.device.random(), own_addr).hash(&mut random);
            pair = pair.spread(random.finish());
        }
        if !conn.begin_pair(pair) {
            return Err(PairError::QpInUse { state });
        }
        conn.choose_placed_writes(options.placed_writes);
        self.state.lock().given = Some(GivenPeer {
            peer,
            calls_first,
            local: options.local,
            ird: options.ird,
            any_source: rendezvous.options.any_source,
        });
        self.attend(qp, &mut locked, now);
        Ok(())
    }

    /// Connects the QP to itself, by a TCP connection that is connected to itself. It carries what
    /// any other connection carries, but no MPA startup.
    fn pair_with_itself(
        &self,
        qp: &Arc<QpInner>,
        locked: &mut Locked,
        addr: IpAddr,
        options: &PairOptions,
    ) -> Result<(), PairError> {
        let state = locked.driven.conn.state;
        if state != QpState::Idle {
            return Err(PairError::QpInUse { state });
        }
        self.state.lock().given = None;
        let loopback = match addr {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let reserve = |addr| qp.device.network.reserve(SocketAddr::new(addr, 0));
        // A device may be bound to one address.
        let bound = reserve(loopback).or_else(|_| reserve(addr))?;
        let itself = bound.local_addr();
        let llp = bound.connect_to_itself()?;
        let account = qp.device.accounts.peer(itself);
        let places = ReadPlaces::up_to(options.ird, &account, qp.in_pd());
        let negotiated = Negotiated {
            role: Role::Initiator,
            revision: Revision::Two,
            enhanced: false,
            crc: qp.device.settings.crc,
            tx_markers: qp.device.settings.markers,
            rx_markers: qp.device.settings.markers,
            ird: places.amount(),
            ord: places.amount(),
            peer_ird: None,
            peer_ord: None,
            rtr: None,
            rtr_offered: RtrKinds::NONE,
            private_data: Vec::new(),
        };
        locked
            .driven
            .conn
            .choose_placed_writes(options.placed_writes);
        if !locked.driven.conn.start_open(negotiated, llp.emss()) {
            return Err(PairError::QpInUse { state });
        }
        locked.driven.conn.take_send_immediate();
        let held = PeerCharges {
            peer: account,
            place: None,
            ird: places,
        };
        if let Err(error) = qp.attach(locked, llp, held, None) {
            qp.not_attached(locked, error);
            return Err(error.into());
        }
        Ok(())
    }

    /// Takes, holds or refuses a call. Returns a call to be rejected.
    pub(super) fn offer(
        &self,
        qp: &Arc<QpInner>,
        offer: Offer,
    ) -> Option<(ConnectRequest, Answer)> {
        let mut locked = qp.lock();
        locked.driven.conn.set_now(qp.device.now());
        match self.judge(qp, &locked, &offer) {
            Verdict::Take => {
                self.take_call(qp, &mut locked, offer.request);
                None
            }
            Verdict::Hold => {
                let replaced = self.state.lock().offer.replace(offer);
                replaced.map(|older| (older.request, Answer::NoSuchPair))
            }
            Verdict::Refuse(answer) => Some((offer.request, answer)),
        }
    }

    /// Rejects the call that is held if its time is over by `now`. Returns the time at which
    /// another one that is held has to be rejected.
    pub(super) fn expire_offer(&self, qp: &QpInner, now: Instant) -> Option<Instant> {
        let locked = qp.lock();
        let mut state = self.state.lock();
        let late = state.offer.take_if(|offer| offer.request.deadline() <= now);
        let next = state.offer.as_ref().map(|offer| offer.request.deadline());
        drop(state);
        drop(locked);
        if let Some(offer) = late {
            refuse(offer.request, Answer::NoSuchPair);
        }
        next
    }

    fn judge(&self, qp: &QpInner, locked: &Locked, offer: &Offer) -> Verdict {
        let conn = &locked.driven.conn;
        if conn.orphaned {
            return Verdict::Refuse(Answer::NoSuchPair);
        }
        let Some(given) = self.given().filter(|_| conn.is_meeting()) else {
            // The program has not given the QP its peer yet, or will reset the QP first.
            return Verdict::Hold;
        };
        let Offer { hello, request } = offer;
        let agrees = hello.reverse == given.calls_first;
        // Only the addresses tell who calls.
        let may_differ = hello.own == qp.ctx.qp_num;
        if hello.own != given.peer.qp_num
            || hello.unreliable != qp.ctx.unreliable
            || !(agrees || may_differ)
            || !given.sends(qp, request)
        {
            return Verdict::Refuse(Answer::NoSuchPair);
        }
        match given.calls_first || !agrees {
            true if conn.may_retract() => Verdict::Take,
            true => Verdict::Refuse(Answer::MineIsUnderWay),
            // The peer has given up the call that was taken.
            false if conn.is_open() => Verdict::Hold,
            false => Verdict::Take,
        }
    }

    /// Accepts a call, and gives up that of this side.
    fn take_call(&self, qp: &Arc<QpInner>, locked: &mut Locked, request: ConnectRequest) {
        let ird = self.given().map_or(0, |given| given.ird);
        if !locked.driven.conn.awaits_pair() {
            locked.driven.conn.retract();
            if let Some(llp) = &mut locked.driven.llp {
                llp.abort();
            }
            qp.release(locked);
        }
        let options = AcceptOptions::default()
            .ird(ird)
            .ord(qp.pair_ord())
            .private_data(Answer::Accepted.to_bytes());
        if let Err(error) = request.accept_locked(qp, locked, &options, None) {
            tracing::debug!(qp = qp.ctx.qp_num, %error, "a call by number was not taken");
        }
        self.arm(qp, locked);
    }

    /// Calls the peer.
    fn call(&self, qp: &Arc<QpInner>, locked: &mut Locked) {
        let Some(given) = self.given() else {
            return;
        };
        let GivenPeer {
            peer,
            local,
            calls_first,
            ird,
            ..
        } = given;
        if peer.port() < FIRST_PORT {
            // No rendezvous has such a number, so nobody answers.
            return;
        }
        let mut to = SocketAddr::new(peer.addr, peer.port());
        if let (SocketAddr::V6(to), Some(SocketAddr::V6(local))) = (&mut to, local) {
            keep_scope(to, local);
        }
        let own_addr = local.map(|local| local.ip());
        let hello = Hello {
            own: qp.ctx.qp_num,
            peer: peer.qp_num,
            addr: own_addr.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            reverse: !calls_first,
            unreliable: qp.ctx.unreliable,
        };
        let options = ConnectOptions::default()
            .local(local)
            .ird(ird)
            .ord(qp.pair_ord())
            .peer_to_peer(true)
            .private_data(hello.to_bytes());
        if let Err(error) = connect_pair(qp, locked, to, &options) {
            tracing::debug!(qp = qp.ctx.qp_num, %error, "a call by number cannot be made");
            locked.driven.conn.call_failed();
        }
    }
}

impl Meeting for PairMeeting {
    /// Takes the call that is held, calls the peer, or gives up.
    fn attend(&self, qp: &QpInner, locked: &mut Locked, now: Instant) {
        if self.given().is_none() {
            return;
        }
        let Some(this) = qp.this() else {
            return;
        };
        locked.driven.conn.set_now(now);
        let held = self.state.lock().offer.take();
        if let Some(offer) = held {
            match self.judge(qp, locked, &offer) {
                Verdict::Take => return self.take_call(&this, locked, offer.request),
                Verdict::Hold => self.state.lock().offer = Some(offer),
                Verdict::Refuse(answer) => refuse(offer.request, answer),
            }
        }
        if locked.driven.conn.pair_due() {
            self.call(&this, locked);
        }
        qp.publish(locked);
        self.arm(qp, locked);
    }

    fn arm(&self, qp: &QpInner, locked: &mut Locked) {
        let conn = &locked.driven.conn;
        let (is_given, is_offered) = {
            let state = self.state.lock();
            (state.given.is_some(), state.offer.is_some())
        };
        if !is_given || locked.driven.llp.is_some() || conn.orphaned {
            return;
        }
        let mut due = locked.driven.conn.pair_deadline();
        if is_offered && locked.driven.conn.awaits_pair() {
            // The QP awaits its peer again and may take the call now.
            due = Some(qp.device.now());
        }
        if let (Some(due), Some(this)) = (due, qp.this()) {
            let token = locked.registration.token;
            let weak: Weak<QpInner> = Arc::downgrade(&this);
            qp.device.background.enlist(token, weak);
            locked
                .registration
                .set_timer(&qp.device.background, Some(due));
        }
    }

    fn end(&self) {
        let held = self.state.lock().offer.take();
        // Dropping a call rejects it.
        drop(held);
    }
}

impl GivenPeer {
    /// Returns true if the call comes from the host of the peer.
    fn sends(&self, qp: &QpInner, request: &ConnectRequest) -> bool {
        let (source, wanted) = (request.peer_addr().ip().to_canonical(), self.peer.addr);
        self.any_source
            || source == wanted.to_canonical()
            || qp.is_of_this_host(wanted) && qp.is_of_this_host(source)
    }
}

impl QpInner {
    /// Returns true if the address is one of this host.
    fn is_of_this_host(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        addr.is_loopback() || self.device.network.info().addresses.contains(&addr)
    }

    /// Number of Reads that this side may have outstanding, if the peer allows it. An unreliable QP
    /// has none.
    fn pair_ord(&self) -> u16 {
        match self.ctx.unreliable {
            true => 0,
            false => self.device.settings.limits.max_ord,
        }
    }
}

/// Gives a link-local address the interface of the local one (RFC 4007 section 11).
fn keep_scope(to: &mut SocketAddrV6, local: SocketAddrV6) {
    if to.ip().is_unicast_link_local() {
        to.set_scope_id(local.scope_id());
    }
}

/// Compile-time check: a call moves between threads with the QP that holds it.
const _: fn() = || {
    fn assert_send<T: Send>() {}
    assert_send::<Offer>();
};
