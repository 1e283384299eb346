//! Record of the requests of all clients and of their completions. The CQ is shared, so a thread
//! that polls it also handles completions of other threads.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uwarp_verbs::{Completion, Cq, PostErrorKind, Qp, SendWr, Status, WcOpcode};

use crate::common::LIMIT;

/// One connection of one client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Life {
    pub(crate) client: u32,
    pub(crate) number: u32,
}

impl Life {
    /// Returns true if the connection ends with an abort in the middle of its work. Every second
    /// connection does.
    pub(crate) fn is_rough(self) -> bool {
        self.number % 2 == 1
    }
}

/// A posted request that has not completed.
#[derive(Clone, Copy)]
struct Open {
    opcode: WcOpcode,
    qp_num: u32,
    life: Life,
    poster: usize,
}

/// Record of the requests of all clients.
pub(crate) struct Ledger {
    cq: Cq,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Open>>,
    /// Number of open requests for each client and poster.
    counts: Vec<[AtomicUsize; 2]>,
}

impl Ledger {
    pub(crate) fn new(cq: Cq, clients: u32) -> Self {
        Ledger {
            cq,
            next: AtomicU64::new(1),
            open: Mutex::default(),
            counts: (0..clients).map(|_| Default::default()).collect(),
        }
    }

    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    fn count(&self, life: Life, poster: usize) -> &AtomicUsize {
        &self.counts[life.client as usize][poster]
    }

    /// Posts the request that `wr` builds for a new work request id. Waits while the queue is full.
    pub(crate) fn post<'a>(
        &self,
        qp: &Qp,
        life: Life,
        poster: usize,
        opcode: WcOpcode,
        wr: impl Fn(u64) -> SendWr<'a>,
    ) {
        let wr_id = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            opcode,
            qp_num: qp.qp_num(),
            life,
            poster,
        };
        self.open.lock().unwrap().insert(wr_id, open);
        self.count(life, poster).fetch_add(1, Ordering::AcqRel);
        let deadline = Instant::now() + LIMIT;
        while let Err(error) = qp.post_send(&wr(wr_id)) {
            assert!(
                matches!(error.kind, PostErrorKind::SendQueueFull { .. }),
                "{error}"
            );
            assert!(Instant::now() < deadline, "no room in the send queue");
            self.pump();
        }
    }

    /// Handles completions of any thread. Sleeps briefly if there are none.
    fn pump(&self) {
        if let Some(completion) = self.cq.wait(Some(Duration::from_millis(20))) {
            self.settle(&completion);
        }
        let mut some = [Completion::default(); 8];
        let count = self.cq.poll(&mut some);
        some[..count].iter().for_each(|one| self.settle(one));
    }

    fn settle(&self, completion: &Completion) {
        let open = self.open.lock().unwrap().remove(&completion.wr_id);
        let open = open.unwrap_or_else(|| panic!("unexpected {completion:?}"));
        assert_eq!(
            (completion.opcode, completion.qp_num),
            (open.opcode, open.qp_num)
        );
        let flushed = open.life.is_rough() && completion.status == Status::WrFlush;
        assert!(
            completion.status == Status::Success || flushed,
            "{:?}: {completion:?}",
            open.life
        );
        self.count(open.life, open.poster)
            .fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until all requests of one poster have completed.
    pub(crate) fn wait(&self, life: Life, poster: usize) {
        let deadline = Instant::now() + LIMIT;
        while self.count(life, poster).load(Ordering::Acquire) > 0 {
            assert!(Instant::now() < deadline, "{life:?}: a completion is lost");
            self.pump();
        }
    }

    /// Checks that every request has completed exactly once.
    pub(crate) fn nothing_is_left(&self) {
        assert_eq!(self.cq.poll_one(), None);
        assert!(!self.cq.has_overflowed());
        assert!(self.open.lock().unwrap().is_empty());
    }
}
