//! The thread of a link: takes in what arrives while nobody drives a connection, and keeps its
//! timers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::link::Shared;
use crate::LlpError;

/// While somebody takes frames in, the thread leaves that to it and looks again after so long.
const STAND_BACK: Duration = Duration::from_micros(50);
/// After so many looks that found somebody at it, one who does it all the time, it looks again after longer.
const STEADY: u32 = 20;
const STAND_BACK_LONGER: Duration = Duration::from_micros(200);
/// The longest pause when the wire says that there is something and has nothing.
const MAX_PAUSE: Duration = Duration::from_millis(10);
/// Between two attempts to send what the wire did not take; the second is the longest.
const RETRY: Duration = Duration::from_micros(100);
const MAX_RETRY: Duration = Duration::from_millis(2);
/// Between two looks at an interface that is down.
const LOOK: Duration = Duration::from_millis(500);

/// Starts it; it ends when [`Shared::stop`] is set, or the link is down.
pub(super) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, LlpError> {
    crate::thread::spawn("uwarp-link", move || run(&shared)).map_err(|error| LlpError::Io {
        op: "start the thread of the link",
        errno: error.raw_os_error().unwrap_or(0),
    })
}

/// What the descriptors said.
#[derive(Default)]
struct Ready {
    wire: bool,
}

fn run(shared: &Shared) {
    let mut retry = RETRY;
    let mut pause = STAND_BACK;
    let mut others = Others::default();
    while !shared.stop.load(Ordering::Acquire) && !shared.is_down() {
        let busy = shared.out.is_busy();
        if !busy {
            retry = RETRY;
        }
        let look = shared.look_at_wire().then_some(LOOK);
        let now = Instant::now();
        let announce = shared.announce_at(now);
        let stand_back = others.stand_back(shared, now);
        let timers = [busy.then_some(retry), look, stand_back];
        // Who takes frames in is not to wake us up with each.
        let wire = stand_back.is_none();
        let ready = wait(shared, wire, timeout(shared, announce, &timers, now));
        let now = Instant::now();
        shared.tick(now);
        if busy {
            shared.flush();
            retry = (retry * 2).min(MAX_RETRY);
        }
        if !ready.wire {
            continue;
        }
        match shared.stack().and_then(|stack| shared.drain(&stack)) {
            Some(count) if count > 0 => pause = STAND_BACK,
            // Another thread is at it, or there was nothing after all.
            _ => {
                wait(shared, false, Some(pause));
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

/// What is known of those who take frames in because they drive a connection.
#[derive(Default)]
struct Others {
    /// So many looks in a row found that somebody did.
    seen: u32,
}

impl Others {
    /// How long to leave it to others, if somebody has taken frames in just now.
    fn stand_back(&mut self, shared: &Shared, now: Instant) -> Option<Duration> {
        let pause = if self.seen > STEADY {
            STAND_BACK_LONGER
        } else {
            STAND_BACK
        };
        let polled_at = shared.polled_at.load(Ordering::Relaxed);
        let ago = u128::from(shared.nanos(now).saturating_sub(polled_at));
        if polled_at == 0 || ago >= pause.as_nanos() {
            self.seen = 0;
            return None;
        }
        self.seen = self.seen.saturating_add(1);
        Some(pause)
    }
}

/// How long to wait at most; `None` for ever.
fn timeout(
    shared: &Shared,
    announce: Option<Instant>,
    more: &[Option<Duration>],
    now: Instant,
) -> Option<Duration> {
    let left = |at: Instant| at.saturating_duration_since(now);
    let timers = [announce.map(left), shared.deadline().map(left)];
    timers.iter().chain(more).flatten().min().copied()
}

/// Sleeps until the wire has something (if that is of interest), somebody wakes us up, or the time
/// is over.
fn wait(shared: &Shared, wire: bool, timeout: Option<Duration>) -> Ready {
    let mut fds = [
        PollFd::new(&shared.wake, PollFlags::IN),
        PollFd::from_borrowed_fd(shared.wire.fd(), PollFlags::IN),
    ];
    let count = if wire { 2 } else { 1 };
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or_default());
    if rustix::event::poll(&mut fds[..count], timeout.as_ref()).is_err() {
        // A signal: the caller looks again.
        return Ready::default();
    }
    let [wake, frames] = fds.map(|fd| !fd.revents().is_empty());
    if wake {
        shared.wake.clear();
    }
    Ready {
        wire: wire && frames,
    }
}
