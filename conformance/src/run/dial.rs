//! Establishes the TCP connection of a case. The suite connects to the target, or the target to the
//! suite.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::config::{Config, Target};
use super::connection::Connection;
use super::contact::{Contact, NoContact};
use super::outcome::Ending;
use super::player::{Player, Step, Stop};
use super::startup::{answer_members, merge, qp};
use crate::agent::number;
use crate::script::{Answer, Setup};
use crate::transport::{Listener, Stream, accept_first_with_key};

/// Time limit for the first connection from a target that connects to the suite. It is long enough
/// to start the target by hand.
const TO_START: Duration = Duration::from_secs(60);

impl Player<'_> {
    pub(super) fn begin(&mut self, setup: &Setup) -> Step {
        if setup.needs_agent() {
            self.agent()?;
        }
        let stream = if self.target_responds {
            self.dial(setup)?
        } else {
            self.be_dialled(setup)?
        };
        let number = self.connections.len();
        let mut connection = Connection::new(stream, self.config.network.clone());
        connection.mss_chosen = setup.mss.is_some();
        self.connections.push(connection);
        self.current = number;
        if let Some((_, conn)) = &self.unanswered
            && !self.target_responds
        {
            let conn = *conn;
            self.unanswered = None;
            self.connection()?.conn = Some(conn);
        }
        let (local, peer) = self.connection()?.addresses();
        self.note(format!("connection {number}: {local} to {peer}"));
        Ok(())
    }

    /// Connects to the target.
    fn dial(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        let Target::At(mut to) = self.config.target else {
            return Err(Stop::Skip(
                "the target connects itself, and accepts no connection of the suite".into(),
            ));
        };
        if self.agent.is_some() {
            let mut members = qp(setup);
            members["backlog"] = json!(4);
            let route = self.config.route.clone();
            members["port"] = json!(route.as_ref().map_or(0, |route| route.port()));
            if setup.answer == Answer::Auto {
                merge(&mut members, answer_members(setup));
                members["auto"] = json!(true);
            }
            let answer = self.agent()?.command("listen", members)?;
            let port = u16::try_from(number(&answer, "port")?).unwrap_or_default();
            match &route {
                Some(route) => to = route.target(port),
                None => to.set_port(port),
            }
            self.unanswered = Some((setup.clone(), number(&answer, "listener")?));
        }
        for number in 0..setup.aborted {
            self.abort_connection(to, number)?;
        }
        let connected = self.connect(to, setup.mss);
        connected.map_err(|no| self.no_connection(to, setup.aborted, no))
    }

    /// Returns the result of a case whose connection failed. `aborted`: number of connections that
    /// the case has already made and aborted.
    fn no_connection(&mut self, to: SocketAddr, aborted: u32, no: NoContact) -> Stop {
        let had_one = !self.connections.is_empty() || aborted > 0;
        let was_reached = matches!(no, NoContact::Lost(_));
        no.stop(|error| match error.kind() {
            ErrorKind::Unsupported => Stop::Skip(error.to_string()),
            ErrorKind::ConnectionReset if !had_one => Stop::Fail {
                expected: "a TCP connection".into(),
                received: "one that is reset at once".into(),
            },
            _ if aborted > 0 => self.lost("a TCP connection, like those before it", &error),
            _ if had_one => self.lost("another TCP connection: the target still serves", &error),
            _ if was_reached => Stop::Infrastructure(format!(
                "the target at {to} takes no connection any more: {error}; did it die in an earlier case?"
            )),
            _ => nobody_listens(to, &error),
        })
    }

    /// Returns the failure of a case whose earlier connections worked.
    fn lost(&mut self, expected: &str, error: &Error) -> Stop {
        // With an agent, a check after the case finds out whether the target lives.
        let is_reset = error.kind() == ErrorKind::ConnectionReset;
        self.ending = (self.agent.is_none() && !is_reset).then_some(Ending::Died);
        Stop::Fail {
            expected: expected.into(),
            received: error.to_string(),
        }
    }

    /// Makes a TCP connection to the target.
    fn connect(&self, to: SocketAddr, mss: Option<u16>) -> Result<Box<dyn Stream>, NoContact> {
        let Config {
            network, timeout, ..
        } = self.config;
        let attempt = || network.connect(to, mss, *timeout);
        if self.agent.is_some() {
            return self.contact.connect_once(attempt);
        }
        self.contact
            .make(&**network, Duration::ZERO, Some(*timeout), attempt)
    }

    /// Makes a connection and ends it before the Request. If `number` is odd, resets the connection
    /// at once. Otherwise sends a FIN, waits for a reaction, and then resets it. `number`: number
    /// of such connections that the case has already made.
    fn abort_connection(&mut self, to: SocketAddr, number: u32) -> Step {
        let reset = number % 2 == 1;
        let connected = self.connect(to, None);
        let mut stream = connected.map_err(|no| self.no_connection(to, number, no))?;
        if !reset && stream.fin().is_ok() {
            let _ = stream.receive(&mut [0; 64], self.config.quiet);
        }
        stream.reset();
        Ok(())
    }

    /// Accepts a connection from the target. An agent, if there is one, makes the target connect.
    fn be_dialled(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        let timeout = self.config.timeout;
        if self.agent.is_none() {
            return self.wait_for_target(setup);
        }
        let peer = match self.config.target {
            Target::At(addr) => addr,
            _ => self
                .config
                .agent
                .unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        };
        let network = self.config.network.clone();
        let route = self.config.route.clone();
        let own = route.as_ref().map(|route| route.own());
        let mut listener = network.listen(own, Some(peer), setup.mss)?;
        let mut at = listener.local_addr();
        if let Some(route) = &route {
            at = route.own_for_target(at);
        }
        let mut members = qp(setup);
        members["addr"] = json!(at.ip().to_string());
        members["port"] = json!(at.port());
        let answer = self.agent()?.command("open", members)?;
        let conn = number(&answer, "conn")?;
        let ready = self.agent()?.event(timeout, |event| {
            event["conn"] == json!(conn) && event.get("ev").is_some()
        })?;
        match ready {
            Some(event) if event["ev"] == "ready" => {}
            other => {
                let what = other.map_or("nothing".to_owned(), |event| event.to_string());
                return Err(Stop::Infrastructure(format!(
                    "the application cannot open a connection: {what}"
                )));
            }
        }
        self.pds.insert(conn, setup.pd);
        self.receives_on(conn, setup.receives)?;
        let mut members = answer_members(setup);
        members["conn"] = json!(conn);
        if setup.peer_to_peer {
            if !self.agent()?.has("peer_to_peer") {
                return Err(Stop::Skip(
                    "the agent cannot ask for the peer-to-peer model".into(),
                ));
            }
            members["peer_to_peer"] = json!(true);
        }
        self.agent()?.command("connect", members)?;
        self.unanswered = Some((setup.clone(), conn));
        accept(self.config, self.contact, &mut *listener)?
            .ok_or_else(|| Stop::Infrastructure(format!("the target did not connect to {at}")))
    }

    /// Accepts a connection without an agent. The next connection counts as the target's.
    fn wait_for_target(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        if setup.mss.is_some() {
            return Err(Stop::Skip(
                "the MSS cannot be chosen without an agent".into(),
            ));
        }
        let Some(listener) = self.listener.as_deref_mut() else {
            return Err(Stop::Skip(
                "only an agent can make the target connect".into(),
            ));
        };
        if let Target::Command(command) = &self.config.target {
            // Commands that the case started earlier keep running, because later steps may use
            // their connections.
            let process =
                super::target_process::TargetProcess::start(command, listener.local_addr());
            self.target_processes.push(process.map_err(|error| {
                self.contact.lose();
                Stop::Infrastructure(format!("the command cannot be started: {error}"))
            })?);
        }
        let Some(stream) = accept(self.config, self.contact, listener)? else {
            return Err(if self.connections.is_empty() {
                Stop::Infrastructure("the target did not connect to the suite".into())
            } else {
                Stop::Skip("the target makes no second connection in addition to the first".into())
            });
        };
        Ok(stream)
    }
}

/// Returns the connection of the target, or `None` if it does not connect in time.
fn accept(
    config: &Config,
    contact: &Contact,
    listener: &mut dyn Listener,
) -> Result<Option<Box<dyn Stream>>, Stop> {
    let network = &*config.network;
    // A stranger must not be taken while the target may still be starting.
    let wait = match config.target {
        Target::Dials(_) if !contact.is_reached() => config.timeout.max(TO_START),
        _ => config.timeout,
    };
    let mut attempt = || {
        let came = match config.target {
            Target::Dials(_) => accept_first_with_key(network, listener, wait)?,
            // Nobody else knows the port.
            _ => listener.accept(config.timeout)?,
        };
        came.ok_or_else(|| ErrorKind::TimedOut.into())
    };
    let made = match config.target {
        Target::Dials(_) => contact.make(network, TO_START, None, attempt),
        Target::Command(_) => contact.make(network, Duration::ZERO, None, attempt),
        // This target has an agent, which shows whether it still lives.
        Target::At(_) => attempt().map_err(NoContact::Now),
    };
    match made {
        Ok(stream) => Ok(Some(stream)),
        Err(NoContact::Now(error) | NoContact::Never(error) | NoContact::Lost(error))
            if error.kind() == ErrorKind::TimedOut =>
        {
            Ok(None)
        }
        Err(no) => Err(no.stop(Stop::from)),
    }
}

fn nobody_listens(at: SocketAddr, error: &Error) -> Stop {
    Stop::Infrastructure(format!(
        "the target at {at} takes no connection: {error}; is it running?"
    ))
}
