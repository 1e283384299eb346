//! Thread of a link. It receives frames while no connection is driven, and runs the timers of the
//! link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::link::Shared;
use crate::LlpError;

/// Pause of the thread while another thread receives frames.
const YIELD_PAUSE: Duration = Duration::from_micros(50);
/// Number of consecutive checks that have to find another thread active before the pause becomes
/// longer.
const STEADY: u32 = 20;
/// The longer pause, used after [`STEADY`] checks.
const YIELD_PAUSE_LONGER: Duration = Duration::from_micros(200);
/// Longest pause after the wire was reported as readable but had no frame.
const MAX_PAUSE: Duration = Duration::from_millis(10);
/// First pause before the thread retries frames that the wire did not accept. The pause doubles up
/// to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_micros(100);
/// Longest pause before the thread retries frames.
const MAX_RETRY: Duration = Duration::from_millis(2);
/// Time between two checks of an interface that is down.
const LOOK: Duration = Duration::from_millis(500);

/// Starts the thread. It ends when [`Shared::stop`] is set or the link is down.
pub(super) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, LlpError> {
    crate::thread::spawn("uwarp-link", move || run(&shared)).map_err(|error| LlpError::Io {
        op: "start the thread of the link",
        errno: error.raw_os_error().unwrap_or(0),
    })
}

/// Result of [`wait`]: whether the wire is readable.
#[derive(Default)]
struct Ready {
    wire: bool,
}

fn run(shared: &Shared) {
    let mut retry = RETRY;
    let mut pause = YIELD_PAUSE;
    let mut others = Others::default();
    while !shared.stop.load(Ordering::Acquire) && !shared.is_down() {
        let busy = shared.out.is_busy();
        if !busy {
            retry = RETRY;
        }
        let look = shared.check_wire().then_some(LOOK);
        let now = Instant::now();
        let announce = shared.announce_if_due(now);
        let yield_pause = others.yield_pause(shared, now);
        let timers = [busy.then_some(retry), look, yield_pause];
        // The thread does not wait for frames while another thread receives them.
        let wire = yield_pause.is_none();
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
            Some(count) if count > 0 => pause = YIELD_PAUSE,
            // Another thread took the frame, or there was none.
            _ => {
                wait(shared, false, Some(pause));
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

/// Observations about other threads that receive frames while they drive a connection.
#[derive(Default)]
struct Others {
    /// Number of checks in a row that found another thread active.
    seen: u32,
}

impl Others {
    /// Returns the time to pause if another thread has just received frames, otherwise `None`.
    /// Counts the consecutive checks that found such a thread.
    fn yield_pause(&mut self, shared: &Shared, now: Instant) -> Option<Duration> {
        let pause = if self.seen > STEADY {
            YIELD_PAUSE_LONGER
        } else {
            YIELD_PAUSE
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

/// Returns the time until the first timer; `None` if there is no timer.
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

/// Waits until the wire is readable (if `wire` is set), the thread is woken, or the time is over.
fn wait(shared: &Shared, wire: bool, timeout: Option<Duration>) -> Ready {
    let mut fds = [
        PollFd::new(&shared.wake, PollFlags::IN),
        PollFd::from_borrowed_fd(shared.wire.fd(), PollFlags::IN),
    ];
    let count = if wire { 2 } else { 1 };
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or_default());
    if rustix::event::poll(&mut fds[..count], timeout.as_ref()).is_err() {
        // A signal arrived; the caller checks again.
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
