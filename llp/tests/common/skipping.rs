//! A clock that advances only while both hosts are idle, and the two hosts that use it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_llp::smol::{Clock, MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpListener, Network};

/// A clock that advances only when no descriptor is ready, and then directly to the next deadline.
/// So TCP's timers take no real time. If no end has a deadline, the clock does not advance, and the
/// test fails.
pub(crate) struct Skipping(Instant, pub(crate) Mutex<Duration>);

impl Clock for Skipping {
    fn now(&self) -> Instant {
        self.0 + *self.1.lock()
    }
}

impl Skipping {
    /// Maximum virtual time. A transfer that takes longer counts as stalled.
    const LIMIT: Duration = Duration::from_secs(36_000);

    pub(crate) fn skip_to(&self, deadline: Instant) {
        let mut at = self.1.lock();
        *at = (*at).max(deadline.saturating_duration_since(self.0));
        assert!(*at < Self::LIMIT, "it would continue forever");
    }
}

fn ready(fds: &[BorrowedFd<'_>]) -> bool {
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

pub(crate) struct Link {
    pub(crate) clock: Arc<Skipping>,
    pub(crate) a: MemoryNetwork,
    pub(crate) b: MemoryNetwork,
}

impl Link {
    pub(crate) fn new(settings: &MemorySettings) -> Self {
        let clock = Arc::new(Skipping(Instant::now(), Mutex::default()));
        let settings = settings
            .clone()
            .clock(Arc::<Skipping>::clone(&clock))
            .connect_timeout(Duration::from_secs(600));
        let (a, b) = MemoryNetwork::pair(&settings).unwrap();
        Self { clock, a, b }
    }

    /// Waits for one of the descriptors. If none is ready, skips to the first deadline.
    pub(crate) fn wait(&self, fds: &[BorrowedFd<'_>], deadlines: [Option<Instant>; 2]) {
        if !ready(fds) {
            let deadline = deadlines.into_iter().flatten().min();
            self.clock
                .skip_to(deadline.expect("neither end has a deadline: a wake-up was lost"));
        }
    }

    pub(crate) fn connected(&self, at: SocketAddr) -> (Box<dyn Llp>, Box<dyn Llp>) {
        let mut listener = self.b.listen(at, 8).unwrap();
        let mut client = self.a.connect(None, at).unwrap();
        let mut server = None;
        loop {
            client.clear_readiness();
            client.drive();
            listener.clear_readiness();
            let stands = client.connect_progress().unwrap();
            if server.is_none() {
                server = listener.try_accept().unwrap();
            }
            match server {
                Some(server) if stands => return (client, server),
                _ => self.wait(
                    &[client.fd(), listener.fd()],
                    [client.deadline(), LlpListener::deadline(&*listener)],
                ),
            }
        }
    }
}
