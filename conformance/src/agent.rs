//! The client of the agent's control protocol (docs/agent.md): lines of JSON, answered one by one, with events between.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::transport::in_words;

/// How long the agent may take for a command.
const COMMAND: Duration = Duration::from_secs(30);

/// Bytes of a line (docs/agent.md), and events that nobody has asked for: an agent with more of them is broken, and
/// must not fill our memory.
const MAX_LINE: usize = 65_535;
const MAX_EVENTS: usize = 65_536;

/// A connection to an agent: TCP, or whatever leads to one.
pub trait Channel: Send {
    /// Sends these bytes.
    ///
    /// # Errors
    /// The agent is gone.
    fn send(&mut self, octets: &[u8]) -> io::Result<()>;

    /// What comes within `timeout`; 0 bytes when nothing did.
    ///
    /// # Errors
    /// The agent is gone.
    fn receive(&mut self, octets: &mut [u8], timeout: Duration) -> io::Result<usize>;

    /// The time that `timeout` counts by: that of the machine, unless the way to the agent has a clock of its own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Channel for TcpStream {
    fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        self.write_all(octets)
    }

    fn receive(&mut self, octets: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        match self.read(octets) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            },
        }
    }
}

/// What went wrong with the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is none.
    #[error("no agent answers at {0}: {1}")]
    Absent(SocketAddr, io::Error),
    /// It is gone.
    #[error("the agent: {0}")]
    Gone(#[from] io::Error),
    /// It does not answer.
    #[error("the agent does not answer to {0}")]
    Silent(String),
    /// What it says is not the protocol.
    #[error("the agent says {0}")]
    Nonsense(String),
    /// It has no such command, or not with these members.
    #[error("the agent cannot {command}: {answer}")]
    Cannot {
        /// What it was told.
        command: String,
        /// What it said.
        answer: String,
    },
    /// A library refused a command.
    #[error("the agent refuses {command}: {answer}")]
    Refused {
        /// What it was told.
        command: String,
        /// What it said.
        answer: String,
    },
}

/// An agent.
pub(crate) struct Agent {
    channel: Box<dyn Channel>,
    pending: Vec<u8>,
    /// Events and completions that nobody has asked for yet.
    events: VecDeque<Value>,
    next_id: u64,
    /// The answer to `query`.
    pub(crate) query: Value,
}

/// A region that an agent registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) number: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: usize,
}

impl Agent {
    /// Connects to an agent's control port.
    pub(crate) fn connect(to: SocketAddr, timeout: Duration) -> Result<Self, AgentError> {
        let stream = TcpStream::connect_timeout(&to, timeout)
            .map_err(|error| AgentError::Absent(to, in_words("connect", to, error)))?;
        stream.set_nodelay(true)?;
        Self::open(Box::new(stream), timeout)
    }

    /// Waits for the agent's greeting.
    pub(crate) fn open(channel: Box<dyn Channel>, timeout: Duration) -> Result<Self, AgentError> {
        let mut agent = Agent {
            channel,
            pending: Vec::new(),
            events: VecDeque::new(),
            next_id: 1,
            query: Value::Null,
        };
        let deadline = agent.channel.now() + timeout;
        let hello = agent
            .line(deadline)?
            .ok_or_else(|| AgentError::Silent("a connection: no greeting came".into()))?;
        if hello["hello"] != json!("uwarp-agent") || hello["protocol"] != json!(1) {
            return Err(AgentError::Nonsense(hello.to_string()));
        }
        agent.query = agent.command("query", json!({}))?;
        Ok(agent)
    }

    /// A feature of the target, as `query` tells it.
    pub(crate) fn has(&self, feature: &str) -> bool {
        self.query[feature] == json!(true)
    }

    /// Gives a command. Its answer, unless that is a refusal.
    pub(crate) fn command(&mut self, name: &str, members: Value) -> Result<Value, AgentError> {
        let answer = self.try_command(name, members)?;
        if answer["ok"] == json!(true) {
            return Ok(answer);
        }
        let command = name.to_owned();
        // A refusal by a library has its number.
        match (answer.get("errno"), &answer["error"]) {
            (None, Value::String(why)) => Err(AgentError::Cannot {
                command,
                answer: why.clone(),
            }),
            _ => Err(AgentError::Refused {
                command,
                answer: answer.to_string(),
            }),
        }
    }

    fn try_command(&mut self, name: &str, members: Value) -> Result<Value, AgentError> {
        let id = self.next_id;
        self.next_id += 1;
        let mut command = match members {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        command.insert("id".into(), json!(id));
        command.insert("cmd".into(), json!(name));
        let mut line = Value::Object(command).to_string();
        line.push('\n');
        self.channel.send(line.as_bytes())?;
        let deadline = self.channel.now() + COMMAND;
        while let Some(said) = self.line(deadline)? {
            if said.get("ok").is_none() {
                self.keep(said)?;
            } else if said["id"] == json!(id) {
                return Ok(said);
            }
        }
        Err(AgentError::Silent(name.to_owned()))
    }

    /// The first event or completion that `wanted` takes, within `timeout`.
    pub(crate) fn event(
        &mut self,
        timeout: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Option<Value>, AgentError> {
        let deadline = self.channel.now() + timeout;
        loop {
            if let Some(at) = self.events.iter().position(&wanted) {
                return Ok(self.events.remove(at));
            }
            match self.line(deadline)? {
                Some(said) => self.keep(said)?,
                None => return Ok(None),
            }
        }
    }

    /// What it held is ended, and events of that are forgotten.
    pub(crate) fn reset(&mut self) -> Result<(), AgentError> {
        self.command("reset", json!({}))?;
        self.events.clear();
        Ok(())
    }

    pub(crate) fn register(
        &mut self,
        members: Value,
        len: usize,
    ) -> Result<Registered, AgentError> {
        let answer = self.command("reg", members)?;
        Ok(Registered {
            number: number(&answer, "mr")?,
            addr: number(&answer, "addr")?,
            rkey: number(&answer, "rkey")? as u32,
            len,
        })
    }

    fn keep(&mut self, event: Value) -> Result<(), AgentError> {
        if self.events.len() == MAX_EVENTS {
            let said = format!("more than {MAX_EVENTS} events in one case, the last one {event}");
            return Err(AgentError::Nonsense(said));
        }
        self.events.push_back(event);
        Ok(())
    }

    fn line(&mut self, deadline: Instant) -> Result<Option<Value>, AgentError> {
        loop {
            if let Some(end) = self.pending.iter().position(|octet| *octet == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|_| {
                    AgentError::Nonsense(String::from_utf8_lossy(&line).into_owned())
                });
            }
            if self.pending.len() > MAX_LINE {
                let said = format!("a line of more than {MAX_LINE} bytes");
                return Err(AgentError::Nonsense(said));
            }
            let left = deadline.saturating_duration_since(self.channel.now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut octets = [0; 4096];
            let count = self.channel.receive(&mut octets, left)?;
            self.pending.extend_from_slice(&octets[..count]);
        }
    }
}

/// A member of an answer that is a number.
pub(crate) fn number(answer: &Value, member: &str) -> Result<u64, AgentError> {
    answer[member]
        .as_u64()
        .ok_or_else(|| AgentError::Nonsense(format!("{answer}, without the number {member}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that greets, and then says the same for ever.
    struct Chatty(Vec<u8>, &'static [u8]);

    impl Channel for Chatty {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn receive(&mut self, octets: &mut [u8], _: Duration) -> io::Result<usize> {
            while self.0.len() < octets.len() {
                self.0.extend_from_slice(self.1);
            }
            octets.copy_from_slice(&self.0[..octets.len()]);
            self.0.drain(..octets.len());
            Ok(octets.len())
        }
    }

    fn said_by(line: &'static [u8]) -> String {
        let hello = b"{\"hello\":\"uwarp-agent\",\"protocol\":1}\n".to_vec();
        let opened = Agent::open(Box::new(Chatty(hello, line)), COMMAND);
        opened.err().expect("it is broken").to_string()
    }

    #[test]
    fn a_line_or_a_flood_of_events_without_end_is_told() {
        let said = said_by(b"x");
        assert_eq!(said, "the agent says a line of more than 65535 bytes");
        let said = said_by(b"{\"ev\":\"ready\"}\n");
        assert!(
            said.starts_with("the agent says more than 65536 events"),
            "{said}"
        );
    }
}
