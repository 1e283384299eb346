//! Drives user-space TCP on a thread while a case waits for something else. The TCP of an operating
//! system acknowledges and retransmits by itself, and a target may rely on that.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use uwarp_llp::Llp;

/// Interval at which connections are driven. TCP allows acknowledgements to be delayed by more than
/// this.
const TICK: Duration = Duration::from_millis(2);

/// A connection with shared ownership. It is driven until its last owner drops it.
pub(super) type Shared = Arc<Mutex<Box<dyn Llp>>>;

/// Locks the connection, even if another thread panicked while it held the lock.
pub(super) fn lock(llp: &Shared) -> MutexGuard<'_, Box<dyn Llp>> {
    llp.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handle of a thread that drives connections. Dropping it ends the thread.
pub(super) struct Driver(Arc<Work>);

#[derive(Default)]
struct Work {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    connections: Vec<Weak<Mutex<Box<dyn Llp>>>>,
    running: bool,
    ends: bool,
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut state = self.state();
            state.connections.retain(|one| one.strong_count() > 0);
            while state.connections.is_empty() && !state.ends {
                state = self
                    .news
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.ends {
                return;
            }
            let connections = state.connections.clone();
            drop(state);
            for connection in connections.iter().filter_map(Weak::upgrade) {
                lock(&connection).drive();
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Driver {
    pub(super) fn new() -> Self {
        Driver(Arc::default())
    }

    /// Adds a connection, and starts the thread if it does not run yet.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn take(&self, llp: Box<dyn Llp>) -> std::io::Result<Shared> {
        let shared = Arc::new(Mutex::new(llp));
        let mut state = self.0.state();
        state.connections.push(Arc::downgrade(&shared));
        if !state.running {
            let work = Arc::clone(&self.0);
            let name = "uwarp-driver".to_owned();
            std::thread::Builder::new()
                .name(name)
                .spawn(move || work.run())?;
            state.running = true;
        }
        self.0.news.notify_one();
        Ok(shared)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.state().ends = true;
        self.0.news.notify_one();
    }
}
