//! A run: hosts, connections, time, and the order of events.

mod completed;
mod connect;
mod end_cause;
mod finish;
mod verdict;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use uwarp_verbs::CmId;
use uwarp_verbs::llp::smol::ManualClock;

pub(crate) use self::end_cause::EndCause;
use crate::end::End;
use crate::host::{Host, address};
use crate::log::Log;
use crate::scenario::{ConnectionPlan, HostPlan, Incident, Scenario};
use crate::switch::Switch;
use crate::tally::Tally;
use crate::wrong::Wrong;

/// Bit that marks the work request ids of receives.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Virtual time after which a connection must be over. It is long enough for everything to
/// complete.
const PATIENCE: Duration = Duration::from_secs(7200);
/// Number of retries of an invalid operation whose connection is not open yet. Each retry waits
/// longer.
const INVALID_OPERATION_TRIES: u32 = 12;
/// Maximum number of rounds of progress while no time passes. More rounds mean that a device spins.
const SPIN: usize = 200_000;

/// Options of a run, besides its seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Level of detail of the log.
    pub log: Log,
    /// True if MPA uses its CRC. False switches it off on all hosts.
    pub crc: bool,
}

/// Result of a run that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all delivered packets. Two runs with the same seed have the same hash.
    pub digest: u64,
    /// Virtual time that the run took.
    pub lasted: Duration,
    /// Number of packets sent, and number of packets with damage that only the CRC detects.
    pub packets: [u64; 2],
    /// Number of completions with success, and with an error.
    pub completions: [u64; 2],
    /// Counts of the causes of ends and of the reasons reported.
    pub tally: Tally,
}

/// Event on the agenda.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A turn of the program at one end.
    Tick {
        connection: usize,
        end: usize,
        round: u32,
    },
    Incident(usize),
    /// Another attempt at an invalid operation whose connection was not open yet.
    Again {
        incident: usize,
        tries: u32,
    },
    /// A connection is not over after `PATIENCE`, for the first or (`again`) the second time.
    Over {
        connection: usize,
        round: u32,
        again: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Opening,
    Open,
    Closing,
    /// All rounds have ended.
    Over,
}

pub(crate) struct Connection {
    pub(crate) plan: ConnectionPlan,
    pub(crate) ends: [End; 2],
    pub(crate) round: u32,
    /// Requests that the peer must refuse, each with the end that posted it.
    pub(crate) refusals: Vec<(usize, Wrong)>,
    /// Causes for which this round of the connection may end.
    pub(crate) causes: Vec<EndCause>,
    /// Time at which an end first reported that the connection ended.
    ending: Option<Duration>,
    pub(crate) stage: Stage,
    accepted: bool,
    /// True if the responder's program rejects the connection in this round.
    rejects: bool,
    id: Option<CmId>,
}

impl Connection {
    /// Returns true if requests may fail.
    pub(crate) fn may_fail(&self) -> bool {
        !self.causes.is_empty()
    }
}

/// Complete state of a run.
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) random: Rng,
    switch: Switch,
    pub(crate) log: Log,
    pub(crate) hosts: Vec<Option<Host>>,
    pub(crate) connections: Vec<Connection>,
    incidents: Vec<(Duration, Incident)>,
    agenda: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    entries: u64,
    pub(crate) wr_ids: u64,
    /// Connection and end of each QP. The key is the host and the QP number.
    qps: BTreeMap<(usize, u32), (usize, usize)>,
    completions: [u64; 2],
    ipv6: bool,
    mtu: usize,
    /// Configuration of all hosts, including those that have died.
    plans: Vec<HostPlan>,
    crc: bool,
    /// True if nothing in this run may end a connection.
    pub(crate) harmless: bool,
    /// Hosts whose shared receives were consumed by unexpected messages.
    receives_taken: BTreeSet<usize>,
    pub(crate) tally: Tally,
    /// True if nothing is lost or late, and no host makes another one wait.
    quiet: bool,
}

/// Runs the simulation of a seed.
///
/// # Errors
/// Describes the first check that failed.
pub fn run(seed: u64, options: Options) -> Result<Outcome, String> {
    let mut world = World::new(seed, options)?;
    world.play()?;
    let counts = world.switch.counts();
    let outcome = Outcome {
        digest: world.switch.digest(),
        lasted: world.clock.elapsed(),
        packets: [counts.sent, counts.corrupted_unseen + counts.rewritten],
        completions: world.completions,
        tally: world.tally(),
    };
    world.log.event(outcome.lasted, || format!("{counts:?}"));
    world.tear_down()?;
    Ok(outcome)
}

impl World {
    pub(crate) fn new(seed: u64, options: Options) -> Result<World, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::new(&mut random, options.crc);
        let clock = Arc::new(ManualClock::new());
        let log = options.log;
        log.event(Duration::ZERO, || {
            format!("seed {seed}: {}", scenario.describe())
        });
        let quiet = scenario.is_quiet();
        let Scenario {
            harmless,
            ipv6,
            mtu,
            faults,
            hosts,
            connections,
            incidents,
        } = scenario;
        let switch = Switch::new(&clock, faults, hosts.len(), mtu, random.fork(), log);
        let mut world = World {
            random,
            switch,
            log,
            hosts: Vec::new(),
            connections: Vec::new(),
            incidents,
            agenda: BinaryHeap::new(),
            entries: 0,
            wr_ids: 0,
            qps: BTreeMap::new(),
            completions: [0; 2],
            ipv6,
            mtu,
            plans: hosts,
            crc: options.crc,
            harmless,
            receives_taken: BTreeSet::new(),
            tally: Tally::default(),
            quiet,
            clock,
        };
        world.populate(&connections)?;
        for index in 0..world.incidents.len() {
            world.at(world.incidents[index].0, Event::Incident(index));
        }
        Ok(world)
    }

    /// Creates the hosts and connections.
    fn populate(&mut self, connections: &[ConnectionPlan]) -> Result<(), String> {
        for number in 0..self.plans.len() {
            let plan = self.plans[number];
            let ends = connections
                .iter()
                .filter(|plan| plan.hosts.contains(&number));
            let receives = ends.map(|plan| {
                let operations = plan.operations[0].max(plan.operations[1]) + 40;
                (operations * plan.rounds) as usize
            });
            let seed = self.random.u64(..);
            let within = (&self.clock, &self.switch, self.mtu, seed);
            let address = address(number, self.ipv6);
            let host = Host::new(number, plan, address, within, (receives.sum(), 4096))?;
            self.hosts.push(Some(host));
        }
        for plan in connections {
            let plan = *plan;
            let ends = [self.end(plan, 0, None)?, self.end(plan, 1, None)?];
            self.connections.push(Connection {
                plan,
                ends,
                round: 0,
                refusals: Vec::new(),
                causes: Vec::new(),
                ending: None,
                stage: Stage::Opening,
                accepted: false,
                rejects: false,
                id: None,
            });
            self.begin(self.connections.len() - 1)?;
        }
        Ok(())
    }

    pub(crate) fn at(&mut self, at: Duration, event: Event) {
        self.entries += 1;
        self.agenda.push(Reverse((at, self.entries, event)));
    }

    /// Runs until all connections are over.
    pub(crate) fn play(&mut self) -> Result<(), String> {
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
                return Err("no event is left, but connections are not over".to_owned());
            };
            self.clock.set(self.clock.start() + next);
            let now = self.clock.elapsed();
            while self
                .agenda
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= now)
            {
                let Some(Reverse((_, _, event))) = self.agenda.pop() else {
                    break;
                };
                self.handle_event(event)?;
            }
        }
    }

    /// Processes everything that happens at the current time. Returns the time of the next packet
    /// or timer.
    pub(crate) fn settle(&mut self) -> Result<Option<Duration>, String> {
        for _ in 0..SPIN {
            let mut busy = false;
            self.note_damage();
            while let Some((to, bytes)) = self.switch.arrival() {
                busy = true;
                if let Some(host) = &self.hosts[to] {
                    host.network.deliver(&bytes);
                }
            }
            while let Some(sender) = self.switch.too_large() {
                if let Some(host) = &self.hosts[sender] {
                    host.network.limit_mtu(self.switch.mtu());
                }
            }
            if let Some(error) = self.switch.take_violation() {
                return Err(error);
            }
            let now = self.clock.elapsed();
            let mut due = self.switch.next();
            for host in 0..self.hosts.len() {
                let next = (self.hosts[host].as_ref()).and_then(|host| host.device.progress());
                if let Some(next) =
                    next.map(|next| next.saturating_duration_since(self.clock.start()))
                {
                    busy |= next <= now;
                    due = Some(due.map_or(next, |due| due.min(next)));
                }
                busy |= self.handle_cm(host)?;
            }
            for connection in 0..self.connections.len() {
                busy |= self.check_end(connection)?;
            }
            if !busy {
                return Ok(due);
            }
        }
        Err("a device keeps working without time passing".to_owned())
    }

    pub(crate) fn handle_event(&mut self, event: Event) -> Result<(), String> {
        let now = self.clock.elapsed();
        match event {
            Event::Tick {
                connection,
                end,
                round,
            } => self.tick(connection, end, round),
            Event::Incident(index) => {
                let (_, incident) = self.incidents[index];
                self.log.event(now, || format!("{incident:?}"));
                match incident {
                    Incident::Down { host } => self.switch.set_down(host, true),
                    Incident::Up { host } => {
                        if self.hosts[host].is_some() {
                            self.switch.set_down(host, false);
                        }
                    }
                    Incident::Mtu(mtu) => {
                        self.mtu = self.mtu.min(mtu);
                        self.switch.set_mtu(self.mtu);
                    }
                    Incident::Death { host } => self.death(host),
                    Incident::InvalidOperation { .. } => self.try_invalid_operation(index, 0)?,
                }
                Ok(())
            }
            Event::Again { incident, tries } => self.try_invalid_operation(incident, tries),
            Event::Over {
                connection,
                round,
                again,
            } => self.patience_over(connection, round, again),
        }
    }

    /// Performs an invalid operation, or schedules another attempt if its connection is not open
    /// yet.
    fn try_invalid_operation(&mut self, incident: usize, tries: u32) -> Result<(), String> {
        let (
            _,
            Incident::InvalidOperation {
                connection,
                end,
                what,
            },
        ) = self.incidents[incident]
        else {
            return Ok(());
        };
        if self.connections[connection].stage != Stage::Opening {
            return self.invalid_operation(connection, end, what);
        }
        if tries < INVALID_OPERATION_TRIES {
            let pause = Duration::from_micros(self.random.u64(1..1 << (10 + tries)));
            let again = Event::Again {
                incident,
                tries: tries + 1,
            };
            self.at(self.clock.elapsed() + pause, again);
        }
        Ok(())
    }

    pub(crate) fn death(&mut self, host: usize) {
        self.switch.set_down(host, true);
        self.record_host_cause(host, EndCause::Death);
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
}
