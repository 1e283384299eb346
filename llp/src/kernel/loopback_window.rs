//! Bound on the TCP window of connections between processes of one host.
//!
//! Without a bound, the kernel lets the window grow to many megabytes. Over the loopback device
//! that makes large messages slower. Each segment is delivered within the sender's call, and a
//! receiver that polls reads each segment on its own. So every segment costs a read, and every
//! second one an acknowledgement.
//!
//! With a window of two segments, most bytes of a call wait in the send queue. The kernel sends
//! them when it processes acknowledgements. The receiver then finds several segments for one read,
//! and its processor does a part of the sending.
//!
//! The bound limits the window that the receiver offers, not the receive buffer. A busy receiver
//! therefore does not stop the sender. (A receive buffer of a few segments, set by SO_RCVBUF, stops
//! the sender, and gained less throughput.)
//!
//! The bound helps streams, and slows down exchanges of messages: a ping-pong of 1 MiB over MPI
//! takes 192 us instead of 178, and single Reads of 1 MiB take a quarter longer. In an exchange,
//! the last segments of a message wait for acknowledgements while the sender is idle. So the window
//! is checked every [`WINDOW_INTERVAL`] bytes received, and bounded only for a stream:
//! * It is bounded if these bytes arrived within [`STREAM`], and freed if they took longer.
//! * It is freed at once when this end sends an answer of [`ANSWER`] bytes or more in one call.
//! * It is freed at once when this end asks for one answer
//!   ([`SendHints::asking`](crate::SendHints::asking)), unless a check took place during the
//!   previous answer.
//!
//! Single Reads of 4 MiB and more therefore count as a stream. Small Reads by this end, one at a
//! time, free the window even while the peer streams.
//!
//! ```text
//!                   a stream                      ┌── a stream: bounded again
//!            ──────────────────────►              ▼   │
//!       free                         bounded ─────────┘
//!            ◄──────────────────────
//!            no stream, or an exchange
//! ```
//!
//! Such a small window would limit the throughput to another host, so the kernel chooses the window
//! for connections to other hosts. A loopback device that delays packets, as with netem, cannot be
//! distinguished from a fast one.

use std::net::SocketAddr;
use std::time::Instant;

use rustix::io::Errno;
use socket2::Socket;

use crate::policy::{ANSWER, Heuristic, STREAM, WINDOW, WINDOW_INTERVAL, is_on};
use crate::raw;

/// Limit in bytes that removes the bound.
const FREE: u32 = 1 << 30;

/// State of a connection's window bound.
#[derive(Debug)]
pub(super) struct LoopbackWindow {
    state: State,
    /// Bytes to receive until the next check.
    left: u64,
    /// Time of the last check. `None` before the first one, and after an exchange of messages was
    /// detected.
    looked: Option<Instant>,
    /// True if a check took place since this end last asked for an answer.
    streamed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The kernel chooses the window from now on: the peer is on another host, or a system call
    /// failed.
    Kernel,
    Free,
    Bounded,
}

impl LoopbackWindow {
    /// Creates the state for a connection between these addresses.
    pub(super) fn between(local: SocketAddr, peer: SocketAddr) -> Self {
        let state = if is_on(Heuristic::LoopbackWindow) && is_same_host(local, peer) {
            State::Free
        } else {
            State::Kernel
        };
        Self {
            state,
            left: WINDOW_INTERVAL,
            looked: None,
            streamed: false,
        }
    }

    /// Counts received bytes, and checks the window after [`WINDOW_INTERVAL`] bytes.
    #[inline]
    pub(super) fn received(&mut self, socket: &Socket, bytes: usize) {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => self.look(socket, Instant::now()),
        }
    }

    /// Frees the window if the bytes sent in one call are long enough to be an answer.
    #[inline]
    pub(super) fn sent(&mut self, socket: &Socket, bytes: usize) {
        if bytes >= ANSWER {
            self.turns(socket);
        }
    }

    /// Frees the window for a request whose answer is the only data expected, unless the previous
    /// answer was long enough to be a stream.
    #[inline]
    pub(super) fn asked(&mut self, socket: &Socket) {
        // A check took place during the previous answer, so that answer was a stream.
        if !std::mem::take(&mut self.streamed) {
            self.turns(socket);
        }
    }

    /// Frees the window, because the connection exchanges messages instead of streaming.
    fn turns(&mut self, socket: &Socket) {
        self.looked = None;
        self.left = WINDOW_INTERVAL;
        self.free(socket);
    }

    #[cold]
    fn look(&mut self, socket: &Socket, now: Instant) {
        self.left = WINDOW_INTERVAL;
        self.streamed = true;
        let before = self.looked.replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) <= STREAM) {
            self.bound(socket);
        } else {
            self.free(socket);
        }
    }

    fn bound(&mut self, socket: &Socket) {
        if self.state != State::Kernel {
            let mss = raw::received_mss(socket);
            let bounded = mss.and_then(|mss| raw::clamp_window(socket, window_of(mss)));
            self.enter(State::Bounded, bounded);
        }
    }

    fn free(&mut self, socket: &Socket) {
        if self.state == State::Bounded {
            self.enter(State::Free, raw::clamp_window(socket, FREE));
        }
    }

    fn enter(&mut self, state: State, done: Result<(), Errno>) {
        self.state = match done {
            Ok(()) => state,
            Err(error) => {
                // The connection works without a bound too; the kernel then chooses the window.
                tracing::debug!(%error, "the window cannot be set");
                State::Kernel
            }
        };
    }
}

/// Size of a bounded window in bytes, for this segment size.
fn window_of(mss: u32) -> u32 {
    let mss = mss.max(1);
    WINDOW.div_ceil(mss) * mss
}

/// Returns true if the addresses alone show that the peer is on this host. No packet from or to a
/// loopback address leaves the host.
pub(super) fn is_same_host(local: SocketAddr, peer: SocketAddr) -> bool {
    local.ip() == peer.ip() || local.ip().is_loopback() || peer.ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::{Llp, Network as _, Piece, Recv, SendHints};

    /// Transfers `bytes` bytes from one end to the other.
    fn pass(from: &mut dyn Llp, to: &mut dyn Llp, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap();
        let (source, mut sink) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        let (mut sent, mut received) = (0, 0);
        let began = Instant::now();
        while received < bytes {
            assert!(
                began.elapsed() < Duration::from_secs(300),
                "hangs at {received}"
            );
            if sent < bytes {
                let some = &source[..source.len().min(bytes - sent)];
                sent += from
                    .try_send(&[Piece::from(some)], SendHints::NONE)
                    .unwrap();
            }
            match to.try_recv(&mut sink).unwrap() {
                Recv::Data(count) => received += count,
                Recv::WouldBlock => {
                    let mut readable = [PollFd::from_borrowed_fd(to.fd(), PollFlags::IN)];
                    poll(
                        &mut readable,
                        Some(&Timespec {
                            tv_sec: 60,
                            tv_nsec: 0,
                        }),
                    )
                    .unwrap();
                }
                Recv::Closed => panic!("closed after {received} bytes"),
            }
        }
    }

    /// Makes a connection. Returns the connecting end and the accepting end.
    fn connection() -> [Box<dyn Llp>; 2] {
        let network = crate::kernel::KernelNetwork::default();
        let mut listener = network.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let mut client = network.connect(None, listener.local_addr()).unwrap();
        let server = loop {
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        while !client.connect_progress().unwrap() {}
        [client, server]
    }

    /// Returns the size of a bounded window: a whole number of the peer's segments. On a loopback
    /// device with its default MTU, these are two segments.
    fn segments(end: &dyn Llp) -> u32 {
        window_of(raw::received_mss(end.fd()).unwrap())
    }

    /// Streams until the window is bounded. The speed depends on the machine and its load; some
    /// part of the stream will be fast enough.
    fn stream(from: &mut dyn Llp, to: &mut dyn Llp) {
        let is_bounded = (0..500).any(|_| {
            pass(from, to, WINDOW_INTERVAL);
            raw::window_clamp(to.fd()) == Ok(segments(to))
        });
        assert!(is_bounded);
    }

    /// Bounds the window by two checks, [`STREAM`] apart. Returns the window and the time of the
    /// first check.
    fn bounded(from: &mut dyn Llp, to: &mut dyn Llp) -> (LoopbackWindow, Instant) {
        pass(from, to, WINDOW_INTERVAL);
        let fd = to.fd();
        let socket = &socket2::SockRef::from(&fd);
        let mut window = LoopbackWindow::between(to.local_addr(), to.peer_addr());
        let began = Instant::now();
        window.look(socket, began);
        window.look(socket, began + STREAM);
        assert_eq!(raw::window_clamp(fd), Ok(segments(to)));
        (window, began)
    }

    #[test]
    fn the_window_is_two_segments_in_a_stream_and_again_when_the_kernel_has_widened_it() {
        let [client, server] = connection();
        let [another_client, another_server] = connection();
        for [mut from, mut to] in [[client, server], [another_server, another_client]] {
            // The receiver's own segments, such as a request, have no effect.
            pass(&mut *to, &mut *from, 1000);
            pass(&mut *from, &mut *to, WINDOW_INTERVAL);
            let fd = to.fd();
            let socket = &socket2::SockRef::from(&fd);
            let mut window = LoopbackWindow::between(to.local_addr(), to.peer_addr());
            let began = Instant::now();
            window.look(socket, began);
            assert_ne!(raw::window_clamp(fd), Ok(segments(&*to)));
            for look in 1..=2 {
                raw::clamp_window(fd, 1 << 20).unwrap();
                window.look(socket, began + look * STREAM);
                assert_eq!(raw::window_clamp(fd), Ok(segments(&*to)));
            }
        }
    }

    #[test]
    fn the_window_is_free_again_when_bytes_are_late_and_after_an_answer() {
        let [mut from, mut to] = connection();
        let (mut window, began) = bounded(&mut *from, &mut *to);
        let fd = to.fd();
        let socket = &socket2::SockRef::from(&fd);
        let late = began + 2 * STREAM + Duration::from_nanos(1);
        window.look(socket, late);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        window.look(socket, late + STREAM);
        assert_eq!(raw::window_clamp(fd), Ok(segments(&*to)));
        window.sent(socket, ANSWER - 1);
        assert_eq!(raw::window_clamp(fd), Ok(segments(&*to)));
        window.sent(socket, ANSWER);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        // Counting starts again after the answer.
        window.look(socket, late + STREAM);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        assert_eq!(window.left, WINDOW_INTERVAL);
    }

    #[test]
    fn the_bytes_of_a_connection_are_counted_until_it_is_time_for_a_look() {
        let [client, server] = connection();
        let fd = server.fd();
        let socket = &socket2::SockRef::from(&fd);
        let mut window = LoopbackWindow::between(server.local_addr(), client.local_addr());
        window.received(socket, 1);
        window.received(socket, WINDOW_INTERVAL as usize - 1);
        assert_eq!((window.left, window.looked), (0, None));
        window.received(socket, 1);
        assert_eq!(window.left, WINDOW_INTERVAL);
        assert!(window.looked.is_some());
        window.received(socket, 1);
        window.sent(socket, ANSWER);
        assert_eq!((window.left, window.looked), (WINDOW_INTERVAL, None));
    }

    #[test]
    fn the_window_is_free_for_short_answers_and_bounded_for_one_that_is_a_stream() {
        let [mut from, mut to] = connection();
        let (mut window, _) = bounded(&mut *from, &mut *to);
        let fd = to.fd();
        let socket = &socket2::SockRef::from(&fd);
        // The checks of the stream count as part of the previous answer, so that answer was a
        // stream.
        window.asked(socket);
        assert_eq!(raw::window_clamp(fd), Ok(segments(&*to)));
        window.received(socket, WINDOW_INTERVAL as usize);
        window.asked(socket);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        // Short answers never count as a stream.
        for _ in 0..3 {
            window.received(socket, WINDOW_INTERVAL as usize);
            window.asked(socket);
        }
        assert_eq!((window.left, window.looked), (WINDOW_INTERVAL, None));
    }

    #[test]
    fn a_connection_tells_its_window_what_it_receives_and_sends() {
        let [mut from, mut to] = connection();
        stream(&mut *from, &mut *to);
        pass(&mut *to, &mut *from, ANSWER as u64);
        assert_eq!(raw::window_clamp(to.fd()), Ok(FREE));
    }

    #[test]
    fn a_connection_tells_its_window_when_it_asks() {
        let [mut from, mut to] = connection();
        stream(&mut *from, &mut *to);
        let mut ask = || {
            let request = [Piece::from(&b"a Read Request"[..])];
            to.try_send(&request, SendHints::NONE.asking(true)).unwrap();
            raw::window_clamp(to.fd())
        };
        // The first request follows a stream.
        assert_ne!(ask(), Ok(FREE));
        assert_eq!(ask(), Ok(FREE));
    }

    #[test]
    fn to_another_host_the_kernel_chooses_the_window() {
        let to = |peer: &str| {
            LoopbackWindow::between("192.0.2.1:1".parse().unwrap(), peer.parse().unwrap())
        };
        assert_eq!(to("192.0.2.1:2").state, State::Free);
        let [client, _server] = connection();
        let fd = client.fd();
        let socket = &socket2::SockRef::from(&fd);
        let before = raw::window_clamp(client.fd());
        let mut window = to("192.0.2.2:2");
        let now = Instant::now();
        window.look(socket, now);
        window.look(socket, now);
        window.sent(socket, ANSWER);
        window.asked(socket);
        window.asked(socket);
        assert_eq!(raw::window_clamp(client.fd()), before);
    }

    #[test]
    fn a_window_is_whole_segments() {
        assert_eq!(window_of(65_483), 2 * 65_483);
        assert_eq!(window_of(65_464), 2 * 65_464);
        assert_eq!(window_of(1448), 89 * 1448);
        assert!(window_of(0) > 0);
    }

    #[test]
    fn the_host_itself_is_near_by_any_of_its_addresses() {
        let same = |local: &str, peer: &str| {
            is_same_host(
                SocketAddr::new(local.parse().unwrap(), 1),
                SocketAddr::new(peer.parse().unwrap(), 2),
            )
        };
        assert!(same("127.0.0.1", "127.0.0.1"));
        assert!(same("127.0.0.1", "127.0.0.2"));
        assert!(same("::1", "::1"));
        assert!(same("192.0.2.1", "192.0.2.1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
        assert!(!same("2001:db8::1", "2001:db8::2"));
    }
}
