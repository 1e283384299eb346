//! TCP, from wherever it comes: the suite needs bytes in order, FIN and reset, and no more.

mod attendant;
mod kernel;
mod llp;
mod queued;
mod wait;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub use kernel::KernelTcp;
pub(crate) use kernel::in_words;
pub use llp::LlpTcp;

/// What came on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes.
    Octets(usize),
    /// The peer sends no more.
    Fin,
    /// The peer reset the connection.
    Reset,
    /// Nothing, for as long as was to be waited.
    Nothing,
}

/// A TCP connection.
pub trait Stream: Send {
    /// Sends all of it in one piece, if that can be had. Time is limited by the connection.
    ///
    /// # Errors
    /// The connection is gone, or the peer takes nothing.
    fn send(&mut self, octets: &[u8]) -> io::Result<()>;

    /// What comes within `timeout`.
    ///
    /// # Errors
    /// What is wrong on this side.
    fn receive(&mut self, octets: &mut [u8], timeout: Duration) -> io::Result<Got>;

    /// Sends a FIN. Receiving goes on.
    ///
    /// # Errors
    /// The connection is gone.
    fn fin(&mut self) -> io::Result<()>;

    /// Resets the connection.
    fn reset(&mut self);

    /// The address of this side.
    fn local_addr(&self) -> SocketAddr;

    /// The address of the target.
    fn peer_addr(&self) -> SocketAddr;

    /// The largest TCP segment that the target may send, in bytes of payload, where it is known.
    fn mss(&self) -> Option<usize>;

    /// Bytes that were sent and that the target has not acknowledged, where that is known.
    fn unacknowledged(&self) -> Option<usize> {
        None
    }
}

/// Where the target connects to.
pub trait Listener: Send {
    /// Where that is.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection, or `None` when none came in time.
    ///
    /// # Errors
    /// What is wrong on this side.
    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>>;
}

/// A way to the target.
pub trait Network: Send + Sync {
    /// Connects. `mss`: what to announce, where it is not that of the path.
    ///
    /// # Errors
    /// What became of it.
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>>;

    /// Where a program that the suite starts on this machine reaches it.
    fn home(&self) -> IpAddr;

    /// The time: every limit of the suite counts by it. That of the machine, unless the network has a clock of its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Lets so much time pass.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Listens at the address that a host at `peer` reaches, on a free port; or at `at`.
    ///
    /// # Errors
    /// What became of it.
    fn listen(
        &self,
        at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> io::Result<Box<dyn Listener>>;
}
