//! The traits through which the layers above use TCP: [`Llp`], [`LlpListener`], [`Network`].

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
    /// The peer closed its sending direction, and every byte that it sent has been received. This
    /// side can still send.
    Closed,
}

/// One TCP connection. Every call returns at once.
///
/// A value has one owner at a time and may move between threads. Dropping it abandons the
/// connection: the kernel still delivers the bytes that it accepted, and a stack in user space
/// sends a reset. It sends no reset if [`flushed`](Self::flushed) was true after
/// [`shutdown`](Self::shutdown). The [crate's documentation](crate#how-to-drive-a-connection)
/// describes the order of calls for a thread that waits.
///
/// After an error of `try_recv` or `connect_progress` the connection is dead: later calls fail too,
/// and the owner can only drop it. After an error of `try_send`, `try_recv` may still return bytes
/// that had arrived before the error, such as the peer's last message.
pub trait Llp: Send {
    /// Copies received bytes to `buf`. Returns [`Recv::WouldBlock`] if `buf` is empty.
    ///
    /// # Errors
    /// [`LlpError::Reset`] if the peer reset the connection, [`LlpError::TimedOut`] if the peer
    /// stopped answering, [`LlpError::Broken`] after [`abort`](Self::abort) or before the
    /// connection is established.
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError>;

    /// Appends the bytes of the pieces, one piece after the other, to the stream. Returns the
    /// number of bytes that TCP accepted, counted from the first piece; 0 means that the call would
    /// block. Pieces need to stay valid only during the call. A segment may span pieces and may end
    /// within a piece.
    ///
    /// `hints` holds the ends of the FPDUs; [`SendHints::NONE`] is for bytes that are not FPDUs.
    /// The kernel's TCP cannot use the ends. A stack in user space begins every segment with an
    /// FPDU where it can, and accepts only the bytes that it can align in this way. It may
    /// therefore accept fewer bytes than it has room for, or none. The rest can be offered again
    /// when [`fd`](Self::fd) becomes readable or the [`deadline`](Self::deadline) is reached.
    ///
    /// If `hints` [asks for one answer](SendHints::asking) and the peer is on this host, the
    /// kernel's TCP may enlarge its receive window.
    ///
    /// # Errors
    /// The errors of [`try_recv`](Self::try_recv), and [`LlpError::Broken`] after
    /// [`shutdown`](Self::shutdown).
    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError>;

    /// Maximum number of stream bytes that one TCP segment can carry now, after the TCP options are
    /// subtracted: the EMSS of RFC 5044 section 4.5. Never 0.
    ///
    /// The value may change at any time, even on an idle connection, so call this before each batch
    /// of FPDUs is framed. The kernel implementation makes a system call; a stack in user space
    /// knows the value.
    fn emss(&self) -> usize;

    /// Name of the connection's current congestion control, as the kernel or smoltcp spells it.
    /// `None` if there is none or the name is not known.
    fn congestion_control(&self) -> Option<String> {
        None
    }

    /// Closes the sending direction: TCP sends a FIN after the bytes that it accepted. Receiving
    /// continues. A second call does nothing.
    ///
    /// # Errors
    /// [`LlpError::Broken`] if the connection has already failed, or is not established yet.
    fn shutdown(&mut self) -> Result<(), LlpError>;

    /// Aborts the connection: sends a reset to the peer and discards unsent bytes.
    fn abort(&mut self);

    /// Returns true if the peer has acknowledged every byte that TCP accepted, and the FIN if
    /// [`shutdown`](Self::shutdown) was called. Returns false if the connection failed before that.
    fn flushed(&mut self) -> bool;

    /// Number of bytes that [`try_send`](Self::try_send) accepted and the peer has not
    /// acknowledged. The FIN does not count. After a reset by the peer or a timeout, the number
    /// stays as it was at that moment. It has no meaning after [`abort`](Self::abort).
    fn unacknowledged(&mut self) -> usize;

    /// Returns the error if the peer reset the connection or stopped answering. An owner that does
    /// not read at present would otherwise not learn of the failure. The peer's FIN is no error;
    /// see [`peer_closed`](Self::peer_closed).
    fn lost(&mut self) -> Option<LlpError>;

    /// Returns true if the peer's FIN has arrived, even if bytes before it are still unread. It is
    /// meant for an owner that does not read at present. Returns false if this cannot be
    /// determined, or if a full receive window holds the FIN back.
    fn peer_closed(&mut self) -> bool {
        false
    }

    /// Address and port of this side.
    fn local_addr(&self) -> SocketAddr;

    /// Address and port of the peer.
    fn peer_addr(&self) -> SocketAddr;

    /// Descriptor for `poll(2)` or `epoll(7)`: readable if a call may be able to make progress. It
    /// stays the same for the life of the value. Callers must not read from it or write to it.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns true if [`fd`](Self::fd) reports "writable" when [`try_send`](Self::try_send) has
    /// room and when a connection attempt ends (kernel TCP). If false, the descriptor reports these
    /// events as "readable" too.
    fn wants_write_event(&self) -> bool;

    /// Makes [`fd`](Self::fd) unreadable until something *new* happens. Call it before checking for
    /// work, never after. This is needed for smoltcp, whose descriptor is a signal. Does nothing
    /// for the kernel, whose descriptor reports a state.
    fn clear_readiness(&mut self);

    /// Time at which [`drive`](Self::drive) has to be called even if [`fd`](Self::fd) stays
    /// unreadable, for the timers of a stack in user space. `None` means that no timer runs. Any
    /// other call may change the deadline. If another thread's call moves it to an earlier time,
    /// the waiting thread has to be woken.
    fn deadline(&self) -> Option<Instant>;

    /// Lets a stack in user space process received packets, send packets, and run its timers. Does
    /// nothing for the kernel.
    fn drive(&mut self);

    /// Enables keep-alive probes: an established connection ends if the peer stays silent. Replaces
    /// the network's own settings.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] for values that no TCP supports, and errors of the system.
    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError>;

    /// Continues a connection attempt. Returns `true` once the connection is established and from
    /// then on, `false` while the attempt is in progress. Always `true` for an accepted connection.
    ///
    /// # Errors
    /// The reason of the failure: [`LlpError::Refused`], [`LlpError::Unreachable`],
    /// [`LlpError::TimedOut`] ...
    fn connect_progress(&mut self) -> Result<bool, LlpError>;
}

/// Accepts connections at one local address.
pub trait LlpListener: Send {
    /// Returns the next established connection, or `None` if there is none now. A stack in user
    /// space performs its TCP handshakes in this call. Call it when [`fd`](Self::fd) is readable
    /// and when [`deadline`](Self::deadline) is reached, until it returns `None`.
    ///
    /// # Errors
    /// Errors for a lack of descriptors or memory. The listener continues to listen: call again
    /// later. The connection that could not be accepted was refused, because otherwise the
    /// descriptor would stay readable.
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError>;

    /// Address of the listener, with the chosen port if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// Descriptor that is readable when [`try_accept`](Self::try_accept) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Does the same as [`Llp::clear_readiness`], for the listener's descriptor. Call it before
    /// `try_accept`.
    fn clear_readiness(&mut self);

    /// Time at which [`try_accept`](Self::try_accept) has to be called even if [`fd`](Self::fd)
    /// stays unreadable; see [`Llp::deadline`].
    fn deadline(&self) -> Option<Instant>;
}

/// A local address that [`Network::reserve`] reserved, for one connection or one listener.
pub trait BoundPort: Send {
    /// The address, with the chosen port if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// Does the same as [`Network::connect`], from this address.
    ///
    /// # Errors
    /// The errors of [`Network::connect`].
    fn connect(self: Box<Self>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError>;

    /// Connects this address to itself: what is sent is received on the same connection. Returns a
    /// standing connection.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if the network cannot do this, and the errors of [`Network::connect`].
    fn connect_to_itself(self: Box<Self>) -> Result<Box<dyn Llp>, LlpError> {
        Err(LlpError::Misuse {
            op: "connect an address to itself",
            why: "only the kernel's TCP can do this",
        })
    }

    /// Does the same as [`Network::listen`], at this address.
    ///
    /// # Errors
    /// The errors of [`Network::listen`].
    fn listen(self: Box<Self>, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError>;
}

/// A socket for datagrams of UDP at a local address. Datagrams may be lost, repeated or reordered.
/// Any number of threads may share one value.
pub trait DatagramSocket: Send + Sync {
    /// Sends a datagram from this address of this host. Returns false if the system has no room for
    /// it now. The caller may wait until the descriptor is writable, and try again.
    ///
    /// # Errors
    /// [`LlpError::FamilyMismatch`], and errors of the system, for example if `from` is no address
    /// of this host, or if no route leads to `to`.
    fn try_send(&self, bytes: &[u8], from: IpAddr, to: SocketAddr) -> Result<bool, LlpError>;

    /// Copies the next datagram to `buf`, and returns its length and its source. `None` if there is
    /// none now. A datagram that is longer than `buf` is cut. A socket at `::` returns an IPv4
    /// source mapped to IPv6.
    ///
    /// # Errors
    /// Errors of the system. The socket can still be used.
    fn try_recv(&self, buf: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, LlpError>;

    /// Address of the socket, with the chosen port if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// Descriptor that is readable while a datagram waits, and writable while there is room.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Makes connections and listeners. Any number of threads may share one value.
pub trait Network: Send + Sync {
    /// Starts to connect and returns at once; [`Llp::connect_progress`] reports the progress.
    /// Without `local`, the network chooses the local address and port. With `local`, the network
    /// chooses only the port, if the given port is 0.
    ///
    /// # Errors
    /// Errors that are known at once: an invalid local address or one in use, no route, or a lack
    /// of resources. Some implementations also return [`LlpError::Refused`] here.
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError>;

    /// Listens at `addr`; port 0 means a free port. About `backlog` connections can wait for
    /// [`LlpListener::try_accept`]. Further attempts are ignored, so that the peer repeats them.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError>;

    /// Returns the local address that a connection to `to` gets if the caller chooses none. Sends
    /// no packets.
    ///
    /// # Errors
    /// [`LlpError::Unreachable`] if there is no route, and errors of the system if it does not
    /// support the address family.
    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError>;

    /// Reserves a local address, to connect from or to listen at later; port 0 means a free port.
    /// The port stays reserved until the returned value, or the connection or listener made from
    /// it, is dropped.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], or a lack of resources.
    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError>;

    /// Does the same as [`reserve`](Self::reserve), but `::` covers only the IPv6 addresses. The
    /// same port stays free for IPv4 sockets (the socket option `IPV6_V6ONLY`). Equal to `reserve`
    /// for networks whose `::` never covers IPv4.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    fn reserve_one_family(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        self.reserve(addr)
    }

    /// Opens a socket for datagrams at `addr`; port 0 means a free port. `::` also covers the IPv4
    /// addresses.
    ///
    /// # Errors
    /// [`LlpError::AddressInUse`], [`LlpError::AddressUnavailable`],
    /// [`LlpError::PermissionDenied`], a lack of resources, and [`LlpError::Misuse`] if the network
    /// has no datagrams.
    fn datagrams(&self, addr: SocketAddr) -> Result<Box<dyn DatagramSocket>, LlpError> {
        let _ = addr;
        Err(LlpError::Misuse {
            op: "open a socket for datagrams",
            why: "only the kernel's network has them",
        })
    }

    /// Describes the network for a log or a table: `kernel TCP`, `smoltcp over memory, MTU 1500`
    /// ...
    fn describe(&self) -> String;

    /// Returns the current addresses, interfaces, MTU and MAC address.
    fn info(&self) -> NetworkInfo;

    /// Returns the reason if the network has failed permanently. All its connections have then
    /// ended, and no new one can be made. A network that cannot fail as a whole always returns
    /// `None`.
    fn fault(&self) -> Option<LlpError> {
        None
    }

    /// Reports events of the whole network to `watcher`, including earlier events, until `watcher`
    /// is dropped. Any thread of this library may make the calls.
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

/// Receives [`NetworkEvent`]s from a [`Network`].
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
