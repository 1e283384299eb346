//! Calls on ids of the connection manager, with checks of their results and events.

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

/// Maximum number of ids at one time.
const MAX_IDS: usize = 12;
/// Port that most inputs use.
const PORT: u16 = 7174;

struct Id {
    id: CmId,
    /// Number of Established events that were read.
    established: usize,
    /// Number of Disconnected events that were read.
    disconnected: usize,
    /// Time at which the event of the connection request of this id was read. The request itself
    /// arrived earlier.
    told: Option<Instant>,
}

/// Ids of the program, and events that the program has not acknowledged.
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

    /// Returns an id that the input chooses.
    fn choose(&self, input: &mut Input<'_>) -> Option<CmId> {
        let choice = input.choice(self.ids.len());
        self.ids.get(choice).map(|id| id.id.clone())
    }

    /// Returns the states of the ids with this local address. The result includes ids that
    /// connected from this address and no longer reserve it.
    fn at(&self, addr: SocketAddr) -> impl Iterator<Item = CmState> {
        let has = move |own: &&Id| own.id.local_addr() == Some(addr);
        self.ids.iter().filter(has).map(|own| own.id.state())
    }

    /// Returns true if the program holds unacknowledged events of ids.
    pub(super) fn holds_events(&self) -> bool {
        !self.held.is_empty()
    }

    /// Drops an id or an event. Returns true if there was one.
    pub(super) fn drop_one(&mut self) -> bool {
        self.ids.pop().is_some() || self.held.pop().is_some()
    }
}

/// Arguments of a call, and the state before the call. Both decide which errors are justified.
struct Given {
    call: u8,
    before: CmState,
    /// Address argument.
    to: SocketAddr,
    /// States of the ids with this address.
    at: Vec<CmState>,
    /// Lower and upper bound of the time that the id's request has waited.
    waited: Option<[Duration; 2]>,
    /// State of the QP, if the call takes one.
    qp: Option<QpState>,
    private_data: usize,
    depth: u16,
}

/// Checks that a successful call was permitted, or that the error of a refused one is justified.
fn judge(id: &CmId, given: &Given, result: Result<(), CmError>) {
    let error = match result {
        Ok(()) => return given.permitted(),
        Err(error) => error,
    };
    let so = match &error {
        CmError::WrongState(wrong) => (wrong.state, id.state()) == (given.before, given.before),
        CmError::Unacknowledged { events } => given.call == 11 && *events > 0,
        // Only `bind_addr` (1) can fail with an address error. `resolve_addr` sends nothing, and a
        // listener already has its address or takes a free one.
        CmError::Network(error) => given.call == 1 && given.unavailable(*error),
        // Errors of TCP are reported by an event, not here.
        CmError::Connect(error) => {
            matches!(given.call, 5 | 6)
                && match error {
                    ConnectError::QpInUse { state } => given.in_use(*state),
                    ConnectError::Options(error) => given.unfit(error),
                    _ => false,
                }
        }
        // There are too few connections to reach a limit.
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
    /// Checks that no condition forbade a call that succeeded.
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

    /// Returns true if the address really is unavailable or in use.
    fn unavailable(&self, error: LlpError) -> bool {
        match error {
            LlpError::AddressUnavailable { addr } => addr == self.to && addr.ip() != HOST,
            LlpError::AddressInUse { addr } => addr == self.to && self.at.iter().any(may_keep),
            _ => false,
        }
    }

    /// Returns true if the program may accept or reject too late. The arrival time of a request is
    /// unknown; it lies between the start of the run and the reading of its event.
    fn may_be_late(&self) -> bool {
        let limit = Timeouts::default().decision;
        self.waited.is_some_and(|[_, most]| most >= limit)
    }

    fn in_use(&self, state: QpState) -> bool {
        self.qp == Some(state) && state != QpState::Idle
    }

    /// Returns true if the option is indeed too large for a startup frame.
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

/// Returns true if an id in this state always reserves its local address.
fn keeps(state: &CmState) -> bool {
    matches!(state, CmState::Bound | CmState::Listening)
}

/// Returns true if an id in this state may reserve its local address. The reservation ends when the
/// id starts to connect.
fn may_keep(state: &CmState) -> bool {
    keeps(state) || matches!(state, CmState::AddrResolved | CmState::RouteResolved)
}

impl World {
    /// Makes a call on an id, with arbitrary arguments, and checks the result.
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

    /// Returns a lower and an upper bound of the time that the request of an id has waited.
    fn waited(&self, id: &CmId) -> Option<[Duration; 2]> {
        let own = self.ids.ids.iter().find(|own| own.id.is(id))?;
        let now = self.clock.now();
        Some([now - own.told?, now - self.began])
    }

    /// Reads and checks the next event of the connection manager. Returns its kind and its id.
    pub(super) fn told(&mut self, hold: bool) -> Option<(CmEventKind, CmId)> {
        let event = self.channel.try_get_event()?;
        let (kind, id) = (event.kind(), event.id().clone());
        if kind == CmEventKind::ConnectRequest {
            assert!(event.listen_id().is_some());
            // At the limit of ids, the new id is dropped, which rejects the request.
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
        // A connection that ended has a status if bytes may be lost.
        let may_have_status = failed || kind == CmEventKind::Disconnected;
        assert!(!failed || event.status() != 0, "{event:?}");
        assert!(may_have_status || event.status() == 0, "{event:?}");
        assert!(!failed || event.cause().is_some(), "{event:?}");
        if hold {
            self.ids.held.push(event);
        }
        Some((kind, id))
    }

    /// Acknowledges a held event.
    pub(super) fn acknowledge(&mut self) {
        self.ids.held.pop();
    }

    /// Connects two QPs through a listener, which is created if there is none.
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

/// Chooses an address: `PORT` or another port, on the host's IP address or on an unknown one.
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
