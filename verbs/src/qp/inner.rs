//! A QP behind its lock: who may drive it, and what follows a turn.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uwarp_llp::{Llp, LlpError};

use crate::clock::machine_now;
use crate::cm::{Observed, Observer};
use crate::cq::CqShared;
use crate::device::DeviceInner;
use crate::engine::{Connection, QpContext, ReceiveBuffer, ReceiveWaiter};
use crate::event::AsyncEvent;
use crate::event_queue::{EventObject, EventQueue};
use crate::limits::{Charge, Number, PdAccount, PdCharge, PeerAccount, Place, ReadPlaces};
use crate::mem::PinnedRun;
use crate::progress::background::{Interest, Source, Verdict};
use crate::progress::cover::{Cover, Registration};
use crate::progress::crowd::{By, Crowd, Done, Seat};
use crate::progress::doorbell::Doorbell;
use crate::progress::drive::{Driven, Outcome, Waits};
use crate::progress::linger::linger;
use crate::progress::stray::Given;
use crate::qp::guard::{QpGuard, Watched, Watcher};
use crate::trace;
use crate::wait::after;

/// So many octets pass in a turn without the clock being looked at after it: the few microseconds count for nothing.
const QUICK: u64 = 4096;

/// A QP: the part that its handle, its CQs and the background thread share.
pub(crate) struct QpInner {
    pub(crate) ctx: Arc<QpContext>,
    pub(crate) device: Arc<DeviceInner>,
    /// Where its asynchronous events go.
    events: Arc<EventQueue>,
    /// Where sends and receives complete; these poll it.
    cqs: [Arc<CqShared>; 2],
    /// When a thread of the consumer that polls last gave this connection a turn, in nanoseconds of the device's clock.
    /// (Polls of its crowd are the crowd's.)
    polled_at: AtomicU64,
    /// Its place among many connections of a CQ.
    seat: OnceLock<Seat>,
    state: Mutex<Locked>,
    /// Itself.
    this: Weak<QpInner>,
    /// Notified whenever the state of the connection may have changed.
    changed: Condvar,
    /// The same for tasks.
    pub(super) watched: Watched,
    /// It was destroyed: nobody is told of it any more.
    muted: AtomicBool,
    place: QpPlace,
}

/// What a QP has from the accounts of the device and of its domain, as long as it exists.
pub(crate) struct QpPlace {
    /// Itself, and its receives.
    pub(crate) in_pd: [PdCharge; 2],
    pub(crate) _place: Place,
    /// Regions that are for this QP alone hold it too.
    pub(crate) num: Arc<Number>,
}

/// What a connection has from the accounts of its peer.
pub(crate) struct Held {
    pub(crate) peer: Arc<PeerAccount>,
    /// A place among the connections that the peer opened; `None` where we connected.
    pub(crate) place: Option<Charge>,
    /// Places for the peer's Reads.
    pub(crate) ird: ReadPlaces,
}

/// What the lock protects.
pub(crate) struct Locked {
    pub(crate) driven: Driven,
    pub(crate) registration: Registration,
    /// Whether a poll received what came last. Then it will receive what comes next; otherwise the program does not
    /// poll all the time, although it may have polled just now.
    polls_receive: bool,
    addrs: Option<Addrs>,
    /// Where to connect anew for a retry with MPA revision 1.
    target: Option<(Option<SocketAddr>, SocketAddr)>,
    /// Threads that wait for work to complete: every turn wakes them.
    pub(crate) drainers: u32,
    /// Connections that have ended while threads wait on their descriptors: closed when those leave.
    retired: Vec<(Box<dyn Llp>, Option<Charge>)>,
    /// From the first octet for the peer until the LLP has gone.
    held: Option<Held>,
    /// Who is told how the connection goes: a CM id.
    observed: Option<Observed>,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addrs {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Who gave the connection its turn.
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
    ) -> Arc<Self> {
        let token = device.background.token();
        let now = device.now();
        let qp = Arc::new_cyclic(|this| QpInner {
            this: Weak::clone(this),
            state: Mutex::new(Locked {
                driven: Driven {
                    conn: Connection::new(Arc::clone(&ctx), now),
                    llp: None,
                    peer: None,
                    rx: ReceiveBuffer::default(),
                    waits: Waits::default(),
                    doorbell: Doorbell::default(),
                },
                registration: Registration::new(token),
                polls_receive: false,
                addrs: None,
                target: None,
                drainers: 0,
                retired: Vec::new(),
                held: None,
                observed: None,
            }),
            ctx,
            device,
            events,
            cqs,
            polled_at: AtomicU64::new(0),
            seat: OnceLock::new(),
            changed: Condvar::new(),
            muted: AtomicBool::new(false),
            place,
            watched: Watched::default(),
        });
        for cq in &qp.cqs {
            cq.attach(&qp);
        }
        let waiter: Weak<QpInner> = Arc::downgrade(&qp);
        qp.lock().driven.conn.rq.set_waiter(waiter);
        qp
    }

    /// Its number, in use as long as somebody has this.
    pub(crate) fn number(&self) -> Arc<Number> {
        Arc::clone(&self.place.num)
    }

    pub(crate) fn lock(&self) -> QpGuard<'_> {
        QpGuard::new(self.state.lock(), &self.watched)
    }

    fn try_lock(&self) -> Option<QpGuard<'_>> {
        Some(QpGuard::new(self.state.try_lock()?, &self.watched))
    }

    /// From now on `watcher` is told whenever the lock was released.
    pub(crate) fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.watched.set(watcher);
    }

    /// Wakes those who wait for the QP. Called under its lock.
    pub(crate) fn changed(&self) {
        self.changed.notify_all();
        self.watched.changed();
    }

    /// A turn by a thread that polls: skipped when another thread has the lock. `stays`: the thread is
    /// going to poll again, and not about to sleep. True when it received something.
    pub(crate) fn poll(&self, now: Instant, stays: bool) -> bool {
        if stays {
            self.polled_at
                .store(self.device.clock(now), Ordering::Relaxed);
        }
        if let Some(mut locked) = self.try_lock()
            && locked.driven.llp.is_some()
        {
            return self.turn_by_poll(&mut locked, now, stays);
        }
        false
    }

    /// A turn by a thread that polls other CQs ([`crate::progress::stray`]), which gave it the last one at `polled_at`. `None`
    /// when it has gone, or when somebody else looks after it.
    pub(crate) fn poll_astray(&self, now: Instant, polled_at: u64) -> Option<Given> {
        let last = self.polled_at.load(Ordering::Relaxed);
        let is_ours = last == polled_at || (polled_at == 0 && !self.polled_alone(now));
        if !is_ours || self.is_armed() {
            return None;
        }
        let Some(mut locked) = self.try_lock() else {
            let moved = false;
            return Some(Given { moved, polled_at });
        };
        let cover = locked.registration.cover;
        if locked.driven.llp.is_none() || cover.is_seated() || cover.is_waited() {
            return None;
        }
        let (moved, _, end) = self.turn_of_poll(&mut locked, now);
        let polled_at = self.device.clock(end);
        self.polled_at.store(polled_at, Ordering::Relaxed);
        let moved = moved > 0;
        Some(Given { moved, polled_at })
    }

    /// A turn that a thread gives which polls. True when it received something.
    pub(super) fn turn_by_poll(&self, locked: &mut Locked, now: Instant, stays: bool) -> bool {
        let (_, received, end) = self.turn_of_poll(locked, now);
        if stays {
            self.polled_at
                .store(self.device.clock(end), Ordering::Relaxed);
            locked.driven.doorbell.polled(end);
        }
        received
    }

    /// Such a turn: the octets that moved, whether some were received, and when the program could poll again.
    fn turn_of_poll(&self, locked: &mut Locked, now: Instant) -> (u64, bool, Instant) {
        let (sent, received) = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(locked, outcome, Driver::Consumer);
        let (sent_now, received_now) = locked.driven.moved();
        locked.polls_receive |= received != received_now;
        // A connection that ended counts from 0 again.
        let moved = sent_now
            .abs_diff(sent)
            .saturating_add(received_now.abs_diff(received));
        // It took its time, in which the program could not have polled.
        let end = match moved > QUICK {
            true => self.device.now(),
            false => now,
        };
        (moved, received != received_now, end)
    }

    /// A turn that comes of a round of its crowd. `None` when a thread that polls finds the lock taken.
    pub(crate) fn turn_in_crowd(&self, now: Instant, by: By) -> Option<Done> {
        let mut locked = match by {
            By::Poll => self.try_lock()?,
            By::Sleeper | By::Background => self.lock(),
        };
        let driver = match by {
            By::Poll | By::Sleeper => Driver::Consumer,
            By::Background
                if locked.polls_receive && !self.is_armed() && self.polled_alone(now) =>
            {
                let left = true;
                return Some(Done {
                    left,
                    ..Done::default()
                });
            }
            By::Background => Driver::Background,
        };
        if locked.driven.llp.is_none() {
            return Some(Done::default());
        }
        let before = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(&mut locked, outcome, driver);
        let after = locked.driven.moved();
        let received = before.1 != after.1;
        if driver == Driver::Background {
            locked.polls_receive &= !received;
        }
        Some(Done {
            moved: before != after,
            received,
            left: false,
        })
    }

    /// Takes a seat in this crowd, if it has none.
    pub(crate) fn sit(self: &Arc<Self>, crowd: &Arc<Crowd>) -> &Seat {
        self.seat.get_or_init(|| crowd.seat(Arc::downgrade(self)))
    }

    /// Its seat, once there was one.
    #[inline]
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.seat.get()
    }

    /// Its seat, while its crowd looks after it.
    #[inline]
    pub(super) fn taken_seat(&self, locked: &Locked) -> Option<&Seat> {
        match locked.registration.cover {
            Cover::Seated { .. } => self.seat(),
            _ => None,
        }
    }

    /// Does something with the connection, then sends what came of it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        let mut locked = self.lock();
        locked.driven.conn.set_now(self.device.now());
        self.flush_staged(&mut locked);
        let value = act(&mut locked.driven.conn);
        let outcome = locked.driven.push(&self.device.pool);
        self.settle(&mut locked, outcome, Driver::Consumer);
        value
    }

    /// Attaches a connected or connecting LLP. The caller has put the connection object into the
    /// right state.
    pub(crate) fn attach(
        self: &Arc<Self>,
        locked: &mut Locked,
        mut llp: Box<dyn Llp>,
        held: Held,
        target: Option<(Option<SocketAddr>, SocketAddr)>,
    ) -> Result<(), LlpError> {
        self.watch_over(&mut *llp)?;
        let weak: Weak<QpInner> = Arc::downgrade(self);
        self.device
            .background
            .register(locked.registration.token, weak, llp.fd())
            .map_err(|errno| LlpError::Io {
                op: "watch the connection",
                errno: errno.raw_os_error(),
            })?;
        locked.set_addrs(&*llp);
        locked.target = target;
        locked.driven.peer = Some(Arc::clone(&held.peer));
        locked.held = Some(held);
        locked.driven.llp = Some(llp);
        // A Reply goes out before anything that the peer may have sent too early is looked at.
        locked.driven.push(&self.device.pool);
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(locked, outcome, Driver::Background);
        Ok(())
    }

    /// The account of its protection domain.
    pub(crate) fn in_pd(&self) -> &Arc<PdAccount> {
        let [itself, _receives] = &self.place.in_pd;
        itself.account()
    }

    /// Has TCP ask the peer whether it is still there, if the program wants that.
    fn watch_over(&self, llp: &mut dyn Llp) -> Result<(), LlpError> {
        (self.ctx.keepalive).map_or(Ok(()), |keepalive| llp.set_keepalive(keepalive))
    }

    /// Hands events to the device, and wakes those who wait for the QP.
    pub(crate) fn publish(&self, locked: &mut Locked) {
        let events = &locked.driven.conn.events;
        if !events.is_empty() {
            let ended = |event: &AsyncEvent| matches!(event, AsyncEvent::Ended { .. });
            if self.ctx.settings.trace_errors && events.iter().any(ended) {
                // Before anybody hears of the end, and perhaps ends the process.
                let text = trace::end(&locked.driven.conn, locked.addrs);
                self.watched
                    .tell_unlocked(text.and_then(trace::say_at_once));
            }
            let events = &mut locked.driven.conn.events;
            let muted = self.muted.load(Ordering::Relaxed);
            for event in events.drain(..) {
                match event.object() {
                    EventObject::Qp(number) if muted && number == self.ctx.qp_num => {}
                    // It may be of another context than the QP.
                    EventObject::Cq(number) => {
                        let mut cqs = self.cqs.iter();
                        if let Some(cq) = cqs.find(|cq| cq.inner.num() == number) {
                            cq.tell(event);
                        }
                    }
                    _ => self.events.push(event),
                }
            }
            // What was reserved and not agreed upon goes back.
            if let (Some(held), Some(negotiated)) =
                (&mut locked.held, &locked.driven.conn.negotiated)
            {
                held.ird.shrink_to(negotiated.ird);
            }
            self.changed();
        } else if locked.drainers > 0 {
            self.changed.notify_all();
        }
        let gone = locked.driven.llp.is_none();
        let over = locked
            .observed
            .as_mut()
            .is_some_and(|observed| observed.look(&locked.driven.conn, locked.addrs, gone));
        if over {
            locked.observed = None;
        }
    }

    /// Lets `observer` know what becomes of the connection, and what has become of it so far.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        let mut locked = self.lock();
        locked.observed = Some(Observed::new(observer));
        self.publish(&mut locked);
    }

    /// Tells `observer` no more.
    pub(crate) fn unobserve(&self, observer: &dyn Observer) {
        let mut locked = self.state.lock();
        let wanted = std::ptr::from_ref(observer).cast();
        // Dropped without the lock.
        let observed = locked.observed.take_if(|observed| observed.is(wanted));
        drop(locked);
        drop(observed);
    }

    /// Waits until `done`, up to `timeout`; it is looked at after every turn. The background drives meanwhile.
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

    /// What follows every turn: events go out, the LLP ends or is connected anew, the descriptor and
    /// the timer are armed.
    pub(super) fn settle(&self, locked: &mut Locked, outcome: Outcome, driver: Driver) {
        self.publish(locked);
        if outcome.reconnect {
            self.reconnect(locked);
            return;
        }
        // Between two attempts to connect there is no LLP that could be over.
        let given_up = locked.driven.llp.is_none()
            && locked.held.is_some()
            && !locked.driven.conn.is_connecting_tcp();
        if outcome.over || given_up {
            self.release(locked);
            return;
        }
        let Locked {
            driven,
            registration,
            ..
        } = locked;
        let Some(llp) = &driven.llp else {
            return;
        };
        let background = &self.device.background;
        let wanted = driven.interest(outcome);
        let seat = self.seat();
        let sits = seat.is_some_and(|seat| registration.sit(background, seat, llp.fd(), wanted));
        match driver {
            _ if sits => {}
            Driver::Background => registration.arm(background, llp.fd(), wanted),
            Driver::Consumer => registration.adjust(background, llp.fd(), wanted),
        }
        registration.set_timer(background, driven.deadline());
        let is_hot = || sits && driver == Driver::Consumer && seat.is_some_and(Seat::heat);
        if outcome.more && !llp.wants_write_event() && !is_hot() {
            // Its descriptor tells only what is new.
            registration.set_timer(background, Some(self.device.now()));
        }
    }

    /// The LLP has done its part.
    fn release(&self, locked: &mut Locked) {
        let place = locked.held.take().and_then(|held| held.place);
        self.retire(locked, place);
        locked.driven.peer = None;
        locked.driven.rx = ReceiveBuffer::default();
        locked.driven.waits = Waits::default();
        locked.registration.gone();
        self.device.background.forget(locked.registration.token);
        self.publish(locked);
        self.changed();
    }

    /// Takes the LLP away: it ends in the background, or when the threads that wait on it have left.
    fn retire(&self, locked: &mut Locked, place: Option<Charge>) {
        let Some(llp) = locked.driven.llp.take() else {
            return;
        };
        self.device.background.forget_fd(llp.fd());
        locked.registration.stand_up(self.seat(), llp.fd());
        if locked.registration.cover.is_waited() {
            locked.retired.push((llp, place));
            self.ctx.send_cq.wake_waiters();
            self.ctx.recv_cq.wake_waiters();
        } else {
            self.close(llp, place);
        }
    }

    fn close(&self, llp: Box<dyn Llp>, place: Option<Charge>) {
        linger(
            &self.device.background,
            llp,
            place,
            Vec::new(),
            self.ctx.settings.timeouts.close,
        );
    }

    /// Once more on a new connection: with MPA revision 1 (6581-10-05), or where TCP refused, when it is time.
    fn reconnect(&self, locked: &mut Locked) {
        self.retire(locked, None);
        locked.driven.rx = ReceiveBuffer::default();
        if let Some(when) = locked.driven.conn.ask_again {
            locked
                .registration
                .set_timer(&self.device.background, Some(when));
            return;
        }
        locked.driven.conn.reconnect = false;
        let Some((local, to)) = locked.target else {
            return;
        };
        // From the same port, if it is free; where the peer wants MPA revision 1, the first connection may have it still.
        let connect = |local| self.device.network.connect(local, to);
        let connected = connect(local).or_else(|error| match (error, local) {
            (LlpError::AddressInUse { .. } | LlpError::AddressUnavailable { .. }, Some(local)) => {
                connect(Some(SocketAddr::new(local.ip(), 0)))
            }
            (error, _) => Err(error),
        });
        match connected.and_then(|mut llp| self.watch_over(&mut *llp).map(|()| llp)) {
            Ok(llp) => {
                let token = locked.registration.token;
                locked.set_addrs(&*llp);
                if let Err(errno) = self.device.background.add_fd(token, llp.fd()) {
                    let errno = errno.raw_os_error();
                    let op = "watch the connection";
                    locked.driven.conn.not_connected(LlpError::Io { op, errno });
                    self.release(locked);
                    return;
                }
                let background = &self.device.background;
                locked
                    .registration
                    .arm(background, llp.fd(), Interest::ReadWrite);
                locked.driven.llp = Some(llp);
                locked.registration.timer = None;
                let deadline = locked.driven.deadline();
                locked.registration.set_timer(background, deadline);
            }
            Err(error) => {
                locked.driven.conn.not_connected(error);
                self.release(locked);
            }
        }
    }

    /// Between two attempts to connect: the next one, when it is time.
    fn ask_again(&self, locked: &mut Locked, now: Instant) {
        let Some(when) = locked.driven.conn.ask_again else {
            return;
        };
        if when <= now {
            locked.driven.conn.set_now(now);
            locked.driven.conn.ask_again();
            self.reconnect(locked);
        } else {
            locked
                .registration
                .set_timer(&self.device.background, Some(when));
        }
    }

    /// The end of the QP: waits until its asynchronous events are acknowledged, and raises none from then on.
    ///
    /// # Errors
    /// When `timeout` passed first: how many events are not acknowledged.
    pub(crate) fn mute(&self, timeout: Option<Duration>) -> Result<(), u64> {
        let object = EventObject::Qp(self.ctx.qp_num);
        self.events.retire(object, self.device.patience(timeout))?;
        // Under the lock, so that no other thread is just telling something.
        let locked = self.state.lock();
        self.muted.store(true, Ordering::Relaxed);
        self.events.forget(object);
        drop(locked);
        Ok(())
    }

    /// Waits until `done` gives a value or `timeout` has passed. The background drives meanwhile.
    pub(crate) fn wait_until<T>(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Locked) -> Option<T>,
    ) -> Option<T> {
        // Of the machine's clock, by which threads sleep.
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

    /// A notification was requested on a CQ of this QP: the consumer is about to sleep, so the
    /// background takes over at once.
    pub(crate) fn hand_over(&self) {
        self.polled_at.store(0, Ordering::Relaxed);
        let mut locked = self.lock();
        locked.driven.doorbell.sleeps();
        if locked.registration.cover == Cover::Watched || locked.driven.doorbell.is_staged() {
            let outcome = locked.driven.turn(&self.device.pool, self.device.now());
            self.settle(&mut locked, outcome, Driver::Background);
        }
        let seat = self.taken_seat(&locked);
        drop(locked);
        // The background has perhaps left the crowd alone because of this QP, or because of polls of its other CQ. Who
        // polls that again is seen again.
        if let Some(seat) = seat {
            seat.crowd().hand_over();
        }
    }

    /// Whether the program is about to sleep until something completes here.
    fn is_armed(&self) -> bool {
        self.ctx.send_cq.is_armed() || self.ctx.recv_cq.is_armed()
    }

    /// Receives were posted: a message of the peer that waits for one goes on.
    pub(crate) fn go_on(&self, locked: &mut Locked) {
        if locked.driven.conn.is_starving() {
            let outcome = locked.driven.turn(&self.device.pool, self.device.now());
            self.settle(locked, outcome, Driver::Background);
        } else {
            self.publish(locked);
        }
    }

    /// Whether a thread polls it, by itself or with its crowd.
    pub(super) fn polled_recently(&self, now: Instant) -> bool {
        self.polled_alone(now) || self.seat().is_some_and(|seat| seat.crowd().is_polled(now))
    }

    fn polled_alone(&self, now: Instant) -> bool {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let takeover = u64::try_from(self.ctx.settings.takeover.as_nanos()).unwrap_or(u64::MAX);
        polled_at != 0 && self.device.clock(now).saturating_sub(polled_at) < takeover
    }

    /// The handle is gone. A connection with work under way is reset; an idle one closes gracefully
    /// in the background.
    pub(crate) fn orphan(self: &Arc<Self>) {
        let mut locked = self.lock();
        locked.driven.conn.set_now(self.device.now());
        self.flush_staged(&mut locked);
        let conn = &mut locked.driven.conn;
        if conn.is_idle() {
            conn.disconnect();
        } else {
            conn.abort();
        }
        conn.flush_sends(None);
        conn.flush_receives(None);
        conn.give_up_own();
        conn.rq.leave();
        let outcome = if conn.is_starving() {
            // What waits for a receive waits in vain.
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
        drop(locked);
        for cq in &self.cqs {
            cq.detach(self);
        }
    }
}

impl Locked {
    /// There is a stream between these two ends.
    fn set_addrs(&mut self, llp: &dyn Llp) {
        let (local, peer) = (llp.local_addr(), llp.peer_addr());
        self.addrs = Some(Addrs { local, peer });
        let span = &self.driven.conn.span;
        span.record("local", tracing::field::display(local));
        span.record("peer", tracing::field::display(peer));
    }

    /// The two ends, once there is (or was) a connection.
    pub(crate) fn addrs(&self) -> Option<Addrs> {
        self.addrs
    }
}

/// The waits of [`crate::Cq::wait`].
impl QpInner {
    /// The calling thread will wait on the descriptor itself. Calls `add` with it, and with the time
    /// by which a turn is due.
    pub(crate) fn wait_begins(
        &self,
        mut add: impl FnMut(std::os::fd::RawFd, Option<Instant>),
    ) -> bool {
        use std::os::fd::AsRawFd;
        let mut locked = self.lock();
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(&mut locked, outcome, Driver::Consumer);
        let Locked {
            driven,
            registration,
            ..
        } = &mut *locked;
        let Some(llp) = &driven.llp else {
            return false;
        };
        let wanted = driven.interest(outcome);
        if !wanted.has_read() {
            // Nothing more will arrive: there is nothing to wait for but room, and the background does that.
            return false;
        }
        if !registration.wait_begins(&self.device.background, llp.fd()) {
            return false;
        }
        registration.adjust(&self.device.background, llp.fd(), wanted);
        add(llp.fd().as_raw_fd(), driven.deadline());
        true
    }

    /// The calling thread has stopped waiting: a turn, and back to the background.
    pub(crate) fn wait_ends(&self) {
        let mut locked = self.lock();
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(&mut locked, outcome, Driver::Consumer);
        let Locked {
            driven,
            registration,
            retired,
            ..
        } = &mut *locked;
        let wanted = driven.interest(outcome);
        let fd = driven.llp.as_ref().map(|llp| llp.fd());
        registration.wait_ends(&self.device.background, fd, wanted);
        if !registration.cover.is_waited() {
            for (llp, place) in retired.drain(..) {
                self.close(llp, place);
            }
        }
    }
}

impl ReceiveWaiter for QpInner {
    fn receive_posted(&self) {
        let mut locked = self.lock();
        locked.driven.conn.rq.told();
        self.go_on(&mut locked);
    }
}

impl Source for QpInner {
    fn attend(&self, now: Instant) -> Verdict {
        let mut locked = self.lock();
        locked.registration.timers_pass(now);
        if locked.driven.llp.is_none() {
            // Polls give no turn to a connection that is to be tried again.
            self.ask_again(&mut locked, now);
            return Verdict::Settled;
        }
        let polls_drive = locked.polls_receive || !locked.driven.conn.tx.is_empty();
        // In a crowd it is the crowd that may be polled, and what comes here is a time that has come.
        let is_seated = locked.registration.cover.is_seated();
        if polls_drive && !is_seated && self.polled_alone(now) {
            // A thread that polls takes care of it. Whatever woke us is not lost: we look again.
            locked.registration.fired_while_polled();
            return Verdict::Watch;
        }
        let (_, received) = locked.driven.moved();
        let outcome = locked.driven.turn(&self.device.pool, now);
        self.settle(&mut locked, outcome, Driver::Background);
        let (_, received_now) = locked.driven.moved();
        locked.polls_receive &= received == received_now;
        drop(locked);
        // A program that drives its device itself gets what it asks for, and no more.
        if received != received_now && !self.device.background.is_manual() {
            self.cqs.iter().for_each(|cq| cq.received_unseen());
            self.device.strays.add(&self.device, &self.this, now);
        }
        Verdict::Settled
    }
}

/// Keeps the compiler honest: a QP moves between threads with the memory it has pinned.
const _: fn() = || {
    fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<QpInner>();
    assert_send_sync::<PinnedRun>();
};
