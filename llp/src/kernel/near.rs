//! The window of connections between processes of one host.
//!
//! Left to itself, the kernel lets it grow to many megabytes. Over the loopback device that makes large messages slower: each segment
//! that a sender hands to its kernel is delivered within the same call, the receiver that polls takes it at once and alone, and what that
//! costs for each segment and read is spent on each of them. With a window of two segments what a call has copied leaves when
//! acknowledgements are looked at, behind it, all together; the receiver finds many segments at once, and those acknowledgements that it sends
//! itself do a part of the sender's work on the receiver's processor.
//!
//! Only what is offered at a time is bounded, not what the kernel keeps until it is read, so a window does not close while a receiver is busy:
//! a receive buffer as small as that does (SO_RCVBUF), and for large Reads it gains less.
//!
//! To another host a window that small would bound the throughput, so there the kernel chooses.

use std::net::SocketAddr;

use socket2::Socket;

use crate::raw;

/// Octets of a window, made whole segments. Two of them on a loopback device as it comes (65,483 octets each, 65,463 over IPv6): the kernel
/// acknowledges each second segment at once. A window with room for a part of a segment besides gets just that, a small segment each time.
const WINDOW: u32 = 128_000;
/// Octets received from one time that the window is bounded to the next. The kernel widens it again when it makes the receive buffer larger,
/// and when the first whole segments arrive; the call takes less than a thousandth of the time of so many octets.
const INTERVAL: usize = 4 << 20;

/// What is known of the window of a connection.
#[derive(Debug)]
pub(super) struct Window {
    /// Octets to receive until it is bounded (again): more than there will be where the peer is another host.
    left: usize,
}

impl Window {
    /// Of a connection between these addresses.
    pub(super) fn between(local: SocketAddr, peer: SocketAddr) -> Self {
        let left = if is_near(local, peer) {
            INTERVAL
        } else {
            usize::MAX
        };
        Self { left }
    }

    /// Takes in that so many octets were received.
    #[inline]
    pub(super) fn received(&mut self, socket: &Socket, octets: usize) {
        match self.left.checked_sub(octets) {
            Some(left) => self.left = left,
            None => self.bound(socket),
        }
    }

    #[cold]
    fn bound(&mut self, socket: &Socket) {
        let bounded = match socket.tcp_mss() {
            Ok(mss) => raw::clamp_window(socket, window_of(mss)).map_err(Into::into),
            Err(error) => Err(error),
        };
        self.left = match bounded {
            Ok(()) => INTERVAL,
            Err(error) => {
                // It works without, as fast as the kernel has it.
                tracing::debug!(%error, "the window cannot be bounded");
                usize::MAX
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
    use super::*;
    use crate::{FpduEnds, Llp, Network as _, Piece, Recv};

    /// Sends so many octets from the one end to the other.
    fn pass(from: &mut dyn Llp, to: &mut dyn Llp, octets: usize) {
        let (source, mut sink) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        let (mut sent, mut received) = (0, 0);
        while received < octets {
            if sent < octets {
                let some = &source[..source.len().min(octets - sent)];
                sent += from.try_send(&[Piece::from(some)], FpduEnds::NONE).unwrap();
            }
            match to.try_recv(&mut sink).unwrap() {
                Recv::Data(count) => received += count,
                Recv::WouldBlock => {}
                Recv::Closed => panic!("closed after {received} octets"),
            }
        }
    }

    #[test]
    fn the_window_within_a_host_is_two_segments_and_again_when_the_kernel_has_widened_it() {
        let network = crate::kernel::KernelNetwork::default();
        let mut listener = network.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let mut from = network.connect(None, listener.local_addr()).unwrap();
        let mut to = loop {
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        while !from.connect_progress().unwrap() {}
        for _ in 0..2 {
            let bound = window_of(socket2::SockRef::from(&to.fd()).tcp_mss().unwrap());
            for _ in 0..2 {
                raw::clamp_window(to.fd(), 1 << 20).unwrap();
                pass(&mut *from, &mut *to, INTERVAL);
                assert_ne!(raw::window_clamp(to.fd()), Ok(bound));
                pass(&mut *from, &mut *to, 1);
                assert_eq!(raw::window_clamp(to.fd()), Ok(bound));
            }
            // The end that connected, and then the one that accepted.
            std::mem::swap(&mut from, &mut to);
        }
    }

    #[test]
    fn to_another_host_the_kernel_chooses_the_window() {
        let to = |peer: &str| {
            Window::between("192.0.2.1:1".parse().unwrap(), peer.parse().unwrap()).left
        };
        assert_eq!(to("192.0.2.1:2"), INTERVAL);
        assert_eq!(to("192.0.2.2:2"), usize::MAX);
    }

    #[test]
    fn a_window_is_whole_segments() {
        assert_eq!(window_of(65_483), 2 * 65_483);
        assert_eq!(window_of(65_463), 2 * 65_463);
        assert_eq!(window_of(1448), 89 * 1448);
        // What the kernel says of a connection that is gone.
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
