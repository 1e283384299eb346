//! A counter and a lock in the server's memory, which clients use with atomic operations.
//!
//! ```text
//!  client A                       server                       client B
//!    │ ── FetchAdd 1 ──►  ┌──────────────────────┐  ◄── FetchAdd 1 ── │
//!    │ ◄── "it was 7" ──  │ counter │ lock │ sum │  ── "it was 8" ──► │
//!    │ ── CmpSwap 0→A ─►  └──────────────────────┘  ◄─ CmpSwap 0→B ── │
//!    │ ◄── "it was 0": A has the lock       "it was A": B tries again
//! ```
//!
//! Two clients that read a number, add to it and write it back at the same time lose one addition.
//! **FetchAdd** adds at the server in one step and returns the old number. **CmpSwap** stores a
//! value only if the old one is what the client expects. That suffices for a lock: the client that
//! replaces 0 by its own number holds the lock. The server's program takes no part; it only
//! registers 24 bytes for its clients.
//!
//! Two caveats. A client that dies with the lock keeps it: real systems limit the time (a lease).
//! And a client without the lock retries over the network: use this for short waits only.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use uwarp_examples::{Result, close, done, run, serve};
use uwarp_verbs::{
    AcceptOptions, Access, ConnectOptions, Device, MemoryRegion, Qp, QpCaps, RemoteBuffer, SendWr,
};

/// Default for the argument `TIMES`: how often a client counts.
const TIMES: u64 = 100;
/// Offsets of the three numbers. Atomics work on 8 bytes at a multiple of 8.
const COUNTER: u64 = 0;
const LOCK: u64 = 8;
const SUM: u64 = 16;

fn main() -> ExitCode {
    let about = "A counter and a lock in the server's memory, by atomic operations.";
    run(about, "TIMES", server, client)
}

/// A client's view of the numbers.
struct Remote<'a> {
    qp: &'a Qp,
    /// Memory of this client in which results arrive.
    sink: MemoryRegion,
    numbers: RemoteBuffer,
}

impl Remote<'_> {
    fn do_one(&self, request: &SendWr<'_>) -> Result<u64> {
        self.qp.post_send(request)?;
        done(self.qp.send_cq())?;
        let mut bytes = [0; 8];
        self.sink.read_at(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Adds to the number at offset `at`. Returns the old value.
    fn fetch_add(&self, at: u64, add: u64) -> Result<u64> {
        let (sink, to) = ([self.sink.sge(0, 8)], self.numbers.slice(at, 8)?);
        self.do_one(&SendWr::fetch_add(1, &sink, to, add))
    }

    /// Stores `new` at offset `at` if the value there is `old`. Returns the old value in any case.
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64> {
        let (sink, to) = ([self.sink.sge(0, 8)], self.numbers.slice(at, 8)?);
        self.do_one(&SendWr::compare_swap(1, &sink, to, old, new))
    }

    fn read(&self, at: u64) -> Result<u64> {
        let (sink, to) = ([self.sink.sge(0, 8)], self.numbers.slice(at, 8)?);
        self.do_one(&SendWr::read(1, &sink, to))
    }

    fn write(&self, at: u64, value: u64) -> Result {
        let to = self.numbers.slice(at, 8)?;
        let bytes = value.to_ne_bytes();
        self.do_one(&SendWr::write_inline(1, &bytes, to))?;
        Ok(())
    }
}

fn client(server: SocketAddr, times: Option<String>) -> Result {
    let times = times.map_or(Ok(TIMES), |times| times.parse())?;
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;
    let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
    let connected = qp.connect(server, &ConnectOptions::default())?;
    let remote = Remote {
        qp: &qp,
        sink: pd.register(vec![0; 8], Access::LOCAL_WRITE)?,
        numbers: RemoteBuffer::from_bytes(&connected.private_data).ok_or("no numbers")?,
    };
    // A unique number for this client, from the counter itself. 0 means "unlocked".
    let me = remote.fetch_add(COUNTER, 1)? + 1;
    for _ in 1..times {
        remote.fetch_add(COUNTER, 1)?;
    }
    // Ordinary Reads and Writes read and write the sum. Only the lock prevents lost additions.
    let mut tries: u64 = 0;
    for _ in 0..times {
        while remote.compare_swap(LOCK, 0, me)? != 0 {
            tries += 1;
            std::thread::yield_now(); // another client holds the lock
        }
        let sum = remote.read(SUM)?;
        remote.write(SUM, sum + 1)?;
        // Unlock. The Write above precedes this CmpSwap on the connection, so it is placed first.
        if remote.compare_swap(LOCK, me, 0)? != me {
            return Err("another client has taken our lock".into());
        }
    }
    println!("counted {times}, locked {times} times, waited {tries} times");
    let (counter, sum) = (remote.read(COUNTER)?, remote.read(SUM)?);
    println!("counter {counter}, sum {sum}");
    close(&qp)
}

fn server(addr: SocketAddr) -> Result {
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let numbers = pd.register_buffer(uwarp_verbs::Buffer::zeroed(24)?, access)?;
    let options = AcceptOptions::default().private_data(numbers.remote().to_bytes());
    serve(&device, addr, |device, request| {
        let cq = device.create_cq(1)?;
        let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
        request.accept(&qp, &options)?;
        // Sleeps until the client disconnects.
        let _ = qp.wait_closed(Duration::MAX);
        let mut counter = [0; 8];
        numbers.read_at(COUNTER as usize, &mut counter)?;
        println!("the counter is at {}", u64::from_ne_bytes(counter));
        Ok(())
    })
}
