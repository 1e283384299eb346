//! The side with the plan.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_verbs::{ConnectOptions, Device, Pd};

use crate::bandwidth::{Load, Measured};
use crate::clock::processor_time;
use crate::control::Control;
use crate::error::PerfError;
use crate::event::Event;
use crate::latency::PingPong;
use crate::message::{ToClient, ToServer, VERSION};
use crate::plan::{Plan, Test};
use crate::results::{Bandwidth, Figures, Results, Row};
use crate::traffic::Traffic;

/// How long the server may take for an answer, but for one at the end of a measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a connection waits for the peer's.
pub(crate) const CLOSE: Duration = Duration::from_secs(5);

/// What a data connection says of itself: the session that it belongs to, and its index.
pub(crate) fn introduce(session: u64, index: u32) -> Vec<u8> {
    let mut octets = session.to_be_bytes().to_vec();
    octets.extend(index.to_be_bytes());
    octets
}

/// The session and the index that a connection request names.
pub(crate) fn introduced(octets: &[u8]) -> Option<(u64, u32)> {
    let (session, rest) = octets.split_first_chunk()?;
    let index = rest.try_into().ok()?;
    Some((u64::from_be_bytes(*session), u32::from_be_bytes(index)))
}

/// Measures what `plan` says against the server at `addr`, and tells each row as it comes.
///
/// # Errors
/// [`PerfError`]: the plan, the connection, or the server.
pub fn run(
    device: &Device,
    addr: SocketAddr,
    plan: &Plan,
    mut tell: impl FnMut(Event<'_>),
) -> Result<Results, PerfError> {
    plan.check()?;
    let session = Session::begin(device, addr, plan)?;
    tell(Event::Begins { peer: addr, plan });
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for &size in &plan.sizes {
        let row = session.measure(size)?;
        tell(Event::Row(&row));
        rows.push(row);
    }
    session.end()?;
    Ok(Results {
        plan: plan.clone(),
        rows,
    })
}

/// The connections of a plan.
struct Session<'a> {
    plan: &'a Plan,
    control: Control,
    traffic: Traffic,
}

impl<'a> Session<'a> {
    fn begin(device: &Device, addr: SocketAddr, plan: &'a Plan) -> Result<Self, PerfError> {
        let pd = device.alloc_pd()?;
        let control = Control::new(device, &pd, addr)?;
        connect(&control.qp, addr, &ConnectOptions::default())?;
        control.say(&ToServer::Hello {
            version: VERSION,
            plan: plan.clone(),
        })?;
        let session = match control.hear("a plan was offered", PATIENCE)? {
            ToClient::Welcome { session } => session,
            ToClient::Declined { reason } => {
                return Err(PerfError::Declined { peer: addr, reason });
            }
            other => return Err(unexpected(&control, &other)),
        };
        let traffic = Self::connections(device, &pd, addr, plan, session, &control)?;
        Ok(Session {
            plan,
            control,
            traffic,
        })
    }

    fn connections(
        device: &Device,
        pd: &Pd,
        addr: SocketAddr,
        plan: &Plan,
        session: u64,
        control: &Control,
    ) -> Result<Traffic, PerfError> {
        let mut traffic = Traffic::new(device, pd, plan, addr)?;
        for (index, qp) in (0..).zip(&traffic.qps) {
            let options = ConnectOptions {
                private_data: introduce(session, index),
                ird: plan.reads,
                ord: plan.reads,
                ..ConnectOptions::default()
            };
            connect(qp, addr, &options)?;
        }
        control.say(&ToServer::Memory(traffic.memory()))?;
        match control.hear("memory was lent", PATIENCE)? {
            ToClient::Memory(memory) => traffic.set_remote(memory)?,
            other => return Err(unexpected(control, &other)),
        }
        Ok(traffic)
    }

    fn measure(&self, size: u32) -> Result<Row, PerfError> {
        self.control.say(&ToServer::Start { size })?;
        match self.control.hear("a measurement was to begin", PATIENCE)? {
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
        let before = processor_time();
        let (messages, took, times) = pings.measure()?;
        let cpu = processor_time() - before;
        let sent = pings.sent();
        self.control.say(&ToServer::Done { sent })?;
        let (peer_cpu, _) = self.finished(&mut || Ok(()))?;
        Ok(Row {
            size,
            messages,
            seconds: took.as_secs_f64(),
            figures: Figures::Latency(times.latency()),
            cpu: seconds(cpu),
            peer_cpu: seconds(peer_cpu),
            opposite: None,
        })
    }

    fn measure_bandwidth(&self, size: u32) -> Result<Row, PerfError> {
        let mut load = Load::new(&self.traffic, self.plan, size);
        let mut before = 0;
        let mut measured = load.measure(&mut || before = processor_time())?;
        let sent = load.sent();
        self.control.say(&ToServer::Done { sent })?;
        let (peer_cpu, opposite) = self.finished(&mut || load.turn().map(drop))?;
        let cpu = processor_time() - before;
        // Of Sends only the server knows when the last has arrived.
        if self.plan.test == Test::SendBandwidth && !self.plan.bidirectional {
            measured.took = measured.began.elapsed();
        }
        let Measured {
            messages,
            took,
            peak,
            ..
        } = measured;
        Ok(Row {
            size,
            messages,
            seconds: took.as_secs_f64(),
            figures: Figures::Bandwidth(Bandwidth::new(messages, size, took, peak)),
            cpu: seconds(cpu),
            peer_cpu: seconds(peer_cpu),
            opposite,
        })
    }

    /// Waits for the server's end of a measurement: its processor time, and what it has measured. `meanwhile` is called again
    /// and again.
    fn finished(
        &self,
        meanwhile: &mut dyn FnMut() -> Result<(), PerfError>,
    ) -> Result<(u64, Option<Box<Row>>), PerfError> {
        let finished = loop {
            if let Some(said) = self.control.heard("a measurement was to end")? {
                break said;
            }
            meanwhile()?;
        };
        match finished {
            ToClient::Finished { cpu, row } => Ok((cpu, row)),
            other => Err(unexpected(&self.control, &other)),
        }
    }

    fn end(self) -> Result<(), PerfError> {
        self.control.say(&ToServer::Bye)?;
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
        .map_err(|error| PerfError::Connect {
            addr,
            error: Box::new(error),
        })
}

fn unexpected(control: &Control, said: &ToClient) -> PerfError {
    control.protocol(format!("it said {said:?} out of turn"))
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
