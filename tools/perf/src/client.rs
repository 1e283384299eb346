//! Client of a performance test. The client owns the plan and measures.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_verbs::{ConnectOptions, Device};

use crate::bandwidth::{Load, Measured};
use crate::control::Control;
use crate::error::PerfError;
use crate::event::Event;
use crate::latency::PingPong;
use crate::message::{ToClient, ToServer, Token};
use crate::plan::{Plan, Until};
use crate::results::{Bandwidth, Figures, Results, Row};
use crate::traffic::Traffic;

/// Maximum time to wait for an answer of the server, except at the end of a measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time to wait for the peer's close at the end of a connection.
pub(crate) const CLOSE: Duration = Duration::from_secs(5);

/// Encodes the private data of a data connection: its session, and its index in the session.
pub(crate) fn introduction(session: u64, index: u32) -> Vec<u8> {
    let mut bytes = session.to_be_bytes().to_vec();
    bytes.extend(index.to_be_bytes());
    bytes
}

/// Parses the private data of a data connection: session and index.
pub(crate) fn parse_introduction(bytes: &[u8]) -> Option<(u64, u32)> {
    let (session, rest) = bytes.split_first_chunk()?;
    let index = rest.try_into().ok()?;
    Some((u64::from_be_bytes(*session), u32::from_be_bytes(index)))
}

/// Measures `plan` against the server at `addr`. Reports each row as soon as it is complete.
///
/// # Errors
/// [`PerfError`] if the plan is invalid, or if the connection or the server fails.
pub fn run(
    device: &Device,
    addr: SocketAddr,
    plan: &Plan,
    mut report: impl FnMut(Event<'_>),
) -> Result<Results, PerfError> {
    let client = Client::connect(device, None, addr, plan)?;
    let congestion = client.congestion_control();
    report(Event::Begins {
        peer: addr,
        plan,
        congestion: congestion.as_deref(),
    });
    let mut rows = Vec::with_capacity(plan.sizes.len());
    let measured = plan.sizes.iter().try_for_each(|&size| {
        let row = client.measure(size)?;
        report(Event::Row(&row));
        rows.push(row);
        Ok(())
    });
    // The session with the server ends properly, even if the measurement failed.
    let ended = client.end();
    measured.and(ended)?;
    Ok(Results::new(plan.clone(), congestion, rows))
}

/// Client with the connections of its plan. It splits [`run`] into steps, for programs that measure
/// a size more than once or end early.
pub struct Client<'a> {
    plan: &'a Plan,
    control: Control,
    traffic: Traffic,
}

impl<'a> Client<'a> {
    /// Congestion control of the connections, if known
    /// ([`Qp::congestion_control`](uwarp_verbs::Qp::congestion_control)).
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        self.traffic.qps.first()?.congestion_control()
    }

    /// Connects to the server at `addr`, from the address `from` if given. The port of `from` is
    /// ignored.
    ///
    /// # Errors
    /// [`PerfError`] if the plan is invalid, or if the connection or the server fails.
    pub fn connect(
        device: &Device,
        from: Option<SocketAddr>,
        addr: SocketAddr,
        plan: &'a Plan,
    ) -> Result<Self, PerfError> {
        Self::connect_with(device, from, addr, plan, None)
    }

    /// Does the same as [`Client::connect`], with the token that the server wants
    /// ([`Server::token`](crate::Server::token)).
    ///
    /// # Errors
    /// As [`Client::connect`]. [`PerfError::Declined`] if the token is wrong.
    pub fn connect_with(
        device: &Device,
        from: Option<SocketAddr>,
        addr: SocketAddr,
        plan: &'a Plan,
        token: Option<&str>,
    ) -> Result<Self, PerfError> {
        plan.check()?;
        let pd = device.alloc_pd()?;
        let control = Control::new(device, &pd, addr)?;
        // Each connection needs its own port, so the system chooses the ports.
        let local = from.map(|mut from| {
            from.set_port(0);
            from
        });
        let mut options = ConnectOptions::default();
        options.local = local;
        connect(&control.qp, addr, &options)?;
        control.send_greeting()?;
        control.receive_greeting(PATIENCE)?;
        let hello = ToServer::Hello {
            plan: plan.clone(),
            token: token.map(|token| Token(token.to_owned())),
        };
        control.send(&hello)?;
        let session = match control.receive("after the plan was offered", PATIENCE)? {
            ToClient::Welcome { session } => session,
            ToClient::Declined { reason } => {
                return Err(PerfError::Declined { peer: addr, reason });
            }
            other => return Err(unexpected(&control, &other)),
        };
        let mut traffic = Traffic::new(device, &pd, plan, addr)?;
        for (index, qp) in (0..).zip(&traffic.qps) {
            let mut options = ConnectOptions::default()
                .private_data(introduction(session, index))
                .ird(plan.reads)
                .ord(plan.reads);
            options.local = local;
            connect(qp, addr, &options)?;
        }
        control.send(&ToServer::Memory(traffic.memory()))?;
        match control.receive("while memory was exchanged", PATIENCE)? {
            ToClient::Memory(memory) => traffic.set_remote(memory)?,
            other => return Err(unexpected(&control, &other)),
        }
        Ok(Client {
            plan,
            control,
            traffic,
        })
    }

    /// Measures one of the plan's sizes.
    ///
    /// # Errors
    /// [`PerfError`] if the connection or the server fails. After [`PerfError::NothingMeasured`]
    /// another size can be measured.
    pub fn measure(&self, size: u32) -> Result<Row, PerfError> {
        self.control.send(&ToServer::Start { size })?;
        match self.control.receive("before a measurement", PATIENCE)? {
            ToClient::Ready => {}
            other => return Err(unexpected(&self.control, &other)),
        }
        if self.plan.test.is_latency() {
            self.measure_latency(size)
        } else {
            self.measure_bandwidth(size)
        }
    }

    fn measure_latency(&self, size: u32) -> Result<Row, PerfError> {
        let mut pings = PingPong::new(&self.traffic, self.plan, size, false);
        let measured = pings.measure()?;
        let sent = pings.sent();
        self.control.send(&ToServer::Done { sent })?;
        let (peer_cpu, _) = self.finished(&mut || Ok(()))?;
        Ok(Row {
            size,
            messages: measured.messages,
            seconds: measured.took.as_secs_f64(),
            figures: Figures::Latency(measured.times.latency()),
            cpu: measured.used.own,
            machine_cpu: measured.used.machine,
            peer_cpu: seconds(peer_cpu),
            opposite: None,
            samples: measured.times.samples(),
        })
    }

    fn measure_bandwidth(&self, size: u32) -> Result<Row, PerfError> {
        let mut load = Load::new(&self.traffic, self.plan, size);
        let mut measured = load.measure()?;
        let sent = load.sent();
        self.control.send(&ToServer::Done { sent })?;
        let (peer_cpu, opposite) = self.finished(&mut || load.turn().map(drop))?;
        // Only the server knows when the last message that consumes a receive has arrived.
        if self.plan.test.takes_receives() && !self.plan.bidirectional {
            measured.end_now();
        }
        let Measured {
            messages,
            took,
            peak,
            used,
            ..
        } = measured;
        if messages == 0 || opposite.as_ref().is_some_and(|row| row.messages == 0) {
            return Err(self.nothing_measured(size));
        }
        Ok(Row {
            size,
            messages,
            seconds: took.as_secs_f64(),
            figures: Figures::Bandwidth(Bandwidth::new(messages, size, took, peak)),
            cpu: used.own,
            machine_cpu: used.machine,
            peer_cpu: seconds(peer_cpu),
            opposite,
            samples: Vec::new(),
        })
    }

    /// Creates the error of a measurement without messages. Only margins can be the cause, because
    /// otherwise a measurement lasts until its first message has completed.
    fn nothing_measured(&self, size: u32) -> PerfError {
        let seconds = match self.plan.until {
            Until::Seconds(seconds) => seconds,
            Until::Iterations => 0.0,
        };
        PerfError::NothingMeasured {
            size,
            seconds,
            margin: self.plan.margin,
        }
    }

    /// Waits until the server has completed its part of a measurement. Calls `meanwhile` repeatedly
    /// while it waits. Returns the server's processor time and the row that the server measured, if
    /// any.
    fn finished(
        &self,
        meanwhile: &mut dyn FnMut() -> Result<(), PerfError>,
    ) -> Result<(u64, Option<Box<Row>>), PerfError> {
        let finished = loop {
            if let Some(said) = self.control.try_receive("at the end of a measurement")? {
                break said;
            }
            meanwhile()?;
        };
        match finished {
            ToClient::Finished { cpu, row } => Ok((cpu, row)),
            other => Err(unexpected(&self.control, &other)),
        }
    }

    /// Notifies the server that the session is over, and closes all connections gracefully.
    ///
    /// # Errors
    /// [`PerfError`] if the server cannot be notified.
    pub fn end(self) -> Result<(), PerfError> {
        self.control.send(&ToServer::Bye)?;
        for qp in &self.traffic.qps {
            qp.disconnect();
        }
        self.control.qp.disconnect();
        let _ = self.control.qp.wait_closed(CLOSE);
        Ok(())
    }
}

fn connect(
    qp: &uwarp_verbs::Qp,
    addr: SocketAddr,
    options: &ConnectOptions,
) -> Result<(), PerfError> {
    qp.connect(addr, options)
        .map(drop)
        .map_err(|error| PerfError::connect(addr, error))
}

fn unexpected(control: &Control, said: &ToClient) -> PerfError {
    control.protocol(format!("it sent {said:?} unexpectedly"))
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
