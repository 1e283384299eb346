//! Readiness and timers of connections, listeners and groups that no other thread drives. The
//! rounds are run by a background thread or by the program.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use uwarp_engine::fork_guard::ForkGuard;
use uwarp_engine::times::after;

use super::back_off::BackOff;
use crate::clock::TimeSource;
use crate::policy::progress::{BACKGROUND_EVENTS, EPOLL_FAILED};
use crate::settings::Progress;
use crate::wait::timespec;

/// A connection, listener or group that the background drives.
pub(crate) trait Source: Send + Sync {
    /// Handles an event of the source: its descriptor is ready, its timer has expired, or its last
    /// verdict was [`Verdict::Watch`]. A descriptor that was ready is no longer armed.
    fn attend(&self, now: Instant) -> Verdict;
}

/// Request of a source to the background after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Wait for the next event, for which the source is armed.
    Settled,
    /// Attend to the source again soon, because another thread is handling its events now.
    Watch,
}

/// Number under which a source is registered. A round attends to its sources in the order of their
/// tokens.
pub(crate) type Token = u64;

/// Token of the wake-up descriptor.
const WAKE: Token = 0;
/// Bit that is set in the tokens of listeners, so that a round attends to listeners last.
const LISTENS: Token = 1 << 63;

/// Readiness of a descriptor to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Nothing, although the descriptor stays registered. The kernel still reports errors and
    /// hang-ups.
    None,
    /// Only the loss of the connection, which the kernel reports as error or hang-up.
    Loss,
    /// The descriptor is readable.
    Read,
    /// The descriptor is readable or writable.
    ReadWrite,
    /// The descriptor is writable.
    Write,
}

impl Interest {
    /// Returns the interest in received bytes (`read`), in room to send (`write`), or in both.
    pub(crate) fn new(read: bool, write: bool) -> Self {
        match (read, write) {
            (false, false) => Interest::None,
            (true, false) => Interest::Read,
            (true, true) => Interest::ReadWrite,
            (false, true) => Interest::Write,
        }
    }

    pub(crate) fn has_read(self) -> bool {
        matches!(self, Interest::ReadWrite | Interest::Read)
    }

    pub(crate) fn has_write(self) -> bool {
        matches!(self, Interest::ReadWrite | Interest::Write)
    }

    fn flags(self) -> epoll::EventFlags {
        self.readiness() | epoll::EventFlags::ONESHOT
    }

    /// Returns the flags for a level-triggered epoll set.
    pub(super) fn readiness(self) -> epoll::EventFlags {
        match self {
            // epoll reports errors and hang-ups even if no flag is set.
            Interest::None | Interest::Loss => epoll::EventFlags::empty(),
            Interest::Read => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Interest::ReadWrite => {
                epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::OUT
            }
            Interest::Write => epoll::EventFlags::OUT,
        }
    }
}

struct Shared {
    epoll: OwnedFd,
    wake: OwnedFd,
    stop: AtomicBool,
    next_token: AtomicU64,
    takeover: Duration,
    clock: TimeSource,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: HashMap<Token, Weak<dyn Source>>,
    /// Sources that the background keeps alive until they are done.
    kept: BTreeMap<Token, Arc<dyn Source>>,
    timers: BinaryHeap<Reverse<(Instant, Token)>>,
    /// Time at which the next round begins even without an event; during a round, the time at which
    /// it began. Setting an earlier timer wakes the thread. `None`: the thread sleeps until an
    /// event.
    sleeps_until: Option<Instant>,
}

/// Driver of the sources of one device. Dropping it stops its thread.
pub(crate) struct Background {
    shared: Arc<Shared>,
    runs: Runs,
    fork_guard: ForkGuard,
}

/// Thread that runs the rounds.
enum Runs {
    Thread(Option<JoinHandle<()>>),
    /// The program, by calls of [`Background::progress`].
    Manual(Mutex<Round>),
}

/// Working memory of a round, kept for the next one so that progress allocates nothing.
struct Round {
    due: Vec<Token>,
    watched: Vec<Token>,
    back_off: BackOff,
}

impl Round {
    fn new(takeover: Duration) -> Self {
        // Room for the usual number of sources in one round.
        Round {
            due: Vec::with_capacity(2 * BACKGROUND_EVENTS),
            watched: Vec::with_capacity(2 * BACKGROUND_EVENTS),
            back_off: BackOff::new(takeover),
        }
    }
}

impl Background {
    /// Starts the thread, unless progress is manual. `takeover`: minimum time before a source with
    /// [`Verdict::Watch`] is attended to again.
    pub(crate) fn start(
        takeover: Duration,
        progress: Progress,
        clock: TimeSource,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            next_token: AtomicU64::new(WAKE + 1),
            takeover: takeover.max(Duration::from_micros(1)),
            clock,
            state: Mutex::default(),
        });
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&shared.epoll, &shared.wake, data, epoll::EventFlags::IN)?;
        let runs = match progress {
            Progress::Automatic => {
                let runner = Arc::clone(&shared);
                let thread = uwarp_llp::thread::spawn("uwarp-progress", move || runner.run())?;
                Runs::Thread(Some(thread))
            }
            Progress::Manual => Runs::Manual(Mutex::new(Round::new(shared.takeover))),
        };
        Ok(Background {
            shared,
            runs,
            fork_guard: ForkGuard::here(),
        })
    }

    /// Returns the current time of the device's clock.
    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Runs one round in the calling thread: attends to the sources that are ready or due.
    ///
    /// Returns the time at which the next round is due even without an event, if there is one. A
    /// time in the past means that the round did something, which may have produced more to do.
    /// Returns `None` also if the background thread or another call runs the rounds.
    pub(crate) fn progress(&self) -> Option<Instant> {
        let Runs::Manual(round) = &self.runs else {
            return None;
        };
        let mut round = round.try_lock()?;
        let before = self.shared.clock.now();
        let busy = self.shared.round(&mut round, Some(Duration::ZERO));
        let until = self.shared.sleep_until(&round);
        if busy { Some(before) } else { until }
    }

    /// Returns a descriptor that is readable if a source is ready. `None` if a thread runs the
    /// rounds.
    pub(crate) fn progress_fd(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.runs, Runs::Manual(_)).then(|| self.shared.epoll.as_fd())
    }

    /// Returns true if the program runs the rounds.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.runs, Runs::Manual(_))
    }

    /// Drops the [kept](Self::keep) sources, because no further round will run.
    pub(crate) fn give_up(&self) {
        // Dropped in the order of their tokens, and without the lock, because their destructors may
        // call the background.
        let kept = std::mem::take(&mut self.shared.state.lock().kept);
        drop(kept);
    }

    /// Returns an unused token.
    pub(crate) fn token(&self) -> Token {
        self.shared.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns an unused token for a listener. Listeners are attended to after all connections, so
    /// that events of existing connections are reported before a new one is accepted.
    pub(crate) fn listener_token(&self) -> Token {
        self.token() | LISTENS
    }

    /// Registers `source` under `token`. Its descriptor is added, but not armed.
    pub(crate) fn register(
        &self,
        token: Token,
        source: Weak<dyn Source>,
        fd: BorrowedFd<'_>,
    ) -> rustix::io::Result<()> {
        self.enlist(token, source);
        self.add_fd(token, fd).inspect_err(|_| self.forget(token))
    }

    /// Registers `source` under `token`, for timers only.
    pub(crate) fn enlist(&self, token: Token, source: Weak<dyn Source>) {
        self.shared.state.lock().sources.insert(token, source);
    }

    /// Adds a descriptor of a registered source, not armed.
    pub(crate) fn add_fd(&self, token: Token, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.shared.epoll, fd, data, Interest::None.flags())
    }

    /// Keeps the source alive until [`forget`](Self::forget).
    pub(crate) fn keep(&self, token: Token, source: Arc<dyn Source>) {
        self.shared.state.lock().kept.insert(token, source);
    }

    /// Arms a registered descriptor for one event of kind `interest`.
    pub(crate) fn arm(&self, token: Token, fd: BorrowedFd<'_>, interest: Interest) {
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.shared.epoll, fd, data, interest.flags()) {
            tracing::error!(token, %error, "epoll_ctl failed");
        }
    }

    /// Removes a descriptor. The caller must do this before it closes the descriptor.
    pub(crate) fn forget_fd(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.shared.epoll, fd);
    }

    /// Removes a source, and drops it if it was [kept](Self::keep).
    pub(crate) fn forget(&self, token: Token) {
        // Dropped outside the lock, because a source's destructor may call the background.
        let kept = {
            let mut state = self.shared.state.lock();
            state.sources.remove(&token);
            state.kept.remove(&token)
        };
        drop(kept);
    }

    /// Sets a timer: the source is attended to at `when`, whether its descriptor is ready or not.
    pub(crate) fn at(&self, token: Token, when: Instant) {
        let wake = {
            let mut state = self.shared.state.lock();
            state.timers.push(Reverse((when, token)));
            state.sleeps_until.is_none_or(|until| when < until)
        };
        if wake {
            self.shared.wake();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if !self.fork_guard.is_here() {
            // In the child of a fork: the thread exists only in the parent, and the eventfd would
            // wake it there.
            if let Runs::Thread(thread) = &mut self.runs {
                std::mem::forget(thread.take());
            }
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        if let Runs::Thread(thread) = &mut self.runs
            && let Some(thread) = thread.take()
        {
            self.shared.wake();
            // The thread itself may drop the last connection of a device, and cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut round = Round::new(self.takeover);
        while !self.stop.load(Ordering::Acquire) {
            let until = self.sleep_until(&round);
            let left = until.map(|until| until.saturating_duration_since(self.clock.now()));
            self.round(&mut round, left);
        }
    }

    /// Waits up to `timeout` for readiness. Then attends to the sources that are ready, due or
    /// watched. Returns false if there were none.
    fn round(&self, round: &mut Round, timeout: Option<Duration>) -> bool {
        let Round {
            due,
            watched,
            back_off,
        } = round;
        let mut room = [const { MaybeUninit::uninit() }; BACKGROUND_EVENTS];
        let timeout = timeout.map(timespec);
        let events = match super::epoll::wait(&self.epoll, &mut room[..], timeout.as_ref()) {
            Ok(events) => events,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed");
                std::thread::sleep(EPOLL_FAILED);
                &mut []
            }
        };
        let now = self.clock.now();
        due.append(watched);
        for event in events {
            match event.data.u64() {
                WAKE => self.clear_wake(),
                token => due.push(token),
            }
        }
        self.take_due_timers(now, due);
        due.sort_unstable();
        due.dedup();
        let attended = due.len();
        let busy = attended > 0;
        for token in due.drain(..) {
            if self.attend(token, now) == Verdict::Watch {
                watched.push(token);
            }
        }
        back_off.after_round(busy && watched.len() == attended);
        busy
    }

    fn attend(&self, token: Token, now: Instant) -> Verdict {
        let source = {
            let state = self.state.lock();
            state.sources.get(&token).and_then(Weak::upgrade)
        };
        source.map_or(Verdict::Settled, |source| source.attend(now))
    }

    fn sleep_until(&self, round: &Round) -> Option<Instant> {
        let mut state = self.state.lock();
        let timer = state.timers.peek().map(|Reverse((when, _))| *when);
        let watching = !round.watched.is_empty();
        let watch = watching.then(|| after(self.clock.now(), round.back_off.get()));
        let until = match (timer, watch) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        state.sleeps_until = until;
        until
    }

    fn take_due_timers(&self, now: Instant, due: &mut Vec<Token>) {
        let mut state = self.state.lock();
        // A timer that is set during a round need not wake the thread, which checks the timers
        // before it sleeps. Only a timer before `now` would.
        state.sleeps_until = Some(now);
        while let Some(Reverse((when, token))) = state.timers.peek().copied() {
            if when > now {
                break;
            }
            state.timers.pop();
            due.push(token);
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn clear_wake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.wake.as_fd(), &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEOVER: Duration = Duration::from_micros(50);

    /// Source that reports whether a thread polls it.
    struct Polled(AtomicBool);

    impl Source for Polled {
        fn attend(&self, _: Instant) -> Verdict {
            match self.0.load(Ordering::Relaxed) {
                true => Verdict::Watch,
                false => Verdict::Settled,
            }
        }
    }

    fn back_off(background: &Background) -> Duration {
        let Runs::Manual(round) = &background.runs else {
            panic!("the test uses Progress::Manual");
        };
        round.lock().back_off.get()
    }

    #[test]
    fn looks_at_what_is_polled_become_rarer_until_somebody_is_not() {
        let background =
            Background::start(TAKEOVER, Progress::Manual, TimeSource::default()).unwrap();
        let sources = [true, true].map(|polled| Arc::new(Polled(AtomicBool::new(polled))));
        for source in &sources {
            let token = background.token();
            let weak: Weak<Polled> = Arc::downgrade(source);
            background.enlist(token, weak);
            background.at(token, background.now());
        }
        let mut last = back_off(&background);
        assert_eq!(last, TAKEOVER);
        for _ in 0..5 {
            background.progress();
            assert!(back_off(&background) > last);
            last = back_off(&background);
        }
        sources[0].0.store(false, Ordering::Relaxed);
        background.progress();
        assert_eq!(back_off(&background), TAKEOVER);
        // From here on only the other source is watched.
        background.progress();
        assert!(back_off(&background) > TAKEOVER);
    }
}
