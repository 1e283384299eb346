//! The window of connections between processes of one host.
//!
//! Left to itself, the kernel lets it grow to many megabytes. Over the loopback device that makes large messages slower: each segment is
//! delivered within the sender's call, and a receiver that polls reads it by itself, so that every segment pays for a read and every other one for
//! an acknowledgement. With a window of two segments what a call has copied mostly waits in the send queue, and leaves when
//! acknowledgements are processed: the receiver finds several segments for one read, and a part of the sending is done on its processor.
//!
//! Only what is offered at a time is bounded, not what the kernel keeps until it is read, so a receiver that is busy does not stop the
//! sender. (A receive buffer of some segments, by SO_RCVBUF, does, and gained less.)
//!
//! This helps a stream of bytes. Traffic that goes there and back is slower: a ping-pong of 1 MiB
//! over MPI takes 192 us instead of 178, and Reads of 1 MiB, one at a time, take a quarter longer.
//! The last segments of a message wait for acknowledgements when the sender has nothing more to do.
//! So the window is looked at every [`INTERVAL`] bytes
//! received. It is bounded while they come in a stream, and freed when they took longer than [`STREAM`], or as soon as bytes turn out to go there and
//! back: this end answers with [`ANSWER`] bytes or more in one call, or asks for one answer ([`SendHints::asking`](crate::SendHints::asking)) and
//! has had the one before without a look at the window. (So Reads of 4 MiB and more, one at a time, are a stream. Who does small Reads one at a time
//! while the peer streams has a free window, too.)
//!
//! ```text
//!                   a stream                      ┌── a stream: bounded again
//!            ──────────────────────►              ▼   │
//!       free                         bounded ─────────┘
//!            ◄──────────────────────
//!            no stream, or there and back
//! ```
//!
//! To another host a window that small would bound the throughput, so there the kernel chooses. What delays the loopback device itself, as
//! netem does, cannot be told from a fast one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket2::Socket;

use crate::raw;

/// Bytes of a window, made whole segments: two of them on a loopback device as it comes (65,483 bytes each, 65,464 over IPv6), because the kernel
/// acknowledges every second segment at once. What it offers is rounded up to what the window's scale can say.
///
/// `MPI_Put` of 1 MiB reached 8.5 GB/s with two segments, and 7.1 to 7.6 GB/s with three to eight
/// (Open MPI on the drop-in library, AMD EPYC of Zen 4).
const WINDOW: u32 = 128_000;
/// Bytes received between two looks at the window. One that is bounded is bounded again, because the kernel widens it when it makes the receive
/// buffer larger, and when larger segments than before arrive. The calls take a thousandth or two of the time of so many bytes.
const INTERVAL: u64 = 4 << 20;
/// Bytes that come in a stream are here within this time: 1 GB/s, half of what the slowest pair of processors has reached.
const STREAM: Duration = Duration::from_millis(4);
/// To send so many bytes in one call is an answer: less than a segment, as the kernel may take one at a time.
const ANSWER: usize = 60_000;
/// No bound.
const FREE: u32 = 1 << 30;

/// What is known of the window of a connection.
#[derive(Debug)]
pub(super) struct LoopbackWindow {
    state: State,
    /// Bytes to receive until the next look.
    left: u64,
    /// When the last look was, if bytes have not gone there and back since.
    looked: Option<Instant>,
    /// There was a look since an answer was last asked for.
    streamed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Left as it is, for good: the peer is another host, or the kernel has refused.
    Kernel,
    Free,
    Bounded,
}

impl LoopbackWindow {
    /// Of a connection between these addresses.
    pub(super) fn between(local: SocketAddr, peer: SocketAddr) -> Self {
        let state = if is_same_host(local, peer) {
            State::Free
        } else {
            State::Kernel
        };
        Self {
            state,
            left: INTERVAL,
            looked: None,
            streamed: false,
        }
    }

    /// Takes in that so many bytes were received.
    #[inline]
    pub(super) fn received(&mut self, socket: &Socket, octets: usize) {
        match self.left.checked_sub(octets as u64) {
            Some(left) => self.left = left,
            None => self.look(socket, Instant::now()),
        }
    }

    /// Takes in that so many bytes were sent.
    #[inline]
    pub(super) fn sent(&mut self, socket: &Socket, octets: usize) {
        if octets >= ANSWER {
            self.turns(socket);
        }
    }

    /// Takes in that a request is sent, and that its answer is all that will come.
    #[inline]
    pub(super) fn asked(&mut self, socket: &Socket) {
        // An answer that is long enough is a stream by itself.
        if !std::mem::take(&mut self.streamed) {
            self.turns(socket);
        }
    }

    /// Bytes go there and back.
    fn turns(&mut self, socket: &Socket) {
        self.looked = None;
        self.left = INTERVAL;
        self.free(socket);
    }

    #[cold]
    fn look(&mut self, socket: &Socket, now: Instant) {
        self.left = INTERVAL;
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
                // It works without, as fast as the kernel has it.
                tracing::debug!(%error, "the window cannot be set");
                State::Kernel
            }
        };
    }
}

/// The window in bytes, where segments have so many.
fn window_of(mss: u32) -> u32 {
    let mss = mss.max(1);
    WINDOW.div_ceil(mss) * mss
}

/// Whether bytes between these addresses stay on this host, as far as the addresses alone tell. No packet from or to a
/// loopback address leaves it.
pub(super) fn is_same_host(local: SocketAddr, peer: SocketAddr) -> bool {
    local.ip() == peer.ip() || local.ip().is_loopback() || peer.ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::{Llp, Network as _, Piece, Recv, SendHints};

    /// Sends so many bytes from the one end to the other.
    fn pass(from: &mut dyn Llp, to: &mut dyn Llp, octets: u64) {
        let octets = usize::try_from(octets).unwrap();
        let (source, mut sink) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        let (mut sent, mut received) = (0, 0);
        let began = Instant::now();
        while received < octets {
            assert!(
                began.elapsed() < Duration::from_secs(300),
                "hangs at {received}"
            );
            if sent < octets {
                let some = &source[..source.len().min(octets - sent)];
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

    /// The end that connected, and the one that accepted.
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

    /// What the window is bounded to: whole segments of the peer, two on a loopback device as it comes.
    fn segments(end: &dyn Llp) -> u32 {
        window_of(raw::received_mss(end.fd()).unwrap())
    }

    /// A stream, until the window is bounded. How fast it is depends on the machine, and on what else it does: some part of this one will be fast
    /// enough.
    fn stream(from: &mut dyn Llp, to: &mut dyn Llp) {
        let is_bounded = (0..500).any(|_| {
            pass(from, to, INTERVAL);
            raw::window_clamp(to.fd()) == Ok(segments(to))
        });
        assert!(is_bounded);
    }

    /// The window of the end that something was passed to, after two looks that were a stream's, and when the first one was.
    fn bounded(from: &mut dyn Llp, to: &mut dyn Llp) -> (LoopbackWindow, Instant) {
        pass(from, to, INTERVAL);
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
            // Requests, say. The segments that the receiver itself could send have nothing to do with it.
            pass(&mut *to, &mut *from, 1000);
            pass(&mut *from, &mut *to, INTERVAL);
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
    fn the_window_is_free_again_when_octets_are_late_and_after_an_answer() {
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
        // What counts begins behind the answer.
        window.look(socket, late + STREAM);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        assert_eq!(window.left, INTERVAL);
    }

    #[test]
    fn the_octets_of_a_connection_are_counted_until_it_is_time_for_a_look() {
        let [client, server] = connection();
        let fd = server.fd();
        let socket = &socket2::SockRef::from(&fd);
        let mut window = LoopbackWindow::between(server.local_addr(), client.local_addr());
        window.received(socket, 1);
        window.received(socket, INTERVAL as usize - 1);
        assert_eq!((window.left, window.looked), (0, None));
        window.received(socket, 1);
        assert_eq!(window.left, INTERVAL);
        assert!(window.looked.is_some());
        window.received(socket, 1);
        window.sent(socket, ANSWER);
        assert_eq!((window.left, window.looked), (INTERVAL, None));
    }

    #[test]
    fn the_window_is_free_for_short_answers_and_bounded_for_one_that_is_a_stream() {
        let [mut from, mut to] = connection();
        let (mut window, _) = bounded(&mut *from, &mut *to);
        let fd = to.fd();
        let socket = &socket2::SockRef::from(&fd);
        // The looks were at the answer to what was asked before.
        window.asked(socket);
        assert_eq!(raw::window_clamp(fd), Ok(segments(&*to)));
        window.received(socket, INTERVAL as usize);
        window.asked(socket);
        assert_eq!(raw::window_clamp(fd), Ok(FREE));
        // No number of short ones is a stream.
        for _ in 0..3 {
            window.received(socket, INTERVAL as usize);
            window.asked(socket);
        }
        assert_eq!((window.left, window.looked), (INTERVAL, None));
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
        // The first one comes behind a stream.
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
        let near = |local: &str, peer: &str| {
            is_same_host(
                SocketAddr::new(local.parse().unwrap(), 1),
                SocketAddr::new(peer.parse().unwrap(), 2),
            )
        };
        assert!(near("127.0.0.1", "127.0.0.1"));
        assert!(near("127.0.0.1", "127.0.0.2"));
        assert!(near("::1", "::1"));
        assert!(near("192.0.2.1", "192.0.2.1"));
        assert!(!near("192.0.2.1", "192.0.2.2"));
        assert!(!near("2001:db8::1", "2001:db8::2"));
    }
}
