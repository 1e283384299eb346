//! TCP from any implementation. The suite needs only bytes in order, FIN and reset.

mod driver;
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

/// Result of receiving on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// This many bytes.
    Bytes(usize),
    /// FIN: the peer sends no more.
    Fin,
    /// The peer reset the connection.
    Reset,
    /// Nothing came within the timeout.
    Nothing,
}

/// A TCP connection.
pub trait Stream: Send {
    /// Sends all bytes, in one piece if possible. The connection limits the time.
    ///
    /// # Errors
    /// If the connection is gone, or the peer accepts no bytes.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Receives the bytes that come within `timeout`.
    ///
    /// # Errors
    /// Errors of this side.
    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got>;

    /// Sends a FIN. Receiving continues.
    ///
    /// # Errors
    /// If the connection is gone.
    fn fin(&mut self) -> io::Result<()>;

    /// Resets the connection.
    fn reset(&mut self);

    /// The address of this side.
    fn local_addr(&self) -> SocketAddr;

    /// The address of the target.
    fn peer_addr(&self) -> SocketAddr;

    /// Largest TCP segment that the target may send, in bytes of payload, if known.
    fn mss(&self) -> Option<usize>;

    /// Sent bytes that the target has not acknowledged, if known.
    fn unacknowledged(&self) -> Option<usize> {
        None
    }
}

/// A socket that accepts connections of the target.
pub trait Listener: Send {
    /// Address to which the target connects.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the next connection, or `None` if none came in time.
    ///
    /// # Errors
    /// Errors of this side.
    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>>;
}

/// A network through which the suite reaches the target.
pub trait Network: Send + Sync {
    /// Connects. `mss`: MSS to announce, if it is not that of the path.
    ///
    /// # Errors
    /// If the connection fails.
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>>;

    /// Address of the suite for programs that it starts on this machine.
    fn own_ip(&self) -> IpAddr;

    /// Current time, by which every limit of the suite counts: that of the machine, unless the
    /// network has its own clock.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Lets this much time pass.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Listens at `at`, or on a free port of the address that a host at `peer` reaches.
    ///
    /// # Errors
    /// If the port cannot be opened.
    fn listen(
        &self,
        at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> io::Result<Box<dyn Listener>>;
}
