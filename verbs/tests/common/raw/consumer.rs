//! Threads that drive our side and take its completions while the peer misbehaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use uwarp_verbs::{Completion, Cq};

/// Behaviour of our consumer while the peer misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meanwhile {
    /// Makes no calls: the background thread of the device makes progress.
    Absent,
    /// Polls its CQs continuously.
    Polls,
    /// Waits for completions.
    Waits,
}

/// Consumer with one thread for each CQ.
pub(crate) struct Consumer {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Completion>>>,
}

impl Consumer {
    pub(crate) fn start(what: Meanwhile, cqs: [&Cq; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let take = move |cq: &Cq| match what {
            Meanwhile::Absent => None,
            Meanwhile::Polls => cq.poll_one(),
            Meanwhile::Waits => cq.wait(Some(Duration::from_millis(1))),
        };
        let threads = cqs
            .into_iter()
            .filter(|_| what != Meanwhile::Absent)
            .map(|cq| {
                let (cq, stop) = (cq.clone(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut taken = Vec::new();
                    while !stop.load(Ordering::Acquire) {
                        match take(&cq) {
                            Some(completion) => taken.push(completion),
                            None => std::thread::yield_now(),
                        }
                    }
                    taken
                })
            });
        Consumer {
            threads: threads.collect(),
            stop,
        }
    }

    /// Stops the threads and returns the completions that each of them took.
    pub(crate) fn stop(&mut self) -> [Vec<Completion>; 2] {
        self.stop.store(true, Ordering::Release);
        let mut taken = self.threads.drain(..).map(|thread| thread.join().unwrap());
        [
            taken.next().unwrap_or_default(),
            taken.next().unwrap_or_default(),
        ]
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // If the test fails, the threads end by themselves.
        self.stop.store(true, Ordering::Release);
    }
}
