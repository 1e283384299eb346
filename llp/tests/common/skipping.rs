//! A clock that advances only while both hosts are idle, and the two hosts that use it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_llp::smol::{Clock, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpListener, Network};

use super::End;

/// A clock that advances only when no descriptor is ready, and then directly to the next deadline.
/// So TCP's timers take no real time. If no end has a deadline, the clock does not advance, and the
/// test fails.
#[derive(Default)]
pub(crate) struct Skipping(pub(crate) ManualClock);

impl Clock for Skipping {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

impl Skipping {
    /// Maximum virtual time. A transfer that takes longer counts as stalled.
    const LIMIT: Duration = Duration::from_secs(36_000);

    pub(crate) fn skip_to(&self, deadline: Instant) {
        self.0.set(deadline);
        assert!(self.0.elapsed() < Self::LIMIT, "it would continue forever");
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
        let clock = Arc::new(Skipping::default());
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

    /// Lets both ends send and receive all their bytes.
    pub(crate) fn transfer(&self, a: &mut End, b: &mut End) {
        loop {
            a.step().unwrap();
            b.step().unwrap();
            // smoltcp's short TIME-WAIT may end before the last acknowledgement reaches the other
            // end. That end is then reset although it has received all bytes, so it is enough that
            // one end is done.
            let (done_a, done_b) = (a.done(), b.done());
            if a.peer_closed && b.peer_closed && (done_a || done_b) {
                break;
            }
            let deadlines = [a.llp.deadline(), b.llp.deadline()];
            self.wait(&[a.llp.fd(), b.llp.fd()], deadlines);
        }
        assert!(
            a.got == b.to_send && b.got == a.to_send,
            "other bytes arrived"
        );
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
