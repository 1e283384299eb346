//! The well-behaved peer beside an attack: it Writes and Reads back all the time, and nothing may be wrong.

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

/// Bytes of one Write.
const PIECE: u32 = 64 << 10;
/// Writes of one round; then all of them are read back and compared.
const PIECES: u32 = 16;
/// What of the victim's region a client uses.
pub(crate) const ROOM: u64 = (PIECE * PIECES) as u64;

/// A client with a connection.
pub(crate) struct Client {
    qp: Qp,
    cq: Cq,
    ours: MemoryRegion,
    back: MemoryRegion,
    to: Region,
    round: u64,
}

impl Client {
    /// Connects to the victim's listener.
    pub(crate) fn connect(listener: SocketAddr, to: Region) -> Result<Client> {
        let device = Device::tcp()?;
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

    /// Writes new bytes, reads them back, and compares.
    pub(crate) fn round(&mut self) -> Result<()> {
        self.round += 1;
        let len = usize::try_from(ROOM)?;
        let words = 0..ROOM / 8;
        let octets: Vec<u8> = words
            .flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.round).to_ne_bytes())
            .collect();
        self.ours.write_at(0, &octets)?;
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
            let done = done.ok_or("the honest peer waits in vain for a completion")?;
            if done.status != Status::Success {
                failed.get_or_insert(done);
            }
        }
        if let Some(failed) = failed {
            return Err(format!("the honest peer got {failed:?}").into());
        }
        let mut found = vec![0; len];
        self.back.read_at(0, &mut found)?;
        if found != octets {
            return Err("the honest peer read other bytes than it had written".into());
        }
        Ok(())
    }
}

/// A client that never stops, and how much it gets done.
pub(crate) struct Honest {
    stop: Arc<AtomicBool>,
    /// When each of its rounds ended.
    rounds: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
}

impl Honest {
    pub(crate) fn start(listener: SocketAddr, to: Region, rest: Duration) -> Result<Honest> {
        let mut client = Client::connect(listener, to)?;
        client.round()?;
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(Mutex::new(Vec::new()));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                client.round().map_err(|error| error.to_string())?;
                lock(&done).push(Instant::now());
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

    /// Bytes a second, out and back, in this time: over all of it, and in its worst second.
    pub(crate) fn rates(&self, from: Instant, to: Instant) -> [f64; 2] {
        const SECOND: Duration = Duration::from_secs(1);
        let rounds = lock(&self.rounds);
        let rate = |from: Instant, to: Instant| {
            let many =
                rounds.partition_point(|at| *at <= to) - rounds.partition_point(|at| *at <= from);
            (many as u64 * 2 * ROOM) as f64 / (to - from).as_secs_f64()
        };
        let mut worst = rate(from, to);
        // The worst second begins with the end of a round, or ends with the whole time.
        let begun = rounds.iter().copied().filter(|at| *at >= from);
        for at in begun.chain(to.checked_sub(SECOND)) {
            if at >= from && at + SECOND <= to {
                worst = worst.min(rate(at, at + SECOND));
            }
        }
        [rate(from, to), worst]
    }

    /// The rate over so long a time from now on.
    pub(crate) fn rate_for(&self, time: Duration) -> f64 {
        let from = Instant::now();
        thread::sleep(time);
        let [rate, _] = self.rates(from, Instant::now());
        rate
    }

    /// At least one round more, from beginning to end.
    pub(crate) fn goes_on(&self) -> Result<()> {
        let (before, deadline) = (lock(&self.rounds).len(), Instant::now() + PATIENCE);
        while lock(&self.rounds).len() < before + 2 {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err("the honest peer has failed".into());
            }
            if Instant::now() > deadline {
                return Err("the honest peer does not get on".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends it; what went wrong, if something did.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
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

/// Honest peers that come while an attack is on, one after the other.
pub(crate) struct Visitors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::result::Result<Visits, String>>,
}

/// How they fared.
#[derive(Clone, Copy, Default)]
pub(crate) struct Visits {
    pub(crate) many: usize,
    /// The longest time from TCP's connect until everything was written, read back and compared.
    pub(crate) slowest: Duration,
}

impl Visitors {
    pub(crate) fn start(listener: SocketAddr, to: Region) -> Visitors {
        /// Between two of them.
        const PAUSE: Duration = Duration::from_millis(250);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut visits = Visits::default();
            loop {
                let start = Instant::now();
                Client::connect(listener, to)
                    .and_then(|mut client| client.round())
                    .map_err(|error| format!("an honest peer that came meanwhile: {error}"))?;
                visits.many += 1;
                visits.slowest = visits.slowest.max(start.elapsed());
                if stopped.load(Ordering::Relaxed) {
                    return Ok(visits);
                }
                thread::sleep(PAUSE);
            }
        });
        Visitors { stop, thread }
    }

    /// Nobody comes any more; what went wrong, if something did.
    pub(crate) fn end(self) -> Result<Visits> {
        self.stop.store(true, Ordering::Relaxed);
        let visits = self.thread.join().map_err(|_| "a visitor has panicked")?;
        Ok(visits?)
    }
}

fn lock(rounds: &Mutex<Vec<Instant>>) -> MutexGuard<'_, Vec<Instant>> {
    rounds.lock().unwrap_or_else(PoisonError::into_inner)
}
