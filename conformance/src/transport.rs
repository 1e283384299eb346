//! Interface to TCP implementations. The suite uses only a byte stream, FIN and reset.

mod driver;
mod first;
mod kernel;
mod llp;
mod queued;
mod wait;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub(crate) use first::accept_first_with_key;
pub use kernel::KernelTcp;
pub(crate) use kernel::in_words;
pub use llp::LlpTcp;

/// Result of a receive on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// This many bytes were received.
    Bytes(usize),
    /// The peer sent a FIN, so no more bytes follow.
    Fin,
    /// The peer reset the connection.
    Reset,
    /// Nothing arrived within the timeout.
    Nothing,
}

/// A TCP connection to the target.
pub trait Stream: Send {
    /// Sends all bytes, in one write if possible. The implementation limits how long this may take.
    ///
    /// # Errors
    /// If the connection is lost, or the peer accepts no bytes in time.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits at most `timeout` for bytes, and receives them.
    ///
    /// # Errors
    /// Only for errors on this side. FIN and reset of the peer are results.
    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got>;

    /// Sends a FIN. Receiving is still possible.
    ///
    /// # Errors
    /// If the connection is lost.
    fn fin(&mut self) -> io::Result<()>;

    /// Resets the connection at once.
    fn reset(&mut self);

    /// Returns the address of this side.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the address of the target.
    fn peer_addr(&self) -> SocketAddr;

    /// Returns the maximum payload in bytes of a TCP segment of the target, if it is known.
    fn mss(&self) -> Option<usize>;

    /// Returns the number of sent bytes that the target has not acknowledged, if it is known.
    fn unacknowledged(&self) -> Option<usize> {
        None
    }
}

/// Socket that accepts connections from the target.
pub trait Listener: Send {
    /// Returns the address to which the target has to connect.
    fn local_addr(&self) -> SocketAddr;

    /// Waits at most `timeout` for a connection. Returns `None` if none arrives.
    ///
    /// # Errors
    /// Only for errors on this side.
    fn accept(&mut self, timeout: Duration) -> io::Result<Option<Box<dyn Stream>>>;
}

/// A network through which the suite reaches the target.
pub trait Network: Send + Sync {
    /// Makes a TCP connection. `mss` is the MSS to announce; `None` announces the MSS of the path.
    ///
    /// # Errors
    /// If the connection fails.
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> io::Result<Box<dyn Stream>>;

    /// Returns the address of the suite for programs that it starts on this machine.
    fn own_ip(&self) -> IpAddr;

    /// Returns the current time for all time limits of the suite. The default is the system clock.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Waits for this long.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Listens at `at`. If it is `None`, listens on a free port of the local address that a host at
    /// `peer` can reach.
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
