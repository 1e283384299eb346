//! A connection of the kernel's TCP.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use socket2::{Socket, TcpKeepalive};

use super::control::{self, Control};
use super::loopback_window::LoopbackWindow;
use super::reserved::source_for;
use crate::{Keepalive, Llp, LlpError, Piece, Recv, SendHints, raw};

/// MSS that TCP assumes if nothing else is known (RFC 9293 section 3.7.1).
const DEFAULT_MSS: usize = 536;

/// State of a connection. Every call on a dead connection returns the error that ended it.
///
/// ```text
///  connect                    accept
///     |                          |
///     v                          v
///  Connecting -- succeeded --> Connected ----- FIN sent -----> Finished
///     |                        |     |                            |
///     |                        |     +-- send ---> Unsendable     |
///     | attempt                |         failed        |          |
///     | failed     FIN failed, |               receive |          | receive
///     |         receive failed |                failed |          | failed
///     v                        v                       v          v
///  Failed <-------------------------------------------------------+
///         <---- aborted ---- every state, Failed itself too
/// ```
#[derive(Debug, Clone, Copy)]
enum State {
    /// The attempt is in progress.
    Connecting,
    /// Bytes can flow in both directions.
    Connected,
    /// Connected, and a FIN of this side was sent.
    Finished,
    /// A send failed. Bytes that had arrived before can still be received.
    Unsendable(LlpError),
    /// The connection can neither send nor receive. Later calls return this error.
    Failed(LlpError),
}

/// Events that change the state of a connection.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The kernel reports that the connection is established.
    AttemptSucceeded,
    /// The kernel reports a failure, or the socket connected to itself.
    AttemptFailed(LlpError),
    /// The kernel accepted the FIN.
    FinSent,
    /// The kernel rejected the FIN.
    FinFailed(LlpError),
    SendFailed(LlpError),
    ReceiveFailed(LlpError),
    /// The owner aborted the connection. Later calls return this error.
    Aborted(LlpError),
}

impl State {
    /// Returns the state after `event`. An event without meaning in this state changes nothing.
    const fn next(self, event: Event) -> Self {
        use Event as E;
        use State as S;
        match (self, event) {
            // The owner ended the connection, so its error replaces any earlier one.
            (_, E::Aborted(error)) => S::Failed(error),

            (S::Connecting, E::AttemptSucceeded) => S::Connected,
            (S::Connecting, E::AttemptFailed(error)) => S::Failed(error),

            (S::Connected, E::FinSent) => S::Finished,
            (S::Connected, E::FinFailed(error)) => S::Failed(error),
            (S::Connected, E::SendFailed(error)) => S::Unsendable(error),
            (S::Connected | S::Finished | S::Unsendable(_), E::ReceiveFailed(error)) => {
                S::Failed(error)
            }

            // Only an established connection can send, close or receive.
            (S::Connecting, E::FinSent | E::FinFailed(_)) => self,
            (S::Connecting, E::SendFailed(_) | E::ReceiveFailed(_)) => self,
            // The sending direction is already closed or has failed.
            (S::Finished | S::Unsendable(_), E::FinSent | E::FinFailed(_)) => self,
            (S::Finished | S::Unsendable(_), E::SendFailed(_)) => self,
            // The connection attempt has already ended.
            (S::Connected | S::Finished | S::Unsendable(_), E::AttemptSucceeded) => self,
            (S::Connected | S::Finished | S::Unsendable(_), E::AttemptFailed(_)) => self,
            // The first error stays.
            (S::Failed(_), _) => self,
        }
    }
}

/// A connection of the kernel's TCP: a non-blocking socket and its state.
pub(crate) struct KernelConnection {
    socket: Socket,
    state: State,
    /// True after the kernel accepted the FIN. The kernel's send queue counts the FIN as one byte.
    fin_taken: bool,
    window: LoopbackWindow,
    control: Control,
    local: SocketAddr,
    peer: SocketAddr,
}

impl KernelConnection {
    /// Starts a connection attempt. The socket may be bound already.
    pub(super) fn connect(
        socket: Socket,
        to: SocketAddr,
        control: Control,
    ) -> Result<Self, LlpError> {
        match rustix::net::connect(&socket, &to) {
            // EINTR leaves the attempt running, as with any non-blocking connect.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::AGAIN) => {}
            // The bound port has a connection to the same peer, or had one within the last minute.
            Err(Errno::ADDRNOTAVAIL) => {
                // Linux reports the same error if no local address can reach the peer.
                source_for(to)?;
                return Err(match local_addr(&socket, to) {
                    Ok(addr) if addr.port() != 0 => LlpError::AddressInUse { addr },
                    _ => LlpError::Exhausted {
                        op: "connect",
                        what: "free local ports",
                    },
                });
            }
            Err(errno) => return Err(LlpError::from_errno("connect", to, errno)),
        }
        let local = local_addr(&socket, to)?;
        let peer = plain(to);
        Ok(Self {
            socket,
            state: State::Connecting,
            fin_taken: false,
            window: LoopbackWindow::between(local, peer),
            control,
            local,
            peer,
        })
    }

    /// Wraps a connected socket whose addresses are known.
    pub(super) fn standing(
        socket: Socket,
        local: SocketAddr,
        peer: SocketAddr,
        control: Control,
    ) -> Self {
        let peer = plain(peer);
        Self {
            socket,
            state: State::Connected,
            fin_taken: false,
            window: LoopbackWindow::between(local, peer),
            control,
            local,
            peer,
        }
    }

    /// Calls `event` with the error of the failed system call `op`, and applies the event that it
    /// returns. Returns the error.
    fn fail(&mut self, op: &'static str, errno: Errno, event: fn(LlpError) -> Event) -> LlpError {
        let error = match LlpError::from_errno(op, self.peer, errno) {
            // An ICMP message can cause this error on an established connection. No connection
            // attempt was refused then, so the error is reported as a reset.
            LlpError::Refused { addr } if !matches!(self.state, State::Connecting) => {
                LlpError::Reset { addr }
            }
            other => other,
        };
        self.take(event(error));
        error
    }

    fn take(&mut self, event: Event) {
        self.state = self.state.next(event);
    }

    /// Makes the kernel reset the connection.
    fn reset(&self) {
        // `connect` to AF_UNSPEC sends the reset and keeps the descriptor, which may still be
        // registered with a poller. If it fails, the linger option makes `close` send the reset.
        let linger = self.socket.set_linger(Some(Duration::ZERO));
        let dissolved = rustix::net::connect_unspec(&self.socket);
        if let (Err(error), Err(_)) = (linger, dissolved) {
            tracing::debug!(%error, peer = %self.peer, "no reset could be sent");
        }
    }

    /// Returns an error if the connection is not established.
    fn check_connected(&self) -> Result<(), LlpError> {
        match self.state {
            State::Connecting => Err(LlpError::Broken { addr: self.peer }),
            State::Connected | State::Finished | State::Unsendable(_) => Ok(()),
            State::Failed(error) => Err(error),
        }
    }

    /// Returns an error if the connection cannot send.
    fn check_sendable(&self) -> Result<(), LlpError> {
        match self.state {
            State::Finished => Err(LlpError::Broken { addr: self.peer }),
            State::Unsendable(error) => Err(error),
            State::Connecting | State::Connected | State::Failed(_) => self.check_connected(),
        }
    }

    /// Returns true if the socket has an error, a hang-up, or one of the events `what`.
    fn is_ready(&self, what: PollFlags) -> bool {
        let mut fds = [PollFd::new(&self.socket, what)];
        let now = Timespec::default();
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
    }
}

/// Rounds a time up to whole seconds, within the kernel's limits for a keep-alive (MAX_TCP_KEEPIDLE
/// of Linux).
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_millis().div_ceil(1000).clamp(1, 32_767) as u64)
}

/// Returns the local address of the socket. If the system call fails, the error contains the
/// address `near`.
pub(super) fn local_addr(socket: &Socket, near: SocketAddr) -> Result<SocketAddr, LlpError> {
    let addr = socket
        .local_addr()
        .map_err(|error| LlpError::from_io("ask for the local address", near, error))?;
    addr.as_socket().map(plain).ok_or(LlpError::Misuse {
        op: "use this socket",
        why: "it is neither IPv4 nor IPv6",
    })
}

/// Converts an IPv4-mapped IPv6 address to its IPv4 form.
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
                Ok((count, _)) => {
                    self.window.received(&self.socket, count);
                    return Ok(Recv::Data(count));
                }
                Err(Errno::AGAIN) => return Ok(Recv::WouldBlock),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.fail("receive", errno, Event::ReceiveFailed)),
            }
        }
    }

    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError> {
        self.check_sendable()?;
        self.control.settle(&self.socket, self.local, self.peer);
        let (mut taken, mut whole) = (0, true);
        for (nth, batch) in (1..).zip(pieces.chunks(raw::MAX_GATHER)) {
            let rest = pieces.get(nth * raw::MAX_GATHER..).unwrap_or_default();
            let followed = rest.iter().any(|piece| !piece.is_empty());
            let offered: usize = batch.iter().map(Piece::len).sum();
            if offered == 0 {
                continue;
            }
            let sent = loop {
                match raw::send_gather(&self.socket, batch, followed) {
                    Ok(sent) => break sent,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break 0,
                    // The kernel is short of memory now; it accepts bytes again later.
                    Err(Errno::NOBUFS | Errno::NOMEM) => break 0,
                    // This call reports the bytes accepted before the failure. The next call
                    // reports the failure.
                    Err(errno) if taken == 0 => {
                        return Err(self.fail("send", errno, Event::SendFailed));
                    }
                    Err(_) => break 0,
                }
            };
            taken += sent;
            if sent < offered {
                whole = false;
                break;
            }
        }
        self.window.sent(&self.socket, taken);
        // A request that takes several calls is recorded once, when its last byte is accepted.
        if whole && hints.is_asking() {
            self.window.asked(&self.socket);
        }
        Ok(taken)
    }

    fn emss(&self) -> usize {
        // On a connected socket, TCP_MAXSEG is the current MSS less the options.
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
            .map_err(|errno| self.fail("close the sending direction", errno, Event::FinFailed))?;
        self.fin_taken = true;
        self.take(Event::FinSent);
        Ok(())
    }

    fn abort(&mut self) {
        self.reset();
        self.take(Event::Aborted(LlpError::Broken { addr: self.peer }));
    }

    fn flushed(&mut self) -> bool {
        match self.state {
            State::Connected | State::Finished => raw::unacknowledged(&self.socket) == Ok(0),
            State::Connecting | State::Unsendable(_) | State::Failed(_) => false,
        }
    }

    fn unacknowledged(&mut self) -> usize {
        // The queue keeps its length when the connection is reset. Some sandboxes do not report
        // this length. The close then waits only for the peer's FIN.
        let queued = raw::unacknowledged(&self.socket).unwrap_or(0);
        queued.saturating_sub(usize::from(self.fin_taken))
    }

    fn lost(&mut self) -> Option<LlpError> {
        if let Err(error) = self.check_connected() {
            return (!matches!(self.state, State::Connecting)).then_some(error);
        }
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => None,
            Ok(Err(errno)) | Err(errno) => Some(self.fail("receive", errno, Event::ReceiveFailed)),
        }
    }

    fn peer_closed(&mut self) -> bool {
        self.is_ready(PollFlags::RDHUP)
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

    fn congestion_control(&self) -> Option<String> {
        control::current(&self.socket)
    }

    fn wants_write_event(&self) -> bool {
        true
    }

    fn clear_readiness(&mut self) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn drive(&mut self) {}

    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError> {
        keepalive.check()?;
        let settings = TcpKeepalive::new()
            .with_time(whole_seconds(keepalive.idle))
            .with_interval(whole_seconds(keepalive.interval))
            .with_retries(keepalive.probes);
        // Without the user timeout, the kernel would retransmit bytes in flight for a quarter of an
        // hour before the first probe.
        let failed = |error| LlpError::from_io("set the keep-alive", self.peer, error);
        self.socket.set_tcp_keepalive(&settings).map_err(failed)?;
        self.socket
            .set_tcp_user_timeout(Some(keepalive.patience()))
            .map_err(failed)
    }

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        match self.state {
            State::Connected | State::Finished | State::Unsendable(_) => return Ok(true),
            State::Failed(error) => return Err(error),
            State::Connecting => {}
        }
        if !self.is_ready(PollFlags::OUT) {
            return Ok(false);
        }
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => {
                return Err(self.fail("connect", errno, Event::AttemptFailed));
            }
        }
        self.local = local_addr(&self.socket, self.peer)?;
        if self.local == self.peer {
            // TCP lets a socket connect to itself if its local port is the port that it connects
            // to.
            self.reset();
            let error = LlpError::Refused { addr: self.peer };
            self.take(Event::AttemptFailed(error));
            return Err(error);
        }
        self.take(Event::AttemptSucceeded);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::{Debug, Write as _};
    use std::net::Ipv4Addr;

    const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    // The states and the events hold different errors, so that the table shows which one is kept.
    const STATES: [State; 5] = [
        State::Connecting,
        State::Connected,
        State::Finished,
        State::Unsendable(LlpError::TimedOut { addr: ADDR }),
        State::Failed(LlpError::Unreachable { addr: ADDR }),
    ];
    const EVENTS: [Event; 7] = [
        Event::AttemptSucceeded,
        Event::AttemptFailed(LlpError::Refused { addr: ADDR }),
        Event::FinSent,
        Event::FinFailed(LlpError::Reset { addr: ADDR }),
        Event::SendFailed(LlpError::Reset { addr: ADDR }),
        Event::ReceiveFailed(LlpError::Reset { addr: ADDR }),
        Event::Aborted(LlpError::Broken { addr: ADDR }),
    ];

    /// Returns the name of a state or event, with the name of its error.
    fn name(value: impl Debug) -> String {
        format!("{value:?}").replace(&format!(" {{ addr: {ADDR} }}"), "")
    }

    #[test]
    fn state_x_event() {
        let mut table = format!("{:22}", "");
        for state in STATES {
            let _ = write!(table, " | {:20}", name(state));
        }
        for event in EVENTS {
            let _ = write!(table, "\n{:22}", name(event));
            for state in STATES {
                let next = name(state.next(event));
                let cell = if next == name(state) { "-" } else { &next };
                let _ = write!(table, " | {cell:20}");
            }
        }
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
