//! A session for a controller in the same program, without a thread, a connection or a clock.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use uwarp_verbs::Device;

use crate::budget::Budget;
use crate::hub::Hub;
use crate::serve::DEFAULT_MEMORY;
use crate::session::{Common, Session};

/// A session of an agent for one controller in the same program. The program calls
/// [`turn`](Self::turn) to run it. It is meant for simulation, and for devices that the program
/// drives itself ([`Progress::Manual`](uwarp_verbs::Progress::Manual)). It never waits, and has no
/// timers besides those of the device.
///
/// ```
/// use uwarp_agent::LocalSession;
/// use uwarp_verbs::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut session = LocalSession::new(&Device::tcp()?, "127.0.0.1".parse()?)?;
/// session.hear(b"{\"id\":1,\"cmd\":\"reg\",\"len\":64}\n");
/// while session.turn() {}
/// let mut said = [0; 512];
/// let count = session.say(&mut said);
/// let mut lines = std::str::from_utf8(&said[..count])?.lines();
/// assert!(lines.next().unwrap().contains("\"hello\":\"uwarp-agent\""));
/// assert!(lines.next().unwrap().starts_with("{\"id\":1,\"ok\":true,\"mr\":0,"));
/// # Ok(()) }
/// ```
pub struct LocalSession {
    hub: Arc<Hub>,
    session: Session,
}

impl LocalSession {
    /// Creates a session on the device, and takes over its asynchronous events. `listen_ip` is the
    /// default address for listeners of the session.
    ///
    /// # Errors
    /// If the operating system refuses a descriptor.
    pub fn new(device: &Device, listen_ip: IpAddr) -> io::Result<LocalSession> {
        let hub = Arc::new(Hub::new()?);
        let common = Common {
            device: device.clone(),
            listen_ip,
            source_ip: None,
            rdma_port: None,
            token: None,
            memory: Budget::new(DEFAULT_MEMORY),
        };
        let session = Session::new(Arc::new(common), hub.join()?)?;
        Ok(LocalSession { hub, session })
    }

    /// Passes bytes from the controller to the session. They may be whole lines or parts of lines.
    pub fn hear(&mut self, bytes: &[u8]) {
        self.session.control.take(bytes);
    }

    /// Copies output of the session to `bytes` and returns the number of bytes. Output that does
    /// not fit remains for the next call.
    pub fn say(&mut self, bytes: &mut [u8]) -> usize {
        let control = &mut self.session.control;
        let count = control.queued().len().min(bytes.len());
        bytes[..count].copy_from_slice(&control.queued()[..count]);
        control.sent(count);
        count
    }

    /// Executes the received lines and reports events of the device, without waiting. Returns false
    /// if there was nothing to do. After true, call it again, because more work may be left.
    pub fn turn(&mut self) -> bool {
        while let Some(event) = self.session.common.device.poll_event() {
            self.hub.publish(&event);
        }
        self.session.turn()
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        self.session.reset();
    }
}

impl std::fmt::Debug for LocalSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSession")
            .field("device", &self.session.common.device)
            .finish_non_exhaustive()
    }
}
