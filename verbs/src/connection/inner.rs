//! State of a QP under its lock, and the steps that follow each turn.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uwarp_engine::mem::PinnedRun;
use uwarp_engine::times::after;
use uwarp_llp::Llp;

use super::meeting::Meeting;
use super::observer::Observer;
use crate::clock::machine_now;
use crate::connection::guard::{Notifications, QpGuard, Watcher};
use crate::connection::{Connection, QpContext};
use crate::cq::CqShared;
use crate::datagram::port::DatagramPort;
use crate::device::DeviceInner;
use crate::event_queue::EventQueue;
use crate::messages;
use crate::policy::progress::POST_FOLLOWS;
use crate::policy::{Heuristic, is_on};
use crate::progress::background::{Source, Verdict};
use crate::progress::confirmations::{Confirmations, Giver};
use crate::progress::doorbell::Doorbell;
use crate::progress::drive::{Driven, Outcome, Progress};
use crate::progress::epoll_group::{EpollGroup, Member};
use crate::progress::poll_owner::{PollOwner, Registration};
use crate::trace;
use crate::trace::Addrs;
use uwarp_engine::connection::{ReceiveBuffer, ReceiveWaiter};
use uwarp_engine::event::{AsyncEvent, ConnectionEvent, EndReason, EventObject};
use uwarp_engine::limits::{
    Charge, Number, PdAccount, PdCharge, PeerAccount, Place, ReadPlaces, is_stag_error,
};

/// State of a QP that its handle, its CQs and the background share.
pub(crate) struct QpInner {
    pub(crate) ctx: Arc<QpContext>,
    pub(crate) device: Arc<DeviceInner>,
    /// Queue of its asynchronous events.
    events: Arc<EventQueue>,
    /// CQs for sends and for receives; polling them gives the QP turns.
    cqs: [Arc<CqShared>; 2],
    /// Time of the last turn by a polling thread of the consumer, in nanoseconds of the device's
    /// clock. (Polls of a group are recorded in the group.)
    pub(super) polled_at: AtomicU64,
    /// `Settings::takeover`, in nanoseconds.
    pub(super) takeover: u64,
    /// Port of a QP for datagrams.
    datagrams: Option<Arc<DatagramPort>>,
    /// Meeting with a peer, if the QP has a number of a rendezvous.
    meeting: Option<Arc<dyn Meeting>>,
    /// Membership in an epoll group.
    member: OnceLock<Member>,
    state: Mutex<Locked>,
    /// Weak reference to this object.
    this: Weak<QpInner>,
    /// Notified whenever the state of the connection may have changed.
    changed: Condvar,
    /// Notifications of tasks about such changes.
    pub(super) notifications: Notifications,
    /// Set when the QP is destroyed, after which it raises no further events.
    muted: AtomicBool,
    place: QpPlace,
}

/// Charges of a QP on the accounts of the device and of its domain, held as long as the QP exists.
pub(crate) struct QpPlace {
    /// Charges for the QP and for its receives.
    pub(crate) in_pd: [PdCharge; 2],
    pub(crate) _place: Place,
    /// Number of the QP. Regions that belong to this QP alone hold it too.
    pub(crate) num: Arc<Number>,
}

/// Charges of a connection on the account of its peer.
pub(crate) struct PeerCharges {
    pub(crate) peer: Arc<PeerAccount>,
    /// Charge for a connection that the peer opened; `None` if this side connected.
    pub(crate) place: Option<Charge>,
    /// Slots for RDMA Reads of the peer.
    pub(crate) ird: ReadPlaces,
}

/// State protected by the lock.
pub(crate) struct Locked {
    pub(crate) driven: Driven,
    pub(crate) registration: Registration,
    /// Whether a poll received the last bytes. If so, the next bytes are left to polls. Otherwise
    /// the program does not poll continuously, even if it polled just now.
    pub(super) polls_receive: bool,
    addrs: Option<Addrs>,
    /// Local address and peer's address, for another attempt to connect.
    pub(crate) target: Option<(Option<SocketAddr>, SocketAddr)>,
    /// Number of threads that wait for work to complete; every turn wakes them.
    pub(crate) drainers: u32,
    /// LLP connections that ended while threads waited on their descriptors. They are closed when
    /// these threads leave.
    pub(super) retired: Vec<(Box<dyn Llp>, Option<Charge>)>,
    /// Held from the first byte sent to the peer until the LLP is gone.
    pub(crate) held: Option<PeerCharges>,
    /// Observer of the connection: a CM id.
    observer: Option<Arc<dyn Observer>>,
    /// Bytes of the datagram that is sent. The buffer is reused.
    pub(crate) datagram: Vec<u8>,
}

/// Kind of thread that gave the connection its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Driver {
    Consumer,
    Background,
}

impl QpInner {
    pub(crate) fn new(
        ctx: Arc<QpContext>,
        device: Arc<DeviceInner>,
        events: Arc<EventQueue>,
        cqs: [Arc<CqShared>; 2],
        place: QpPlace,
        datagrams: Option<Arc<DatagramPort>>,
        meeting: Option<Arc<dyn Meeting>>,
    ) -> Arc<Self> {
        let token = device.background.token();
        let now = device.now();
        let takeover = u64::try_from(device.settings.takeover.as_nanos()).unwrap_or(u64::MAX);
        let qp = Arc::new_cyclic(|this| QpInner {
            this: Weak::clone(this),
            state: Mutex::new(Locked {
                driven: Driven {
                    conn: Connection::new(Arc::clone(&ctx), now),
                    llp: None,
                    peer: None,
                    rx: ReceiveBuffer::default(),
                    recorded: Progress::default(),
                    doorbell: Doorbell::default(),
                    confirmations: Confirmations::new(Arc::clone(&device.confirmations)),
                    traffic: Arc::clone(&device.traffic),
                },
                registration: Registration::new(token),
                polls_receive: false,
                addrs: None,
                target: None,
                drainers: 0,
                retired: Vec::new(),
                held: None,
                observer: None,
                datagram: Vec::new(),
            }),
            ctx,
            device,
            events,
            cqs,
            polled_at: AtomicU64::new(0),
            takeover,
            datagrams,
            meeting,
            member: OnceLock::new(),
            changed: Condvar::new(),
            muted: AtomicBool::new(false),
            place,
            notifications: Notifications::default(),
        });
        for cq in &qp.cqs {
            cq.attach(&qp);
        }
        let waiter: Weak<QpInner> = Arc::downgrade(&qp);
        qp.lock().driven.conn.rq.set_waiter(waiter);
        qp
    }

    /// Returns a counted reference, unless the last one is being dropped.
    pub(crate) fn this(&self) -> Option<Arc<QpInner>> {
        self.this.upgrade()
    }

    /// Number of the QP. It is not reused while a reference to it is held.
    pub(crate) fn number(&self) -> Arc<Number> {
        Arc::clone(&self.place.num)
    }

    /// Port of a QP for datagrams.
    pub(crate) fn datagrams(&self) -> Option<&Arc<DatagramPort>> {
        self.datagrams.as_ref()
    }

    pub(crate) fn lock(&self) -> QpGuard<'_> {
        QpGuard::new(self.state.lock(), &self.notifications)
    }

    pub(super) fn try_lock(&self) -> Option<QpGuard<'_>> {
        Some(QpGuard::new(self.state.try_lock()?, &self.notifications))
    }

    /// Sets the watcher that is notified after each release of the lock.
    pub(crate) fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.notifications.set(watcher);
    }

    /// Wakes the threads and tasks that wait for the QP. Called under its lock.
    pub(crate) fn changed(&self) {
        self.changed.notify_all();
        self.notifications.changed();
    }

    /// Joins this epoll group if the QP is in none.
    pub(crate) fn join_group(self: &Arc<Self>, group: &Arc<EpollGroup>) -> &Member {
        self.member
            .get_or_init(|| group.member(Arc::downgrade(self)))
    }

    /// Membership in an epoll group, once there is one.
    #[inline]
    pub(crate) fn member(&self) -> Option<&Member> {
        self.member.get()
    }

    /// Returns the membership while the group handles the QP's descriptor, otherwise `None`.
    #[inline]
    pub(super) fn grouped_member(&self, locked: &Locked) -> Option<&Member> {
        match locked.registration.owner {
            PollOwner::Grouped { .. } => self.member(),
            _ => None,
        }
    }

    /// Sends staged requests, runs `act` on the connection, and sends the resulting bytes.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        let done = self.with_prepared(|_| Ok::<_, Infallible>(()), |conn| Ok(act(conn)));
        let Ok(value) = done;
        value
    }

    /// Does [`with`](Self::with) after `prepare`, which runs before staged requests are sent.
    /// Nothing else is done if it fails.
    pub(crate) fn with_prepared<T, E>(
        &self,
        prepare: impl FnOnce(&mut Connection) -> Result<(), E>,
        act: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut locked = self.lock();
        locked.driven.conn.set_now(self.device.now());
        prepare(&mut locked.driven.conn)?;
        self.flush_staged(&mut locked);
        let value = act(&mut locked.driven.conn);
        let outcome = locked.driven.push(&self.device.pool);
        self.settle(&mut locked, outcome, Driver::Consumer);
        value
    }

    /// Account of its protection domain.
    pub(crate) fn in_pd(&self) -> &Arc<PdAccount> {
        let [itself, _receives] = &self.place.in_pd;
        itself.account()
    }

    /// Delivers the events of the connection, and wakes threads that wait for the QP.
    pub(crate) fn publish(&self, locked: &mut Locked) {
        if !locked.driven.conn.events.is_empty() {
            self.publish_events(locked);
        } else if locked.drainers > 0 {
            self.changed.notify_all();
        }
    }

    /// Delivers the events for [`publish`](Self::publish). It is a separate function, because
    /// nearly every turn has no events.
    #[cold]
    fn publish_events(&self, locked: &mut Locked) {
        // Nothing adds an event meanwhile, because the receivers of events only queue them.
        let mut events = std::mem::take(&mut locked.driven.conn.events);
        let ended = |event: &ConnectionEvent| {
            matches!(event, ConnectionEvent::Async(AsyncEvent::Ended { .. }))
        };
        if events.iter().any(ended) {
            self.note_end(locked);
        }
        for event in events.drain(..) {
            match event {
                ConnectionEvent::Async(event) => self.raise(event),
                ConnectionEvent::StartupDone => locked.report_startup(),
                ConnectionEvent::Released => locked.report_release(),
            }
        }
        // The list keeps its memory.
        let meanwhile = std::mem::replace(&mut locked.driven.conn.events, events);
        debug_assert!(meanwhile.is_empty());
        self.changed();
    }

    /// Does what precedes the event of the end: writes the trace, counts STag errors of the peer,
    /// and releases Read slots.
    fn note_end(&self, locked: &mut Locked) {
        let conn = &locked.driven.conn;
        // The trace is written before the event is raised, because the program may exit at the
        // event.
        if self.device.settings.trace_errors
            && let Some(text) = trace::end(conn, locked.addrs)
        {
            let peer = locked.addrs.map(|addrs| addrs.peer.ip());
            // An error of standard error is not one of the connection.
            let _ = messages::print(peer, &text);
        }
        if let (Some(peer), Some(EndReason::TerminateSent { error, .. })) =
            (&locked.driven.peer, &conn.end)
            && is_stag_error(error)
        {
            peer.count_stag_error(conn.now);
        }
        // After a Reply that was refused there was no `StartupDone`.
        locked.release_read_slots();
    }

    /// Queues an event for the program.
    fn raise(&self, event: AsyncEvent) {
        match event.object() {
            EventObject::Qp(number)
                if number == self.ctx.qp_num && self.muted.load(Ordering::Relaxed) => {}
            // The CQ may belong to another context than the QP.
            EventObject::Cq(number) => {
                let mut cqs = self.cqs.iter();
                if let Some(cq) = cqs.find(|cq| cq.inner.num() == number) {
                    cq.tell(event);
                }
            }
            _ => self.events.push(event),
        }
    }

    /// Stops notifications to `observer`.
    pub(crate) fn unobserve(&self, observer: &dyn Observer) {
        let mut locked = self.state.lock();
        let wanted: *const () = std::ptr::from_ref(observer).cast();
        // Dropped after the lock is released.
        let taken = locked
            .observer
            .take_if(|held| std::ptr::eq(Arc::as_ptr(held).cast(), wanted));
        drop(locked);
        drop(taken);
    }

    /// Waits up to `timeout` until `done` returns true, which is checked after every turn. The
    /// background drives the connection meanwhile.
    pub(crate) fn drain(
        &self,
        timeout: Option<Duration>,
        done: impl Fn(&Connection) -> bool,
    ) -> bool {
        let mut locked = self.lock();
        self.flush_staged(&mut locked);
        locked.drainers += 1;
        drop(locked);
        let drained = self.wait_until(timeout, |locked| done(&locked.driven.conn).then_some(()));
        self.state.lock().drainers -= 1;
        drained.is_some()
    }

    /// Sets the timer of a QP that has no stream and meets its peer.
    pub(crate) fn arm_meeting(&self, locked: &mut Locked) {
        if let Some(meeting) = &self.meeting {
            meeting.arm(self, locked);
        }
    }

    /// Steps that follow every turn: delivers events, ends or reconnects the LLP, and arms the
    /// descriptor and the timer.
    pub(super) fn settle(&self, locked: &mut Locked, outcome: Outcome, driver: Driver) {
        self.publish(locked);
        if outcome.reconnect {
            self.reconnect(locked);
            return;
        }
        // Between two attempts to connect there is no LLP, but the connection has not ended.
        let given_up = locked.driven.llp.is_none()
            && locked.held.is_some()
            && !locked.driven.conn.is_connecting_tcp();
        if outcome.over || given_up {
            self.release(locked);
            self.arm_meeting(locked);
            return;
        }
        let Locked {
            driven,
            registration,
            ..
        } = locked;
        let Some(llp) = &driven.llp else {
            return self.arm_meeting(locked);
        };
        let background = &self.device.background;
        let wanted = driven.interest(outcome);
        let member = self.member();
        let is_grouped = member
            .is_some_and(|member| registration.join_group(background, member, llp.fd(), wanted));
        match driver {
            _ if is_grouped => {}
            Driver::Background => registration.arm(background, llp.fd(), wanted),
            Driver::Consumer => registration.adjust(background, llp.fd(), wanted),
        }
        registration.set_timer(background, driven.deadline());
        let mark_dirty =
            || is_grouped && driver == Driver::Consumer && member.is_some_and(Member::mark_dirty);
        if outcome.more && !llp.wants_write_event() && !mark_dirty() {
            // An edge-triggered descriptor reports only new bytes, so a timer makes the next turn
            // due.
            registration.set_timer(background, Some(self.device.now()));
        }
    }

    /// Waits until the asynchronous events of the QP that were taken are acknowledged. Then
    /// discards the events that were not taken, and makes the QP raise no further events.
    ///
    /// # Errors
    /// Number of unacknowledged events, if `timeout` passed first.
    pub(crate) fn mute(&self, timeout: Option<Duration>) -> Result<(), u64> {
        let object = EventObject::Qp(self.ctx.qp_num);
        let deadline = (self.device.patience(timeout)).map(|timeout| after(machine_now(), timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(machine_now()));
            self.events.acknowledged(object, left)?;
            // While this lock is held, no other thread raises an event of the QP. If the program
            // has taken an event since the check above, the loop waits for its acknowledgement.
            let _locked = self.state.lock();
            if self.events.retire(object, Some(Duration::ZERO)).is_ok() {
                self.muted.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Waits until the asynchronous events that were taken are acknowledged.
    ///
    /// # Errors
    /// See [`mute`](Self::mute).
    pub(crate) fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), u64> {
        let object = EventObject::Qp(self.ctx.qp_num);
        self.events
            .acknowledged(object, self.device.patience(timeout))
    }

    /// Waits until `done` returns a value or `timeout` has passed. The background drives the
    /// connection meanwhile.
    pub(crate) fn wait_until<T>(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Locked) -> Option<T>,
    ) -> Option<T> {
        // The deadline uses the system clock, because threads sleep by that clock.
        let deadline = (self.device.patience(timeout)).map(|timeout| after(machine_now(), timeout));
        let mut locked = self.lock();
        loop {
            if let Some(value) = done(&mut locked) {
                return Some(value);
            }
            match deadline {
                None => self.changed.wait(&mut locked.locked),
                Some(deadline) => {
                    if self
                        .changed
                        .wait_until(&mut locked.locked, deadline)
                        .timed_out()
                    {
                        return done(&mut locked);
                    }
                }
            }
        }
    }

    /// Called after receives were posted. Continues the peer's message that waits for a receive, if
    /// there is one.
    pub(crate) fn resume_held_message(&self, locked: &mut Locked) {
        if locked.driven.conn.is_starving() {
            let outcome = locked.driven.turn(&self.device.pool, self.device.now());
            self.settle(locked, outcome, Driver::Background);
        } else {
            self.publish(locked);
        }
    }

    /// Closes the connection after the handle was dropped: resets it if work is outstanding,
    /// otherwise closes it gracefully in the background. With `discards`, outstanding work makes no
    /// completion.
    pub(crate) fn orphan(self: &Arc<Self>, discards: bool) {
        let mut locked = self.lock();
        locked.driven.conn.set_now(self.device.now());
        self.flush_staged(&mut locked);
        let conn = &mut locked.driven.conn;
        conn.discards = discards;
        conn.orphan();
        conn.flush_sends(None);
        conn.flush_receives(None);
        conn.give_up_own();
        conn.rq.leave();
        let outcome = if conn.is_starving() {
            // No receive will be posted for the waiting message.
            locked.driven.turn(&self.device.pool, self.device.now())
        } else {
            locked.driven.push(&self.device.pool)
        };
        if locked.driven.llp.is_some() && !outcome.over {
            let token = locked.registration.token;
            let keep: Arc<QpInner> = Arc::clone(self);
            self.device.background.keep(token, keep);
        }
        self.settle(&mut locked, outcome, Driver::Background);
        if locked.driven.llp.is_none() {
            // A QP that met its peer has a timer.
            self.device.background.forget(locked.registration.token);
        }
        drop(locked);
        if let Some(meeting) = &self.meeting {
            meeting.end();
        }
        for cq in &self.cqs {
            cq.detach(self);
        }
    }
}

impl Locked {
    /// Sets the observer of the new connection.
    pub(crate) fn set_observer(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.observer = observer;
    }

    /// Reports to the observer that MPA startup is done.
    fn report_startup(&mut self) {
        self.release_read_slots();
        if let (Some(observer), Some(negotiated)) = (&self.observer, &self.driven.conn.negotiated) {
            observer.established(negotiated, self.addrs);
        }
    }

    /// Makes the last report to the observer.
    fn report_release(&mut self) {
        if let Some(observer) = self.observer.take() {
            let end = self.driven.conn.end.as_ref();
            observer.over(end.unwrap_or(&EndReason::Aborted));
        }
    }

    /// Releases the Read slots that were reserved but not negotiated.
    fn release_read_slots(&mut self) {
        if let (Some(held), Some(negotiated)) = (&mut self.held, &self.driven.conn.negotiated) {
            held.ird.shrink_to(negotiated.ird);
        }
    }

    /// Records the addresses of the stream.
    pub(super) fn set_addrs(&mut self, llp: &dyn Llp) {
        let (local, peer) = (llp.local_addr(), llp.peer_addr());
        self.addrs = Some(Addrs { local, peer });
        let span = &self.driven.conn.span;
        span.record("local", tracing::field::display(local));
        span.record("peer", tracing::field::display(peer));
    }

    /// Addresses of the current or last connection.
    pub(crate) fn addrs(&self) -> Option<Addrs> {
        self.addrs
    }
}

impl ReceiveWaiter for QpInner {
    fn receive_posted(&self) {
        let mut locked = self.lock();
        locked.driven.conn.rq.mark_notified();
        self.resume_held_message(&mut locked);
    }
}

impl Source for QpInner {
    fn attend(&self, now: Instant) -> Verdict {
        let mut locked = self.lock();
        locked.registration.drop_expired_timers(now);
        if locked.driven.llp.is_none() {
            // The background starts the next attempt to connect, because polls give no turn to a
            // connection without an LLP.
            self.retry_connect(&mut locked, now);
            if let Some(meeting) = &self.meeting {
                meeting.attend(self, &mut locked, now);
            }
            return Verdict::Settled;
        }
        let polls_drive = locked.polls_receive || !locked.driven.conn.tx.is_empty();
        // The polls of a group are recorded in the group. A member of a group gets here only by a
        // timer.
        let is_grouped = locked.registration.owner.is_grouped();
        let is_polled = polls_drive && !is_grouped && self.polled_alone(now);
        if is_on(Heuristic::StandBack) && is_polled {
            // A polling thread handles the event. It is not lost, because the background checks
            // again.
            locked.registration.fired_while_polled();
            return Verdict::Watch;
        }
        let (_, received) = locked.driven.moved();
        let polls = self.cqs.each_ref().map(|cq| cq.inner.polls());
        let giver = match self.may_wait_for_post(&locked) {
            true => Giver::Background {
                at: self.device.clock(now),
            },
            false => Giver::Other,
        };
        let outcome = locked.driven.turn_by(&self.device.pool, now, giver);
        self.settle(&mut locked, outcome, Driver::Background);
        if locked.driven.confirmations.are_late() {
            locked
                .registration
                .set_timer(&self.device.background, Some(after(now, POST_FOLLOWS)));
        }
        let (_, received_now) = locked.driven.moved();
        locked.polls_receive &= received == received_now;
        drop(locked);
        // With manual progress this turn ran in a call of the program, not in the background.
        if received != received_now && !self.device.background.is_manual() {
            for (cq, polls) in self.cqs.iter().zip(polls) {
                cq.received_unseen(polls);
            }
            self.device.orphans.add(&self.device, &self.this, now);
        }
        Verdict::Settled
    }
}

/// Compile-time check: a QP moves between threads together with the memory it has pinned.
const _: fn() = || {
    fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<QpInner>();
    assert_send_sync::<PinnedRun>();
};
