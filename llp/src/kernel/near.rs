//! The window of connections between processes of one host.
//!
//! Left to itself, the kernel lets it grow to many megabytes. Over the loopback device that makes large messages slower: each segment is
//! delivered within the sender's call, and a receiver that polls reads it by itself, so that every segment pays for a read and every other one for
//! an acknowledgement. With a window of two segments what a call has copied mostly waits in the send queue, and leaves when
//! acknowledgements are processed: the receiver finds several segments for one read, and a part of the sending is done on its processor.
//! `docs/performance.md` has what was measured.
//!
//! Only what is offered at a time is bounded, not what the kernel keeps until it is read, so a receiver that is busy does not stop the
//! sender. (A receive buffer of some segments, by SO_RCVBUF, does, and gained less.)
//!
//! That is for octets that come one behind the other. A single large message, and what goes there and back, is slower by it (1 MiB by a tenth
//! to a fifth): its last segments wait for acknowledgements when the sender has nothing more to do. So the window is bounded after [`RUN`]
//! octets without a pause, and no longer after one.
//!
//! ```text
//!            RUN octets, without a pause
//!   free ────────────────────────────────► bounded ──┐
//!    ▲ ▲                                    │  ▲     │ INTERVAL octets:
//!    │ └──────────── a pause ───────────────┘  └─────┘ bounded again
//!    └─ a pause: the octets are counted anew
//! ```
//!
//! To another host a window that small would bound the throughput, so there the kernel chooses. What delays the loopback device itself, as
//! netem does, is not told from a fast one.

use std::net::SocketAddr;

use rustix::io::Errno;
use socket2::Socket;

use crate::raw;

/// Octets of a window, made whole segments: two of them on a loopback device as it comes (65,483 octets each, 65,464 over IPv6), because the kernel
/// acknowledges every second segment at once. What it offers is rounded up to what the window's scale can say.
const WINDOW: u32 = 128_000;
/// Octets received without a pause, after which the window is bounded.
const RUN: u64 = 2 << 20;
/// Octets received between two times that the window is bounded. The kernel widens it again when it makes the receive buffer larger,
/// and when the first whole segments arrive. The two calls take a thousandth or two of the time of so many octets.
const INTERVAL: u64 = 4 << 20;
/// So many reads in a row that find nothing are a pause: some 50 to 100 us of a program that polls. (Of one that sleeps it is not known how long.)
const VAIN: u32 = 256;
/// To send so many octets at once is a pause of what is received: it goes there and back.
const ANSWER: usize = 64 << 10;
/// No bound.
const FREE: u32 = 1 << 30;

/// What is known of the window of a connection.
#[derive(Debug)]
pub(super) struct Window {
    state: State,
    /// Octets to receive until it is bounded (again).
    left: u64,
    /// Reads in a row that found nothing.
    vain: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The kernel chooses it, for good.
    Kernel,
    Free,
    Bounded,
}

impl Window {
    /// Of a connection between these addresses.
    pub(super) fn between(local: SocketAddr, peer: SocketAddr) -> Self {
        let state = if is_near(local, peer) {
            State::Free
        } else {
            State::Kernel
        };
        Self {
            state,
            left: RUN,
            vain: 0,
        }
    }

    /// Takes in that so many octets were received.
    #[inline]
    pub(super) fn received(&mut self, socket: &Socket, octets: usize) {
        self.vain = 0;
        match self.left.checked_sub(octets as u64) {
            Some(left) => self.left = left,
            None => self.run(socket),
        }
    }

    /// Takes in that there was nothing to receive.
    #[inline]
    pub(super) fn nothing(&mut self, socket: &Socket) {
        self.vain = self.vain.saturating_add(1);
        if self.vain == VAIN {
            self.pause(socket);
        }
    }

    /// Takes in that so many octets were sent.
    #[inline]
    pub(super) fn sent(&mut self, socket: &Socket, octets: usize) {
        if octets >= ANSWER {
            self.pause(socket);
        }
    }

    #[cold]
    fn run(&mut self, socket: &Socket) {
        self.left = INTERVAL;
        if self.state != State::Kernel {
            let bounded =
                raw::received_mss(socket).and_then(|mss| raw::clamp_window(socket, window_of(mss)));
            self.now(State::Bounded, bounded);
        }
    }

    fn pause(&mut self, socket: &Socket) {
        self.left = RUN;
        if self.state == State::Bounded {
            let freed = raw::clamp_window(socket, FREE);
            self.now(State::Free, freed);
        }
    }

    fn now(&mut self, state: State, done: Result<(), Errno>) {
        self.state = match done {
            Ok(()) => state,
            Err(error) => {
                // It works without, as fast as the kernel has it.
                tracing::debug!(%error, "the window cannot be bounded");
                State::Kernel
            }
        };
    }
}

/// The window in octets, where segments have so many.
fn window_of(mss: u32) -> u32 {
    let mss = mss.max(1);
    WINDOW.div_ceil(mss) * mss
}

/// Whether octets between these addresses stay on this host.
fn is_near(local: SocketAddr, peer: SocketAddr) -> bool {
    local.ip() == peer.ip() || (local.ip().is_loopback() && peer.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::{FpduEnds, Llp, Network as _, Piece, Recv};

    /// Sends so many octets from the one end to the other.
    fn pass(from: &mut dyn Llp, to: &mut dyn Llp, octets: u64) {
        let octets = usize::try_from(octets).unwrap();
        let (source, mut sink) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        let (mut sent, mut received) = (0, 0);
        let began = Instant::now();
        while received < octets {
            assert!(began.elapsed() < Duration::from_secs(60), "{received}");
            if sent < octets {
                let some = &source[..source.len().min(octets - sent)];
                sent += from.try_send(&[Piece::from(some)], FpduEnds::NONE).unwrap();
            }
            match to.try_recv(&mut sink).unwrap() {
                Recv::Data(count) => received += count,
                Recv::WouldBlock => {
                    // Not by reading: that is what counts as a pause.
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
                Recv::Closed => panic!("closed after {received} octets"),
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
        let segment = raw::received_mss(end.fd()).unwrap();
        WINDOW.div_ceil(segment) * segment
    }

    #[test]
    fn the_window_within_a_host_is_two_segments_in_a_run_and_again_when_the_kernel_has_widened_it()
    {
        let [client, server] = connection();
        let [another_client, another_server] = connection();
        for [mut from, mut to] in [[client, server], [another_server, another_client]] {
            // Requests, say. The segments that the receiver itself could send have nothing to do with it.
            pass(&mut *to, &mut *from, 1000);
            for octets in [RUN, INTERVAL, INTERVAL] {
                raw::clamp_window(to.fd(), 1 << 20).unwrap();
                pass(&mut *from, &mut *to, octets - 1);
                assert!(raw::window_clamp(to.fd()).unwrap() > 1 << 18);
                // The counts of a run begin behind the octet that ended the one before.
                pass(&mut *from, &mut *to, 2);
                assert_eq!(raw::window_clamp(to.fd()), Ok(segments(&*to)));
            }
        }
    }

    #[test]
    fn the_window_is_free_again_after_a_pause_and_after_an_answer() {
        let [mut from, mut to] = connection();
        for answer in [false, true] {
            pass(&mut *from, &mut *to, RUN + 1);
            assert_eq!(raw::window_clamp(to.fd()), Ok(segments(&*to)));
            if answer {
                pass(&mut *to, &mut *from, ANSWER as u64);
            } else {
                for _ in 0..VAIN {
                    assert_eq!(to.try_recv(&mut [0]), Ok(Recv::WouldBlock));
                }
            }
            assert_eq!(raw::window_clamp(to.fd()), Ok(FREE));
            // The run is counted from the pause on.
            pass(&mut *from, &mut *to, RUN);
            assert!(raw::window_clamp(to.fd()).unwrap() > segments(&*to));
            pass(&mut *to, &mut *from, ANSWER as u64);
        }
    }

    #[test]
    fn to_another_host_the_kernel_chooses_the_window() {
        let to =
            |peer: &str| Window::between("192.0.2.1:1".parse().unwrap(), peer.parse().unwrap());
        assert_eq!(to("192.0.2.1:2").state, State::Free);
        let [client, server] = connection();
        drop(server);
        let fd = client.fd();
        let socket = &socket2::SockRef::from(&fd);
        let before = raw::window_clamp(client.fd());
        let mut window = to("192.0.2.2:2");
        window.received(socket, usize::MAX);
        assert_eq!(raw::window_clamp(client.fd()), before);
        window.sent(socket, ANSWER);
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
            is_near(
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
