//! The side that does what a client's plan asks for.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{AcceptOptions, ConnectRequest, Device, DeviceError, ListenError, Listener};

use crate::bandwidth::Load;
use crate::client::{CLOSE, introduced};
use crate::control::Control;
use crate::error::PerfError;
use crate::event::Event;
use crate::latency::PingPong;
use crate::message::{ToClient, ToServer};
use crate::plan::Plan;
use crate::results::{Bandwidth, Figures, Row};
use crate::traffic::Traffic;
use crate::usage::Usage;

/// How long a client may take for its next word, and for its connections.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a server that waits looks for connections that are none of a client.
const LOOK: Duration = Duration::from_millis(100);

/// How often another port is tried where one is to be free at several addresses.
const TRIES: usize = 16;

/// A server: one client after the other.
#[derive(Debug)]
pub struct Server {
    device: Device,
    /// One for each address.
    listeners: Vec<Listener>,
}

impl Server {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// [`PerfError::Device`] when that cannot be.
    pub fn listen(device: &Device, addr: SocketAddr) -> Result<Self, PerfError> {
        Ok(Server {
            device: device.clone(),
            listeners: vec![device.listen(addr)?],
        })
    }

    /// Listens on the loopback addresses, 127.0.0.1 and (where this machine has it) ::1, for clients of this host.
    /// Both have the same port; 0 takes one that is free.
    ///
    /// # Errors
    /// [`PerfError::Device`] when that cannot be.
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
                // No IPv6 here.
                Err(_) => return Ok(server),
            }
        }
    }

    /// First of the addresses where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listeners[0].local_addr()
    }

    /// Where it listens.
    pub fn local_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.iter().map(Listener::local_addr)
    }

    /// Waits for a client and does all that its plan asks for. Connections that are not iWARP, and those of perftest, are
    /// told as [`Event::Stranger`] meanwhile.
    ///
    /// # Errors
    /// [`PerfError`]: the client, or the device. The next client can be served.
    pub fn serve_one(&self, mut tell: impl FnMut(Event<'_>)) -> Result<(), PerfError> {
        let pd = self.device.alloc_pd()?;
        let control = self.client(&pd, &mut tell)?;
        control.greet()?;
        let plan = match control.hear("a plan was to come", PATIENCE)? {
            ToServer::Hello { plan } => plan,
            other => return Err(control.protocol(format!("it began with {other:?}"))),
        };
        if let Err(error) = plan.check() {
            control.say(&ToClient::Declined {
                reason: error.to_string(),
            })?;
            let _ = control.qp.wait_closed(CLOSE);
            return Err(error.into());
        }
        tell(Event::Begins {
            peer: control.peer,
            plan: &plan,
            congestion: control.qp.congestion_control().as_deref(),
        });
        let traffic = self.connections(&pd, &plan, &control, &mut tell)?;
        Session {
            plan: &plan,
            control: &control,
            traffic: &traffic,
        }
        .run(&mut tell)?;
        let _ = control.qp.wait_closed(CLOSE);
        Ok(())
    }

    /// The connection of the next client, after its greeting. perftest is told as a stranger.
    fn client(
        &self,
        pd: &uwarp_verbs::Pd,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Control, PerfError> {
        loop {
            let request = self.request(None, <[u8]>::is_empty, tell)?;
            let control = Control::new(&self.device, pd, request.peer_addr())?;
            request.accept(&control.qp, &AcceptOptions::default())?;
            match control.hear_greeting(PATIENCE) {
                Ok(()) => return Ok(control),
                Err(error @ PerfError::Perftest { .. }) => tell(Event::Stranger(&error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next connection request of the kind. Others are rejected: there is one client at a time.
    fn request(
        &self,
        patience: Option<Duration>,
        wanted: impl Fn(&[u8]) -> bool,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<ConnectRequest, PerfError> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            for listener in &self.listeners {
                while let Some((peer, error)) = listener.poll_failure() {
                    tell(Event::Stranger(&PerfError::startup(peer, error)));
                }
                while let Some(request) = listener.poll_request() {
                    if wanted(request.private_data()) {
                        return Ok(request);
                    }
                    let _ = request.reject(&[]);
                }
                if let Some(error) = listener.fault() {
                    return Err(ListenError::Down { error }.into());
                }
            }
            if let (Some(waited), Some(deadline)) = (patience, deadline)
                && Instant::now() >= deadline
            {
                return Err(ListenError::TimedOut { waited }.into());
            }
            self.wait();
        }
    }

    /// Until a request waits, or for [`LOOK`].
    fn wait(&self) {
        let events = |listener| PollFd::new(listener, PollFlags::IN);
        let mut fds: Vec<_> = self.listeners.iter().map(events).collect();
        let timeout = Timespec::try_from(LOOK).ok();
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn connections(
        &self,
        pd: &uwarp_verbs::Pd,
        plan: &Plan,
        control: &Control,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Traffic, PerfError> {
        let mut traffic = match Traffic::new(&self.device, pd, plan, control.peer) {
            Ok(traffic) => traffic,
            Err(error) => {
                control.say(&ToClient::Declined {
                    reason: error.to_string(),
                })?;
                let _ = control.qp.wait_closed(CLOSE);
                return Err(error);
            }
        };
        let session = fastrand::u64(..);
        control.say(&ToClient::Welcome { session })?;
        let options = AcceptOptions::default().ird(plan.reads).ord(plan.reads);
        let ours = |bytes: &[u8]| introduced(bytes).is_some_and(|(of, _)| of == session);
        let mut taken = vec![false; traffic.qps.len()];
        for _ in 0..traffic.qps.len() {
            let request = self.request(Some(PATIENCE), ours, tell)?;
            let index = introduced(request.private_data()).map_or(0, |(_, index)| index as usize);
            match taken.get_mut(index) {
                Some(taken) if !*taken => *taken = true,
                _ => return Err(control.protocol(format!("it has two connections {index}"))),
            }
            request.accept(&traffic.qps[index], &options)?;
        }
        match control.hear("memory was to be lent", PATIENCE)? {
            ToServer::Memory(memory) => traffic.set_remote(memory)?,
            other => return Err(control.protocol(format!("it said {other:?} out of turn"))),
        }
        control.say(&ToClient::Memory(traffic.memory()))?;
        Ok(traffic)
    }
}

/// A client, once it is connected.
struct Session<'a> {
    plan: &'a Plan,
    control: &'a Control,
    traffic: &'a Traffic,
}

impl Session<'_> {
    fn run(&self, tell: &mut dyn FnMut(Event<'_>)) -> Result<(), PerfError> {
        loop {
            let size = match self.control.hear("the next size was to come", PATIENCE)? {
                ToServer::Start { size } if self.plan.sizes.contains(&size) => size,
                ToServer::Bye => return Ok(()),
                other => return Err(self.unexpected(&other)),
            };
            let usage = Usage::now();
            let row = if self.plan.test.is_latency() {
                self.answer(size)?;
                None
            } else {
                self.take(size)?
            };
            let cpu = usage.until_now().nanos();
            if let Some(row) = &row {
                tell(Event::Row(row));
            }
            let row = row.map(Box::new);
            self.control.say(&ToClient::Finished { cpu, row })?;
        }
    }

    fn unexpected(&self, said: &ToServer) -> PerfError {
        self.control
            .protocol(format!("it said {said:?} out of turn"))
    }

    /// Whether the client has ended the measurement, and how many messages it sent on each QP.
    fn done(&self) -> Result<Option<u64>, PerfError> {
        match self.control.heard("data moved")? {
            None => Ok(None),
            Some(ToServer::Done { sent }) => Ok(Some(sent)),
            Some(other) => Err(self.unexpected(&other)),
        }
    }

    fn answer(&self, size: u32) -> Result<(), PerfError> {
        let mut pings = PingPong::new(self.traffic, self.plan, size, true);
        self.control.say(&ToClient::Ready)?;
        if self.plan.test.has_responses() || self.plan.is_confirmed_write() {
            return self.stand_by();
        }
        pings.answer(&mut |_| Ok(self.done()?.is_some()))
    }

    /// The application of a one-sided test: it polls what has nothing for it, or sleeps.
    fn stand_by(&self) -> Result<(), PerfError> {
        if self.plan.target_sleeps {
            return match self.control.hear("data moved", Duration::MAX)? {
                ToServer::Done { .. } => Ok(()),
                other => Err(self.unexpected(&other)),
            };
        }
        let mut turns = 0_u32;
        loop {
            if self.traffic.poll(&mut [Default::default(); 4])? > 0 {
                return Err(self
                    .control
                    .protocol("it made a completion where none is due"));
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(256) && self.done()?.is_some() {
                return Ok(());
            }
        }
    }

    /// The server's part of a bandwidth test.
    fn take(&self, size: u32) -> Result<Option<Row>, PerfError> {
        let mut load = Load::new(self.traffic, self.plan, size);
        self.control.say(&ToClient::Ready)?;
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
