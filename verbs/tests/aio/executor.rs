//! Two minimal runtimes: one future on a thread that parks, and many futures on one thread.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Maximum time to wait for a future before the test fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while the future waits.
#[track_caller]
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the future was never woken, or never done");
        thread::park_timeout(left);
    }
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A waker that counts its calls.
#[derive(Default)]
pub(crate) struct Counter(AtomicUsize);

impl Counter {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs two futures concurrently.
pub(crate) async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut done_a, mut done_b) = (None, None);
    std::future::poll_fn(move |cx| {
        if done_a.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            done_a = Some(value);
        }
        if done_b.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            done_b = Some(value);
        }
        match (done_a.take(), done_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (done_a, done_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Executor that runs many tasks on the thread that created it. Wake-ups may come from any thread.
/// Only tasks that were woken are polled.
#[derive(Clone, Default)]
pub(crate) struct OneThread {
    new: Rc<RefCell<Vec<Task>>>,
}

struct TaskWaker {
    index: usize,
    queued: AtomicBool,
    ready: Arc<Mutex<Vec<usize>>>,
    thread: Thread,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.ready.lock().unwrap().push(self.index);
            self.thread.unpark();
        }
    }
}

impl OneThread {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.new.borrow_mut().push(Box::pin(task));
    }

    /// Runs until all tasks have finished.
    #[track_caller]
    pub(crate) fn run(&self) {
        let deadline = Instant::now() + LIMIT;
        let ready = Arc::new(Mutex::new(Vec::new()));
        let mut tasks: Vec<Option<(Task, Arc<TaskWaker>)>> = Vec::new();
        let mut left = 0;
        loop {
            for task in self.new.borrow_mut().drain(..) {
                let waker = Arc::new(TaskWaker {
                    index: tasks.len(),
                    queued: AtomicBool::new(false),
                    ready: Arc::clone(&ready),
                    thread: thread::current(),
                });
                Arc::clone(&waker).wake();
                tasks.push(Some((task, waker)));
                left += 1;
            }
            if left == 0 {
                return;
            }
            let woken = std::mem::take(&mut *ready.lock().unwrap());
            if woken.is_empty() && self.new.borrow().is_empty() {
                assert!(Instant::now() < deadline, "{left} tasks are never done");
                thread::park_timeout(LIMIT);
            }
            for index in woken {
                let Some((task, waker)) = &mut tasks[index] else {
                    continue;
                };
                waker.queued.store(false, Ordering::SeqCst);
                let waker = Waker::from(Arc::clone(waker));
                if task
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready()
                {
                    tasks[index] = None;
                    left -= 1;
                }
            }
        }
    }
}
