//! Ids of the connection manager, and what may be told of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use uwarp_mpa::ConfigError;
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::llp::smol::Clock;
use uwarp_verbs::{
    AcceptError, AcceptOptions, CmError, CmEvent, CmEventKind, CmId, CmState, ConnectError,
    ConnectOptions, Qp, QpState, RejectOptions, Timeouts,
};

use super::world::{HOST, World};
use crate::input::Input;

/// Ids at one time.
const MAX_IDS: usize = 12;
/// The port that everybody finds.
const PORT: u16 = 7174;

struct Id {
    id: CmId,
    /// Events of each kind that came.
    established: usize,
    disconnected: usize,
    /// When its connection request was told of, which was there before.
    told: Option<Instant>,
}

/// The ids of the program, and events that it has not acknowledged.
#[derive(Default)]
pub(super) struct Ids {
    ids: Vec<Id>,
    held: Vec<CmEvent>,
}

impl Ids {
    fn add(&mut self, id: CmId) {
        self.ids.push(Id {
            id,
            established: 0,
            disconnected: 0,
            told: None,
        });
    }

    /// An id that the input chooses.
    fn choose(&self, input: &mut Input<'_>) -> Option<CmId> {
        let choice = input.choice(self.ids.len());
        self.ids.get(choice).map(|id| id.id.clone())
    }

    /// Which ids have this address: those that connected from it have it still, and do not keep it from others.
    fn at(&self, addr: SocketAddr) -> impl Iterator<Item = CmState> {
        let has = move |own: &&Id| own.id.local_addr() == Some(addr);
        self.ids.iter().filter(has).map(|own| own.id.state())
    }

    /// Whether the program has events of ids that it did not acknowledge.
    pub(super) fn holds_events(&self) -> bool {
        !self.held.is_empty()
    }

    /// Drops an id or an event. Whether there was one.
    pub(super) fn drop_one(&mut self) -> bool {
        self.ids.pop().is_some() || self.held.pop().is_some()
    }
}

/// What a call was given, as far as it may be refused for that.
struct Given {
    call: u8,
    before: CmState,
    /// The address that it names.
    to: SocketAddr,
    /// The states of the ids that have this address.
    at: Vec<CmState>,
    /// How long it is since the id's request was told of at least, and at most.
    waited: Option<[Duration; 2]>,
    /// The state of the QP, if it needs one.
    qp: Option<QpState>,
    private_data: usize,
    depth: u16,
}

/// A call that is refused changes nothing, and is refused for what was given or is so.
fn judge(id: &CmId, given: &Given, result: Result<(), CmError>) {
    let error = match result {
        Ok(()) => return given.permitted(),
        Err(error) => error,
    };
    let so = match &error {
        CmError::WrongState(wrong) => (wrong.state, id.state()) == (given.before, given.before),
        CmError::Unacknowledged { events } => given.call == 11 && *events > 0,
        // To resolve an address asks nobody, and who listens at an address has it, or takes a free one.
        CmError::Network(error) => given.call == 1 && given.unavailable(*error),
        // What TCP says comes by an event.
        CmError::Connect(error) => {
            matches!(given.call, 5 | 6)
                && match error {
                    ConnectError::QpInUse { state } => given.in_use(*state),
                    ConnectError::Options(error) => given.unfit(error),
                    _ => false,
                }
        }
        // The limits are not reached with so few connections.
        CmError::Accept(error) => {
            matches!(given.call, 7..=9)
                && match error {
                    AcceptError::QpInUse { state } => given.in_use(*state),
                    AcceptError::Options(error) => given.unfit(error),
                    AcceptError::TooLate { peer } => {
                        id.peer_addr() == Some(*peer) && given.may_be_late()
                    }
                    _ => false,
                }
        }
        CmError::Options(error) => given.unfit(error),
        _ => false,
    };
    assert!(so, "call {} in {}: {error:?}", given.call, given.before);
    assert!(!error.to_string().is_empty());
}

impl Given {
    /// Nothing was in the way of a call that was not refused.
    fn permitted(&self) {
        let wants_idle = matches!(self.call, 5..=8);
        assert!(!wants_idle || self.qp.is_none_or(|state| state == QpState::Idle));
        if self.call == 1 {
            assert_eq!(self.to.ip(), HOST);
            assert!(!self.at.iter().any(keeps), "two ids have {}", self.to);
        }
        let [least, _] = self.waited.unwrap_or_default();
        assert!(!matches!(self.call, 7 | 8) || least < Timeouts::default().decision);
    }

    /// Whether an address is rightly said not to be there, or to be taken.
    fn unavailable(&self, error: LlpError) -> bool {
        match error {
            LlpError::AddressUnavailable { addr } => addr == self.to && addr.ip() != HOST,
            LlpError::AddressInUse { addr } => addr == self.to && self.at.iter().any(may_keep),
            _ => false,
        }
    }

    /// When a request came is not known: only when it was told of, and when time began.
    fn may_be_late(&self) -> bool {
        let limit = Timeouts::default().decision;
        self.waited.is_some_and(|[_, most]| most >= limit)
    }

    fn in_use(&self, state: QpState) -> bool {
        self.qp == Some(state) && state != QpState::Idle
    }

    /// Whether an option is rightly said not to fit into a frame.
    fn unfit(&self, error: &ConfigError) -> bool {
        match *error {
            ConfigError::PrivateDataTooLong { len, max } => {
                len == self.private_data && len > max && matches!(max, 508 | 512)
            }
            ConfigError::DepthTooLarge { value, max } => value == self.depth && value > max,
            _ => false,
        }
    }
}

/// Whether an id in this state, with a local address, keeps it from others for certain.
fn keeps(state: &CmState) -> bool {
    matches!(state, CmState::Bound | CmState::Listening)
}

/// Whether it may: before it connects, or when connecting was not begun.
fn may_keep(state: &CmState) -> bool {
    keeps(state) || matches!(state, CmState::AddrResolved | CmState::RouteResolved)
}

impl World {
    /// A call of an id, with any arguments.
    pub(super) fn cm(&mut self, input: &mut Input<'_>) {
        let call = input.u8() % 12;
        if call == 0 {
            if self.ids.ids.len() < MAX_IDS {
                let id = self.channel.create_id(&self.device, 7);
                self.ids.add(id);
            }
            return;
        }
        let Some(id) = self.ids.choose(input) else {
            return;
        };
        let before = id.state();
        let flags = input.flags();
        let to = address(&flags, input);
        let queue = input.choice(self.queues.len());
        let qp = self.queues.get(queue).map(|queue| &queue.qp);
        let len = if flags(3) {
            usize::from(input.u16() % 600)
        } else {
            3
        };
        let depth = if flags(4) { input.u16() } else { 4 };
        let given = Given {
            call,
            before,
            qp: qp.map(Qp::state),
            private_data: len,
            depth,
            to,
            at: self.ids.at(to).collect(),
            waited: self.waited(&id),
        };
        let result = match (call, qp) {
            (1, _) => id.bind_addr(to),
            (2, _) => id.listen(input.u8().into()),
            (3, _) => id.resolve_addr(None, to),
            (4, _) => id.resolve_route(),
            (5 | 6, Some(qp)) => connect(&id, qp, &given, flags(5)),
            (7 | 8, Some(qp)) => accept(&id, qp, &given),
            (9, _) => id.reject(
                &RejectOptions::default()
                    .private_data(vec![7; len])
                    .ord_needed(flags(5).then_some(depth)),
            ),
            (10, _) => id.disconnect(),
            (11, _) => id.destroy(Some(Duration::ZERO)),
            _ => Ok(()),
        };
        let gone = call == 11 && result.is_ok();
        judge(&id, &given, result);
        if gone {
            assert_eq!(id.state(), CmState::Destroyed);
            self.ids.ids.retain(|own| !own.id.is(&id));
        }
    }

    /// How long the request of an id has waited, at least and at most.
    fn waited(&self, id: &CmId) -> Option<[Duration; 2]> {
        let own = self.ids.ids.iter().find(|own| own.id.is(id))?;
        let now = self.clock.now();
        Some([now - own.told?, now - self.began])
    }

    /// The next event of the connection manager: its kind and its id.
    pub(super) fn told(&mut self, hold: bool) -> Option<(CmEventKind, CmId)> {
        let event = self.channel.try_get_event()?;
        let (kind, id) = (event.kind(), event.id().clone());
        if kind == CmEventKind::ConnectRequest {
            assert!(event.listen_id().is_some());
            // One too many is rejected, by dropping its id.
            if self.ids.ids.len() < MAX_IDS {
                self.ids.add(id.clone());
                if let Some(own) = self.ids.ids.last_mut() {
                    own.told = Some(self.clock.now());
                }
            }
        }
        if let Some(own) = self.ids.ids.iter_mut().find(|own| own.id.is(&id)) {
            own.established += usize::from(kind == CmEventKind::Established);
            own.disconnected += usize::from(kind == CmEventKind::Disconnected);
            assert!(own.disconnected <= own.established, "{event:?}");
        }
        let failed = matches!(
            kind,
            CmEventKind::AddrError
                | CmEventKind::RouteError
                | CmEventKind::Rejected
                | CmEventKind::Unreachable
                | CmEventKind::ConnectError
        );
        // An end that may have lost something has a status, too.
        let may_have_status = failed || kind == CmEventKind::Disconnected;
        assert!(!failed || event.status() != 0, "{event:?}");
        assert!(may_have_status || event.status() == 0, "{event:?}");
        assert!(!failed || event.cause().is_some(), "{event:?}");
        if hold {
            self.ids.held.push(event);
        }
        Some((kind, id))
    }

    /// Acknowledges an event that was held.
    pub(super) fn acknowledge(&mut self) {
        self.ids.held.pop();
    }

    /// All that it takes to connect two QPs, if there is a listener or a place for one.
    pub(super) fn join(&mut self, first: usize, second: usize) {
        let listens = |own: &Id| own.id.state() == CmState::Listening;
        let address = match self.ids.ids.iter().find(|own| listens(own)) {
            Some(own) => own.id.local_addr(),
            None => {
                let id = self.channel.create_id(&self.device, 1);
                let bound = id.bind_addr(World::address(PORT));
                if bound.is_err() || id.listen(4).is_err() {
                    return;
                }
                let address = id.local_addr();
                self.ids.add(id);
                address
            }
        };
        let client = self.channel.create_id(&self.device, 2);
        let Some(address) = address.filter(|address| address.ip() == HOST) else {
            return;
        };
        let options = ConnectOptions::default();
        let begun = client
            .resolve_addr(None, address)
            .and_then(|()| client.resolve_route())
            .and_then(|()| client.connect(&self.queues[first].qp, &options));
        self.ids.add(client);
        if begun.is_err() {
            return;
        }
        self.progress(false);
        while let Some((kind, id)) = self.told(false) {
            if kind == CmEventKind::ConnectRequest {
                let _ = id.accept(&self.queues[second].qp, &AcceptOptions::default());
                self.progress(false);
            }
        }
    }
}

/// The port that everybody finds or another one, of the host or of nobody.
fn address(flags: &impl Fn(u8) -> bool, input: &mut Input<'_>) -> SocketAddr {
    let port = if flags(0) {
        PORT
    } else {
        7170 + u16::from(input.u8())
    };
    let host = if flags(1) && flags(2) {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))
    } else {
        HOST
    };
    SocketAddr::new(host, port)
}

fn connect(id: &CmId, qp: &Qp, given: &Given, peer_to_peer: bool) -> Result<(), CmError> {
    let options = ConnectOptions::default()
        .private_data(vec![7; given.private_data])
        .ird(given.depth)
        .ord(given.depth)
        .peer_to_peer(peer_to_peer);
    id.connect(qp, &options)
}

fn accept(id: &CmId, qp: &Qp, given: &Given) -> Result<(), CmError> {
    let options = AcceptOptions::default()
        .private_data(vec![7; given.private_data])
        .ird(given.depth)
        .ord(given.depth);
    id.accept(qp, &options)
}
