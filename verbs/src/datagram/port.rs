//! The UDP port of a rendezvous: datagrams for the QPs whose numbers begin with it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_engine::datagram::{HEADER, Header, MAX_PAYLOAD};
use uwarp_llp::{DatagramSocket, LlpError};

use crate::connection::inner::QpInner;
use crate::device::{DeviceError, DeviceInner};
use crate::policy::transfer::{DATAGRAM_WAIT, DATAGRAMS_PER_POLL, DATAGRAMS_PER_TURN};
use crate::policy::{Heuristic, is_on};
use crate::progress::background::{Interest, Source, Verdict};
use crate::progress::poll_owner::{PollOwner, Registration};

/// The QPs of a rendezvous, by their numbers.
pub(crate) trait QpDirectory: Send + Sync {
    /// Returns the QP of this number.
    fn qp(&self, number: u32) -> Option<Arc<QpInner>>;
}

/// A UDP port that receives for the QPs of a rendezvous.
///
/// Polls of the CQs of these QPs receive. If there are none, the background does, as for a
/// connection. A datagram that no QP takes is dropped.
///
/// The lock of the buffer is taken before that of a QP, and no thread waits for it.
pub(crate) struct DatagramPort {
    device: Arc<DeviceInner>,
    rendezvous: Weak<dyn QpDirectory>,
    socket: Box<dyn DatagramSocket>,
    any_source: bool,
    /// Time of the last poll, in nanoseconds of the device's clock; 0 if no thread polls.
    polled_at: AtomicU64,
    /// Bytes of the datagram that is received. One byte longer than the longest, so that a longer
    /// one is noticed.
    buffer: Mutex<Box<[u8]>>,
    registration: Mutex<Registration>,
}

impl DatagramPort {
    /// Begins to receive from a socket.
    pub(crate) fn open(
        device: &Arc<DeviceInner>,
        rendezvous: Weak<dyn QpDirectory>,
        socket: Box<dyn DatagramSocket>,
        any_source: bool,
    ) -> Result<Arc<DatagramPort>, DeviceError> {
        let token = device.background.token();
        let port = Arc::new(DatagramPort {
            device: Arc::clone(device),
            rendezvous,
            socket,
            any_source,
            polled_at: AtomicU64::new(0),
            buffer: Mutex::new(vec![0; HEADER + MAX_PAYLOAD + 1].into_boxed_slice()),
            registration: Mutex::new(Registration::new(token)),
        });
        let weak: Weak<DatagramPort> = Arc::downgrade(&port);
        device
            .background
            .register(token, weak, port.socket.fd())
            .map_err(|errno| DeviceError::System {
                op: "watch a port for datagrams",
                error: errno.into(),
            })?;
        port.arm();
        Ok(port)
    }

    /// Sends a datagram. Waits a moment if the system has no room for it, as a network adapter
    /// sends no faster than its link. The datagram is lost if it cannot be sent then. Returns false
    /// if there was no room. `waits`: whether to wait.
    pub(crate) fn send(&self, bytes: &[u8], header: &Header, to: SocketAddr, waits: bool) -> bool {
        let limit = if waits { DATAGRAM_WAIT } else { Duration::ZERO };
        // With manual progress no call sleeps.
        let limit = self.device.patience(Some(limit)).unwrap_or(limit);
        match send_within(&*self.socket, (bytes, header.from, to), limit) {
            Ok(true) => {
                self.device.traffic.sent(bytes.len());
                true
            }
            Ok(false) => {
                tracing::debug!(%to, "a datagram is dropped: no room");
                false
            }
            Err(error) => {
                tracing::debug!(%to, %error, "a datagram is dropped");
                true
            }
        }
    }

    /// Receives on behalf of a polling thread, unless another thread does. `stays`: the thread will
    /// poll again, and is not about to sleep. Returns true if datagrams were received.
    pub(crate) fn poll(&self, now: Instant, stays: bool) -> bool {
        if stays {
            self.polled_at
                .store(self.device.clock(now), Ordering::Relaxed);
        }
        match self.buffer.try_lock() {
            Some(mut buffer) => self.receive(&mut buffer, DATAGRAMS_PER_POLL),
            None => false,
        }
    }

    /// Makes the background take over at once, because a thread is about to sleep.
    pub(crate) fn hand_over(&self) {
        self.polled_at.store(0, Ordering::Relaxed);
        if let Some(mut buffer) = self.buffer.try_lock() {
            self.receive(&mut buffer, DATAGRAMS_PER_TURN);
        }
        if self.registration.lock().owner == PollOwner::Watched {
            self.arm();
        }
    }

    fn arm(&self) {
        let mut registration = self.registration.lock();
        registration.arm(&self.device.background, self.socket.fd(), Interest::Read);
    }

    /// Returns true if a thread polled less than `Settings::takeover` ago.
    fn is_polled(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let takeover = self.device.settings.takeover.as_nanos();
        polled_at != 0 && u128::from(self.device.clock(now).saturating_sub(polled_at)) < takeover
    }

    /// Receives up to `most` datagrams. Returns true if there were some.
    fn receive(&self, buffer: &mut [u8], most: u32) -> bool {
        for number in 0..most {
            match self.socket.try_recv(buffer) {
                Ok(Some((len, from))) => {
                    self.device.traffic.received(len);
                    let bytes = buffer.get(..len).unwrap_or_default();
                    if let Err(why) = self.deliver(bytes, from) {
                        tracing::debug!(%from, why, "a datagram is dropped");
                    }
                }
                Ok(None) => return number > 0,
                Err(error) => {
                    tracing::debug!(%error, "no datagram can be received");
                    return number > 0;
                }
            }
        }
        true
    }

    /// Gives a datagram to its QP. Returns the reason why it is dropped.
    fn deliver(&self, bytes: &[u8], from: SocketAddr) -> Result<(), &'static str> {
        let (header, payload) = Header::parse(bytes).ok_or("it is none of a queue pair")?;
        // A queue pair sends from its own port, which no other process of its host can have.
        let is_its_own =
            header.from == from.ip().to_canonical() && header.source >> 8 == u32::from(from.port());
        if !self.any_source && !is_its_own {
            return Err("it comes from another address or port than it says");
        }
        let rendezvous = self.rendezvous.upgrade();
        let qp = rendezvous.and_then(|rendezvous| rendezvous.qp(header.destination));
        let qp = qp.ok_or("no queue pair has this number")?;
        qp.receive_datagram(&header, payload)
    }
}

/// Sends a datagram from an address to another. If there is no room, waits for it, once and for at
/// most this long. Returns false if there was none.
fn send_within(
    socket: &dyn DatagramSocket,
    (bytes, from, to): (&[u8], IpAddr, SocketAddr),
    limit: Duration,
) -> Result<bool, LlpError> {
    if socket.try_send(bytes, from, to)? {
        return Ok(true);
    }
    let limit = Timespec::try_from(limit).ok();
    let fd = socket.fd();
    let mut ready = [PollFd::new(&fd, PollFlags::OUT)];
    // After a signal the datagram is tried all the same.
    let _ = poll(&mut ready, limit.as_ref());
    socket.try_send(bytes, from, to)
}

impl Source for DatagramPort {
    fn attend(&self, now: Instant) -> Verdict {
        let mut registration = self.registration.lock();
        registration.drop_expired_timers(now);
        let buffer = match is_on(Heuristic::StandBack) && self.is_polled(now) {
            true => None,
            false => self.buffer.try_lock(),
        };
        let Some(mut buffer) = buffer else {
            // A polling thread receives. If polling stops first, the background does at a later
            // check.
            registration.fired_while_polled();
            return Verdict::Watch;
        };
        drop(registration);
        self.receive(&mut buffer, DATAGRAMS_PER_TURN);
        drop(buffer);
        self.arm();
        Verdict::Settled
    }
}

impl Drop for DatagramPort {
    fn drop(&mut self) {
        // In the child of a fork, the parent's port stays as it is.
        if self.device.is_here() {
            let registration = self.registration.get_mut();
            self.device.background.forget_fd(self.socket.fd());
            self.device.background.forget(registration.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixDatagram;
    use std::thread;

    use super::*;

    /// A socket with little room: that of the peer's queue, which is some datagrams.
    struct Narrow(UnixDatagram);

    impl DatagramSocket for Narrow {
        fn try_send(&self, bytes: &[u8], _: IpAddr, _: SocketAddr) -> Result<bool, LlpError> {
            match self.0.send(bytes) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(LlpError::from_io("send", self.local_addr(), error)),
            }
        }

        fn try_recv(&self, _: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, LlpError> {
            Ok(None)
        }

        fn local_addr(&self) -> SocketAddr {
            ([127, 0, 0, 1], 9).into()
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    fn narrow() -> (Narrow, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Narrow(near), far)
    }

    #[test]
    fn a_send_waits_for_room_in_a_full_socket() {
        const COUNT: u32 = 5000;
        let (socket, far) = narrow();
        let addr = socket.local_addr();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4];
            for number in 0..COUNT {
                far.recv(&mut bytes).unwrap();
                assert_eq!(u32::from_ne_bytes(bytes), number);
            }
        });
        let mut waits = 0;
        for number in 0..COUNT {
            let what = (&number.to_ne_bytes()[..], addr.ip(), addr);
            if !socket.try_send(what.0, what.1, what.2).unwrap() {
                waits += 1;
                let long = Duration::from_secs(60);
                assert!(send_within(&socket, what, long).unwrap(), "{number}");
            }
        }
        reader.join().unwrap();
        assert!(waits > 0);
    }

    #[test]
    fn a_socket_that_stays_full_loses_the_datagram() {
        let (socket, _far) = narrow();
        let addr = socket.local_addr();
        let what = (&b"x"[..], addr.ip(), addr);
        let long = Duration::from_millis(1);
        let taken = (0..100_000).take_while(|_| send_within(&socket, what, long).unwrap());
        assert!(taken.count() < 100_000);
        assert!(!send_within(&socket, what, Duration::ZERO).unwrap());
    }
}
