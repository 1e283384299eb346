//! Listening socket of the kernel's TCP.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::Socket;
use uwarp_capture::Interface;

use super::connection::{KernelConnection, local_addr};
use super::control::Control;
use crate::policy::MAX_DEAD;
use crate::{Captured, Llp, LlpError, LlpListener};

/// Accepts connections from the kernel.
pub(crate) struct KernelListener {
    socket: Socket,
    local: SocketAddr,
    interface: Option<Interface>,
    /// Congestion control to restore on accepted sockets, which inherit the listener's control.
    control: Control,
    /// Descriptor that is closed when the process has no free descriptors. The freed descriptor is
    /// used to accept the waiting connection and close it at once. Otherwise the socket would stay
    /// readable, and its poller would spin.
    spare: Option<OwnedFd>,
}

impl KernelListener {
    /// Wraps a socket that listens already.
    pub(crate) fn new(
        socket: Socket,
        interface: Option<Interface>,
        control: Control,
    ) -> Result<Self, LlpError> {
        let local = local_addr(&socket, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        Ok(Self {
            socket,
            local,
            interface,
            control,
            spare: spare(),
        })
    }

    /// Refuses the waiting connection with the help of the spare descriptor. Returns false if no
    /// connection waits. Linux reports a lack of descriptors in that case too, because it allocates
    /// the descriptor first.
    fn refuse_one(&mut self) -> bool {
        drop(self.spare.take());
        let refused = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC);
        let waited = !matches!(refused, Err(Errno::AGAIN));
        drop(refused);
        self.spare = spare();
        waited
    }

    fn wrap(&self, socket: OwnedFd, peer: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        // An accepted socket inherits the options of the listener. It also inherits the listener's
        // address if this is not a wildcard. Setting or querying them again would cost system
        // calls, which matter when many connections arrive at once.
        let socket = Socket::from(socket);
        let local = if self.local.ip().is_unspecified() {
            local_addr(&socket, peer)?
        } else {
            self.local
        };
        let connection = KernelConnection::standing(socket, local, peer, self.control);
        Ok(match &self.interface {
            None => Box::new(connection),
            Some(interface) => Box::new(Captured::accepted(connection, interface.clone())),
        })
    }
}

/// Opens a spare descriptor. Its kind does not matter.
fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok()
}

impl LlpListener for KernelListener {
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError> {
        const OP: &str = "accept a connection";
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..MAX_DEAD {
            match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok((socket, Some(peer))) => match SocketAddr::try_from(peer) {
                    Ok(peer) => return self.wrap(socket, peer).map(Some),
                    Err(_) => continue,
                },
                // Linux reports an address with every TCP connection.
                Ok((_, None)) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    let lost = self.refuse_one();
                    return if lost {
                        Err(LlpError::from_local_errno(OP, errno))
                    } else {
                        Ok(None)
                    };
                }
                Err(
                    errno @ (Errno::BADF
                    | Errno::NOTSOCK
                    | Errno::INVAL
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::PERM),
                ) => return Err(LlpError::from_local_errno(OP, errno)),
                // This connection failed in the queue (accept(2) lists the network errors that it
                // reports). The next one may be alive.
                Err(errno) => tracing::debug!(%errno, local = %self.local, "accept passed over"),
            }
        }
        Ok(None)
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn clear_readiness(&mut self) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }
}
