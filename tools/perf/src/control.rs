//! Control connection between client and server. Each side sends a greeting. Then the sides send
//! JSON messages in turns. Greetings and messages are Sends.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uwarp_verbs::{
    Access, Completion, Cq, Device, MemoryRegion, Pd, Qp, QpCaps, RecvWr, SendWr, WcOpcode,
};

use crate::error::PerfError;
use crate::greeting::{self, Mismatch};

/// Maximum length of a message in bytes.
const MESSAGE: u32 = 64 << 10;

/// Phase of a connection, for errors.
const BEFORE_GREETING: &str = "before its greeting";

/// One end of the control connection. The client asks and the server answers, so at most one
/// message is in flight.
pub(crate) struct Control {
    pub(crate) qp: Qp,
    pub(crate) peer: SocketAddr,
    cq: Cq,
    inbox: MemoryRegion,
    outbox: MemoryRegion,
}

impl Control {
    /// Memory in bytes that an end needs at most: two regions, and a copy of a message.
    pub(crate) const MEMORY: usize = 3 * MESSAGE as usize;

    /// Creates an unconnected end of a control connection.
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

    /// Posts a message. Does not wait for its arrival.
    pub(crate) fn send(&self, message: &impl Serialize) -> Result<(), PerfError> {
        let text = serde_json::to_vec(message).map_err(|error| self.protocol(error.to_string()))?;
        self.send_bytes(&text)
    }

    /// Posts the greeting of this side.
    pub(crate) fn send_greeting(&self) -> Result<(), PerfError> {
        self.send_bytes(&greeting::ours())
    }

    /// Waits for the peer's greeting.
    ///
    /// # Errors
    /// The errors of [`Control::receive`]. If the peer uses another protocol, the error names that
    /// protocol.
    pub(crate) fn receive_greeting(&self, patience: Duration) -> Result<(), PerfError> {
        let message = self.wait(BEFORE_GREETING, patience)?;
        self.check_greeting(&message)
    }

    /// Returns true if the peer's greeting has arrived. Does not wait.
    ///
    /// # Errors
    /// As [`Control::receive_greeting`].
    pub(crate) fn try_receive_greeting(&self) -> Result<bool, PerfError> {
        let Some(completion) = self.cq.poll_one() else {
            return Ok(false);
        };
        match self.take(completion, BEFORE_GREETING)? {
            Some(message) => self.check_greeting(&message).map(|()| true),
            None => Ok(false),
        }
    }

    fn check_greeting(&self, message: &[u8]) -> Result<(), PerfError> {
        let peer = self.peer;
        greeting::check(message).map_err(|mismatch| match mismatch {
            Mismatch::Perftest(version) => PerfError::Perftest {
                peer,
                version: Some(version),
            },
            Mismatch::OtherVersion(theirs) => self.protocol(format!(
                "it speaks the protocol \"{theirs}\", but this side speaks \"{}\"",
                greeting::name()
            )),
            Mismatch::Unknown => self.protocol(format!(
                "its first message, of {} bytes, is not the greeting of uwarp perf",
                message.len()
            )),
        })
    }

    fn send_bytes(&self, message: &[u8]) -> Result<(), PerfError> {
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        if len > MESSAGE {
            return Err(self.protocol(format!("a message of {len} bytes is too long")));
        }
        // This cannot fail, because the length was checked.
        let _ = self.outbox.write_at(0, message);
        let sges = [self.outbox.sge(0, len)];
        Ok(self.qp.post_send(&SendWr::send(0, &sges))?)
    }

    /// Waits for the peer's next message.
    ///
    /// # Errors
    /// [`PerfError::Silent`] after `patience` without a message, or the reason for the end of the
    /// connection.
    pub(crate) fn receive<T: DeserializeOwned>(
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

    /// Returns the peer's next message if it has arrived. Does not wait.
    pub(crate) fn try_receive<T: DeserializeOwned>(
        &self,
        during: &'static str,
    ) -> Result<Option<T>, PerfError> {
        let Some(completion) = self.cq.poll_one() else {
            return Ok(None);
        };
        let message = self.take(completion, during)?;
        message.map(|message| self.parse(&message)).transpose()
    }

    /// Returns the message of a completed receive, or `None` for the completion of a Send.
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
                "its message of {} bytes, which begins with \"{}\", is not a message of uwarp perf",
                message.len(),
                first.escape_ascii()
            ))
        })
    }

    fn ended(&self, during: &'static str, error: uwarp_verbs::WorkError) -> PerfError {
        ended(&self.qp, self.peer, during, error)
    }

    /// Creates the error for an unexpected message of the peer.
    pub(crate) fn protocol(&self, what: impl Into<String>) -> PerfError {
        PerfError::Protocol {
            peer: self.peer,
            what: what.into(),
        }
    }
}

/// Creates the error for a failed work request. It is the end reason of the connection if the
/// connection has ended, otherwise the work error.
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
