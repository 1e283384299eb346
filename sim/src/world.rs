//! One run: hosts, connections, time, and what has to hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use uwarp_verbs::{
    AcceptOptions, Access, CmEvent, CmEventKind, CmId, Completion, ConnectOptions, ConnectRequest,
    EndReason, QpCaps, QpModify, QpState, Status, WcOpcode,
};

use crate::clock::VirtualClock;
use crate::end::{End, Memory};
use crate::host::{Host, address};
use crate::log::Log;
use crate::memory::{Tracked, pattern};
use crate::play::both;
use crate::scenario::{ConnectionPlan, Mishap, Scenario};
use crate::switch::Switch;

/// The bit that tells the numbers of receives from those of other requests.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// After so long a connection is ended; where nothing is wrong, all is done by then.
const PATIENCE: Duration = Duration::from_secs(7200);
/// Rounds of progress at one time, at most: more of them are a device that spins.
const SPIN: usize = 200_000;

/// What a run may be told beside its seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is told of it.
    pub log: Log,
    /// Whether MPA uses its CRC.
    pub crc: bool,
}

/// What came of a run without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// All packets that were delivered, in one number: two runs with one seed have the same.
    pub digest: u64,
    /// The virtual time that it took.
    pub lasted: Duration,
    /// Packets that were sent, and those that were damaged so that only the CRC tells.
    pub packets: [u64; 2],
    /// Completions with success, and in error.
    pub completions: [u64; 2],
}

/// Something that is to happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The program of an end looks after its connection.
    Tick {
        connection: usize,
        end: usize,
        round: u32,
    },
    Mishap(usize),
    /// Patience with a connection is over, for the first or for the second time.
    Over {
        connection: usize,
        round: u32,
        again: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Opening,
    Open,
    Closing,
    /// All rounds are over.
    Over,
}

pub(crate) struct Connection {
    pub(crate) plan: ConnectionPlan,
    pub(crate) ends: [End; 2],
    round: u32,
    stage: Stage,
    accepted: bool,
    id: Option<CmId>,
}

/// The whole of a run.
pub(crate) struct World {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) random: Rng,
    switch: Switch,
    pub(crate) log: Log,
    pub(crate) hosts: Vec<Option<Host>>,
    pub(crate) connections: Vec<Connection>,
    mishaps: Vec<(Duration, Mishap)>,
    agenda: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    entries: u64,
    pub(crate) wr_ids: u64,
    /// Whose a QP of a host is.
    qps: BTreeMap<(usize, u32), (usize, usize)>,
    completions: [u64; 2],
    mtu: usize,
}

/// Plays the run of a seed.
///
/// # Errors
/// What did not hold, in words.
pub fn run(seed: u64, options: Options) -> Result<Outcome, String> {
    let mut world = World::new(seed, options)?;
    world.play()?;
    let counts = world.switch.counts();
    let outcome = Outcome {
        digest: world.switch.digest(),
        lasted: world.clock.elapsed(),
        packets: [counts.sent, counts.corrupted_unseen],
        completions: world.completions,
    };
    world.log.event(outcome.lasted, || format!("{counts:?}"));
    world.tear_down()?;
    Ok(outcome)
}

impl World {
    fn new(seed: u64, options: Options) -> Result<World, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::new(&mut random, options.crc);
        let clock = VirtualClock::new();
        let log = options.log;
        log.event(Duration::ZERO, || format!("seed {seed}: {scenario:#?}"));
        let Scenario {
            mtu,
            faults,
            hosts,
            connections,
            mishaps,
        } = scenario;
        let switch = Switch::new(&clock, faults, hosts.len(), mtu, random.fork(), log);
        let mut world = World {
            random,
            switch,
            log,
            hosts: Vec::new(),
            connections: Vec::new(),
            mishaps,
            agenda: BinaryHeap::new(),
            entries: 0,
            wr_ids: 0,
            qps: BTreeMap::new(),
            completions: [0; 2],
            mtu,
            clock,
        };
        for (number, plan) in hosts.iter().enumerate() {
            let ends = connections
                .iter()
                .filter(|plan| plan.hosts.contains(&number));
            let receives = ends.map(|plan| {
                let operations = plan.operations[0].max(plan.operations[1]) + 40;
                (operations * plan.rounds) as usize
            });
            let seed = world.random.u64(..);
            let within = (&world.clock, &world.switch, mtu, seed);
            let host = Host::new(number, *plan, within, (receives.sum(), 4096))?;
            world.hosts.push(Some(host));
        }
        for plan in connections {
            let ends = [world.end(plan, 0, None)?, world.end(plan, 1, None)?];
            world.connections.push(Connection {
                plan,
                ends,
                round: 0,
                stage: Stage::Opening,
                accepted: false,
                id: None,
            });
            world.begin(world.connections.len() - 1)?;
        }
        for index in 0..world.mishaps.len() {
            world.at(world.mishaps[index].0, Event::Mishap(index));
        }
        Ok(world)
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.entries += 1;
        self.agenda.push(Reverse((at, self.entries, event)));
    }

    /// An end with memory of its own; with a QP that was used before, or a new one.
    fn end(
        &mut self,
        plan: ConnectionPlan,
        end: usize,
        used: Option<uwarp_verbs::Qp>,
    ) -> Result<End, String> {
        let number = plan.hosts[end];
        let seed = self.random.u64(..);
        let Some(host) = &self.hosts[number] else {
            return Err(format!("host {number} is dead"));
        };
        let Some(things) = &host.things else {
            return Err(format!("host {number} is gone"));
        };
        let pd = &things.pd;
        let qp = match used {
            Some(qp) => qp,
            None => {
                let mut builder = pd.qp().caps(QpCaps::default());
                if let Some(shared) = &things.shared {
                    builder = builder.srq(&shared.srq);
                }
                builder
                    .build(&things.cq, &things.cq)
                    .map_err(|error| format!("host {number}: {error}"))?
            }
        };
        let receives = (plan.operations[1 - end] as usize + 40) * host.plan.receive;
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ;
        let local = Access::LOCAL_WRITE;
        let memory = Memory {
            source: Tracked::new(
                pd,
                "the source",
                &pattern(seed, 64 << 10),
                Access::REMOTE_READ,
                None,
            )?,
            target: Tracked::blank(pd, "the target", 96 << 10, write, None)?,
            sink: Tracked::blank(pd, "the sink", 96 << 10, local, None)?,
            receives: if things.shared.is_some() {
                None
            } else {
                let len = receives.max(1);
                Some(Tracked::blank(pd, "the receives", len, local, None)?)
            },
            word: Tracked::new(pd, "the word", &[0; 8], atomic, None)?,
            lent: Vec::new(),
        };
        Ok(End::new(number, qp, memory, plan.operations[end]))
    }

    /// A round of a connection begins.
    fn begin(&mut self, connection: usize) -> Result<(), String> {
        let now = self.clock.elapsed();
        let Connection { ends, round, .. } = &self.connections[connection];
        let (round, hosts) = (*round, [ends[0].host, ends[1].host]);
        for end in 0..2 {
            let End { host, qp_num, .. } = self.connections[connection].ends[end];
            self.qps.insert((host, qp_num), (connection, end));
            self.refill(connection, end)?;
            let pause = Duration::from_micros(self.random.u64(0..2000));
            let tick = Event::Tick {
                connection,
                end,
                round,
            };
            self.at(now + pause, tick);
        }
        let over = Event::Over {
            connection,
            round,
            again: false,
        };
        self.at(now + PATIENCE, over);
        self.log.event(now, || {
            format!("connection {connection} round {round}: begins")
        });
        let (Some(host), context) = (&self.hosts[hosts[0]], connection as u64) else {
            return Ok(());
        };
        let Some(things) = &host.things else {
            return Ok(());
        };
        let id = things.channel.create_id(&host.device, context);
        let resolved = id.resolve_addr(None, address(hosts[1]));
        self.connections[connection].id = Some(id);
        resolved.map_err(|error| format!("connection {connection}: {error}"))
    }

    /// The whole run.
    fn play(&mut self) -> Result<(), String> {
        loop {
            let next = self.settle()?;
            if self
                .connections
                .iter()
                .all(|connection| connection.stage == Stage::Over)
            {
                return Ok(());
            }
            let events = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [next, events].into_iter().flatten().min() else {
                return Err(
                    "nothing is to happen any more, and connections are not over".to_owned(),
                );
            };
            self.clock.set(next);
            let now = self.clock.elapsed();
            while self
                .agenda
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= now)
            {
                let Some(Reverse((_, _, event))) = self.agenda.pop() else {
                    break;
                };
                self.happens(event)?;
            }
        }
    }

    /// Everything that happens at this time, until nothing more does; gives when a packet or a timer is due.
    fn settle(&mut self) -> Result<Option<Duration>, String> {
        for _ in 0..SPIN {
            let mut busy = false;
            while let Some((to, octets)) = self.switch.arrival() {
                busy = true;
                if let Some(host) = &self.hosts[to] {
                    host.network.deliver(&octets);
                }
            }
            while let Some(sender) = self.switch.too_large() {
                if let Some(host) = &self.hosts[sender] {
                    host.network.limit_mtu(self.switch.mtu());
                }
            }
            let now = self.clock.elapsed();
            let mut due = self.switch.next();
            for host in 0..self.hosts.len() {
                let next = (self.hosts[host].as_ref()).and_then(|host| host.device.progress());
                if let Some(next) = next.map(|next| self.clock.since_start(next)) {
                    busy |= next <= now;
                    due = Some(due.map_or(next, |due| due.min(next)));
                }
                busy |= self.hear(host)?;
            }
            for connection in 0..self.connections.len() {
                busy |= self.look(connection)?;
            }
            if !busy {
                return Ok(due);
            }
        }
        Err("a device is busy for ever without time going on".to_owned())
    }

    /// Requests and events of connection management.
    fn hear(&mut self, host: usize) -> Result<bool, String> {
        let mut busy = false;
        loop {
            let Some(things) = self.hosts[host]
                .as_ref()
                .and_then(|host| host.things.as_ref())
            else {
                return Ok(busy);
            };
            if let Some(request) = things.listener.poll_request() {
                self.asked(host, request)?;
            } else if let Some(event) = things.channel.try_get_event() {
                self.told(&event)?;
            } else {
                return Ok(busy);
            }
            busy = true;
        }
    }

    fn asked(&mut self, host: usize, request: ConnectRequest) -> Result<(), String> {
        let now = self.clock.elapsed();
        let said = request.private_data();
        let number = said
            .first()
            .map_or(usize::MAX, |number| usize::from(*number));
        let Some(connection) = self.connections.get_mut(number) else {
            return Ok(());
        };
        let end = &connection.ends[1];
        let wanted = end.host == host
            && connection.stage != Stage::Over
            && !connection.accepted
            && said
                .get(1)
                .is_some_and(|round| u32::from(*round) == connection.round);
        let Some(qp) = end.qp.as_ref().filter(|_| wanted) else {
            self.log
                .event(now, || format!("connection {number}: rejected"));
            return Ok(());
        };
        let options = AcceptOptions {
            ird: connection.plan.depth,
            ord: connection.plan.depth,
            ..AcceptOptions::default()
        };
        self.log
            .event(now, || format!("connection {number}: accepted"));
        connection.accepted = true;
        if let Err(error) = request.accept(qp, &options)
            && !connection.plan.lethal
        {
            return Err(format!("connection {number} cannot be accepted: {error}"));
        }
        self.opened(number, 1);
        Ok(())
    }

    fn opened(&mut self, number: usize, end: usize) {
        let connection = &mut self.connections[number];
        connection.ends[end].open = true;
        connection.ends[end].pause = 1000;
        if connection.stage == Stage::Opening {
            connection.stage = Stage::Open;
        }
        let tick = Event::Tick {
            connection: number,
            end,
            round: connection.round,
        };
        self.at(self.clock.elapsed(), tick);
    }

    fn told(&mut self, event: &CmEvent) -> Result<(), String> {
        let now = self.clock.elapsed();
        let number = usize::try_from(event.id().context()).unwrap_or(usize::MAX);
        self.log.event(now, || {
            let why = event
                .cause()
                .map(|cause| format!(" ({cause})"))
                .unwrap_or_default();
            format!("connection {number}: {:?}{why}", event.kind())
        });
        let Some(connection) = self.connections.get(number) else {
            return Ok(());
        };
        let plan = connection.plan;
        let failed = |error: &dyn std::fmt::Display| {
            if plan.lethal {
                Ok(())
            } else {
                Err(format!("connection {number} does not come about: {error}"))
            }
        };
        match event.kind() {
            CmEventKind::AddrResolved => event.id().resolve_route().or_else(|error| failed(&error)),
            CmEventKind::RouteResolved => {
                let options = ConnectOptions {
                    private_data: vec![
                        u8::try_from(number).unwrap_or(u8::MAX),
                        u8::try_from(connection.round).unwrap_or(u8::MAX),
                    ],
                    ird: plan.depth,
                    ord: plan.depth,
                    peer_to_peer: plan.peer_to_peer,
                    ..ConnectOptions::default()
                };
                match &connection.ends[0].qp {
                    Some(qp) => event
                        .id()
                        .connect(qp, &options)
                        .or_else(|error| failed(&error)),
                    None => Ok(()),
                }
            }
            CmEventKind::Established => {
                self.opened(number, 0);
                Ok(())
            }
            CmEventKind::Disconnected => Ok(()),
            _ => {
                self.connections[number].stage = Stage::Closing;
                let cause = event.cause();
                failed(&cause.map(|cause| cause.to_string()).unwrap_or_default())
            }
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        let now = self.clock.elapsed();
        match event {
            Event::Tick {
                connection,
                end,
                round,
            } => self.tick(connection, end, round),
            Event::Mishap(index) => {
                let (_, mishap) = self.mishaps[index];
                self.log.event(now, || format!("{mishap:?}"));
                match mishap {
                    Mishap::Down { host } => self.switch.set_down(host, true),
                    Mishap::Up { host } => {
                        if self.hosts[host].is_some() {
                            self.switch.set_down(host, false);
                        }
                    }
                    Mishap::Mtu(mtu) => {
                        self.mtu = self.mtu.min(mtu);
                        self.switch.set_mtu(self.mtu);
                    }
                    Mishap::Death { host } => self.death(host),
                    Mishap::Misdeed {
                        connection,
                        end,
                        what,
                    } => self.misdeed(connection, end, what)?,
                }
                Ok(())
            }
            Event::Over {
                connection,
                round,
                again,
            } => self.over(connection, round, again),
        }
    }

    fn death(&mut self, host: usize) {
        self.switch.set_down(host, true);
        for connection in &mut self.connections {
            if connection.plan.hosts[0] == host {
                connection.id = None;
            }
            for end in connection.ends.iter_mut().filter(|end| end.host == host) {
                (end.qp, end.memory) = (None, None);
                end.sends.clear();
                end.receives.clear();
                end.expected.clear();
            }
        }
        self.hosts[host] = None;
    }

    /// Patience is over.
    fn over(&mut self, number: usize, round: u32, again: bool) -> Result<(), String> {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Over || connection.round != round {
            return Ok(());
        }
        let states = connection.ends.each_ref().map(|end| {
            let sends = end.sends.iter().filter(|sent| sent.signaled).count();
            let qp = end.qp.as_ref();
            (
                qp.map(uwarp_verbs::Qp::state),
                sends,
                end.expected.len(),
                end.operations,
            )
        });
        let stage = connection.stage;
        if !connection.plan.lethal || again {
            return Err(format!(
                "connection {number} does not end ({stage:?}; state, requests, messages to come, operations: {states:?})"
            ));
        }
        connection.stage = Stage::Closing;
        for end in &connection.ends {
            if let Some(qp) = &end.qp {
                if self.random.bool() {
                    qp.abort();
                } else {
                    qp.disconnect();
                }
            }
        }
        let again = Event::Over {
            connection: number,
            round,
            again: true,
        };
        self.at(self.clock.elapsed() + PATIENCE, again);
        Ok(())
    }

    /// The program of an end looks after its connection.
    fn tick(&mut self, number: usize, end: usize, round: u32) -> Result<(), String> {
        let connection = &self.connections[number];
        if connection.stage == Stage::Over || connection.round != round {
            return Ok(());
        }
        let host = connection.ends[end].host;
        let Some(alive) = &self.hosts[host] else {
            return Ok(());
        };
        let mut busy = false;
        if !alive.plan.overflow {
            let batch = self.random.usize(1..16);
            busy |= self.poll(host, batch)? > 0;
        }
        self.refill(number, end)?;
        let me = &self.connections[number].ends[end];
        if me.open && self.connections[number].stage == Stage::Open && me.operations > 0 {
            for _ in 0..self.random.u8(1..6) {
                if self.connections[number].ends[end].operations == 0
                    || !self.post_one(number, end)?
                {
                    break;
                }
                self.connections[number].ends[end].operations -= 1;
                busy = true;
            }
        }
        // It sleeps longer and longer while nothing happens.
        let me = &mut self.connections[number].ends[end];
        me.pause = if busy {
            self.random.u64(1..3_000)
        } else {
            (me.pause * 2).min(2_000_000)
        };
        let at = self.clock.elapsed() + Duration::from_micros(me.pause);
        let tick = Event::Tick {
            connection: number,
            end,
            round,
        };
        self.at(at, tick);
        Ok(())
    }

    /// Takes completions of a host.
    fn poll(&mut self, host: usize, most: usize) -> Result<usize, String> {
        let mut batch = [Completion::default(); 16];
        let Some(things) = self.hosts[host]
            .as_ref()
            .and_then(|host| host.things.as_ref())
        else {
            return Ok(0);
        };
        let count = things.cq.poll(&mut batch[..most]);
        for wc in &batch[..count] {
            self.completed(host, wc)?;
        }
        Ok(count)
    }

    fn completed(&mut self, host: usize, wc: &Completion) -> Result<(), String> {
        let now = self.clock.elapsed();
        let Some((number, end)) = self.qps.get(&(host, wc.qp_num)).copied() else {
            return Err(format!(
                "host {host}: a completion of a QP that nobody has: {wc:?}"
            ));
        };
        let receive = wc.wr_id & RECEIVE != 0;
        self.log.event(now, || {
            let kind = if receive { "received" } else { "done" };
            let why = wc
                .cause
                .map(|cause| format!(" ({cause})"))
                .unwrap_or_default();
            format!(
                "connection {number} end {end}: {kind} {} {:?} {} octets: {}{why}",
                wc.wr_id & !RECEIVE,
                wc.opcode,
                wc.byte_len,
                wc.status
            )
        });
        self.completions[usize::from(wc.status != Status::Success)] += 1;
        let whose = |error: String| format!("connection {number} end {end}: {error}");
        if receive {
            return self.received(number, end, wc).map_err(whose);
        }
        let lethal = self.connections[number].plan.lethal;
        let (me, peer) = both(&mut self.connections[number].ends, end);
        let effect = me.sent(wc, lethal).map_err(whose)?;
        placed(me, peer, effect.placed).map_err(whose)
    }

    /// A completion of a receive.
    fn received(&mut self, number: usize, end: usize, wc: &Completion) -> Result<(), String> {
        let connection = &mut self.connections[number];
        // What is left over when a connection is closed is flushed.
        let lethal = connection.plan.lethal
            || (connection.stage == Stage::Closing && wc.status == Status::WrFlush);
        let (me, peer) = both(&mut connection.ends, end);
        let shared = (self.hosts[me.host].as_mut())
            .and_then(|host| host.things.as_mut())
            .and_then(|things| things.shared.as_mut());
        let is_shared = shared.is_some();
        let (queue, memory) = match shared {
            Some(shared) => (&mut shared.posted, Some(&mut shared.memory)),
            None => {
                let memory = me
                    .memory
                    .as_mut()
                    .and_then(|memory| memory.receives.as_mut());
                (&mut me.receives, memory)
            }
        };
        let found = queue.iter().position(|posted| posted.wr_id == wc.wr_id);
        let Some(at) = found else {
            return Err(format!("{wc:?} completes twice, or was never posted"));
        };
        if at > 0 && !is_shared {
            return Err(format!("{wc:?} completes before {:?}", queue.front()));
        }
        let Some(posted) = queue.remove(at) else {
            return Err("a receive is gone".to_owned());
        };
        let Some(memory) = memory else {
            return Ok(());
        };
        if wc.status != Status::Success {
            if !lethal {
                return Err(format!("a receive fails, and nothing is wrong: {wc:?}"));
            }
            // The message that was coming may have been placed in part.
            let coming = me
                .expected
                .front()
                .and_then(|message| message.payload.as_deref());
            if !memory.is_mix_of(posted.at, posted.len, coming.unwrap_or_default()) {
                return Err(format!(
                    "receive {} has octets of nobody",
                    posted.wr_id & !RECEIVE
                ));
            }
            memory.settle(posted.at, posted.len);
            // Only one message is under way.
            if coming.is_some() && !is_shared {
                me.expected.clear();
            }
            return Ok(());
        }
        let Some(message) = me.expected.pop_front() else {
            return Err(format!("{wc:?}: nobody has sent this"));
        };
        let payload = message.payload.as_deref().unwrap_or_default();
        let opcode = match message.payload {
            Some(_) => WcOpcode::Recv,
            None => WcOpcode::RecvImmediate,
        };
        let told = (wc.opcode, wc.byte_len as usize, wc.immediate, wc.solicited);
        let sent = (opcode, payload.len(), message.immediate, message.solicited);
        let invalidated = message.invalidates.map(|(rkey, _)| rkey);
        if told != sent || wc.invalidated != invalidated {
            return Err(format!("{wc:?} tells of another message than {sent:?}"));
        }
        if memory.read(posted.at, payload.len()) != payload {
            return Err(format!("{wc:?}: other octets than were sent"));
        }
        memory.may_come(posted.at, payload);
        memory.has_come(posted.at, payload.len());
        if let (Some((_, index)), Some(memory)) = (message.invalidates, &mut me.memory)
            && let Some(lent) = memory.lent.get_mut(index)
        {
            let len = lent.len();
            lent.has_come(0, len);
            lent.check("what was lent")?;
        }
        // RFC 5040 section 5.5: what was written before is placed.
        placed(peer, me, message.writes)
    }

    /// Looks whether a connection is to be closed, or is over.
    fn look(&mut self, number: usize) -> Result<bool, String> {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Over {
            return Ok(false);
        }
        let state = |end: &End| end.qp.as_ref().map(uwarp_verbs::Qp::state);
        let states = connection.ends.each_ref().map(state);
        let over = |state: &Option<QpState>| matches!(state, None | Some(QpState::Error));
        let [first, second] = &states;
        // A QP that nobody asked for waits for ever; all others hear of the end.
        let nobody = !connection.accepted && *second == Some(QpState::Idle);
        let never = *first == Some(QpState::Idle)
            && connection.plan.lethal
            && (connection.stage == Stage::Closing || over(second) || connection.id.is_none());
        if (over(first) || never) && (over(second) || nobody) {
            return self.finish(number).map(|()| true);
        }
        let done = connection.ends.iter().all(|end| end.is_done() && end.open);
        if connection.stage == Stage::Open && done {
            connection.stage = Stage::Closing;
            let end = usize::from(self.random.bool());
            self.log.event(self.clock.elapsed(), || {
                format!("connection {number} end {end}: disconnects")
            });
            if let Some(qp) = &connection.ends[end].qp {
                qp.disconnect();
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Both ends are over: everything has to have completed, and memory to be as the model says.
    fn finish(&mut self, number: usize) -> Result<(), String> {
        let hosts = self.connections[number].plan.hosts;
        for end in &self.connections[number].ends {
            if let Some(qp) = end.qp.as_ref().filter(|qp| qp.state() == QpState::Idle) {
                // Nobody came: its receives are to be flushed.
                let _ = qp.modify(&QpModify::new().state(QpState::Error));
                let _ = qp.reset();
            }
        }
        for host in hosts {
            while self.poll(host, 16)? > 0 {}
        }
        let now = self.clock.elapsed();
        let connection = &mut self.connections[number];
        let reasons = (connection.ends.each_ref())
            .map(|end| end.qp.as_ref().and_then(uwarp_verbs::Qp::end_reason));
        self.log
            .event(now, || format!("connection {number}: over: {reasons:?}"));
        let graceful = reasons.iter().all(|reason| {
            matches!(
                reason,
                Some(EndReason::LocalDisconnect | EndReason::PeerDisconnect)
            )
        });
        if !graceful && !connection.plan.lethal {
            return Err(format!(
                "connection {number} ends, and nothing is wrong: {reasons:?}"
            ));
        }
        for end in 0..2 {
            let (me, peer) = both(&mut connection.ends, end);
            let whose = |error: String| format!("connection {number} end {end}: {error}");
            let lost = self.hosts[me.host]
                .as_ref()
                .is_none_or(|host| host.plan.overflow);
            let left = me.sends.iter().find(|sent| sent.signaled);
            if let Some(left) = left.filter(|_| !lost) {
                return Err(whose(format!("{left:?} never completes")));
            }
            if !lost && !me.receives.is_empty() {
                return Err(whose(format!("{:?} never completes", me.receives.front())));
            }
            if graceful && !connection.plan.lethal {
                let all = me.writes.len();
                placed(me, peer, all).map_err(whose)?;
            }
            check_word(me, peer).map_err(whose)?;
        }
        self.check_memory(number)?;
        self.next_round(number)
    }

    fn check_memory(&self, number: usize) -> Result<(), String> {
        for (index, end) in self.connections[number].ends.iter().enumerate() {
            let whose = format!("connection {number} end {index}");
            let overflow = self.hosts[end.host]
                .as_ref()
                .is_none_or(|host| host.plan.overflow);
            if let Some(memory) = &end.memory {
                memory.source.check(&whose)?;
                memory.target.check(&whose)?;
                for lent in &memory.lent {
                    lent.check(&whose)?;
                }
                memory.sink.check(&whose)?;
                // What came without a completion is not known.
                if let Some(receives) = memory.receives.as_ref().filter(|_| !overflow) {
                    receives.check(&whose)?;
                }
            }
            let things = self.hosts[end.host]
                .as_ref()
                .and_then(|host| host.things.as_ref());
            if let Some(shared) = things.and_then(|things| things.shared.as_ref())
                && !overflow
                && self.connections.len() == 1
            {
                shared.memory.check(&whose)?;
            }
        }
        Ok(())
    }

    fn next_round(&mut self, number: usize) -> Result<(), String> {
        let connection = &mut self.connections[number];
        connection.round += 1;
        connection.id = None;
        connection.accepted = false;
        let plan = connection.plan;
        let dead = plan.hosts.iter().any(|host| {
            let host = self.hosts[*host].as_ref();
            host.is_none_or(|host| host.plan.overflow)
        });
        for end in &mut connection.ends {
            self.qps.remove(&(end.host, end.qp_num));
        }
        if connection.round >= plan.rounds || dead {
            connection.stage = Stage::Over;
            for end in &mut connection.ends {
                (end.qp, end.memory) = (None, None);
                end.expected = VecDeque::new();
            }
            return Ok(());
        }
        connection.stage = Stage::Opening;
        for end in 0..2 {
            let used = self.connections[number].ends[end].qp.take();
            let used = used.filter(|_| self.random.bool());
            if let Some(qp) = used.as_ref().filter(|qp| qp.state() == QpState::Error)
                && !qp.reset()
            {
                return Err(format!(
                    "connection {number} end {end}: a QP that is over is not reset"
                ));
            }
            self.connections[number].ends[end] = self.end(plan, end, used)?;
        }
        self.begin(number)
    }

    /// All is over: nothing may be left.
    fn tear_down(mut self) -> Result<(), String> {
        self.connections.clear();
        for host in self.hosts.iter_mut().flatten() {
            host.things = None;
        }
        self.switch.calm();
        let end = self.clock.elapsed() + PATIENCE;
        loop {
            let next = self.settle()?;
            let left: usize = (self.hosts.iter().flatten())
                .map(|host| host.network.connections())
                .sum();
            if left == 0 {
                break;
            }
            match next {
                Some(next) if next < end => self.clock.set(next),
                _ => return Err(format!("{left} connections of TCP never end")),
            }
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else {
                continue;
            };
            // There may be one of each: so nothing is left of the old ones.
            let pd = host.device.alloc_pd();
            let cq = host.device.create_cq(1);
            pd.map_err(|error| format!("host {number} keeps something: {error}"))?;
            cq.map_err(|error| format!("host {number} keeps a CQ: {error}"))?;
        }
        Ok(())
    }
}

/// The first `count` Writes of `from` are in the memory of `to`.
fn placed(from: &mut End, to: &mut End, count: usize) -> Result<(), String> {
    let Some(memory) = &mut to.memory else {
        return Ok(());
    };
    for index in from.placed..count {
        let (at, len) = from.writes[index];
        if memory.target.read(at, len) != memory.target.expected(at, len) {
            return Err(format!(
                "Write {index} ({len} octets at {at}) is not placed, and it should be"
            ));
        }
        memory.target.has_come(at, len);
    }
    from.placed = from.placed.max(count);
    Ok(())
}

/// The counter of `to` is what `from` has added to it.
fn check_word(from: &End, to: &End) -> Result<(), String> {
    let Some(memory) = &to.memory else {
        return Ok(());
    };
    let word = memory.word.read(0, 8);
    let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
    let [posted, done] = from.adds;
    if (done..=posted).contains(&word) {
        return Ok(());
    }
    Err(format!(
        "{posted} additions were posted and {done} done, and the word is {word}"
    ))
}
