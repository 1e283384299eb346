//! The connection on which client and server talk, by turns: a Send of a greeting each, then Sends of JSON.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uwarp_verbs::{
    Access, Completion, Cq, Device, MemoryRegion, Pd, Qp, QpCaps, RecvWr, SendWr, WcOpcode,
};

use crate::error::PerfError;
use crate::greeting::{self, Stranger};

/// The most bytes that one message has.
const MESSAGE: u32 = 64 << 10;

/// One end. The client speaks, the server answers: there is never more than one message under way.
pub(crate) struct Control {
    pub(crate) qp: Qp,
    pub(crate) peer: SocketAddr,
    cq: Cq,
    inbox: MemoryRegion,
    outbox: MemoryRegion,
}

impl Control {
    /// An end without a connection.
    pub(crate) fn new(device: &Device, pd: &Pd, peer: SocketAddr) -> Result<Self, PerfError> {
        let cq = device.create_cq(8)?;
        let caps = QpCaps::default().max_send_wr(2).max_recv_wr(2);
        let qp = pd.create_qp(&cq, &cq, caps)?;
        let region = || pd.register(vec![0; MESSAGE as usize], Access::LOCAL_WRITE);
        let control = Control {
            qp,
            peer,
            cq,
            inbox: region()?,
            outbox: region()?,
        };
        control.post_receive()?;
        Ok(control)
    }

    fn post_receive(&self) -> Result<(), PerfError> {
        let sges = [self.inbox.sge(0, MESSAGE)];
        Ok(self.qp.post_recv(&RecvWr::new(0, &sges))?)
    }

    /// Sends it. It is on its way when this returns.
    pub(crate) fn say(&self, message: &impl Serialize) -> Result<(), PerfError> {
        let text = serde_json::to_vec(message).map_err(|error| self.protocol(error.to_string()))?;
        self.send(&text)
    }

    /// Sends the greeting of this side. It is on its way when this returns.
    pub(crate) fn greet(&self) -> Result<(), PerfError> {
        self.send(&greeting::ours())
    }

    /// Waits for the peer's greeting.
    ///
    /// # Errors
    /// As [`Control::hear`], and the name of a peer that speaks another protocol.
    pub(crate) fn hear_greeting(&self, patience: Duration) -> Result<(), PerfError> {
        let message = self.wait("a greeting was to come", patience)?;
        let peer = self.peer;
        greeting::check(&message).map_err(|stranger| match stranger {
            Stranger::Perftest(version) => PerfError::Perftest {
                peer,
                version: Some(version),
            },
            Stranger::OtherVersion(theirs) => self.protocol(format!(
                "it speaks the protocol \"{theirs}\", and this side \"{}\"",
                greeting::name()
            )),
            Stranger::Unknown => self.protocol(format!(
                "its first message, of {} bytes, is not the greeting of uwarp perf",
                message.len()
            )),
        })
    }

    fn send(&self, message: &[u8]) -> Result<(), PerfError> {
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        if len > MESSAGE {
            return Err(self.protocol(format!("a message of {len} bytes is too long")));
        }
        // In range: the length was looked at.
        let _ = self.outbox.write_at(0, message);
        let sges = [self.outbox.sge(0, len)];
        Ok(self.qp.post_send(&SendWr::send(0, &sges))?)
    }

    /// Waits for what the peer says.
    ///
    /// # Errors
    /// [`PerfError::Silent`] after `patience`, or what ended the connection.
    pub(crate) fn hear<T: DeserializeOwned>(
        &self,
        during: &'static str,
        patience: Duration,
    ) -> Result<T, PerfError> {
        self.parse(&self.wait(during, patience)?)
    }

    fn wait(&self, during: &'static str, patience: Duration) -> Result<Vec<u8>, PerfError> {
        loop {
            let Some(completion) = self.cq.wait(Some(patience)) else {
                return Err(PerfError::Silent {
                    peer: self.peer,
                    seconds: patience.as_secs(),
                    during,
                });
            };
            if let Some(message) = self.take(completion, during)? {
                return Ok(message);
            }
        }
    }

    /// What the peer has said, if anything. Does not wait.
    pub(crate) fn heard<T: DeserializeOwned>(
        &self,
        during: &'static str,
    ) -> Result<Option<T>, PerfError> {
        let Some(completion) = self.cq.poll_one() else {
            return Ok(None);
        };
        let message = self.take(completion, during)?;
        message.map(|message| self.parse(&message)).transpose()
    }

    /// The message that a completion stands for, if any.
    fn take(
        &self,
        completion: Completion,
        during: &'static str,
    ) -> Result<Option<Vec<u8>>, PerfError> {
        let completion = match completion.ok() {
            Ok(completion) => completion,
            Err(error) => return Err(self.ended(during, error)),
        };
        if completion.opcode != WcOpcode::Recv {
            return Ok(None);
        }
        let mut text = vec![0; completion.byte_len.min(MESSAGE) as usize];
        let _ = self.inbox.read_at(0, &mut text);
        self.post_receive()?;
        Ok(Some(text))
    }

    fn parse<T: DeserializeOwned>(&self, message: &[u8]) -> Result<T, PerfError> {
        serde_json::from_slice(message).map_err(|_| {
            let first = &message[..message.len().min(24)];
            self.protocol(format!(
                "a message of {} bytes that begins with \"{}\" is not one of uwarp perf",
                message.len(),
                first.escape_ascii()
            ))
        })
    }

    fn ended(&self, during: &'static str, error: uwarp_verbs::WorkError) -> PerfError {
        ended(&self.qp, self.peer, during, error)
    }

    /// The peer has said what it should not have.
    pub(crate) fn protocol(&self, what: impl Into<String>) -> PerfError {
        PerfError::Protocol {
            peer: self.peer,
            what: what.into(),
        }
    }
}

/// Why work failed: the end of the connection, where it has ended.
pub(crate) fn ended(
    qp: &Qp,
    peer: SocketAddr,
    during: &'static str,
    error: uwarp_verbs::WorkError,
) -> PerfError {
    match qp.end_reason() {
        Some(reason) => PerfError::Ended {
            peer,
            during,
            reason: Box::new(reason),
        },
        None => Box::new(error).into(),
    }
}
