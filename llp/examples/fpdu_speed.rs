//! Measures the cost of alignment on the in-memory link. Sends 1 GiB of FPDUs without alignment (as
//! one run of bytes), and aligned with segments. With one thread it measures processor time,
//! because other load on the machine disturbs processor time less. With two threads it measures
//! real time.
//!
//! `cargo run --release -p uwarp-llp --example fpdu_speed`
#![expect(clippy::print_stdout, reason = "it prints its results")]

use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{ClockId, clock_gettime};
use uwarp_llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpError, Network, Piece, Recv, SendHints};

const TOTAL: usize = 1 << 30;
const BATCH: usize = 1 << 20;

type Ends = (Box<dyn Llp>, Box<dyn Llp>);

fn connected(mtu: usize) -> Result<Ends, LlpError> {
    let settings = MemorySettings::default().mtu(mtu);
    let (first, second) = MemoryNetwork::pair(&settings)?;
    let mut listener = second.listen(([192, 0, 2, 2], 7174).into(), 1)?;
    let mut client = first.connect(None, listener.local_addr())?;
    let server = loop {
        client.drive();
        if let Some(server) = listener.try_accept()? {
            break server;
        }
    };
    Ok((client, server))
}

/// A batch of FPDUs of `fpdu` bytes, sent repeatedly.
struct Batch {
    bytes: Vec<u8>,
    ends: Vec<u64>,
    at: usize,
    aligned: bool,
}

impl Batch {
    fn new(fpdu: usize, aligned: bool) -> Self {
        let count = (BATCH / fpdu).max(1);
        Self {
            bytes: vec![1; count * fpdu],
            ends: (1..=count).map(|number| (number * fpdu) as u64).collect(),
            at: 0,
            aligned,
        }
    }

    fn send(&mut self, llp: &mut dyn Llp) -> Result<usize, LlpError> {
        let hints = if self.aligned {
            SendHints::new(self.at as u64, &self.ends)
        } else {
            SendHints::NONE
        };
        let taken = llp.try_send(&[Piece::from(&self.bytes[self.at..])], hints)?;
        self.at = (self.at + taken) % self.bytes.len();
        Ok(taken)
    }
}

fn one_thread((mut client, mut server): Ends, mut batch: Batch) -> Result<Duration, LlpError> {
    let mut buffer = vec![0; 256 << 10];
    let (start, mut got) = (processor_time(), 0);
    while got < TOTAL {
        batch.send(&mut *client)?;
        while let Recv::Data(count) = server.try_recv(&mut buffer)? {
            got += count;
        }
    }
    Ok(processor_time() - start)
}

fn two_threads((mut client, mut server): Ends, mut batch: Batch) -> Result<Duration, LlpError> {
    let start = Instant::now();
    let sender = thread::spawn(move || {
        let mut sent = 0;
        while sent < TOTAL {
            client.clear_readiness();
            client.drive();
            let taken = batch.send(&mut *client)?;
            sent += taken;
            if taken == 0 {
                wait(&*client);
            }
        }
        client.shutdown()?;
        while !client.flushed() {
            wait(&*client);
            client.clear_readiness();
            client.drive();
        }
        Ok::<_, LlpError>(())
    });
    let mut buffer = vec![0; 256 << 10];
    loop {
        server.clear_readiness();
        match server.try_recv(&mut buffer)? {
            Recv::Data(_) => {}
            Recv::WouldBlock => wait(&*server),
            Recv::Closed => break,
        }
    }
    let elapsed = start.elapsed();
    sender.join().expect("the sender does not panic")?;
    Ok(elapsed)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

fn wait(llp: &dyn Llp) {
    let left = llp
        .deadline()
        .map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = [PollFd::from_borrowed_fd(llp.fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, timeout.as_ref()).expect("poll takes these arguments");
}

fn main() -> Result<(), LlpError> {
    println!("MTU, FPDU | GB/s 1 thread: as one run, aligned, ratio | 2 threads: the same");
    for (mtu, fpdu) in [
        (1500, 1460),
        (1500, 1452),
        (1500, 292),
        (9000, 8960),
        (65535, 64776),
    ] {
        let mut rates = [[0.0_f64; 2]; 2];
        // Other load disturbs the measurements, so the two modes alternate and the best of five
        // runs counts.
        for _ in 0..5 {
            for aligned in [false, true] {
                for (threads, run) in [one_thread, two_threads].into_iter().enumerate() {
                    let elapsed = run(connected(mtu)?, Batch::new(fpdu, aligned))?;
                    let rate = TOTAL as f64 / elapsed.as_secs_f64() / 1e9;
                    let best = &mut rates[threads][usize::from(aligned)];
                    *best = best.max(rate);
                }
            }
        }
        let [one, two] = rates
            .map(|[plain, aligned]| format!("{plain:5.2} {aligned:5.2} {:.2}", aligned / plain));
        println!("{mtu:5} {fpdu:5} | {one} | {two}");
    }
    Ok(())
}
