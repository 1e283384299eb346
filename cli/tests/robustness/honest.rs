//! Honest peer that works during an attack. It continuously writes data and reads the data back.
//! Every operation must succeed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use uwarp_verbs::{
    Access, ConnectOptions, Cq, Device, MemoryRegion, Qp, QpCaps, RemoteBuffer, SendWr, Status,
};

use crate::controller::Region;
use crate::{PATIENCE, Result};

/// Number of bytes in one Write.
const PIECE: u32 = 64 << 10;
/// Number of Writes in one round, after which all data is read back and compared.
const PIECES: u32 = 16;
/// Number of bytes of the victim's region that a client uses.
pub(crate) const ROOM: u64 = (PIECE * PIECES) as u64;

/// Place from which honest peers connect.
#[derive(Clone)]
pub(crate) enum Origin {
    /// The kernel's TCP.
    Kernel,
    /// A host with TCP in user space, which all honest peers share.
    Host(Device),
}

impl Origin {
    fn device(&self) -> Result<Device> {
        match self {
            Origin::Kernel => Ok(Device::tcp()?),
            Origin::Host(device) => Ok(device.clone()),
        }
    }
}

/// Work of an honest peer, which must succeed.
pub(crate) trait Work: Send + 'static {
    /// Number of bytes that a round moves, both directions together.
    const BYTES: u64;

    /// Moves data in both directions, and compares.
    fn round(&mut self) -> Result<()>;
}

/// Honest client with an established connection.
pub(crate) struct Client {
    qp: Qp,
    cq: Cq,
    ours: MemoryRegion,
    back: MemoryRegion,
    to: Region,
    round: u64,
}

impl Client {
    /// Connects to the victim's listener, over the kernel's TCP.
    pub(crate) fn connect(listener: SocketAddr, to: Region) -> Result<Client> {
        Client::connect_from(&Origin::Kernel, listener, to)
    }

    /// Connects to the victim's listener from this place.
    pub(crate) fn connect_from(
        origin: &Origin,
        listener: SocketAddr,
        to: Region,
    ) -> Result<Client> {
        let device = origin.device()?;
        let cq = device.create_cq(256)?;
        let pd = device.alloc_pd()?;
        let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
        let len = usize::try_from(ROOM)?;
        let client = Client {
            ours: pd.register(vec![0; len], Access::LOCAL_WRITE)?,
            back: pd.register(vec![0; len], Access::LOCAL_WRITE)?,
            qp,
            cq,
            to,
            round: 0,
        };
        client.qp.connect(listener, &ConnectOptions::default())?;
        Ok(client)
    }
}

impl Work for Client {
    const BYTES: u64 = 2 * ROOM;

    /// Writes new bytes, reads them back, and compares.
    fn round(&mut self) -> Result<()> {
        self.round += 1;
        let len = usize::try_from(ROOM)?;
        let words = 0..ROOM / 8;
        let bytes: Vec<u8> = words
            .flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.round).to_ne_bytes())
            .collect();
        self.ours.write_at(0, &bytes)?;
        for piece in 0..PIECES {
            let at = u64::from(piece * PIECE);
            let (sge, addr) = ([self.ours.sge(at, PIECE)], self.to.addr + at);
            self.qp.post_send(&SendWr::write(
                0,
                &sge,
                RemoteBuffer::at(addr, self.to.rkey),
            ))?;
        }
        for piece in 0..PIECES {
            let at = u64::from(piece * PIECE);
            let (sge, addr) = ([self.back.sge(at, PIECE)], self.to.addr + at);
            self.qp
                .post_send(&SendWr::read(1, &sge, RemoteBuffer::at(addr, self.to.rkey)))?;
        }
        let mut failed = None;
        for _ in 0..2 * PIECES {
            let done = self.cq.wait(Some(PATIENCE));
            let done = done.ok_or("the honest peer got no completion in time")?;
            if done.status != Status::Success {
                failed.get_or_insert(done);
            }
        }
        if let Some(failed) = failed {
            return Err(format!("the honest peer got {failed:?}").into());
        }
        let mut found = vec![0; len];
        self.back.read_at(0, &mut found)?;
        if found != bytes {
            return Err("the honest peer read back bytes that it had not written".into());
        }
        Ok(())
    }
}

/// Times at which the rounds of an honest peer ended.
#[derive(Clone)]
pub(crate) struct Rounds {
    ended: Arc<Mutex<Vec<Instant>>>,
    /// Number of bytes that each round moves.
    bytes: u64,
}

impl Rounds {
    /// Returns an empty list for this kind of work.
    pub(crate) fn of<W: Work>() -> Rounds {
        Rounds {
            ended: Arc::default(),
            bytes: W::BYTES,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the throughput between two times, in bytes a second, both directions together: the
    /// average, and that of the worst second.
    pub(crate) fn rates(&self, from: Instant, to: Instant) -> [f64; 2] {
        const SECOND: Duration = Duration::from_secs(1);
        let rounds = self.lock();
        let rate = |from: Instant, to: Instant| {
            let many =
                rounds.partition_point(|at| *at <= to) - rounds.partition_point(|at| *at <= from);
            (many as u64 * self.bytes) as f64 / (to - from).as_secs_f64()
        };
        let mut worst = rate(from, to);
        // A candidate for the worst second starts at the end of a round, or ends at `to`.
        let begun = rounds.iter().copied().filter(|at| *at >= from);
        for at in begun.chain(to.checked_sub(SECOND)) {
            if at >= from && at + SECOND <= to {
                worst = worst.min(rate(at, at + SECOND));
            }
        }
        [rate(from, to), worst]
    }

    /// Measures the average rate three times. `whole`: true for a full run, which takes three
    /// seconds.
    pub(crate) fn sample(&self, whole: bool) -> [f64; 3] {
        let time = Duration::from_millis(if whole { 1_000 } else { 30 });
        [(); 3].map(|()| {
            let from = Instant::now();
            thread::sleep(time);
            let [rate, _] = self.rates(from, Instant::now());
            rate
        })
    }
}

/// Pause of an honest peer between two rounds. In a small run it must not use the whole machine.
pub(crate) fn rest(whole: bool) -> Duration {
    Duration::from_millis(if whole { 0 } else { 5 })
}

/// Thread in which an honest client works until it is stopped.
pub(crate) struct Honest {
    stop: Arc<AtomicBool>,
    pub(crate) rounds: Rounds,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
}

impl Honest {
    /// Starts to work, and adds each round to the list.
    pub(crate) fn start(mut client: impl Work, rounds: Rounds, rest: Duration) -> Result<Honest> {
        client.round()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, done) = (Arc::clone(&stop), rounds.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                client.round().map_err(|error| error.to_string())?;
                done.lock().push(Instant::now());
                thread::sleep(rest);
            }
            Ok(())
        });
        Ok(Honest {
            stop,
            rounds,
            thread: Some(thread),
        })
    }

    /// Waits until at least one round that starts after this call is complete.
    pub(crate) fn wait_round(&self) -> Result<()> {
        let (before, deadline) = (self.rounds.lock().len(), Instant::now() + PATIENCE);
        while self.rounds.lock().len() < before + 2 {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err("the honest peer has failed".into());
            }
            if Instant::now() > deadline {
                return Err("the honest peer makes no progress".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Stops the client. Fails if the client has failed.
    pub(crate) fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.wait_end()
    }

    /// Waits until the client fails or is stopped. Fails if it has failed.
    pub(crate) fn wait_end(mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err("the honest peer has panicked".into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Thread in which honest peers connect during an attack, one after the other.
pub(crate) struct Visitors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::result::Result<Visits, String>>,
}

/// Number of visits, and the duration of the slowest one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Visits {
    pub(crate) many: usize,
    /// Longest time from the TCP connect until everything was written, read back and compared.
    pub(crate) slowest: Duration,
    /// True if they came after the attack.
    pub(crate) afterwards: bool,
}

impl Visits {
    /// Performs a visit, and adds it.
    pub(crate) fn add(&mut self, visit: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        visit()?;
        self.many += 1;
        self.slowest = self.slowest.max(start.elapsed());
        Ok(())
    }
}

impl Visitors {
    /// Starts to perform visits, which get their numbers.
    pub(crate) fn start(mut visit: impl FnMut(usize) -> Result<()> + Send + 'static) -> Visitors {
        /// Pause between two visits.
        const PAUSE: Duration = Duration::from_millis(250);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut visits = Visits::default();
            loop {
                let number = visits.many;
                let visited = visits.add(|| visit(number));
                visited.map_err(|error| {
                    format!("an honest peer that connected during the attack: {error}")
                })?;
                if stopped.load(Ordering::Relaxed) {
                    return Ok(visits);
                }
                thread::sleep(PAUSE);
            }
        });
        Visitors { stop, thread }
    }

    /// Stops the visits. Fails if one of them has failed.
    pub(crate) fn end(self) -> Result<Visits> {
        self.stop.store(true, Ordering::Relaxed);
        let visits = self.thread.join().map_err(|_| "a visitor has panicked")?;
        Ok(visits?)
    }
}
