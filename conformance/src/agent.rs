//! Client of the control protocol of an agent (docs/agent.md). Each command is a line of JSON, and
//! so is its answer. Events are lines between the answers.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::transport::in_words;

/// Time limit for the answer to a command.
const COMMAND: Duration = Duration::from_secs(30);

/// Maximum length in bytes of a line from the agent (docs/agent.md). A broken agent must not
/// exhaust memory.
const MAX_LINE: usize = 65_535;
/// Maximum number of queued events that no step has consumed yet.
const MAX_EVENTS: usize = 65_536;
/// Maximum length of all lines of these events in bytes.
const MAX_EVENT_BYTES: usize = 32 << 20;

/// Byte stream to an agent. It is a TCP connection or any replacement for one.
pub trait Channel: Send {
    /// Sends `bytes` to the agent.
    ///
    /// # Errors
    /// If the connection to the agent is lost.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Receives bytes into `bytes` and returns their number. Returns 0 if none arrive within
    /// `timeout`.
    ///
    /// # Errors
    /// If the connection to the agent is lost.
    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<usize>;

    /// Returns the current time on the clock that measures timeouts. The default is the system
    /// clock.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Channel for TcpStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        match self.read(bytes) {
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

/// Failure of a command, or of the connection to the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The TCP connection to the agent could not be established.
    #[error("no agent answers at {0}: {1}")]
    Absent(SocketAddr, io::Error),
    /// The connection to the agent failed.
    #[error("the connection to the agent failed: {0}")]
    Gone(#[from] io::Error),
    /// The agent wants a token, and none was given.
    #[error("the agent wants a token; give the one that it printed at its start (--token)")]
    TokenMissing,
    /// The agent did not answer in time.
    #[error("the agent did not answer {0}")]
    Silent(String),
    /// The agent violated the protocol.
    #[error("the agent violated its protocol: {0}")]
    Nonsense(String),
    /// The agent does not know this command, or does not accept these members in it.
    #[error("the agent cannot {command}: {answer}")]
    Cannot {
        /// Name of the command.
        command: String,
        /// Answer of the agent.
        answer: String,
    },
    /// The agent passed the command to its RDMA library, which returned an error.
    #[error("the agent refused {command}: {answer}")]
    Refused {
        /// Name of the command.
        command: String,
        /// Answer of the agent.
        answer: String,
    },
}

/// Connection to an agent that has sent its greeting.
pub(crate) struct Agent {
    channel: Box<dyn Channel>,
    pending: Vec<u8>,
    /// Events and completions that no step has consumed yet.
    events: VecDeque<Value>,
    /// Number of bytes of all events since the last reset.
    event_bytes: usize,
    next_id: u64,
    /// Answer to the command `query`, which describes the target.
    pub(crate) query: Value,
}

/// Memory region that the agent registered on the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) number: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: usize,
}

impl Agent {
    /// Connects to the control port of an agent.
    ///
    /// `token` is sent if the greeting asks for one.
    pub(crate) fn connect(
        to: SocketAddr,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, AgentError> {
        let stream = TcpStream::connect_timeout(&to, timeout)
            .map_err(|error| AgentError::Absent(to, in_words("connect", to, error)))?;
        stream.set_nodelay(true)?;
        Self::open(Box::new(stream), token, timeout)
    }

    /// Waits for the greeting of the agent, and then queries the target.
    pub(crate) fn open(
        channel: Box<dyn Channel>,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, AgentError> {
        let mut agent = Agent {
            channel,
            pending: Vec::new(),
            events: VecDeque::new(),
            event_bytes: 0,
            next_id: 1,
            query: Value::Null,
        };
        let deadline = agent.channel.now() + timeout;
        let hello = agent
            .line(deadline)?
            .ok_or_else(|| AgentError::Silent("the connection: no greeting came".into()))?;
        if hello["hello"] != json!("uwarp-agent") || hello["protocol"] != json!(1) {
            return Err(AgentError::Nonsense(hello.to_string()));
        }
        if hello["token"] == json!(true) {
            let token = token.ok_or(AgentError::TokenMissing)?;
            agent.command("token", json!({"token": token}))?;
        }
        agent.query = agent.command("query", json!({}))?;
        Ok(agent)
    }

    /// Returns true if the agent reports this feature in its answer to `query`.
    pub(crate) fn has(&self, feature: &str) -> bool {
        self.query[feature] == json!(true)
    }

    /// Sends a command and returns its answer. Returns an error if the agent refuses the command.
    pub(crate) fn command(&mut self, name: &str, members: Value) -> Result<Value, AgentError> {
        let answer = self.try_command(name, members)?;
        if answer["ok"] == json!(true) {
            return Ok(answer);
        }
        let command = name.to_owned();
        // An answer with an `errno` reports an error of the RDMA library. Without `errno`, the
        // agent itself refused the command.
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

    /// Removes and returns the first event or completion that `wanted` accepts. Returns `None` if
    /// none arrives within `timeout`. Other events remain queued.
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

    /// Makes the agent release all its objects, and discards the queued events.
    pub(crate) fn reset(&mut self) -> Result<(), AgentError> {
        self.command("reset", json!({}))?;
        self.events.clear();
        self.event_bytes = 0;
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
        self.event_bytes += event.to_string().len();
        if self.event_bytes > MAX_EVENT_BYTES {
            let said = format!("events of more than {MAX_EVENT_BYTES} bytes in one case");
            return Err(AgentError::Nonsense(said));
        }
        self.events.push_back(event);
        Ok(())
    }

    fn line(&mut self, deadline: Instant) -> Result<Option<Value>, AgentError> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
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
            let mut bytes = [0; 4096];
            let count = self.channel.receive(&mut bytes, left)?;
            self.pending.extend_from_slice(&bytes[..count]);
        }
    }
}

/// Returns a numeric member of an answer.
pub(crate) fn number(answer: &Value, member: &str) -> Result<u64, AgentError> {
    answer[member]
        .as_u64()
        .ok_or_else(|| AgentError::Nonsense(format!("{answer} lacks the number {member}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channel to an agent that sends its greeting once and then the same line forever.
    struct Chatty(Vec<u8>, &'static [u8]);

    impl Channel for Chatty {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn receive(&mut self, bytes: &mut [u8], _: Duration) -> io::Result<usize> {
            while self.0.len() < bytes.len() {
                self.0.extend_from_slice(self.1);
            }
            bytes.copy_from_slice(&self.0[..bytes.len()]);
            self.0.drain(..bytes.len());
            Ok(bytes.len())
        }
    }

    fn said_by(line: &'static [u8]) -> String {
        let hello = b"{\"hello\":\"uwarp-agent\",\"protocol\":1}\n".to_vec();
        let opened = Agent::open(Box::new(Chatty(hello, line)), None, COMMAND);
        opened.err().expect("it is broken").to_string()
    }

    #[test]
    fn a_line_or_a_flood_of_events_without_end_is_told() {
        let said = said_by(b"x");
        assert_eq!(
            said,
            "the agent violated its protocol: a line of more than 65535 bytes"
        );
        let said = said_by(b"{\"ev\":\"ready\"}\n");
        assert!(
            said.starts_with("the agent violated its protocol: more than 65536 events"),
            "{said}"
        );
    }
}
