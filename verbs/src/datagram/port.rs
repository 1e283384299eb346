//! The UDP port of a rendezvous: datagrams for the QPs whose numbers begin with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_llp::DatagramSocket;

use super::format::{HEADER, Header, MAX_PAYLOAD};
use crate::device::{DeviceError, DeviceInner};
use crate::progress::background::{Interest, Source, Verdict};
use crate::progress::poll_owner::{PollOwner, Registration};
use crate::rendezvous::RendezvousInner;

/// Maximum number of datagrams that one poll receives, so that its thread gets its completions.
const PER_POLL: u32 = 32;
/// Maximum number of datagrams that the background receives in one turn, so that other sources get
/// turns, too.
const PER_TURN: u32 = 256;

/// A UDP port that receives for the QPs of a rendezvous.
///
/// Polls of the CQs of these QPs receive. If there are none, the background does, as for a
/// connection. A datagram that no QP takes is dropped.
///
/// The lock of the buffer is taken before that of a QP, and no thread waits for it.
pub(crate) struct DatagramPort {
    device: Arc<DeviceInner>,
    rendezvous: Weak<RendezvousInner>,
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
        rendezvous: Weak<RendezvousInner>,
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

    /// Sends a datagram. It is lost if the system cannot send it now.
    pub(crate) fn send(&self, bytes: &[u8], header: &Header, to: std::net::SocketAddr) {
        match self.socket.try_send(bytes, header.from, to) {
            Ok(true) => {}
            Ok(false) => tracing::trace!(%to, "a datagram is dropped: no room"),
            Err(error) => tracing::debug!(%to, %error, "a datagram is dropped"),
        }
    }

    /// Receives on behalf of a polling thread, unless another thread does. `stays`: the thread will
    /// poll again, and is not about to sleep.
    pub(crate) fn poll(&self, now: Instant, stays: bool) {
        if stays {
            self.polled_at
                .store(self.device.clock(now), Ordering::Relaxed);
        }
        if let Some(mut buffer) = self.buffer.try_lock() {
            self.receive(&mut buffer, PER_POLL);
        }
    }

    /// Makes the background take over at once, because a thread is about to sleep.
    pub(crate) fn hand_over(&self) {
        self.polled_at.store(0, Ordering::Relaxed);
        if let Some(mut buffer) = self.buffer.try_lock() {
            self.receive(&mut buffer, PER_TURN);
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

    /// Receives up to `most` datagrams.
    fn receive(&self, buffer: &mut [u8], most: u32) {
        for _ in 0..most {
            match self.socket.try_recv(buffer) {
                Ok(Some((len, from))) => {
                    let bytes = buffer.get(..len).unwrap_or_default();
                    if let Err(why) = self.deliver(bytes, from) {
                        tracing::debug!(%from, why, "a datagram is dropped");
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "no datagram can be received");
                    return;
                }
            }
        }
    }

    /// Gives a datagram to its QP. Returns the reason why it is dropped.
    fn deliver(&self, bytes: &[u8], from: std::net::SocketAddr) -> Result<(), &'static str> {
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

impl Source for DatagramPort {
    fn attend(&self, now: Instant) -> Verdict {
        let mut registration = self.registration.lock();
        registration.drop_expired_timers(now);
        let buffer = match self.is_polled(now) {
            true => None,
            false => self.buffer.try_lock(),
        };
        let Some(mut buffer) = buffer else {
            // A polling thread receives. If polling stops first, the background does at a later
            // check.
            registration.fired_while_polled(&self.device.background, self.socket.fd());
            return Verdict::Watch;
        };
        drop(registration);
        self.receive(&mut buffer, PER_TURN);
        drop(buffer);
        self.arm();
        Verdict::Settled
    }
}

impl Drop for DatagramPort {
    fn drop(&mut self) {
        // In the child of a fork, the parent's port stays as it is.
        if self.device.fork_guard.is_here() {
            let registration = self.registration.get_mut();
            self.device.background.forget_fd(self.socket.fd());
            self.device.background.forget(registration.token);
        }
    }
}
