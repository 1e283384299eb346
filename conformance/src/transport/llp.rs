//! TCP in user space, or any other that [`uwarp_llp`] has: the lower-layer protocol below iWARP, of which the suite needs no
//! more than octets in order.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_llp::{FpduEnds, Llp, LlpError, LlpListener, Network as LlpNetwork, Piece, Recv};

use super::wait::wait_for;
use super::{Got, Listener, Network, Stream};

/// A target that takes nothing for so long is stuck.
const SEND: Duration = Duration::from_secs(10);

/// A network of `uwarp_llp`.
#[derive(Clone)]
pub struct LlpTcp(Arc<dyn LlpNetwork>);

impl LlpTcp {
    /// The suite speaks over this network.
    #[must_use]
    pub fn new(network: Arc<dyn LlpNetwork>) -> Self {
        LlpTcp(network)
    }
}

fn refuse_mss(mss: Option<u16>) -> io::Result<()> {
    match mss {
        None => Ok(()),
        Some(_) => Err(io::Error::new(
            ErrorKind::Unsupported,
            "the MSS cannot be chosen on this network",
        )),
    }
}

impl Network for LlpTcp {
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>> {
        refuse_mss(mss)?;
        let mut connection = Connection(self.0.connect(None, to).map_err(io::Error::other)?);
        let deadline = Instant::now() + timeout;
        loop {
            connection.0.clear_readiness();
            connection.0.drive();
            if connection.0.connect_progress().map_err(io::Error::other)? {
                return Ok(Box::new(connection));
            }
            if !connection.wait(deadline, true)? {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn listen(
        &self,
        at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> io::Result<Box<dyn Listener>> {
        refuse_mss(mss)?;
        let at = match (at, peer) {
            (Some(at), _) => at,
            (None, Some(peer)) => (self.0.source_for(peer).map_err(io::Error::other)?, 0).into(),
            (None, None) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        let listener = self.0.listen(at, 16).map_err(io::Error::other)?;
        Ok(Box::new(Listening(listener)))
    }
}

struct Listening(Box<dyn LlpListener>);

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        let deadline = Instant::now() + timeout;
        loop {
            self.0.clear_readiness();
            if let Some(llp) = self.0.try_accept().map_err(io::Error::other)? {
                return Ok(Some(Box::new(Connection(llp))));
            }
            if !wait_until(self.0.fd().as_fd(), false, self.0.deadline(), deadline)? {
                return Ok(None);
            }
        }
    }
}

/// Waits until there is something to look at: the descriptor, or a timer of the stack. False: `deadline` has passed.
fn wait_until(
    fd: std::os::fd::BorrowedFd<'_>,
    write: bool,
    timer: Option<Instant>,
    deadline: Instant,
) -> io::Result<bool> {
    let now = Instant::now();
    if now >= deadline {
        return Ok(false);
    }
    let until = timer.map_or(deadline, |timer| timer.min(deadline));
    wait_for(fd, write, until.saturating_duration_since(now))?;
    Ok(true)
}

struct Connection(Box<dyn Llp>);

impl Connection {
    fn wait(&self, deadline: Instant, write: bool) -> io::Result<bool> {
        let write = write && self.0.wants_write_event();
        wait_until(self.0.fd(), write, self.0.deadline(), deadline)
    }
}

impl Stream for Connection {
    fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + SEND;
        let mut sent = 0;
        while sent < octets.len() {
            self.0.clear_readiness();
            self.0.drive();
            let pieces = [Piece::from(&octets[sent..])];
            let took = self
                .0
                .try_send(&pieces, FpduEnds::NONE)
                .map_err(io::Error::other)?;
            sent += took;
            if took == 0 && !self.wait(deadline, true)? {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        self.0.drive();
        Ok(())
    }

    fn receive(&mut self, octets: &mut [u8], timeout: Duration) -> io::Result<Got> {
        let deadline = Instant::now() + timeout;
        loop {
            self.0.clear_readiness();
            self.0.drive();
            match self.0.try_recv(octets) {
                Ok(Recv::Data(count)) => return Ok(Got::Octets(count)),
                Ok(Recv::Closed) => return Ok(Got::Fin),
                Ok(Recv::WouldBlock) => {}
                Err(LlpError::Reset { .. }) => return Ok(Got::Reset),
                Err(error) => return Err(io::Error::other(error)),
            }
            if !self.wait(deadline, false)? {
                return Ok(Got::Nothing);
            }
        }
    }

    fn fin(&mut self) -> io::Result<()> {
        self.0.shutdown().map_err(io::Error::other)?;
        self.0.drive();
        Ok(())
    }

    fn reset(&mut self) {
        self.0.abort();
        self.0.drive();
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr()
    }

    fn mss(&self) -> Option<usize> {
        Some(self.0.emss())
    }
}
