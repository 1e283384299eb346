//! Accounting of resources by peer (the resource manager of RFC 5042 section 6.4.1).
//!
//! [`Accounts`] belongs to a device. For the device and for each peer address, it counts what peers
//! can make this side hold: connections in startup, connections, places for Reads (IRD), and bytes
//! of incomplete FPDUs. Each counted amount is a [`Charge`], which is given back on drop, however
//! the connection ends. Resources that only the local program can request (objects of the device or
//! of a protection domain) are counted where they are created.
//!
//! ```text
//!   TCP accepted     MPA Request complete     accepted             TCP closed
//!   ─────────────► half-open ───────────► half-open ───► connection, IRD ─────► nothing
//!                      │ startup fails, rejected, too late    │ ended
//!                      └────► half-open until TCP is closed   └► connection until TCP is closed
//! ```
//!
//! **Peer**: a peer is an IPv4 address, or an IPv6 network of 64 bits, because a host may own all
//! addresses of such a network. The link-local addresses of one interface count as one peer,
//! because a host may take any number of them. IPv4 addresses mapped to IPv6 count as IPv4.
//! Loopback addresses are ordinary peers.
//!
//! **Reserve**: a peer that is out of memory by its own limit or by that of the device may still
//! have one FPDU at a time received from it (`Reserve`). Peers at their limits thus slow down
//! those that hold nothing, but cannot stop them.
//!
//! **Trust**: no stream is assumed to trust another (5040-8.1.2-03, 5042-3-01). Every stream has
//! its own places. An SRQ, a CQ or a region is shared only where the program shares it. All scarce
//! resources are requested here or where objects are counted. They are granted only within the
//! limits (5040-8.1.2-02). A peer whose STags are refused again and again connects less often
//! (`penalty.rs`).
//!
//! The table has an entry for a peer only while something is charged to it, so the limits of the
//! device bound its size.

mod numbers;
mod objects;
mod pd;
mod penalty;
mod reads;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::fork_guard::ForkGuard;
use parking_lot::Mutex;
use uwarp_mpa::StartupError;

use crate::settings::Limits;
pub use numbers::{Number, Numbers};
pub use objects::{ObjectLimit, Objects, Place};
pub use pd::{OfPd, PdAccount, PdCharge};
use penalty::Penalties;
pub use penalty::is_stag_error;
pub use reads::ReadPlaces;

/// Kind of a counted resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Accepted TCP connections that are undecided, or are being closed.
    HalfOpen,
    /// Connections that a peer opened and the program accepted.
    Connections,
    /// RDMA Reads and atomic operations that peers may have outstanding.
    Ird,
    /// Bytes of FPDUs that are partly received.
    ReceiveMemory,
    /// Bytes of framed FPDUs that the peer has not taken.
    SendMemory,
}

const KINDS: usize = 5;

impl What {
    /// Returns the limits of the device and of one peer, in this order.
    fn limits(self, limits: &Limits) -> [u64; 2] {
        let peer = &limits.per_peer;
        match self {
            What::HalfOpen => [limits.max_half_open.into(), peer.max_half_open.into()],
            What::Connections => [limits.max_qp.into(), peer.max_qp.into()],
            What::Ird => [limits.max_ird_total.into(), peer.max_ird_total.into()],
            What::ReceiveMemory => [limits.max_receive_memory, peer.max_receive_memory],
            What::SendMemory => [limits.max_send_memory, peer.max_send_memory],
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::HalfOpen => "connections in startup",
            What::Connections => "connections",
            What::Ird => "places for RDMA Reads",
            What::ReceiveMemory => "bytes of unfinished FPDUs",
            What::SendMemory => "bytes of unsent FPDUs",
        })
    }
}

/// Error: one peer, or all peers together, have reached a limit of the settings (RFC 5042 section
/// 6.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct LimitReached {
    what: What,
    limit: u64,
    peer: Option<IpAddr>,
}

impl LimitReached {
    #[doc(hidden)]
    pub fn new(what: What, limit: u64, peer: Option<IpAddr>) -> Self {
        LimitReached { what, limit, peer }
    }

    /// The peer address whose limit was reached (IPv6: the network of 64 bits); `None` for the
    /// limit of the device.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Limit that was reached.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the error for a connection that was reset because a newer connection needed its
    /// place.
    #[doc(hidden)]
    pub fn displaced(&self) -> StartupError {
        StartupError::Displaced {
            limit: u32::try_from(self.limit).unwrap_or(u32::MAX),
            of_listener: false,
        }
    }

    /// Writes the fact without the advice.
    pub(crate) fn fact(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitReached { what, limit, peer } = *self;
        let have = if peer.is_some() { "has" } else { "have" };
        let whose = Whose(peer);
        write!(f, "{whose} already {have} {limit} {what}, the limit")
    }

    /// Returns the advice for the user.
    pub(crate) fn advice(&self) -> &'static str {
        match (self.what, self.peer.is_some()) {
            (What::HalfOpen, false) => {
                "wait until some are accepted or gone, or raise it in the settings (limits.max_half_open)"
            }
            (What::HalfOpen, true) => {
                "wait until some are accepted or gone, or raise it in the settings (limits.per_peer.max_half_open)"
            }
            (What::Connections, false) => "end some, or raise it in the settings (limits.max_qp)",
            (What::Connections, true) => {
                "end some, or raise it in the settings (limits.per_peer.max_qp)"
            }
            (What::Ird, false) => {
                "end some connections, accept with a smaller ird, or raise it in the settings (limits.max_ird_total)"
            }
            (What::Ird, true) => {
                "end some connections, accept with a smaller ird, or raise it in the settings (limits.per_peer.max_ird_total)"
            }
            (What::ReceiveMemory, false) => {
                "look for peers that begin messages and do not finish them, or raise it in the settings (limits.max_receive_memory)"
            }
            (What::ReceiveMemory, true) => {
                "check whether this peer begins messages and does not finish them, or raise it in the settings (limits.per_peer.max_receive_memory)"
            }
            (What::SendMemory, false) => {
                "look for peers that do not read what they are sent, or raise it in the settings (limits.max_send_memory)"
            }
            (What::SendMemory, true) => {
                "check whether this peer reads what it is sent, or raise it in the settings (limits.per_peer.max_send_memory)"
            }
        }
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fact(f)?;
        write!(f, "; {}", self.advice())
    }
}

/// Converts to the error that a listener reports together with the peer's address.
impl From<LimitReached> for StartupError {
    fn from(reached: LimitReached) -> Self {
        let limit = u32::try_from(reached.limit).unwrap_or(u32::MAX);
        let of_peer = reached.peer.is_some();
        match reached.what {
            What::Connections => StartupError::TooManyConnections { limit, of_peer },
            What::HalfOpen | What::Ird | What::ReceiveMemory | What::SendMemory => {
                StartupError::NoPlace { limit, of_peer }
            }
        }
    }
}

struct Whose(Option<IpAddr>);

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("all peers together"),
            Some(IpAddr::V6(net)) if net.is_unicast_link_local() => {
                f.write_str("the link-local addresses of one interface")
            }
            Some(IpAddr::V6(net)) if !net.is_loopback() => write!(f, "the network {net}/64"),
            Some(peer) => write!(f, "the peer {peer}"),
        }
    }
}

/// Amount of each kind that is charged to one peer or to the device.
#[derive(Default)]
struct Share([AtomicU64; KINDS]);

impl Share {
    fn of(&self, what: What) -> &AtomicU64 {
        // The discriminants are 0 to KINDS - 1.
        &self.0[what as usize]
    }

    fn used(&self, what: What) -> u64 {
        self.of(what).load(Ordering::Acquire)
    }

    /// Takes at least `least` and at most `most`, as far as `limit` allows. `None` if not even
    /// `least` is left.
    fn take(&self, what: What, least: u64, most: u64, limit: u64) -> Option<u64> {
        let mut granted = 0;
        self.of(what)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                granted = limit.saturating_sub(used).min(most);
                (granted >= least).then(|| used + granted)
            })
            .ok()
            .map(|_| granted)
    }

    fn give(&self, what: What, amount: u64) {
        self.of(what).fetch_sub(amount, Ordering::AcqRel);
    }
}

/// Accounts of a device and of its peers.
pub struct Accounts {
    fork_guard: ForkGuard,
    limits: Limits,
    device: Share,
    peers: Mutex<HashMap<PeerKey, Weak<PeerAccount>>>,
    /// Outlives the accounts of the peers.
    penalties: Mutex<Penalties>,
}

impl Accounts {
    /// Creates the accounts of a device with these limits.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Accounts {
            fork_guard: ForkGuard::here(),
            limits: *limits,
            device: Share::default(),
            peers: Mutex::default(),
            penalties: Mutex::new(Penalties::new(limits.per_peer.max_stag_errors)),
        })
    }

    /// Returns the amount that is charged to all peers together.
    pub fn used(&self, what: What) -> u64 {
        self.device.used(what)
    }

    /// Returns the account of the peer at this address.
    pub fn peer(self: &Arc<Self>, addr: SocketAddr) -> Arc<PeerAccount> {
        let key = PeerKey::of(addr);
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&key).and_then(Weak::upgrade) {
            return peer;
        }
        let peer = Arc::new(PeerAccount {
            accounts: Arc::clone(self),
            key,
            share: Share::default(),
            reserve_in_use: AtomicBool::new(false),
        });
        peers.insert(key, Arc::downgrade(&peer));
        peer
    }
}

/// Account of one peer. It is removed when it is no longer referenced.
pub struct PeerAccount {
    accounts: Arc<Accounts>,
    key: PeerKey,
    share: Share,
    /// A connection has the [`Reserve`].
    reserve_in_use: AtomicBool,
}

impl PeerAccount {
    /// Charges `amount` completely or not at all.
    pub fn take(self: &Arc<Self>, what: What, amount: u64) -> Result<Charge, LimitReached> {
        self.charge(what, amount, amount)
    }

    /// Checks whether one more unit would be granted. Another thread may take that unit first, so
    /// only [`take`](Self::take) is reliable.
    pub fn check(&self, what: What) -> Result<(), LimitReached> {
        let limits = what.limits(&self.accounts.limits);
        let shares = [
            (&self.accounts.device, None),
            (&self.share, Some(self.key.ip)),
        ];
        for ((share, peer), limit) in shares.into_iter().zip(limits).rev() {
            if share.used(what) >= limit {
                return Err(LimitReached { what, limit, peer });
            }
        }
        Ok(())
    }

    /// Charges `wanted`, or as much of it as the limits leave, which may be 0.
    pub(crate) fn take_up_to(self: &Arc<Self>, what: What, wanted: u64) -> Charge {
        let nothing = Charge {
            peer: Arc::clone(self),
            what,
            amount: 0,
        };
        self.charge(what, 0, wanted).unwrap_or(nothing)
    }

    /// Charges `amount` even beyond a limit, for a resource that exists already.
    pub fn take_in_any_case(self: &Arc<Self>, what: What, amount: u64) -> Charge {
        for share in [&self.accounts.device, &self.share] {
            share.of(what).fetch_add(amount, Ordering::AcqRel);
        }
        Charge {
            peer: Arc::clone(self),
            what,
            amount,
        }
    }

    fn charge(self: &Arc<Self>, what: What, least: u64, most: u64) -> Result<Charge, LimitReached> {
        let [of_device, of_peer] = what.limits(&self.accounts.limits);
        let reached = |limit, peer| LimitReached { what, limit, peer };
        // The peer's own limit is checked first. A peer that has reached it thus takes nothing of
        // the device's limit from other peers, not even briefly.
        let granted = self
            .share
            .take(what, least, most, of_peer)
            .ok_or(reached(of_peer, Some(self.key.ip)))?;
        let Some(amount) = self.accounts.device.take(what, least, granted, of_device) else {
            self.share.give(what, granted);
            return Err(reached(of_device, None));
        };
        self.share.give(what, granted - amount);
        Ok(Charge {
            peer: Arc::clone(self),
            what,
            amount,
        })
    }

    /// Counts a connection of the peer that ended because of an STag.
    pub fn count_stag_error(&self, now: Instant) {
        self.accounts.penalties.lock().count(self.key, now);
    }

    /// Decides whether a connection of the peer is accepted now, after its STag errors.
    pub fn admit(&self, now: Instant) -> Result<(), StartupError> {
        self.accounts.penalties.lock().admit(self.key, now)
    }

    /// Returns true if `amount` more would stay within a fraction of both limits. The fraction is
    /// one half if `part` is 2, and the whole limit if `part` is 1.
    pub fn has_room(&self, what: What, amount: u64, part: u64) -> bool {
        let limits = what.limits(&self.accounts.limits);
        [&self.accounts.device, &self.share]
            .into_iter()
            .zip(limits)
            .all(|(share, limit)| share.used(what).saturating_add(amount) <= limit / part)
    }

    /// Takes the reserve of this peer; `None` while another connection has it.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Reserve> {
        let free = !self.reserve_in_use.swap(true, Ordering::Acquire);
        free.then(|| Reserve {
            peer: Arc::clone(self),
        })
    }
}

/// Permission to receive one FPDU beyond the memory limits. Each peer has one.
pub(crate) struct Reserve {
    peer: Arc<PeerAccount>,
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.peer.reserve_in_use.store(false, Ordering::Release);
    }
}

impl fmt::Debug for PeerAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Whose(Some(self.key.ip)))
    }
}

impl Drop for PeerAccount {
    fn drop(&mut self) {
        if !self.accounts.fork_guard.is_here() {
            // A thread that does not exist in this process may hold the lock.
            return;
        }
        let mut peers = self.accounts.peers.lock();
        // Another account of the same peer may have been opened meanwhile: that account stays.
        if peers
            .get(&self.key)
            .is_some_and(|peer| peer.strong_count() == 0)
        {
            peers.remove(&self.key);
        }
    }
}

/// An amount that is charged to a peer and to the device until it is dropped.
pub struct Charge {
    peer: Arc<PeerAccount>,
    what: What,
    amount: u64,
}

impl Charge {
    /// The granted amount.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Gives back all but `amount`.
    pub(crate) fn shrink_to(&mut self, amount: u64) {
        let surplus = self.amount.saturating_sub(amount);
        self.amount -= surplus;
        self.give(surplus);
    }

    fn give(&self, amount: u64) {
        self.peer.accounts.device.give(self.what, amount);
        self.peer.share.give(self.what, amount);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give(self.amount);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.amount, self.what, self.peer.key.ip)
    }
}

/// Identity of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct PeerKey {
    /// Address, or the first address of a network.
    ip: IpAddr,
    /// Interface of link-local addresses, otherwise 0.
    scope: u32,
}

impl PeerKey {
    fn of(addr: SocketAddr) -> PeerKey {
        let ip = addr.ip().to_canonical();
        let scope = match (addr, ip) {
            (SocketAddr::V6(addr), IpAddr::V6(ip)) if ip.is_unicast_link_local() => addr.scope_id(),
            _ => 0,
        };
        let ip = match ip {
            IpAddr::V6(ip) if !ip.is_loopback() => {
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64))
            }
            ip => ip,
        };
        PeerKey { ip, scope }
    }
}
