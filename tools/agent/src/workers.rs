//! Threads that serve clients, each one client at a time.
//!
//! A few threads without a client are kept. The C library keeps the stacks of ended threads, which
//! count for a limit of the address space (`ulimit -v`) although a server cannot see them. With
//! threads of its own, a server that refused clients at such a limit can serve again when others
//! have left.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};
use uwarp_verbs::Device;
use uwarp_verbs::headroom::MemoryShort;

use crate::clients::{Clients, LEAVE};

/// Maximum number of threads that are kept without a client.
const KEEP: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// Threads of a server. Dropping this lets each thread end after its client.
#[derive(Debug)]
pub struct Workers {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a job is queued, and when the server ends.
    due: Condvar,
    /// Notified when a thread has served its client, and when it ends.
    served: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that threads without a client take next.
    queue: VecDeque<Job>,
    /// Number of threads that wait for a job.
    idle: usize,
    /// Number of all threads.
    threads: usize,
    is_closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { threads, idle, .. } = *self.state.lock();
        write!(f, "{threads} threads, {idle} of them idle")
    }
}

impl State {
    /// Returns true if a thread waits that no queued job is for.
    fn has_idle(&self) -> bool {
        self.idle > self.queue.len()
    }
}

impl Workers {
    /// Creates a pool without threads. `name` is the name of each thread.
    #[must_use]
    pub fn new(name: &'static str) -> Workers {
        let shared = Arc::default();
        Workers { name, shared }
    }

    /// Checks that a thread is idle or can be started, and that enough memory remains for a client
    /// that needs `bytes` bytes.
    ///
    /// # Errors
    /// [`MemoryShort`].
    pub fn check(&self, device: &Device, bytes: usize) -> Result<(), MemoryShort> {
        let what = "another client";
        if self.shared.state.lock().has_idle() {
            device.check_memory(bytes, what)
        } else {
            device.check_memory_for_thread(bytes, what)
        }
    }

    /// Does the same as [`Workers::check`]. If the memory is too short, one of `clients` may have
    /// to give way to this one, whose address is `from`.
    ///
    /// # Errors
    /// [`MemoryShort`].
    pub fn check_or_make_way(
        &self,
        device: &Device,
        bytes: usize,
        clients: &Clients,
        from: IpAddr,
    ) -> Result<(), MemoryShort> {
        let result = self.check(device, bytes);
        if result.is_ok() || !clients.make_way(from) {
            return result;
        }
        // The thread gives the place back shortly before it is idle.
        let busy = |state: &mut State| !state.has_idle();
        let mut state = self.shared.state.lock();
        self.shared.served.wait_while_for(&mut state, busy, LEAVE);
        drop(state);
        self.check(device, bytes)
    }

    /// Runs `job` on an idle thread, or on a new one.
    ///
    /// # Errors
    /// The system refused a thread. The job is dropped.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.has_idle() {
            state.queue.push_back(Box::new(job));
            self.shared.due.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let ending = Ending(Arc::clone(&self.shared));
        let named = thread::Builder::new().name(self.name.to_owned());
        // If no thread starts, the closure is dropped, which counts the thread as ended.
        named.spawn(move || work(&ending.0, Box::new(job)))?;
        Ok(())
    }

    /// Waits until all clients have been served and all threads have ended.
    pub fn finish(&self) {
        self.close();
        let mut state = self.shared.state.lock();
        while state.threads > 0 {
            self.shared.served.wait(&mut state);
        }
    }

    fn close(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.due.notify_all();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

/// Counts a thread as ended when it is dropped, also after a panic.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.served.notify_all();
    }
}

/// Runs `job`, and then the jobs that are queued.
fn work(shared: &Shared, mut job: Job) {
    loop {
        job();
        let mut state = shared.state.lock();
        if state.idle >= KEEP {
            return;
        }
        state.idle += 1;
        shared.served.notify_all();
        while state.queue.is_empty() && !state.is_closed {
            shared.due.wait(&mut state);
        }
        state.idle -= 1;
        match state.queue.pop_front() {
            Some(next) => job = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn an_idle_thread_is_used_again() {
        let workers = Workers::new("test");
        let (send, ran_on) = channel::<ThreadId>();
        let job = || {
            let send = send.clone();
            move || send.send(thread::current().id()).unwrap()
        };
        workers.run(job()).unwrap();
        let first = ran_on.recv().unwrap();
        while !workers.shared.state.lock().has_idle() {
            thread::yield_now();
        }
        workers.run(job()).unwrap();
        assert_eq!(ran_on.recv().unwrap(), first);
        workers.finish();
    }

    #[test]
    fn jobs_at_once_run_on_threads_of_their_own_and_all_are_finished() {
        let workers = Workers::new("test");
        let (send, done) = channel();
        let all = Arc::new(std::sync::Barrier::new(KEEP + 4));
        for _ in 0..KEEP + 4 {
            let (send, all) = (send.clone(), Arc::clone(&all));
            workers
                .run(move || {
                    // Passed only if all run at the same time.
                    all.wait();
                    send.send(()).unwrap();
                })
                .unwrap();
        }
        let shared = Arc::clone(&workers.shared);
        workers.finish();
        drop(send);
        assert_eq!(done.iter().count(), KEEP + 4);
        assert_eq!(shared.state.lock().threads, 0);
    }

    #[test]
    fn a_job_that_panics_leaves_no_thread_behind() {
        let workers = Workers::new("test");
        workers.run(|| panic!("on purpose")).unwrap();
        workers.finish();
    }
}
