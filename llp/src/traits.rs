//! Interface to TCP for the layers above: [`Llp`], [`LlpListener`], [`Network`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::time::Instant;

use crate::{Keepalive, LlpError, NetworkInfo, Piece, SendHints};

/// Result of [`Llp::try_recv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recv {
    /// Number of bytes (at least one) written to the start of the buffer.
    Data(usize),
    /// No bytes are available now.
    WouldBlock,
    /// The peer closed its sending direction and every byte of it was taken, so no more will
    /// arrive. Sending is still possible.
    Closed,
}

/// One TCP connection. Every call returns at once.
///
/// A value has one owner at a time and may move between threads. Dropping it gives up the
/// connection. The kernel still delivers the bytes that it took. A stack in user space sends a
/// reset, unless [`flushed`](Self::flushed) was true after [`shutdown`](Self::shutdown). The order
/// of calls for a thread that waits is in the [crate's
/// documentation](crate#how-to-drive-a-connection).
///
/// After an error of `try_recv` or `connect_progress` the connection is dead: later calls fail too,
/// and the owner can only drop it. After an error of `try_send`, `try_recv` may still return bytes
/// that had arrived before (the peer's last message).
pub trait Llp: Send {
    /// Takes bytes that arrived. An empty buffer gives [`Recv::WouldBlock`].
    ///
    /// # Errors
    /// [`LlpError::Reset`] if the peer cut the connection, [`LlpError::TimedOut`] if it went
    /// silent, [`LlpError::Broken`] after [`abort`](Self::abort) or before the connection stands.
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError>;

    /// Offers bytes to TCP: the pieces in order, as one run of the stream. Returns the number of
    /// bytes that it took, counted from the first piece; 0 means that it would block. Pieces need
    /// to stay valid only during the call. Segments need not end where pieces end.
    ///
    /// `hints` holds the ends of the FPDUs; [`SendHints::NONE`] is for bytes that are no FPDUs. The
    /// kernel's TCP cannot use them. A stack in user space begins every segment with an FPDU where
    /// it can, and takes only the bytes that it can place so. It may therefore take fewer bytes
    /// than it has room for, or none. [`fd`](Self::fd) or [`deadline`](Self::deadline) then tells
    /// when to offer the rest again.
    ///
    /// If `hints` says that more [follows](SendHints::followed), the kernel's TCP keeps bytes that
    /// fill no segment until then. If it [asks for one answer](SendHints::asking), the kernel's TCP
    /// chooses its window accordingly, within a host.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv), and [`LlpError::Broken`] after
    /// [`shutdown`](Self::shutdown).
    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError>;

    /// Sends the bytes that were kept because more was [announced to follow](SendHints::followed),
    /// if no more follows. Without this call nothing is lost: TCP keeps such bytes for a fraction
    /// of a second at most.
    fn push(&mut self) {}

    /// Number of bytes of the stream that one TCP segment may carry now, less TCP options: the EMSS
    /// of RFC 5044 section 4.5. Never 0.
    ///
    /// It may change over the life of a connection, also while that is idle, so ask before each
    /// batch of FPDUs is framed. The kernel implementation makes a system call for it; a stack in
    /// user space knows the value.
    fn emss(&self) -> usize;

    /// Name of the congestion control that the connection has now, as the kernel or smoltcp calls
    /// it; `None` if there is none or it is not known.
    fn congestion_control(&self) -> Option<String> {
        None
    }

    /// Closes the sending direction: a FIN follows the bytes that were taken. Receiving continues.
    /// A second call does nothing.
    ///
    /// # Errors
    /// [`LlpError::Broken`] if the connection is already gone, or does not stand yet.
    fn shutdown(&mut self) -> Result<(), LlpError>;

    /// Cuts the connection: a reset goes to the peer, and unsent bytes are discarded.
    fn abort(&mut self);

    /// Returns true if the peer has acknowledged every byte taken, and the FIN if
    /// [`shutdown`](Self::shutdown) was called. False on a connection that broke before that.
    fn flushed(&mut self) -> bool;

    /// Number of bytes that [`try_send`](Self::try_send) took and the peer has not acknowledged.
    /// The FIN does not count. On a connection that the peer reset or that timed out, it is the
    /// number at that moment. It has no meaning after [`abort`](Self::abort).
    fn unacknowledged(&mut self) -> usize;

    /// Returns the error if the peer cut the connection or went silent. An owner that does not read
    /// for now would not learn of it otherwise. A FIN of the peer does not count, because it comes
    /// after the bytes before it.
    fn lost(&mut self) -> Option<LlpError>;

    /// Returns true if the peer's FIN has arrived, perhaps after bytes that were not read yet. It
    /// is for an owner that does not read for now. False if this cannot be determined, or if the
    /// FIN cannot pass a full window.
    fn peer_closed(&mut self) -> bool {
        false
    }

    /// Address and port of this side.
    fn local_addr(&self) -> SocketAddr;

    /// Address and port of the peer.
    fn peer_addr(&self) -> SocketAddr;

    /// Descriptor for `poll(2)` or `epoll(7)`: readable if something happened that may let a call
    /// make progress. It stays the same for the life of the value. Nothing may be read from or
    /// written to it directly.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns true if "writable" on [`fd`](Self::fd) means room for [`try_send`](Self::try_send),
    /// and the end of a connection attempt (kernel TCP). If false, all progress shows as
    /// "readable", including room to send and the end of a connection attempt.
    fn wants_write_event(&self) -> bool;

    /// Makes [`fd`](Self::fd) unreadable until something *new* happens, where readiness is a signal
    /// (smoltcp). Call it before checking for work, never after. Does nothing where readiness is a
    /// state (kernel).
    fn clear_readiness(&mut self);

    /// Time at which [`drive`](Self::drive) has to be called even if [`fd`](Self::fd) stays silent,
    /// for the timers of a stack in user space. `None`: no timer runs. Any other call may change
    /// it. The waiting thread therefore has to learn of a deadline that the call of another thread
    /// moved to an earlier time.
    fn deadline(&self) -> Option<Instant>;

    /// Lets a stack in user space process what arrived, send what it may, and run its timers. Does
    /// nothing for the kernel.
    fn drive(&mut self);

    /// Probes the peer from time to time once the connection stands, and ends the connection if the
    /// peer stays silent. Replaces the network's own settings.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] for impossible values, and errors of the system.
    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError>;

    /// Progress of a connection attempt: `true` once the connection stands (and from then on),
    /// `false` while it is being made. Always `true` for an accepted one.
    ///
    /// # Errors
    /// The reason of the failure: [`LlpError::Refused`], [`LlpError::Unreachable`],
    /// [`LlpError::TimedOut`] ...
    fn connect_progress(&mut self) -> Result<bool, LlpError>;
}

/// Accepts connections at one local address.
pub trait LlpListener: Send {
    /// Returns the next connection that stands; `None` if there is none now. A stack in user space
    /// does its handshakes in this call. Call it when [`fd`](Self::fd) is readable and when
    /// [`deadline`](Self::deadline) is reached, until it returns `None`.
    ///
    /// # Errors
    /// A lack of descriptors or memory. The listener continues: call again later. The connection
    /// that could not be taken was refused, so that the descriptor does not stay readable for it.
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError>;

    /// Address of the listener, with the chosen port if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// Descriptor that is readable when [`try_accept`](Self::try_accept) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// As [`Llp::clear_readiness`]; to be called before `try_accept`.
    fn clear_readiness(&mut self);

    /// As [`Llp::deadline`], for a call of [`try_accept`](Self::try_accept).
    fn deadline(&self) -> Option<Instant>;
}

/// A local address that [`Network::reserve`] took, for one connection or one listener.
pub trait BoundPort: Send {
    /// The address, with the chosen port if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// As [`Network::connect`], from this address.
    ///
    /// # Errors
    /// As [`Network::connect`].
    fn connect(self: Box<Self>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError>;

    /// As [`Network::listen`], at this address.
    ///
    /// # Errors
    /// As [`Network::listen`].
    fn listen(self: Box<Self>, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError>;
}

/// Makes connections and listeners. One value serves any number of threads.
pub trait Network: Send + Sync {
    /// Starts to connect and returns at once; [`Llp::connect_progress`] reports the progress.
    /// Without `local`, address and port are chosen. With it, only a port of 0 is replaced.
    ///
    /// # Errors
    /// Errors that are known at once: a bad or used local address, no route, no resources, and with
    /// some implementations [`LlpError::Refused`].
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError>;

    /// Listens at `addr`; port 0 means a free one. About `backlog` connections at most wait for
    /// [`LlpListener::try_accept`]. Further attempts are ignored, so that the peer repeats them.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError>;

    /// Returns the local address of a connection to `to` if the caller chooses none. Answers at
    /// once and sends nothing.
    ///
    /// # Errors
    /// [`LlpError::Unreachable`] without a route, and errors of the system about the family of the
    /// address.
    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError>;

    /// Takes a local address, to connect from or to listen at later; port 0 takes a free one. The
    /// port stays reserved until the value, or the connection or listener made from it, is dropped.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError>;

    /// Does the same as [`reserve`](Self::reserve), but `::` covers only the IPv6 addresses and
    /// leaves the IPv4 port to others (the socket option `IPV6_V6ONLY`). It equals `reserve` where
    /// the families are independent.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    fn reserve_one_family(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        self.reserve(addr)
    }

    /// Description for a log or a table: `kernel TCP`, `smoltcp over memory, MTU 1500` ...
    fn describe(&self) -> String;

    /// Current addresses, MTU and MAC address.
    fn info(&self) -> NetworkInfo;

    /// Reason why the network has failed permanently, if it has. Every connection of it has then
    /// ended, and no more can be made. A network that cannot fail as a whole always returns `None`.
    fn fault(&self) -> Option<LlpError> {
        None
    }

    /// Reports events of the whole network to `watcher` for as long as it lives, including earlier
    /// ones. Any thread of this library may make the calls.
    fn watch(&self, watcher: Weak<dyn NetworkWatcher>) {
        let _ = watcher;
    }
}

/// Event of a network as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkEvent {
    /// The network failed permanently. Reported once.
    Down(LlpError),
    /// Another host or program uses an address of this side. The network continues to work, but
    /// connections may fail. Reported once for each address and kind of conflict.
    AddressConflict(LlpError),
}

/// Receiver of [`NetworkEvent`]s.
pub trait NetworkWatcher: Send + Sync {
    /// Handles an event. The call must neither block nor call the network.
    fn network_event(&self, event: NetworkEvent);
}

/// Lets middleware wrap a boxed connection like any other.
impl<L: Llp + ?Sized> Llp for Box<L> {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        (**self).try_recv(buf)
    }
    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError> {
        (**self).try_send(pieces, hints)
    }
    fn push(&mut self) {
        (**self).push();
    }
    fn emss(&self) -> usize {
        (**self).emss()
    }
    fn congestion_control(&self) -> Option<String> {
        (**self).congestion_control()
    }
    fn shutdown(&mut self) -> Result<(), LlpError> {
        (**self).shutdown()
    }
    fn abort(&mut self) {
        (**self).abort();
    }
    fn lost(&mut self) -> Option<LlpError> {
        (**self).lost()
    }
    fn peer_closed(&mut self) -> bool {
        (**self).peer_closed()
    }
    fn flushed(&mut self) -> bool {
        (**self).flushed()
    }
    fn unacknowledged(&mut self) -> usize {
        (**self).unacknowledged()
    }
    fn local_addr(&self) -> SocketAddr {
        (**self).local_addr()
    }
    fn peer_addr(&self) -> SocketAddr {
        (**self).peer_addr()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        (**self).fd()
    }
    fn wants_write_event(&self) -> bool {
        (**self).wants_write_event()
    }
    fn clear_readiness(&mut self) {
        (**self).clear_readiness();
    }
    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }
    fn drive(&mut self) {
        (**self).drive();
    }
    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError> {
        (**self).set_keepalive(keepalive)
    }
    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        (**self).connect_progress()
    }
}
