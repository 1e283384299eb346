//! What the layers above see of TCP: [`Llp`], [`LlpListener`], [`Network`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::time::Instant;

use crate::{FpduEnds, Keepalive, LlpError, NetworkInfo, Piece};

/// What [`Llp::try_recv`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recv {
    /// So many octets (at least one) were written to the start of the buffer.
    Data(usize),
    /// Nothing is there now.
    WouldBlock,
    /// The peer has closed its sending direction and every octet of it was taken: nothing more
    /// will come. Sending is still possible.
    Closed,
}

/// One TCP connection. Every call returns at once.
///
/// A value has one owner at a time and may move between threads. Dropping it gives the connection
/// up: the kernel still delivers what was taken, a stack in user space sends a reset unless
/// [`flushed`](Self::flushed) was true after [`shutdown`](Self::shutdown). The order of calls for a
/// thread that waits is in the [crate's documentation](crate#how-to-drive-a-connection).
///
/// After an error of `try_recv` or `connect_progress` the connection is dead: later calls fail too,
/// and nothing is left to do but drop it. After an error of `try_send` octets that had arrived
/// before (the peer's last words) may still be taken with `try_recv`.
pub trait Llp: Send {
    /// Takes octets that arrived. An empty buffer gives [`Recv::WouldBlock`].
    ///
    /// # Errors
    /// [`LlpError::Reset`] when the peer cut the connection, [`LlpError::TimedOut`] when it went
    /// silent, [`LlpError::Broken`] after [`abort`](Self::abort) or before the connection stands.
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError>;

    /// Offers octets to TCP: the pieces in order, as one run of the stream. Returns how many octets
    /// it took, counted from the first piece; 0 means that it would block. Pieces need to stay
    /// valid only during the call. Segments need not end where pieces end.
    ///
    /// `ends` tells where FPDUs end. The kernel's TCP cannot use it. A stack in user space begins
    /// every segment with an FPDU where it can, and takes no more than it can place so: it may take
    /// less than it has room for, or nothing, and then says by [`fd`](Self::fd) or
    /// [`deadline`](Self::deadline) when it is time to offer the rest again.
    /// [`FpduEnds::NONE`] is for octets that are no FPDUs. Where they say that more [follows](FpduEnds::followed), the kernel's TCP
    /// keeps what fills no segment, until then. Where they [ask for one answer](FpduEnds::asking), it chooses its window by that, within a host.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv), and [`LlpError::Broken`] after [`shutdown`](Self::shutdown).
    fn try_send(&mut self, pieces: &[Piece<'_>], ends: FpduEnds<'_>) -> Result<usize, LlpError>;

    /// Sends what was kept because more was [said to follow](FpduEnds::followed), now that none does. Nothing is lost without:
    /// TCP keeps such octets for a fraction of a second at most.
    fn push(&mut self) {}

    /// How many octets of the stream one TCP segment may carry now, TCP options deducted: the EMSS
    /// of RFC 5044 section 4.5. It may change over the life of a connection, also while that is idle:
    /// ask before a batch of FPDUs is framed. The kernel implementation asks by a system call; a
    /// stack in user space knows. Never 0.
    fn emss(&self) -> usize;

    /// Name of the congestion control that the connection has now, as the kernel or smoltcp calls it; `None` where there
    /// is no such thing, or it is not known.
    fn congestion_control(&self) -> Option<String> {
        None
    }

    /// Closes the sending direction: a FIN follows what was taken. Receiving goes on. A second call
    /// does nothing.
    ///
    /// # Errors
    /// [`LlpError::Broken`] when the connection is gone already, or does not stand yet.
    fn shutdown(&mut self) -> Result<(), LlpError>;

    /// Cuts the connection: a reset goes to the peer, what was not sent is forgotten.
    fn abort(&mut self);

    /// Whether the peer has acknowledged every octet taken, and the FIN once
    /// [`shutdown`](Self::shutdown) was called. False on a connection that broke before that.
    fn flushed(&mut self) -> bool;

    /// Number of bytes that [`try_send`](Self::try_send) took and the peer has not acknowledged. The FIN does not
    /// count. On a connection that the peer reset or that timed out: the number at that moment. Meaningless after
    /// [`abort`](Self::abort).
    fn unacknowledged(&mut self) -> usize;

    /// Why the connection is gone, if the peer cut it or went silent: for an owner that does not read for now,
    /// and would not hear of it. A FIN of the peer is no such end, and stays behind the octets before it.
    fn lost(&mut self) -> Option<LlpError>;

    /// Whether the peer's FIN is here, maybe behind octets that nobody has read: for an owner that does not read for now.
    /// False where this cannot be told, or the FIN cannot pass a window that is full.
    fn peer_closed(&mut self) -> bool {
        false
    }

    /// Our address and port.
    fn local_addr(&self) -> SocketAddr;

    /// The peer's address and port.
    fn peer_addr(&self) -> SocketAddr;

    /// A descriptor for `poll(2)` or `epoll(7)`: readable when something happened that may let a
    /// call get further. It stays the same for the life of the value. Nothing may be read from or
    /// written to it directly.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether "writable" on [`fd`](Self::fd) means room for [`try_send`](Self::try_send) (kernel
    /// TCP), and that a connection attempt has ended. When false, all progress, room to send and
    /// the end of a connection attempt among it, shows as "readable".
    fn wants_write_event(&self) -> bool;

    /// Makes [`fd`](Self::fd) unreadable until something *new* happens, where readiness is a signal
    /// (smoltcp). Call it before looking, never after. Does nothing where readiness is a state
    /// (kernel).
    fn clear_readiness(&mut self);

    /// When [`drive`](Self::drive) has to be called even if [`fd`](Self::fd) stays silent: timers
    /// of a stack in user space. `None`: no timer runs. Any other call may change it, so the
    /// thread that waits has to learn of a deadline that another thread's call brought forward.
    fn deadline(&self) -> Option<Instant>;

    /// Lets a stack in user space take in what arrived, send what it may, and run its timers. Does
    /// nothing for the kernel.
    fn drive(&mut self);

    /// Asks the peer from time to time whether it is still there, and ends the connection when it stays silent;
    /// from when it stands. In place of what the network does by its own settings.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] for values that cannot be, and what the system says.
    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError>;

    /// How a connection attempt stands: `true` once the connection stands (and from then on),
    /// `false` while it is being made. Always `true` for an accepted one.
    ///
    /// # Errors
    /// Why it failed: [`LlpError::Refused`], [`LlpError::Unreachable`], [`LlpError::TimedOut`] ...
    fn connect_progress(&mut self) -> Result<bool, LlpError>;
}

/// Takes connections at one local address.
pub trait LlpListener: Send {
    /// The next connection that stands, `None` when there is none now. A stack in user space does
    /// its handshakes in this call, so call it when [`fd`](Self::fd) is readable and when
    /// [`deadline`](Self::deadline) has come, until it says `None`.
    ///
    /// # Errors
    /// A lack of descriptors or memory. The listener goes on: call again later. The connection that
    /// could not be taken was refused, so that the descriptor does not stay readable for it.
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError>;

    /// Where it listens, with the port that was chosen when port 0 was asked for.
    fn local_addr(&self) -> SocketAddr;

    /// Readable when [`try_accept`](Self::try_accept) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// As [`Llp::clear_readiness`]; before `try_accept`.
    fn clear_readiness(&mut self);

    /// As [`Llp::deadline`]; what runs then is [`try_accept`](Self::try_accept).
    fn deadline(&self) -> Option<Instant>;
}

/// A local address that was taken with [`Network::reserve`], for one connection or one listener.
pub trait BoundPort: Send {
    /// The address, with the port that was chosen when port 0 was asked for.
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
    /// Starts to connect and returns at once; [`Llp::connect_progress`] tells how it goes on.
    /// Without `local`, address and port are chosen; with it, a port of 0 is.
    ///
    /// # Errors
    /// What is known at once: a bad or used local address, no route, no resources, and with some
    /// implementations [`LlpError::Refused`].
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError>;

    /// Listens at `addr`; port 0 means a free one. At most about `backlog` connections wait for
    /// [`LlpListener::try_accept`]; attempts beyond are ignored, so that they come again.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError>;

    /// The address of ours that a connection to `to` comes from when nobody chooses another. Answers
    /// at once and sends nothing.
    ///
    /// # Errors
    /// [`LlpError::Unreachable`] without a route, and what the system says about the family of the
    /// address.
    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError>;

    /// Takes a local address, to connect from or to listen at later; port 0 takes a free one. The
    /// port is nobody else's until the value is dropped or what came of it is.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError>;

    /// As [`reserve`](Self::reserve), but `::` means the addresses of IPv6 alone, and leaves the port of IPv4 to others (the socket
    /// option `IPV6_V6ONLY`). The same as `reserve` where the families have nothing to do with each other.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    fn reserve_one_family(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        self.reserve(addr)
    }

    /// What it is, for a log or a table: `kernel TCP`, `smoltcp over memory, MTU 1500` ...
    fn describe(&self) -> String;

    /// Its addresses, MTU and MAC address as they are now.
    fn info(&self) -> NetworkInfo;

    /// Why the network has failed for good, if it has; then every connection of it has ended, and
    /// no more can be made. A network that cannot fail as a whole never says so.
    fn fault(&self) -> Option<LlpError> {
        None
    }

    /// Tells `watcher` of what happens to the network as a whole, for as long as it lives, including
    /// what has happened already. Calls come from any thread of this library.
    fn watch(&self, watcher: Weak<dyn NetworkWatcher>) {
        let _ = watcher;
    }
}

/// What happens to a network as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkEvent {
    /// It has failed for good. Told once.
    Down(LlpError),
    /// Somebody else uses an address of ours: the network works on, but connections may fail. Told
    /// once for each address and kind of conflict.
    AddressConflict(LlpError),
}

/// Who wants to know of [`NetworkEvent`]s.
pub trait NetworkWatcher: Send + Sync {
    /// Something happened. The call must neither block nor call the network.
    fn network_event(&self, event: NetworkEvent);
}

/// A boxed connection is a connection: middleware wraps either.
impl<L: Llp + ?Sized> Llp for Box<L> {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        (**self).try_recv(buf)
    }
    fn try_send(&mut self, pieces: &[Piece<'_>], ends: FpduEnds<'_>) -> Result<usize, LlpError> {
        (**self).try_send(pieces, ends)
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
