//! Runs the endpoint of uwarp, its agent and the suite in one thread with a virtual clock. While
//! the suite waits, the device and the agent session of the target make progress. When they have
//! nothing left to do, time advances at once to the next timer. Therefore no verdict depends on the
//! machine, and waiting for a timeout costs no real time.

mod setting;
mod wire;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use uwarp_agent::LocalSession;
use uwarp_conformance::{
    Channel, Config, Got, Listener, Network, Outcome, RunError, Selection, Stream, Target,
    run_with_agent,
};
use uwarp_verbs::llp::smol::{Clock, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::llp::{Llp, LlpError, LlpListener, Network as _, Piece, Recv, SendHints};
use uwarp_verbs::{Device, Progress, TimeSource};

pub(crate) use setting::Setting;
use wire::{Port, Wire};

/// Maximum number of rounds in which parts make progress but time does not advance. A run with more
/// rounds counts as endless.
const SPIN: usize = 100_000;
/// Time limit for a send. A target that accepts no bytes for this long is stuck.
const SEND: Duration = Duration::from_secs(10);
/// Minimum time until the next timer of a connection, even if the timer is already due.
const INSTANT: Duration = Duration::from_micros(1);

/// The largest possible MTU. As over loopback, most messages then consist of one segment, so that a
/// bug in long messages does not fail every case. Cases about segmentation choose the MSS.
const MTU: usize = 65_535;

/// A target and a suite for one run.
pub(crate) struct World {
    suite: Suite,
    pub(crate) config: Config,
}

impl World {
    /// Creates a target with this setting. All randomness derives from the seed.
    pub(crate) fn new(setting: Setting, seed: u64) -> World {
        let clock = Arc::new(ManualClock::new());
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let wire = Arc::new(Wire::default());
        let host = |number: usize| {
            let mut settings = MemorySettings::default()
                .clock(Arc::clone(&given))
                .mtu(MTU)
                .seed(Some(seed.wrapping_mul(2).wrapping_add(number as u64)));
            settings.addresses.swap(0, number);
            let port = Port::new(&wire, number);
            MemoryNetwork::host(&settings, Arc::new(port)).unwrap()
        };
        let [target, own] = [host(0), host(1)];
        let settings = setting
            .settings()
            .progress(Progress::Manual)
            .clock(TimeSource::Given(given))
            .seed(Some(seed));
        let device = Device::open(Arc::new(target.clone()), settings).unwrap();
        let ip = target.info().addresses[0];
        let inside = Inside {
            session: LocalSession::new(&device, ip).unwrap(),
            device,
            hosts: [target, own.clone()],
            connections: Vec::new(),
        };
        let suite = Suite(Arc::new(Shared {
            clock,
            wire,
            own,
            inside: Mutex::new(inside),
        }));
        let mut config = setting.config(Target::At((ip, 0).into()));
        config.network = Arc::new(suite.clone());
        config.seed = seed;
        World { suite, config }
    }

    /// Plays the selected cases one after the other.
    pub(crate) fn play(self, selection: &Selection) -> Result<Vec<Outcome>, RunError> {
        let channel = Box::new(self.suite);
        run_with_agent(&self.config, channel, selection, &())
    }
}

/// The target, and the connections of the suite.
struct Inside {
    // The session is declared before the device, so that it is dropped first. Dropping the last
    // handle of the device aborts the remaining connections.
    session: LocalSession,
    device: Device,
    /// Networks of the two hosts: the target and the suite.
    hosts: [MemoryNetwork; 2],
    /// TCP connections of the suite. They make progress even while the suite waits for something
    /// else.
    connections: Vec<Weak<Mutex<Box<dyn Llp>>>>,
}

struct Shared {
    clock: Arc<ManualClock>,
    wire: Arc<Wire>,
    own: MemoryNetwork,
    inside: Mutex<Inside>,
}

/// Access of the suite to the target and to its agent.
#[derive(Clone)]
struct Suite(Arc<Shared>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

impl Inside {
    /// Makes all parts progress until no work is left. Returns the time of the next timer, if any.
    fn settle(&mut self, wire: &Wire, clock: &ManualClock) -> io::Result<Option<Instant>> {
        let now = clock.now();
        for _ in 0..SPIN {
            let mut busy = false;
            while let Some((to, packet)) = wire.arrival() {
                busy = true;
                self.hosts[to].deliver(&packet);
            }
            let mut due = self.device.progress();
            busy |= due.is_some_and(|due| due <= now);
            busy |= self.session.turn();
            self.connections
                .retain(|connection| connection.strong_count() > 0);
            for connection in self.connections.iter().filter_map(Weak::upgrade) {
                let mut llp = lock(&connection);
                llp.clear_readiness();
                llp.drive();
                let at = llp.deadline().map(|at| at.max(now + INSTANT));
                due = earlier(due, at);
            }
            if !busy && wire.is_idle() {
                return Ok(due);
            }
        }
        Err(io::Error::other(
            "the target is endlessly busy without progress of time",
        ))
    }
}

impl Suite {
    fn clock_now(&self) -> Instant {
        self.0.clock.now()
    }

    /// Calls `found` whenever no work is left, until it returns a result. Returns `None` if the
    /// deadline passes first.
    fn look<T>(
        &self,
        deadline: Instant,
        mut found: impl FnMut() -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        loop {
            let due = lock(&self.0.inside).settle(&self.0.wire, &self.0.clock)?;
            if let Some(found) = found()? {
                return Ok(Some(found));
            }
            if self.clock_now() >= deadline {
                return Ok(None);
            }
            let next = earlier(due, Some(deadline));
            self.0.clock.set(next.unwrap_or(deadline));
        }
    }

    fn connection(&self, llp: Box<dyn Llp>, mss: Option<u16>) -> Connection {
        let llp = Arc::new(Mutex::new(llp));
        lock(&self.0.inside).connections.push(Arc::downgrade(&llp));
        Connection {
            suite: self.clone(),
            llp,
            mss,
        }
    }
}

impl Network for Suite {
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>> {
        let deadline = self.clock_now() + timeout;
        let llp = self.0.own.connect(None, to).map_err(io::Error::other)?;
        let connection = self.connection(llp, mss);
        // The SYN is on the link but not delivered yet, so its MSS can still be changed.
        self.0.wire.announce(connection.local_addr().port(), mss);
        let stands = self.look(deadline, || {
            let stands = connection.llp().connect_progress();
            Ok(stands.map_err(io::Error::other)?.then_some(()))
        })?;
        match stands {
            Some(()) => Ok(Box::new(connection)),
            None => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn own_ip(&self) -> IpAddr {
        self.0.own.info().addresses[0]
    }

    fn listen(
        &self,
        at: Option<SocketAddr>,
        _peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> io::Result<Box<dyn Listener>> {
        let at = at.unwrap_or((self.own_ip(), 0).into());
        let listener = self.0.own.listen(at, 16).map_err(io::Error::other)?;
        self.0.wire.announce(listener.local_addr().port(), mss);
        Ok(Box::new(Listening {
            suite: self.clone(),
            listener,
            mss,
        }))
    }

    fn now(&self) -> Instant {
        self.clock_now()
    }

    fn pause(&self, time: Duration) {
        // Ignores an error, because the next call that waits reports it.
        let _ = self.look(self.clock_now() + time, || Ok(None::<()>));
    }
}

/// The connection of the suite to the agent.
impl Channel for Suite {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        lock(&self.0.inside).session.hear(bytes);
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let said = self.look(self.clock_now() + timeout, || {
            let said = lock(&self.0.inside).session.say(bytes);
            Ok((said > 0).then_some(said))
        })?;
        Ok(said.unwrap_or(0))
    }

    fn now(&self) -> Instant {
        self.clock_now()
    }
}

struct Listening {
    suite: Suite,
    listener: Box<dyn LlpListener>,
    mss: Option<u16>,
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        let deadline = self.suite.clock_now() + timeout;
        let accepted = self.suite.look(deadline, || {
            self.listener.clear_readiness();
            self.listener.try_accept().map_err(io::Error::other)
        })?;
        let connection = accepted.map(|llp| self.suite.connection(llp, self.mss));
        Ok(connection.map(|connection| Box::new(connection) as Box<dyn Stream>))
    }
}

struct Connection {
    suite: Suite,
    llp: Arc<Mutex<Box<dyn Llp>>>,
    /// MSS that the suite announces on this connection, if the case chose it.
    mss: Option<u16>,
}

impl Connection {
    fn llp(&self) -> MutexGuard<'_, Box<dyn Llp>> {
        lock(&self.llp)
    }
}

impl Stream for Connection {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let deadline = self.suite.clock_now() + SEND;
        let mut sent = 0;
        let mut offer = || {
            let mut llp = lock(&self.llp);
            let pieces = [Piece::from(&bytes[sent..])];
            sent += llp
                .try_send(&pieces, SendHints::NONE)
                .map_err(io::Error::other)?;
            llp.drive();
            Ok((sent == bytes.len()).then_some(()))
        };
        // Tries to send at once, before other parts make progress.
        if offer()?.is_some() {
            return Ok(());
        }
        match self.suite.look(deadline, offer)? {
            Some(()) => Ok(()),
            None => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got> {
        let deadline = self.suite.clock_now() + timeout;
        let got = self
            .suite
            .look(deadline, || match lock(&self.llp).try_recv(bytes) {
                Ok(Recv::Data(count)) => Ok(Some(Got::Bytes(count))),
                Ok(Recv::Closed) => Ok(Some(Got::Fin)),
                Ok(Recv::WouldBlock) => Ok(None),
                Err(LlpError::Reset { .. }) => Ok(Some(Got::Reset)),
                Err(error) => Err(io::Error::other(error)),
            })?;
        Ok(got.unwrap_or(Got::Nothing))
    }

    fn fin(&mut self) -> io::Result<()> {
        let mut llp = self.llp();
        llp.shutdown().map_err(io::Error::other)?;
        llp.drive();
        Ok(())
    }

    fn reset(&mut self) {
        let mut llp = self.llp();
        llp.abort();
        llp.drive();
    }

    fn local_addr(&self) -> SocketAddr {
        self.llp().local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.llp().peer_addr()
    }

    fn mss(&self) -> Option<usize> {
        let own = self.llp().emss();
        Some(self.mss.map_or(own, |mss| own.min(mss.into())))
    }
}
