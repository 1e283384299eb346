//! Server of a performance test, which performs the other side of a client's plan.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{AcceptOptions, ConnectRequest, Device, DeviceError, ListenError, Listener};

use crate::bandwidth::Load;
use crate::client::{CLOSE, parse_introduction};
use crate::control::Control;
use crate::error::PerfError;
use crate::event::Event;
use crate::latency::PingPong;
use crate::message::{ToClient, ToServer, Token};
use crate::plan::Plan;
use crate::results::{Bandwidth, Figures, Row};
use crate::traffic::{Traffic, memory_of};
use crate::usage::Usage;

/// Maximum time from the connection of a client until its plan has arrived.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Maximum number of connections that may wait for their plan. One more replaces the oldest.
const MAX_NEWCOMERS: usize = 64;

/// Default of [`Server::max_memory`].
const DEFAULT_MEMORY: u64 = 1 << 30;

/// Maximum time to wait for the client's next message, and for its connections.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval at which a waiting server checks for connections that do not belong to a client.
const LOOK: Duration = Duration::from_millis(100);

/// The same while connections wait for their plans, because their messages do not wake the server.
const SOON: Duration = Duration::from_millis(1);

/// Maximum number of attempts to find a port that is free on both loopback addresses.
const TRIES: usize = 16;

/// Server that serves one client after the other.
#[derive(Debug)]
pub struct Server {
    device: Device,
    /// One listener for each address.
    listeners: Vec<Listener>,
    max_memory: u64,
    token: Option<String>,
}

impl Server {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// [`PerfError::Device`] if the address cannot be used.
    pub fn listen(device: &Device, addr: SocketAddr) -> Result<Self, PerfError> {
        Ok(Server {
            device: device.clone(),
            listeners: vec![device.listen(addr)?],
            max_memory: DEFAULT_MEMORY,
            token: None,
        })
    }

    /// Listens for clients of this host: on 127.0.0.1 and, if this machine has it, on ::1. Both
    /// addresses use the same port. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`PerfError::Device`] if the addresses cannot be used.
    pub fn listen_on_loopback(device: &Device, port: u16) -> Result<Self, PerfError> {
        let mut tries = TRIES;
        loop {
            let server = Self::listen(device, (Ipv4Addr::LOCALHOST, port).into())?;
            let taken = server.local_addrs().next().map_or(port, |addr| addr.port());
            tries -= 1;
            match device.listen((Ipv6Addr::LOCALHOST, taken).into()) {
                Ok(listener) => {
                    let mut server = server;
                    server.listeners.push(listener);
                    return Ok(server);
                }
                Err(DeviceError::Network(LlpError::AddressInUse { .. }))
                    if port == 0 && tries > 0 => {}
                Err(error @ DeviceError::Network(LlpError::AddressInUse { .. })) => {
                    return Err(error.into());
                }
                // This machine has no IPv6.
                Err(_) => return Ok(server),
            }
        }
    }

    /// Sets the maximum memory in bytes that the plan of a client may use at this server: twice the
    /// largest message for each QP, and the queues (estimated). The default is 1 GiB. A plan that
    /// needs more is declined, and the server waits for the next one.
    #[must_use]
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = bytes;
        self
    }

    /// Sets the token that a client has to send with its plan. Without one, the server serves
    /// whoever comes first, and with an empty one nobody. The token is sent unencrypted.
    #[must_use]
    pub fn token(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Returns the first of the server's addresses.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listeners[0].local_addr()
    }

    /// Returns all addresses of the server.
    pub fn local_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.iter().map(Listener::local_addr)
    }

    /// Waits for a client and performs the server's side of its plan. Connections that bring no
    /// plan are reported as [`Event::ForeignConnection`]: those that are not iWARP, those of
    /// perftest, and those that end or stay silent for 10 s. So are those whose plan is declined.
    /// They do not delay a client.
    ///
    /// # Errors
    /// [`PerfError`] if the client or the device fails. If a client fails, the next client can
    /// still be served.
    pub fn serve_one(&self, mut report: impl FnMut(Event<'_>)) -> Result<(), PerfError> {
        let pd = self.device.alloc_pd()?;
        let (control, plan, mut traffic) = self.client(&pd, &mut report)?;
        report(Event::Begins {
            peer: control.peer,
            plan: &plan,
            congestion: control.qp.congestion_control().as_deref(),
        });
        self.connect(&mut traffic, &plan, &control, &mut report)?;
        Session {
            plan: &plan,
            control: &control,
            traffic: &traffic,
        }
        .run(&mut report)?;
        let _ = control.qp.wait_closed(CLOSE);
        Ok(())
    }

    /// Creates the resources for a plan. Fails if the token is wrong, if the plan makes no sense,
    /// or if it needs more than this server allows or the device has.
    fn prepare(
        &self,
        pd: &uwarp_verbs::Pd,
        Offer { plan, token }: &Offer,
        peer: SocketAddr,
    ) -> Result<Traffic, PerfError> {
        let given = token.as_ref().map_or("", |token| &token.0);
        if self
            .token
            .as_deref()
            .is_some_and(|token| token.is_empty() || !same(given, token))
        {
            return Err(PerfError::WrongToken);
        }
        plan.check()?;
        let (needed, limit) = (memory_of(plan), self.max_memory);
        if needed > limit {
            return Err(PerfError::TooMuchMemory { needed, limit });
        }
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        self.device.check_memory(needed, "this test")?;
        Traffic::new(&self.device, pd, plan, peer)
    }

    /// Waits for the next client: the first connection whose plan has arrived and can be performed.
    /// Connections wait for their plans side by side, so a silent one does not delay a client. The
    /// others are closed.
    fn client(
        &self,
        pd: &uwarp_verbs::Pd,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<(Control, Plan, Traffic), PerfError> {
        let mut newcomers: VecDeque<Newcomer> = VecDeque::new();
        loop {
            while let Some(request) = self.poll_request(<[u8]>::is_empty, report)? {
                // A silent connection must not keep the memory that a client needs.
                let is_short = self.device.check_memory(Control::MEMORY, "another client");
                let is_short = is_short.is_err();
                if newcomers.len() == MAX_NEWCOMERS || is_short {
                    newcomers.pop_front();
                }
                match self.newcomer(pd, request) {
                    Ok(newcomer) => newcomers.push_back(newcomer),
                    Err(error) => report(Event::ForeignConnection(&error)),
                }
            }
            let mut index = 0;
            while let Some(newcomer) = newcomers.get_mut(index) {
                match newcomer.poll() {
                    Ok(None) => index += 1,
                    Ok(Some(offer)) => {
                        let peer = newcomer.control.peer;
                        match self.prepare(pd, &offer, peer) {
                            Ok(traffic) => {
                                if let Some(newcomer) = newcomers.remove(index) {
                                    return Ok((newcomer.control, offer.plan, traffic));
                                }
                            }
                            Err(error) => {
                                newcomer.decline(&error);
                                report(Event::ForeignConnection(&error));
                                index += 1;
                            }
                        }
                    }
                    Err(error) => {
                        let is_reported = newcomer.is_declined;
                        newcomers.remove(index);
                        if !is_reported {
                            report(Event::ForeignConnection(&error));
                        }
                    }
                }
            }
            self.wait(if newcomers.is_empty() { LOOK } else { SOON });
        }
    }

    fn newcomer(
        &self,
        pd: &uwarp_verbs::Pd,
        request: ConnectRequest,
    ) -> Result<Newcomer, PerfError> {
        if let Err(short) = self.device.check_memory(Control::MEMORY, "another client") {
            let _ = request.reject(short.for_peer().as_bytes());
            return Err(short.into());
        }
        let control = Control::new(&self.device, pd, request.peer_addr())?;
        request.accept(&control.qp, &AcceptOptions::default())?;
        Ok(Newcomer {
            control,
            is_greeted: false,
            is_declined: false,
            deadline: Instant::now() + INTRODUCTION,
        })
    }

    /// Returns a pending connection request whose private data `wanted` accepts. All others are
    /// rejected, because there is one client at a time.
    fn poll_request(
        &self,
        wanted: impl Fn(&[u8]) -> bool,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<ConnectRequest>, PerfError> {
        for listener in &self.listeners {
            while let Some((peer, error)) = listener.poll_failure() {
                report(Event::ForeignConnection(&PerfError::startup(peer, error)));
            }
            while let Some(request) = listener.poll_request() {
                if wanted(request.private_data()) {
                    return Ok(Some(request));
                }
                let _ = request.reject(&[]);
            }
            if let Some(error) = listener.fault() {
                return Err(ListenError::Down { error }.into());
            }
        }
        Ok(None)
    }

    /// Waits for the next connection request whose private data `wanted` accepts, for at most
    /// `patience`.
    fn request(
        &self,
        patience: Duration,
        wanted: impl Fn(&[u8]) -> bool,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<ConnectRequest, PerfError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(request) = self.poll_request(&wanted, report)? {
                return Ok(request);
            }
            if Instant::now() >= deadline {
                return Err(ListenError::TimedOut { waited: patience }.into());
            }
            self.wait(LOOK);
        }
    }

    /// Waits until a listener has a pending request, at most for `most`.
    fn wait(&self, most: Duration) {
        let events = |listener| PollFd::new(listener, PollFlags::IN);
        let mut fds: Vec<_> = self.listeners.iter().map(events).collect();
        let timeout = Timespec::try_from(most).ok();
        // The result is ignored, because an interrupted wait is only shorter.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Accepts the data connections of a client, and exchanges the addresses of memory with it.
    fn connect(
        &self,
        traffic: &mut Traffic,
        plan: &Plan,
        control: &Control,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), PerfError> {
        let session = random_session();
        control.send(&ToClient::Welcome { session })?;
        let options = AcceptOptions::default().ird(plan.reads).ord(plan.reads);
        let ours = |bytes: &[u8]| parse_introduction(bytes).is_some_and(|(of, _)| of == session);
        let mut taken = vec![false; traffic.qps.len()];
        for _ in 0..traffic.qps.len() {
            let request = self.request(PATIENCE, ours, report)?;
            let index =
                parse_introduction(request.private_data()).map_or(0, |(_, index)| index as usize);
            match taken.get_mut(index) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(control.protocol(format!("it opened connection {index} twice"))),
            }
            request.accept(&traffic.qps[index], &options)?;
        }
        match control.receive("while memory was exchanged", PATIENCE)? {
            ToServer::Memory(memory) => traffic.set_remote(memory)?,
            other => return Err(control.protocol(format!("it sent {other:?} unexpectedly"))),
        }
        control.send(&ToClient::Memory(traffic.memory()))
    }
}

/// Returns a session number that others cannot guess. Otherwise a stranger could open the
/// connections of a client.
fn random_session() -> u64 {
    // The keys of a `RandomState` are random bytes of the operating system.
    RandomState::new().hash_one(Instant::now())
}

/// Plan of a client, and the token that it sent.
struct Offer {
    plan: Plan,
    token: Option<Token>,
}

/// Compares two tokens. The time does not depend on the position of the first difference.
fn same(given: &str, wanted: &str) -> bool {
    let pairs = given.bytes().zip(wanted.bytes());
    let difference = pairs.fold(0, |all, (one, other)| black_box(all | (one ^ other)));
    given.len() == wanted.len() && difference == 0
}

/// A connection that has not sent its plan yet, or whose plan was declined.
struct Newcomer {
    control: Control,
    is_greeted: bool,
    /// True if the plan was declined. The connection stays until the client has read the reason and
    /// closes it.
    is_declined: bool,
    deadline: Instant,
}

impl Newcomer {
    /// Tells the client why its plan is declined.
    fn decline(&mut self, error: &PerfError) {
        let reason = match error {
            PerfError::Memory(short) => short.for_peer(),
            error => error.to_string(),
        };
        // If the connection fails, `poll` reports it.
        let _ = self.control.send(&ToClient::Declined { reason });
        self.is_declined = true;
        self.deadline = Instant::now() + CLOSE;
    }

    /// Returns the plan if it has arrived. Answers the greeting. Does not wait. Fails if the
    /// connection has ended, or its time is over.
    fn poll(&mut self) -> Result<Option<Offer>, PerfError> {
        if !self.is_greeted && self.control.try_receive_greeting()? {
            self.control.send_greeting()?;
            self.is_greeted = true;
        }
        if self.is_greeted
            && let Some(message) = self.control.try_receive("before its plan")?
        {
            return match message {
                ToServer::Hello { plan, token } if !self.is_declined => {
                    Ok(Some(Offer { plan, token }))
                }
                other => {
                    let what = format!("it sent {other:?} instead of its first plan");
                    Err(self.control.protocol(what))
                }
            };
        }
        if Instant::now() >= self.deadline {
            return Err(PerfError::Silent {
                peer: self.control.peer,
                seconds: INTRODUCTION.as_secs(),
                during: "before its plan",
            });
        }
        Ok(None)
    }
}

/// A connected client with its plan and its connections.
struct Session<'a> {
    plan: &'a Plan,
    control: &'a Control,
    traffic: &'a Traffic,
}

impl Session<'_> {
    fn run(&self, report: &mut dyn FnMut(Event<'_>)) -> Result<(), PerfError> {
        loop {
            let size = match self.control.receive("before the next size", PATIENCE)? {
                ToServer::Start { size } if self.plan.sizes.contains(&size) => size,
                ToServer::Bye => return Ok(()),
                other => return Err(self.unexpected(&other)),
            };
            let usage = Usage::now();
            let row = if self.plan.test.is_latency() {
                self.play_latency(size)?;
                None
            } else {
                self.play_bandwidth(size)?
            };
            let cpu = usage.until_now().nanos();
            if let Some(row) = &row {
                report(Event::Row(row));
            }
            let row = row.map(Box::new);
            self.control.send(&ToClient::Finished { cpu, row })?;
        }
    }

    fn unexpected(&self, said: &ToServer) -> PerfError {
        self.control
            .protocol(format!("it sent {said:?} unexpectedly"))
    }

    /// Returns the number of messages that the client sent on each QP, or `None` if the measurement
    /// has not ended.
    fn done(&self) -> Result<Option<u64>, PerfError> {
        match self.control.try_receive("while data moved")? {
            None => Ok(None),
            Some(ToServer::Done { sent }) => Ok(Some(sent)),
            Some(other) => Err(self.unexpected(&other)),
        }
    }

    fn play_latency(&self, size: u32) -> Result<(), PerfError> {
        let mut pings = PingPong::new(self.traffic, self.plan, size, true);
        self.control.send(&ToClient::Ready)?;
        if self.plan.test.has_responses() || self.plan.is_confirmed_write() {
            return self.stand_by();
        }
        pings.answer(&mut |_| Ok(self.done()?.is_some()))
    }

    /// Acts as the application of a one-sided test until the client is done. Sleeps, or polls
    /// without expecting a completion.
    fn stand_by(&self) -> Result<(), PerfError> {
        if self.plan.target_sleeps {
            return match self.control.receive("while data moved", Duration::MAX)? {
                ToServer::Done { .. } => Ok(()),
                other => Err(self.unexpected(&other)),
            };
        }
        let mut turns = 0_u32;
        loop {
            if self.traffic.poll(&mut [Default::default(); 4])? > 0 {
                return Err(self
                    .control
                    .protocol("it caused a completion where none is expected"));
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(256) && self.done()?.is_some() {
                return Ok(());
            }
        }
    }

    /// Performs the server's side of a bandwidth test.
    fn play_bandwidth(&self, size: u32) -> Result<Option<Row>, PerfError> {
        let mut load = Load::new(self.traffic, self.plan, size);
        self.control.send(&ToClient::Ready)?;
        if !self.plan.bidirectional && self.plan.test.is_one_sided() {
            self.stand_by()?;
            return Ok(None);
        }
        let mut row = None;
        if self.plan.bidirectional {
            let measured = load.measure()?;
            let bandwidth = Bandwidth::new(measured.messages, size, measured.took, measured.peak);
            row = Some(Row {
                size,
                messages: measured.messages,
                seconds: measured.took.as_secs_f64(),
                figures: Figures::Bandwidth(bandwidth),
                cpu: measured.used.own,
                machine_cpu: measured.used.machine,
                peer_cpu: 0.0,
                opposite: None,
                samples: Vec::new(),
            });
        }
        let mut sent = None;
        loop {
            if let Some(sent) = sent
                && (self.plan.test.is_one_sided()
                    || load.received() >= sent * u64::from(self.plan.qps))
            {
                return Ok(row);
            }
            let taken = load.turn()?;
            if taken == 0 && sent.is_none() {
                sent = self.done()?;
            }
        }
    }
}
