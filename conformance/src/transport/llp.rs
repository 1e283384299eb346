//! User-space TCP, or any other network of [`uwarp_llp`]. The suite uses it only as a byte stream.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use uwarp_llp::{Llp, LlpError, LlpListener, Network as LlpNetwork, Piece, Recv, SendHints};

use super::driver::{Driver, Shared, lock};
use super::wait::wait_for;
use super::{Got, Listener, Network, Stream};

/// Time limit for a send. A target that accepts no bytes for this long is stuck.
const SEND: Duration = Duration::from_secs(10);

/// A network of `uwarp_llp` as the network of the suite.
#[derive(Clone)]
pub struct LlpTcp {
    network: Arc<dyn LlpNetwork>,
    driver: Arc<Driver>,
}

impl LlpTcp {
    /// Makes a network of `uwarp_llp` usable by the suite.
    #[must_use]
    pub fn new(network: Arc<dyn LlpNetwork>) -> Self {
        LlpTcp {
            network,
            driver: Arc::new(Driver::new()),
        }
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
        let llp = self.network.connect(None, to).map_err(io::Error::other)?;
        let connection = Connection::new(llp, &self.driver)?;
        let deadline = Instant::now() + timeout;
        loop {
            let mut llp = connection.lock();
            llp.clear_readiness();
            llp.drive();
            let stands = llp.connect_progress().map_err(io::Error::other)?;
            drop(llp);
            if stands {
                return Ok(Box::new(connection));
            }
            if !connection.wait(deadline, true)? {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn own_ip(&self) -> IpAddr {
        let first = self.network.info().addresses.first().copied();
        first.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
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
            (None, Some(peer)) => {
                (self.network.source_for(peer).map_err(io::Error::other)?, 0).into()
            }
            (None, None) => (self.own_ip(), 0).into(),
        };
        let listener = self.network.listen(at, 16).map_err(io::Error::other)?;
        Ok(Box::new(Listening {
            listener,
            driver: Arc::clone(&self.driver),
        }))
    }
}

struct Listening {
    listener: Box<dyn LlpListener>,
    driver: Arc<Driver>,
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        let deadline = Instant::now() + timeout;
        loop {
            self.listener.clear_readiness();
            if let Some(llp) = self.listener.try_accept().map_err(io::Error::other)? {
                return Ok(Some(Box::new(Connection::new(llp, &self.driver)?)));
            }
            if !wait_until(
                self.listener.fd().as_fd(),
                false,
                self.listener.deadline(),
                deadline,
            )? {
                return Ok(None);
            }
        }
    }
}

/// Waits until the descriptor is ready, `timer` is due, or `deadline` passes. Returns false if
/// `deadline` had already passed.
fn wait_until(
    fd: BorrowedFd<'_>,
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

struct Connection {
    llp: Shared,
    /// Duplicate of the descriptor of the connection. It can be polled while another thread holds
    /// the lock.
    fd: OwnedFd,
}

impl Connection {
    fn new(llp: Box<dyn Llp>, driver: &Driver) -> io::Result<Self> {
        let fd = llp.fd().try_clone_to_owned()?;
        Ok(Connection {
            llp: driver.take(llp)?,
            fd,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Llp>> {
        lock(&self.llp)
    }

    fn wait(&self, deadline: Instant, write: bool) -> io::Result<bool> {
        let llp = self.lock();
        let (write, timer) = (write && llp.wants_write_event(), llp.deadline());
        drop(llp);
        wait_until(self.fd.as_fd(), write, timer, deadline)
    }
}

impl Stream for Connection {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + SEND;
        let mut sent = 0;
        while sent < bytes.len() {
            let mut llp = self.lock();
            llp.clear_readiness();
            llp.drive();
            let pieces = [Piece::from(&bytes[sent..])];
            let took = llp.try_send(&pieces, SendHints::NONE);
            drop(llp);
            let took = took.map_err(io::Error::other)?;
            sent += took;
            if took == 0 && !self.wait(deadline, true)? {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        self.lock().drive();
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut llp = self.lock();
            llp.clear_readiness();
            llp.drive();
            let received = llp.try_recv(bytes);
            drop(llp);
            match received {
                Ok(Recv::Data(count)) => return Ok(Got::Bytes(count)),
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
        let mut llp = self.lock();
        llp.shutdown().map_err(io::Error::other)?;
        llp.drive();
        Ok(())
    }

    fn reset(&mut self) {
        let mut llp = self.lock();
        llp.abort();
        llp.drive();
    }

    fn local_addr(&self) -> SocketAddr {
        self.lock().local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.lock().peer_addr()
    }

    fn mss(&self) -> Option<usize> {
        Some(self.lock().emss())
    }
}
