//! Readiness and timers for whatever nobody else looks after: by a parked thread, or by the program's own hand.

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

use super::back_off::BackOff;
use crate::clock::TimeSource;
use crate::fork_guard::ForkGuard;
use crate::settings::Progress;
use crate::wait::{after, timespec};

/// Something that the background thread looks after.
pub(crate) trait Source: Send + Sync {
    /// Its descriptor is ready (the registration's one shot is used up), its timer has come, or it
    /// is watched and it is time to look again.
    fn attend(&self, now: Instant) -> Verdict;
}

/// What the source wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing; the source has armed what it needs.
    Settled,
    /// Look again soon: another thread is busy with it.
    Watch,
}

/// The number under which a source is registered. A round attends to its sources in the order of
/// their tokens.
pub(crate) type Token = u64;

/// Token of the wake-up descriptor.
const WAKE: Token = 0;
/// Marks the tokens of listeners, which makes them the last of a round.
const LISTENS: Token = 1 << 63;
/// Events taken from the kernel at a time.
const EVENTS: usize = 64;

/// Which readiness is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Nothing: stay registered, silently.
    None,
    /// Only that the connection is gone.
    Loss,
    /// Readable.
    Read,
    /// Readable or writable.
    ReadWrite,
    /// Writable only.
    Write,
}

impl Interest {
    /// For bytes, for room to send, or both.
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

    /// What epoll is to look for, again and again.
    pub(super) fn readiness(self) -> epoll::EventFlags {
        match self {
            // A loss is told unasked.
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
    /// Sources that must live until they are done, although nobody else holds them.
    kept: BTreeMap<Token, Arc<dyn Source>>,
    timers: BinaryHeap<Reverse<(Instant, Token)>>,
    /// When the next round begins by itself, while none is under way.
    sleeps_until: Option<Instant>,
}

/// What looks after the sources of one device. Its thread stops when this is dropped.
pub(crate) struct Background {
    shared: Arc<Shared>,
    runs: Runs,
    fork_guard: ForkGuard,
}

/// Who runs the rounds.
enum Runs {
    Thread(Option<JoinHandle<()>>),
    /// The program, when it likes to.
    Manual(Mutex<Round>),
}

/// What a round needs besides, kept for the next one: progress allocates nothing.
struct Round {
    due: Vec<Token>,
    watched: Vec<Token>,
    pause: BackOff,
}

impl Round {
    fn new(takeover: Duration) -> Self {
        // Room for what one round finds, as a rule.
        Round {
            due: Vec::with_capacity(2 * EVENTS),
            watched: Vec::with_capacity(2 * EVENTS),
            pause: BackOff::new(takeover),
        }
    }
}

impl Background {
    /// Starts the thread, if there is to be one. `takeover` is the least time between two looks at a watched source.
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

    /// The time by the clock of the device.
    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// One round by hand: what is ready or due has its turn. Gives when the next one is due by itself; a time that
    /// is not to come when something was done, for that may have brought more. Nothing where a thread runs the rounds,
    /// or another call is in one.
    pub(crate) fn progress(&self) -> Option<Instant> {
        let Runs::Manual(round) = &self.runs else {
            return None;
        };
        if !self.fork_guard.is_here() {
            return None;
        }
        let mut round = round.try_lock()?;
        let before = self.shared.clock.now();
        let busy = self.shared.round(&mut round, Some(Duration::ZERO));
        let until = self.shared.sleep_until(&round);
        if busy { Some(before) } else { until }
    }

    /// The descriptor that is ready when a round would find something.
    pub(crate) fn progress_fd(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.runs, Runs::Manual(_)).then(|| self.shared.epoll.as_fd())
    }

    /// Whether the program runs the rounds.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.runs, Runs::Manual(_))
    }

    /// Nobody will run a round any more: what lives only until it is done ends now.
    pub(crate) fn give_up(&self) {
        if !self.fork_guard.is_here() {
            return;
        }
        // In the order in which they came, and without the lock: their drops may come back here.
        let kept = std::mem::take(&mut self.shared.state.lock().kept);
        drop(kept);
    }

    /// A number for a source.
    pub(crate) fn token(&self) -> Token {
        self.shared.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a listener. Its turn comes after those of all connections: what has happened to
    /// these is reported before a new one is taken.
    pub(crate) fn listener_token(&self) -> Token {
        self.token() | LISTENS
    }

    /// Makes `source` known under `token`, with its descriptor not yet armed.
    pub(crate) fn register(
        &self,
        token: Token,
        source: Weak<dyn Source>,
        fd: BorrowedFd<'_>,
    ) -> rustix::io::Result<()> {
        self.enlist(token, source);
        self.add_fd(token, fd, Interest::None)
            .inspect_err(|_| self.forget(token))
    }

    /// Makes `source` known under `token`, for timers only.
    pub(crate) fn enlist(&self, token: Token, source: Weak<dyn Source>) {
        self.shared.state.lock().sources.insert(token, source);
    }

    /// Adds a descriptor for a source that is registered, and asks for one event of this kind.
    pub(crate) fn add_fd(
        &self,
        token: Token,
        fd: BorrowedFd<'_>,
        interest: Interest,
    ) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.shared.epoll, fd, data, interest.flags())
    }

    /// As `register`, and the source lives until `forget`.
    pub(crate) fn keep(&self, token: Token, source: Arc<dyn Source>) {
        self.shared.state.lock().kept.insert(token, source);
    }

    /// Asks for one event of this kind.
    pub(crate) fn arm(&self, token: Token, fd: BorrowedFd<'_>, interest: Interest) {
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.shared.epoll, fd, data, interest.flags()) {
            tracing::error!(token, %error, "epoll_ctl failed");
        }
    }

    /// Forgets a descriptor; call it before the descriptor is closed.
    pub(crate) fn forget_fd(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.shared.epoll, fd);
    }

    /// Forgets a source.
    pub(crate) fn forget(&self, token: Token) {
        // Dropped outside of the lock: a source's drop may come back here.
        let kept = {
            let mut state = self.shared.state.lock();
            state.sources.remove(&token);
            state.kept.remove(&token)
        };
        drop(kept);
    }

    /// Attends to the source at `when`, whether its descriptor is ready or not.
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
            // The thread is the parent's, and so is the eventfd that would wake it.
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
            // The last connection of a device may be dropped by the thread itself.
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

    /// Waits until something is ready, up to `timeout`, and attends to it and to what is due. False when there was
    /// nothing.
    fn round(&self, round: &mut Round, timeout: Option<Duration>) -> bool {
        let Round {
            due,
            watched,
            pause,
        } = round;
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = timeout.map(timespec);
        let events = match super::epoll::wait(&self.epoll, &mut room[..], timeout.as_ref()) {
            Ok(events) => events,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed");
                std::thread::sleep(Duration::from_millis(1));
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
        pause.after_round(busy && watched.len() == attended);
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
        let watch = watching.then(|| after(self.clock.now(), round.pause.get()));
        let until = match (timer, watch) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        state.sleeps_until = until;
        until
    }

    fn take_due_timers(&self, now: Instant, due: &mut Vec<Token>) {
        let mut state = self.state.lock();
        // While it is awake, a new timer needs no wake-up: the thread looks before it sleeps.
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

    /// Somebody polls it, or not.
    struct Polled(AtomicBool);

    impl Source for Polled {
        fn attend(&self, _: Instant) -> Verdict {
            match self.0.load(Ordering::Relaxed) {
                true => Verdict::Watch,
                false => Verdict::Settled,
            }
        }
    }

    fn pause(background: &Background) -> Duration {
        let Runs::Manual(round) = &background.runs else {
            panic!("it is driven by hand");
        };
        round.lock().pause.get()
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
        let mut last = pause(&background);
        assert_eq!(last, TAKEOVER);
        for _ in 0..5 {
            background.progress();
            assert!(pause(&background) > last);
            last = pause(&background);
        }
        sources[0].0.store(false, Ordering::Relaxed);
        background.progress();
        assert_eq!(pause(&background), TAKEOVER);
        // The other one alone is looked at from here on.
        background.progress();
        assert!(pause(&background) > TAKEOVER);
    }
}
