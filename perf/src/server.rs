//! The side that does what a client's plan asks for.

use std::net::SocketAddr;
use std::time::Duration;

use uwarp_verbs::{AcceptOptions, ConnectRequest, Device, Listener};

use crate::bandwidth::Load;
use crate::client::{CLOSE, introduced};
use crate::clock::processor_time;
use crate::control::Control;
use crate::error::PerfError;
use crate::event::Event;
use crate::latency::PingPong;
use crate::message::{ToClient, ToServer, VERSION};
use crate::plan::{Plan, Test};
use crate::results::{Bandwidth, Figures, Row};
use crate::traffic::Traffic;

/// How long a client may take for its next word, and for its connections.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server: one client after the other.
#[derive(Debug)]
pub struct Server {
    device: Device,
    listener: Listener,
}

impl Server {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// [`PerfError::Device`] when that cannot be.
    pub fn listen(device: &Device, addr: SocketAddr) -> Result<Self, PerfError> {
        let listener = device.listen(addr)?;
        Ok(Server {
            device: device.clone(),
            listener,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Waits for a client and does all that its plan asks for.
    ///
    /// # Errors
    /// [`PerfError`]: the client, or the device. The next client can be served.
    pub fn serve_one(&self, mut tell: impl FnMut(Event<'_>)) -> Result<(), PerfError> {
        let request = self.request(None, <[u8]>::is_empty)?;
        let pd = self.device.alloc_pd()?;
        let control = Control::new(&self.device, &pd, request.peer_addr())?;
        request.accept(&control.qp, &AcceptOptions::default())?;
        let plan = match control.hear("a plan was to come", PATIENCE)? {
            ToServer::Hello { version, plan } => match acceptable(version, &plan) {
                Ok(()) => plan,
                Err(reason) => {
                    control.say(&ToClient::Declined {
                        reason: reason.clone(),
                    })?;
                    let _ = control.qp.wait_closed(CLOSE);
                    return Err(control.protocol(reason));
                }
            },
            other => return Err(control.protocol(format!("it began with {other:?}"))),
        };
        tell(Event::Begins {
            peer: control.peer,
            plan: &plan,
        });
        let traffic = self.connections(&pd, &plan, &control)?;
        Session {
            plan: &plan,
            control: &control,
            traffic: &traffic,
        }
        .run(&mut tell)?;
        let _ = control.qp.wait_closed(CLOSE);
        Ok(())
    }

    /// The next connection request of the kind. Others are rejected: there is one client at a time.
    fn request(
        &self,
        patience: Option<Duration>,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<ConnectRequest, PerfError> {
        loop {
            let request = self.listener.wait_request(patience)?;
            if wanted(request.private_data()) {
                return Ok(request);
            }
            let _ = request.reject(&[]);
        }
    }

    fn connections(
        &self,
        pd: &uwarp_verbs::Pd,
        plan: &Plan,
        control: &Control,
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
        let options = AcceptOptions {
            ird: plan.reads,
            ord: plan.reads,
            ..AcceptOptions::default()
        };
        let ours = |octets: &[u8]| introduced(octets).is_some_and(|(of, _)| of == session);
        let mut taken = vec![false; traffic.qps.len()];
        for _ in 0..traffic.qps.len() {
            let request = self.request(Some(PATIENCE), ours)?;
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

fn acceptable(version: u32, plan: &Plan) -> Result<(), String> {
    if version != VERSION {
        return Err(format!(
            "the client speaks version {version} of the protocol of uwarp perf, and this server version {VERSION}"
        ));
    }
    plan.check().map_err(|error| error.to_string())
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
            let before = processor_time();
            let row = if self.plan.test.is_latency() {
                self.answer(size)?;
                None
            } else {
                self.take(size)?
            };
            let cpu = processor_time() - before;
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
        if self.plan.test == Test::ReadLatency || self.plan.is_confirmed_write() {
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
            let mut before = 0;
            let measured = load.measure(&mut || before = processor_time())?;
            let bandwidth = Bandwidth::new(measured.messages, size, measured.took, measured.peak);
            row = Some(Row {
                size,
                messages: measured.messages,
                seconds: measured.took.as_secs_f64(),
                figures: Figures::Bandwidth(bandwidth),
                cpu: (processor_time() - before) as f64 / 1e9,
                peer_cpu: 0.0,
                opposite: None,
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
