//! Completion queues of the public API: poll, arm, wait.

mod members;
mod ports;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::PollFd;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::times::after;

use self::members::{Driven, Members};
use self::ports::Ports;
use crate::clock::machine_now;
use crate::completion::{Completion, CompletionChannel, CqInner, Notify, ResizeCqError};
use crate::connection::inner::QpInner;
use crate::datagram::port::DatagramPort;
use crate::device::{Device, DeviceError, DeviceInner, check_size};
use crate::event_queue::EventQueue;
use crate::policy::progress::{
    GROUP_HITS, NO_DESCRIPTOR, REPLY_ATTEMPTS, REPLY_WAIT, REPLY_WAIT_ALONE, REPLY_YIELDS,
};
use crate::policy::{Heuristic, is_on};
use crate::progress::reply_wait::ReplyWait;
use crate::wait::sleep_on;
use uwarp_engine::event::{AsyncEvent, EventObject};
use uwarp_engine::limits::{Number, Place};

/// A CQ with the QPs that complete to it.
pub(crate) struct CqShared {
    pub(crate) inner: Arc<CqInner>,
    device: Arc<DeviceInner>,
    /// Receives the asynchronous events of the CQ.
    events: Arc<EventQueue>,
    members: Members,
    /// Ports that receive datagrams for its QPs.
    ports: Ports,
    /// Polls that found completions, modulo 2^32. Counted only for a CQ with groups.
    hits: AtomicU32,
    /// Decides whether polls wait briefly for the peer's reply.
    reply: ReplyWait,
    /// Scratch space of sleeping threads, kept for the next sleep so that it does not allocate. The
    /// list is as long as the largest number of threads that slept at the same time. The lock
    /// guards nothing else.
    sleepers: Mutex<Vec<Sleeper>>,
    /// Place and number of this CQ in the device.
    _place: (Place, Number),
}

/// Scratch space of a thread that sleeps on a CQ. Empty while unused.
#[derive(Default)]
struct Sleeper {
    /// Connections that the thread waits for.
    waiting: Vec<Arc<QpInner>>,
    /// Descriptors of the CQ and of these connections.
    fds: Vec<RawFd>,
    /// The same descriptors, in the kernel's form.
    set: Vec<PollFd<'static>>,
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if !self.device.is_here() {
            // Dropping `inner` would remove events from a channel that the parent reads.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

impl CqShared {
    pub(crate) fn new(
        inner: Arc<CqInner>,
        device: Arc<DeviceInner>,
        events: Arc<EventQueue>,
        place: (Place, Number),
    ) -> Self {
        CqShared {
            inner,
            device,
            events,
            members: Members::default(),
            ports: Ports::default(),
            hits: AtomicU32::new(0),
            reply: ReplyWait::default(),
            sleepers: Mutex::default(),
            _place: place,
        }
    }

    pub(crate) fn attach(&self, qp: &Arc<QpInner>) {
        self.members.attach(&self.device, qp);
        if let Some(port) = qp.datagrams() {
            self.ports.attach(port);
        }
    }

    pub(crate) fn detach(&self, qp: &QpInner) {
        self.members.detach(qp);
        if let Some(port) = qp.datagrams() {
            self.ports.detach(port);
        }
    }

    /// Gives a turn to every connection of this CQ, or to those of its groups that are ready.
    /// Returns the current time, or `None` if there is neither a connection nor a port.
    fn drive(&self) -> Option<Instant> {
        let polled = self.ports.any().then(|| {
            let now = self.device.now();
            let stays = !self.inner.is_armed();
            let mut received = false;
            self.ports.each(|port| received |= port.poll(now, stays));
            // Datagrams may have taken a while.
            if received { self.device.now() } else { now }
        });
        if let Some(few) = self.members.few() {
            if few.iter().all(Option::is_none) {
                return polled;
            }
            let now = polled.unwrap_or_else(|| self.device.now());
            let stays = !self.inner.is_armed();
            // Each reference is released after the connection's turn.
            for qp in few.into_iter().flatten() {
                qp.poll(now, stays);
            }
            return Some(now);
        }
        let driven = self.members.driven();
        if matches!(&driven, Driven::Each(qps) if qps.is_empty()) {
            return polled;
        }
        let now = polled.unwrap_or_else(|| self.device.now());
        // A program that has armed its CQ and polls once more is about to sleep.
        let stays = !self.inner.is_armed();
        match driven {
            Driven::Each(qps) => {
                for qp in qps.iter().filter_map(Weak::upgrade) {
                    qp.poll(now, stays);
                }
            }
            Driven::Groups(groups) => groups.iter().for_each(|group| group.poll(now, stays)),
        }
        Some(now)
    }

    /// Records that the background received bytes for a connection of this CQ. If they completed
    /// nothing, the program may be watching memory. `polls`: the poll count before the receive. If
    /// it has changed, another thread may have taken the completions.
    pub(crate) fn received_unseen(&self, polls: u32) {
        if self.inner.is_empty() && !self.inner.is_armed() && self.inner.polls() == polls {
            self.reply.sign(polls);
        }
    }

    /// Returns true if polls wait briefly for the peer's reply.
    #[cfg(test)]
    pub(crate) fn expects_reply(&self) -> bool {
        self.reply.is_expected()
    }

    /// Waits briefly for bytes of the peer: the program has its completion and probably reads
    /// memory next. The wait also ends if another thread receives bytes. The count then differs
    /// from `unseen`.
    #[cold]
    fn await_reply(&self, unseen: u32) {
        let Driven::Each(qps) = self.members.driven() else {
            return self.reply.missed();
        };
        let look = |now| {
            let mut received = false;
            for qp in qps.iter().filter_map(Weak::upgrade) {
                received |= qp.poll(now, true);
            }
            received || !self.inner.is_empty() || self.reply.unseen() != unseen
        };
        let mut began = self.device.now();
        let mut yields = 0;
        for _ in 0..REPLY_ATTEMPTS {
            let now = self.device.now();
            if look(now) {
                return self.reply.answered();
            }
            let waited = now.saturating_duration_since(began);
            if waited >= REPLY_WAIT {
                break;
            }
            if waited >= REPLY_WAIT_ALONE {
                yields += 1;
                if yields > REPLY_YIELDS {
                    break;
                }
                // The peer may need this processor. Time in which other threads run does not count
                // as waiting for the peer.
                std::thread::yield_now();
                began += self.device.now().saturating_duration_since(now);
            }
        }
        self.reply.missed();
    }

    /// Raises an event of this CQ.
    pub(crate) fn tell(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Counts a poll that found completions. With groups, every `GROUP_HITS`-th one drives the
    /// connections.
    fn record_hit(&self) {
        if is_on(Heuristic::BusyPolls)
            && self.members.driven_by_groups()
            && self.hits.fetch_add(1, Ordering::Relaxed) % GROUP_HITS == GROUP_HITS - 1
        {
            self.drive();
        }
    }

    /// Polls as [`Cq::poll`] describes. `stays`: the thread will poll again, and is not about to
    /// sleep.
    fn poll(&self, out: &mut [Completion], stays: bool) -> usize {
        let unseen = self.reply.unseen();
        let mut taken = self.inner.poll(out);
        if taken > 0 {
            self.record_hit();
        } else if out.is_empty() {
            return 0;
        } else {
            let now = self.drive();
            taken = self.inner.poll(out);
            if taken == 0 && stays && !self.inner.is_armed() {
                let now = now.unwrap_or_else(|| self.device.now());
                self.device.orphans.poll(&self.device, now);
            }
        }
        let is_last = || self.inner.is_empty() && !self.inner.is_armed();
        if taken > 0 && stays && self.reply.is_expected() && is_last() {
            self.await_reply(unseen);
        }
        taken
    }

    /// Sleeps once on the descriptors of this CQ and of its connections. Returns the number of
    /// completions taken.
    fn sleep(&self, out: &mut [Completion], deadline: Option<Instant>) -> usize {
        let Ok(guard) = self.inner.wait_guard() else {
            // The process has no descriptor left. The background drives the connections, and this
            // thread checks again soon.
            std::thread::sleep(NO_DESCRIPTOR);
            return 0;
        };
        let mut sleeper = self.sleepers.lock().pop().unwrap_or_default();
        let Sleeper { waiting, fds, set } = &mut sleeper;
        let mut until = deadline;
        fds.push(guard.fd().as_raw_fd());
        let driven = self.members.driven();
        match &driven {
            Driven::Each(qps) => {
                for qp in qps.iter().filter_map(Weak::upgrade) {
                    let begun = qp.wait_begins(|fd, due| {
                        fds.push(fd);
                        until = match (until, due) {
                            (Some(a), Some(b)) => Some(a.min(b)),
                            (a, b) => a.or(b),
                        };
                    });
                    if begun {
                        waiting.push(qp);
                    }
                }
            }
            Driven::Groups(groups) => fds.extend(groups.iter().map(|group| group.wait_begins())),
        }
        // The background receives datagrams while this thread sleeps.
        self.ports.each(DatagramPort::hand_over);
        // Another thread, or a connection's turn in `wait_begins`, may have completed something.
        let mut taken = self.inner.poll(out);
        let woken = taken > 0 || {
            // SAFETY: the first descriptor belongs to `guard`. The others belong to the groups in
            // `driven`, or to connections. A connection keeps its descriptor open from
            // `wait_begins` to `wait_ends`, even if the connection ends.
            #[expect(unsafe_code, reason = "see the safety comment")]
            unsafe {
                sleep_on(fds, set, until)
            }
        };
        if woken {
            guard.clear();
            taken += self.inner.poll(&mut out[taken..]);
        }
        fds.clear();
        // The guard is dropped first, so that completions in this thread's own turns do not wake
        // its next sleep.
        drop(guard);
        for qp in waiting.drain(..) {
            qp.wait_ends();
        }
        if let Driven::Groups(groups) = &driven {
            groups.iter().for_each(|group| group.wait_ends());
        }
        self.sleepers.lock().push(sleeper);
        if taken == 0 {
            taken = self.inner.poll(out);
        }
        taken
    }
}

/// Error of destroying a CQ (`ibv_destroy_cq`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyCqError {
    /// QPs still complete to it.
    #[error("the completion queue is in use by {qps} queue pairs; drop those first")]
    InUse {
        /// Number of QPs.
        qps: usize,
    },
    /// Completion events were taken from the channel and not acknowledged.
    #[error(
        "{events} events of the completion queue are not acknowledged; drop them, or call ack_events"
    )]
    Unacknowledged {
        /// Number of events.
        events: u64,
    },
    /// Asynchronous events of the CQ were taken from the device and not acknowledged.
    #[error("{events} asynchronous events of the completion queue are not acknowledged; drop them")]
    UnacknowledgedAsync {
        /// Number of events.
        events: u64,
    },
}

/// A completion queue (`ibv_cq`, `ibv_create_cq`, `ibv_poll_cq`). RFC 5040 section 5.5 defines when
/// and in which order work requests complete.
///
/// A CQ never overflows if its depth is at least the sum of all queues that complete to it:
/// `max_send_wr` and `max_recv_wr` of each QP, and `max_wr` of each SRQ that these QPs use. A queue
/// accepts no more requests than it has free places, and a place is free again when the completion
/// has been polled. A destroyed queue counts until its completions have been polled.
///
/// A completion that finds the CQ full is lost, and the CQ is then in error. One
/// [`AsyncEvent::CqOverflow`] reports this. The CQ accepts no further completions, so that the
/// polled ones have no gap. Those it already holds can still be polled. A QP that has something to
/// complete to it ends with [`EndReason::CqOverflow`](crate::EndReason::CqOverflow).
///
/// Clones are handles to the same queue.
#[derive(Clone)]
pub struct Cq {
    shared: ForkGuarded<Arc<CqShared>>,
}

impl Device {
    /// Creates a completion queue for `depth` completions, without a channel (`ibv_create_cq`).
    ///
    /// # Errors
    /// [`DeviceError::Size`] if the depth is out of range, [`DeviceError::Limit`] if too many CQs
    /// exist, or [`DeviceError::System`] if there is no memory.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, DeviceError> {
        self.make_cq(depth, None, 0)
    }

    /// Creates a completion queue whose events go to `channel` (`ibv_create_cq` with a channel).
    /// `context` is a number of the consumer's choice.
    ///
    /// # Errors
    /// See [`Device::create_cq`].
    pub fn create_cq_on(
        &self,
        depth: u32,
        channel: &CompletionChannel,
        context: u64,
    ) -> Result<Cq, DeviceError> {
        channel.check()?;
        if self.inner()?.background.is_manual() {
            channel.mark_manual();
        }
        self.make_cq(depth, Some(channel.clone()), context)
    }

    fn make_cq(
        &self,
        depth: u32,
        channel: Option<CompletionChannel>,
        context: u64,
    ) -> Result<Cq, DeviceError> {
        let device = self.inner()?;
        let limits = &device.settings.limits;
        // 5040-8.1.2-05
        check_size("the depth of the CQ", depth, 1, limits.max_cqe)?;
        let taken = device.take_cq()?;
        let inner = CqInner::new(taken.1.get(), context, depth as usize, channel);
        let inner = inner.map_err(|error| DeviceError::System {
            op: "reserve memory for the completions of a CQ",
            error: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error),
        })?;
        Ok(Cq::new(Arc::new(CqShared::new(
            inner,
            Arc::clone(device),
            Arc::clone(self.events()),
            taken,
        ))))
    }
}

impl Cq {
    pub(crate) fn new(shared: Arc<CqShared>) -> Self {
        Cq {
            shared: ForkGuarded::new(shared),
        }
    }

    pub(crate) fn shared(&self) -> Result<&Arc<CqShared>, Inherited> {
        self.shared.get()
    }

    /// Maximum number of completions (`ibv_cq.cqe`); 0 in the child of a fork.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared
            .here()
            .map_or(0, |shared| shared.inner.capacity())
    }

    /// Takes up to `out.len()` completions, oldest first, and returns their number (`ibv_poll_cq`).
    /// If the CQ is empty, it first gives its connections a turn: a polling thread drives them. In
    /// the child of a fork there are no completions.
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        self.shared
            .here()
            .map_or(0, |shared| shared.poll(out, true))
    }

    /// Takes completions like [`Cq::poll`], but gives no connection a turn. Use it for more
    /// completions after a poll that found some.
    pub fn poll_more(&self, out: &mut [Completion]) -> usize {
        self.shared
            .here()
            .map_or(0, |shared| shared.inner.poll(out))
    }

    /// Takes one completion, if there is one, like [`Cq::poll`] with one entry.
    #[must_use]
    pub fn poll_one(&self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then(|| one[0])
    }

    /// Arms the CQ: the next completion sends one event to the completion channel
    /// (`ibv_req_notify_cq`). Completions that are already in the queue send none.
    ///
    /// Returns true if completions are in the queue already: poll them, because they send no event.
    /// Returns false if there were none. It is then safe to sleep, because the next completion of
    /// this kind sends an event. No completion is missed: one before the arming makes the result
    /// true, and one after the arming sends the event.
    ///
    /// After the arming, the calling thread receives the data that has arrived for the connections
    /// of this CQ, if there are at most four. The peer's Writes are then in memory. A completion
    /// that this step produces sends the event.
    pub fn req_notify(&self, notify: Notify) -> bool {
        let Some(shared) = self.shared.here() else {
            return false;
        };
        let missed = shared.inner.arm(notify);
        shared.reply.disable();
        // The consumer is about to sleep: the background takes its connections over now.
        match shared.members.driven() {
            Driven::Each(qps) => {
                for qp in qps.iter().filter_map(Weak::upgrade) {
                    qp.hand_over();
                }
            }
            Driven::Groups(groups) => groups.iter().for_each(|group| group.hand_over()),
        }
        shared.ports.each(DatagramPort::hand_over);
        missed
    }

    /// Changes the depth of the queue (`ibv_resize_cq`). The queue keeps its completions, their
    /// order and an arming. Completions that arrive meanwhile are not lost.
    ///
    /// # Errors
    /// [`ResizeCqError`]: the CQ holds more completions, the device does not allow the depth, or
    /// the CQ has overflowed.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeCqError> {
        let shared = self.shared.get()?;
        let max = shared.device.settings.limits.max_cqe; // 5040-8.1.2-05
        shared.inner.resize(depth, max)
    }

    /// Returns true if the CQ has lost a completion because it was full (`IBV_EVENT_CQ_ERR`). It
    /// then accepts no more completions; see [`Cq`].
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.shared
            .here()
            .is_some_and(|shared| shared.inner.has_overflowed())
    }

    /// Number of the CQ, unique in its device. Events carry this number. It corresponds to `handle`
    /// of `ibv_cq`.
    #[must_use]
    pub fn cq_num(&self) -> u32 {
        self.shared.unguarded().inner.num()
    }

    /// Acknowledges events of this CQ that were taken with
    /// [`CqEvent::ack_later`](crate::CqEvent::ack_later) (`ibv_ack_cq_events`).
    pub fn ack_events(&self, count: u64) {
        if let Some(shared) = self.shared.here() {
            shared.inner.ack_events(count);
        }
    }

    /// Destroys the CQ as `ibv_destroy_cq` does. Fails if a QP uses the CQ. Waits until all its
    /// events that were taken from the channel or the device are acknowledged. Dropping the last
    /// handle neither fails nor waits.
    ///
    /// # Errors
    /// [`DestroyCqError`], together with the handle.
    pub fn destroy(self, timeout: Option<Duration>) -> Result<(), (Cq, DestroyCqError)> {
        let Some(shared) = self.shared.here() else {
            return Ok(());
        };
        let qps = shared.members.len();
        if qps > 0 {
            return Err((self, DestroyCqError::InUse { qps }));
        }
        let timeout = shared.device.patience(timeout);
        let deadline = timeout.map(|timeout| after(machine_now(), timeout));
        if !shared.inner.end_events(timeout) {
            let events = shared.inner.unacked();
            return Err((self, DestroyCqError::Unacknowledged { events }));
        }
        let object = EventObject::Cq(self.cq_num());
        let left = deadline.map(|deadline| deadline.saturating_duration_since(machine_now()));
        match shared.events.retire(object, left) {
            Ok(()) => {
                shared.inner.leave_channel();
                Ok(())
            }
            Err(events) => Err((self, DestroyCqError::UnacknowledgedAsync { events })),
        }
    }

    /// Waits for a completion and takes it. Returns `None` if `timeout` passed first. A timeout of
    /// `Some(ZERO)` polls once, and `None` waits without limit. The calling thread drives the
    /// connections of this CQ while it waits.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.wait_into(&mut one, timeout) == 1).then(|| one[0])
    }

    /// Waits for completions and takes up to `out.len()` of them, oldest first. Returns their
    /// number: 0 if `timeout` passed first, or if `out` is empty. See [`Cq::wait`].
    pub fn wait_into(&self, out: &mut [Completion], timeout: Option<Duration>) -> usize {
        let Some(shared) = self.shared.here() else {
            return 0;
        };
        let timeout = shared.device.patience(timeout);
        let deadline = timeout.map(|timeout| after(machine_now(), timeout));
        loop {
            let taken = shared.poll(out, false);
            let over = || deadline.is_some_and(|deadline| deadline <= machine_now());
            if taken > 0 || out.is_empty() || self.shared.here().is_none() || over() {
                return taken;
            }
            let taken = shared.sleep(out, deadline);
            if taken > 0 {
                return taken;
            }
        }
    }

    /// Returns true if this CQ belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.shared.unguarded().device, device)
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq")
            .field("num", &self.cq_num())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::wait_readable;
    use crate::{AcceptOptions, AsyncEvent, ConnectOptions, Device, QpCaps, RecvWr, SendWr};

    #[test]
    fn a_cq_is_destroyed_only_when_no_qp_uses_it_and_its_events_are_acknowledged() {
        let device = Device::tcp().unwrap();
        let channel = device.create_channel().unwrap();
        let cq = device.create_cq_on(4, &channel, 7).unwrap();
        let qp = device
            .alloc_pd()
            .unwrap()
            .create_qp(&cq, &cq, QpCaps::default())
            .unwrap();
        let (cq, error) = cq.destroy(None).unwrap_err();
        assert_eq!(error, DestroyCqError::InUse { qps: 1 });
        drop(qp);
        cq.req_notify(Notify::Any);
        let shared = cq.shared().unwrap();
        shared.inner.push(Completion::default()).unwrap();
        let event = channel.get_event(None).unwrap();
        let (cq, error) = cq.destroy(Some(Duration::ZERO)).unwrap_err();
        assert_eq!(error, DestroyCqError::Unacknowledged { events: 1 });
        drop(event);
        cq.destroy(None).unwrap();
    }

    /// A dropped QP also keeps the memory of its CQs until the peer has closed.
    #[test]
    fn a_channel_is_free_when_its_cqs_are_destroyed_although_a_connection_is_still_being_closed() {
        let limit = Some(Duration::from_secs(20));
        let (here, there) = (Device::tcp().unwrap(), Device::tcp().unwrap());
        let channel = here.create_channel().unwrap();
        let (cq, other) = (
            here.create_cq_on(4, &channel, 0).unwrap(),
            there.create_cq(4).unwrap(),
        );
        let qp = here
            .alloc_pd()
            .unwrap()
            .create_qp(&cq, &cq, QpCaps::default())
            .unwrap();
        let peer = there
            .alloc_pd()
            .unwrap()
            .create_qp(&other, &other, QpCaps::default())
            .unwrap();
        let listener = there.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = listener.local_addr();
        std::thread::scope(|scope| {
            let connects = scope.spawn(|| qp.connect(to, &ConnectOptions::default()).unwrap());
            let request = listener.wait_request(limit).unwrap();
            request.accept(&peer, &AcceptOptions::default()).unwrap();
            connects.join().unwrap();
        });
        assert_eq!(channel.cq_count(), 1);
        drop(qp);
        cq.destroy(None).unwrap();
        assert_eq!(channel.cq_count(), 0);
    }

    #[test]
    fn the_end_of_a_cq_takes_its_overflow_back_or_waits_until_it_is_acknowledged() {
        let device = Device::tcp().unwrap();
        let overflown = || {
            let cq = device.create_cq(1).unwrap();
            let cq_num = cq.cq_num();
            let (depth, qp_num) = (1, 0);
            device.inner().unwrap().events.push(AsyncEvent::CqOverflow {
                cq_num,
                depth,
                qp_num,
            });
            cq
        };
        let (taken, waiting) = (overflown(), overflown());
        let event = device.get_event(None).unwrap();
        assert_eq!(event.object(), EventObject::Cq(taken.cq_num()));
        let (taken, error) = taken.destroy(Some(Duration::ZERO)).unwrap_err();
        assert_eq!(error, DestroyCqError::UnacknowledgedAsync { events: 1 });
        drop(event);
        taken.destroy(None).unwrap();
        waiting.destroy(Some(Duration::ZERO)).unwrap();
        assert!(device.poll_event().is_none());
    }

    #[test]
    fn a_reply_that_another_thread_has_received_is_not_awaited_in_vain() {
        let cq = Device::tcp().unwrap().create_cq(4).unwrap();
        let shared = cq.shared().unwrap();
        let mut polls = 0;
        while !shared.reply.is_expected() {
            polls += 1;
            shared.reply.sign(polls);
        }
        for _ in 0..100 {
            let unseen = shared.reply.unseen();
            shared.received_unseen(shared.inner.polls());
            shared.await_reply(unseen);
            assert!(shared.reply.is_expected());
        }
        // No more bytes arrive.
        for _ in 0..100 {
            shared.await_reply(shared.reply.unseen());
        }
        assert!(!shared.reply.is_expected());
    }

    #[test]
    fn a_thread_that_waits_takes_all_that_is_there_and_leaves_no_wake_up_behind() {
        let limit = Some(Duration::from_secs(20));
        let (here, there) = (Device::tcp().unwrap(), Device::tcp().unwrap());
        let qp = |device: &Device| {
            let cq = device.create_cq(64).unwrap();
            let pd = device.alloc_pd().unwrap();
            let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
            for wr_id in 0..8 {
                qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            }
            (cq, qp)
        };
        let (cq, server) = qp(&here);
        let (_, client) = qp(&there);
        let listener = here.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        std::thread::scope(|scope| {
            scope.spawn(|| client.connect(addr, &ConnectOptions::default()).unwrap());
            let request = listener.wait_request(limit).unwrap();
            request.accept(&server, &AcceptOptions::default()).unwrap();
        });
        let inner = &cq.shared().unwrap().inner;
        for round in 0..20 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while inner.waiters() == 0 {
                        std::thread::yield_now();
                    }
                    let sends = [(); 2].map(|()| SendWr::send(0, &[]).unsignaled());
                    client.post_send_list(&sends).unwrap();
                });
                let mut out = [Completion::default(); 4];
                let mut taken = cq.wait_into(&mut out, limit);
                if taken == 1 {
                    taken += cq.wait_into(&mut out[1..2], limit);
                }
                assert_eq!(taken, 2, "round {round}");
            });
            let guard = inner.wait_guard().unwrap();
            // A pending wake-up would make the descriptor readable at once.
            let soon = Some(after(machine_now(), Duration::from_millis(1)));
            assert!(!wait_readable(guard.fd(), soon), "round {round}");
            drop(guard);
            for wr_id in 0..2 {
                server.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            }
        }
        assert_eq!(cq.wait_into(&mut [], None), 0);
    }
}
