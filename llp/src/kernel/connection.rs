//! One connection of the kernel's TCP.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use socket2::Socket;

use crate::{Llp, LlpError, Piece, Recv, raw};

/// What TCP has to assume when nothing is known: RFC 9293 section 3.7.1.
const DEFAULT_MSS: usize = 536;

/// How far a connection has come. Errors stay: a dead connection gives the same one again.
#[derive(Debug, Clone, Copy)]
enum State {
    Connecting,
    Connected,
    /// Connected, and our FIN is on its way.
    Finished,
    /// A send has failed; what had arrived before can still be taken.
    Unsendable(LlpError),
    Failed(LlpError),
}

/// A non-blocking TCP socket.
pub(crate) struct KernelConnection {
    socket: Socket,
    state: State,
    local: SocketAddr,
    peer: SocketAddr,
}

impl KernelConnection {
    /// Starts to connect; the socket may be bound already.
    pub(crate) fn connect(socket: Socket, to: SocketAddr) -> Result<Self, LlpError> {
        match rustix::net::connect(&socket, &to) {
            // EINTR, as with any non-blocking connect, leaves the attempt running.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::ADDRNOTAVAIL) => {
                return Err(LlpError::Exhausted {
                    op: "connect",
                    what: "free local ports",
                });
            }
            Err(errno) => return Err(LlpError::from_errno("connect", to, errno)),
        }
        let local = local_addr(&socket, to)?;
        Ok(Self {
            socket,
            state: State::Connecting,
            local,
            peer: plain(to),
        })
    }

    /// A connection that was accepted.
    pub(crate) fn accepted(socket: Socket, peer: SocketAddr) -> Result<Self, LlpError> {
        let local = local_addr(&socket, peer)?;
        Ok(Self {
            socket,
            state: State::Connected,
            local,
            peer: plain(peer),
        })
    }

    fn fail(&mut self, op: &'static str, errno: Errno) -> LlpError {
        let error = match LlpError::from_errno(op, self.peer, errno) {
            // On a connection that stood, an ICMP answer can say this; nobody refused a connect.
            LlpError::Refused { addr } if !matches!(self.state, State::Connecting) => {
                LlpError::Reset { addr }
            }
            other => other,
        };
        self.state = State::Failed(error);
        error
    }

    /// The error of a call that needs a connection, when there is none.
    fn check_connected(&self) -> Result<(), LlpError> {
        match self.state {
            State::Connecting => Err(LlpError::Broken { addr: self.peer }),
            State::Connected | State::Finished | State::Unsendable(_) => Ok(()),
            State::Failed(error) => Err(error),
        }
    }

    /// The error of a call that needs the sending direction, when that is gone.
    fn check_sendable(&self) -> Result<(), LlpError> {
        match self.state {
            State::Finished => Err(LlpError::Broken { addr: self.peer }),
            State::Unsendable(error) => Err(error),
            State::Connecting | State::Connected | State::Failed(_) => self.check_connected(),
        }
    }

    /// Whether the kernel has an end of the connection attempt to tell.
    fn attempt_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let now = Timespec::default();
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
    }
}

/// The address the kernel chose for us, `near` telling the family when it has none.
pub(super) fn local_addr(socket: &Socket, near: SocketAddr) -> Result<SocketAddr, LlpError> {
    let addr = socket
        .local_addr()
        .map_err(|error| LlpError::from_io("ask for the local address", near, error))?;
    addr.as_socket().map(plain).ok_or(LlpError::Misuse {
        op: "use this socket",
        why: "it is neither IPv4 nor IPv6",
    })
}

/// An IPv4 address in its own form, also where an IPv6 socket wraps it.
pub(super) fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

impl Llp for KernelConnection {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        self.check_connected()?;
        if buf.is_empty() {
            return Ok(Recv::WouldBlock);
        }
        loop {
            match rustix::net::recv(&self.socket, &mut *buf, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(Recv::Closed),
                Ok((count, _)) => return Ok(Recv::Data(count)),
                Err(Errno::AGAIN) => return Ok(Recv::WouldBlock),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.fail("receive", errno)),
            }
        }
    }

    fn try_send(&mut self, pieces: &[Piece<'_>]) -> Result<usize, LlpError> {
        self.check_sendable()?;
        let mut taken = 0;
        for batch in pieces.chunks(raw::MAX_GATHER) {
            let offered: usize = batch.iter().map(Piece::len).sum();
            if offered == 0 {
                continue;
            }
            let sent = loop {
                match raw::send_gather(&self.socket, batch) {
                    Ok(sent) => break sent,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break 0,
                    // The kernel is short of memory now; it takes octets again later.
                    Err(Errno::NOBUFS | Errno::NOMEM) => break 0,
                    // What was taken before the failure is told first, the failure next time.
                    Err(errno) if taken == 0 => {
                        let error = self.fail("send", errno);
                        self.state = State::Unsendable(error);
                        return Err(error);
                    }
                    Err(_) => break 0,
                }
            };
            taken += sent;
            if sent < offered {
                break;
            }
        }
        Ok(taken)
    }

    fn emss(&self) -> usize {
        // For a socket that stands, TCP_MAXSEG is the current MSS with the options deducted.
        match self.socket.tcp_mss() {
            Ok(mss) if mss > 0 => usize::try_from(mss).unwrap_or(DEFAULT_MSS),
            _ => DEFAULT_MSS,
        }
    }

    fn shutdown(&mut self) -> Result<(), LlpError> {
        if matches!(self.state, State::Finished) {
            return Ok(());
        }
        self.check_sendable()?;
        rustix::net::shutdown(&self.socket, Shutdown::Write)
            .map_err(|errno| self.fail("close the sending direction", errno))?;
        self.state = State::Finished;
        Ok(())
    }

    fn abort(&mut self) {
        // Dissolving the association sends the reset and keeps the descriptor, which may still be
        // registered somewhere; the linger option makes `close` do the same should that fail.
        let linger = self.socket.set_linger(Some(Duration::ZERO));
        let dissolved = rustix::net::connect_unspec(&self.socket);
        if let (Err(error), Err(_)) = (linger, dissolved) {
            tracing::debug!(%error, peer = %self.peer, "no reset could be sent");
        }
        self.state = State::Failed(LlpError::Broken { addr: self.peer });
    }

    fn flushed(&mut self) -> bool {
        match self.state {
            State::Connected | State::Finished => raw::unacknowledged(&self.socket) == Ok(0),
            State::Connecting | State::Unsendable(_) | State::Failed(_) => false,
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wants_write_event(&self) -> bool {
        true
    }

    fn clear_readiness(&mut self) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn drive(&mut self) {}

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        match self.state {
            State::Connected | State::Finished | State::Unsendable(_) => return Ok(true),
            State::Failed(error) => return Err(error),
            State::Connecting => {}
        }
        if !self.attempt_ended() {
            return Ok(false);
        }
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Err(self.fail("connect", errno)),
        }
        self.local = local_addr(&self.socket, self.peer)?;
        if self.local == self.peer {
            // TCP lets a socket whose chosen port is the one it asks for connect to itself.
            self.abort();
            let error = LlpError::Refused { addr: self.peer };
            self.state = State::Failed(error);
            return Err(error);
        }
        self.state = State::Connected;
        Ok(true)
    }
}
