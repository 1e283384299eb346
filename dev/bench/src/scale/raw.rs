//! Raw TCP with the same number of connections. It shows the kernel's own cost of more active
//! connections.
//!
//! One thread writes to its connections in turn, in messages as long as uwarp's FPDUs. The other
//! polls all connections with epoll, without sleeping, and reads the available bytes. uwarp's
//! servers do the same.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::{Active, Result, run_on};
use crate::baseline::prepare;

/// Length of a message in bytes: the FPDU of a 64 B Write, with length field, tagged header and
/// CRC.
const MESSAGE: usize = 2 + 14 + 64 + 4;
/// Size in bytes of the buffer for reads.
const READ: usize = 256 * 1024;
/// Time limit of the reader for the last bytes of a measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of connections that one epoll call reports.
const EVENTS: usize = 256;

/// State that both sides share.
#[derive(Default)]
struct Shared {
    /// True if the reader polls without sleeping.
    polls: AtomicBool,
    /// Number of bytes that were read.
    read: AtomicU64,
}

/// Writing side of the connections.
pub(super) struct RawConns {
    streams: Vec<TcpStream>,
    shared: Arc<Shared>,
}

impl RawConns {
    /// Starts a reader on this processor, and connects to it this number of times.
    pub(super) fn open(conns: usize, congestion: &str, processor: Option<usize>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (name, theirs) = (congestion.to_owned(), Arc::clone(&shared));
        std::thread::spawn(move || {
            let moved = run_on(processor).map_err(Into::into);
            if let Err(error) = moved.and_then(|()| serve(&listener, conns, &name, &theirs)) {
                eprintln!("uwarp-bench: reader of many connections: {error}");
            }
        });
        let mut streams = Vec::with_capacity(conns);
        for _ in 0..conns {
            let stream = TcpStream::connect(addr)?;
            prepare(&stream, congestion)?;
            streams.push(stream);
        }
        Ok(RawConns { streams, shared })
    }

    /// Measures messages per second, until the reader has read all of them.
    pub(super) fn rate(&self, active: Active, time: Duration) -> Result<f64> {
        let bytes = vec![0x5a; active.list * MESSAGE];
        let Shared { polls, read } = &*self.shared;
        let mut messages = 0;
        let before = read.load(Ordering::Acquire);
        polls.store(true, Ordering::Release);
        let began = Instant::now();
        while began.elapsed() < time {
            for mut stream in &self.streams[..active.conns] {
                stream.write_all(&bytes)?;
                messages += active.list;
            }
        }
        let until = Instant::now() + PATIENCE;
        while read.load(Ordering::Acquire) - before < (messages * MESSAGE) as u64 {
            if Instant::now() > until {
                return Err("the reader has ended, or reads too slowly".into());
            }
        }
        polls.store(false, Ordering::Release);
        Ok(messages as f64 / began.elapsed().as_secs_f64())
    }
}

/// Runs a reader.
fn serve(listener: &TcpListener, conns: usize, congestion: &str, shared: &Shared) -> Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = Vec::with_capacity(conns);
    for at in 0..conns {
        let (stream, _) = listener.accept()?;
        prepare(&stream, congestion)?;
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
        streams.push(stream);
    }
    let mut bytes = vec![0; READ];
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        let room = rustix::buffer::spare_capacity(&mut events);
        let at_once = Timespec::default();
        let polls = shared.polls.load(Ordering::Acquire);
        epoll::wait(&epoll, room, polls.then_some(&at_once))?;
        for event in &events {
            match streams[event.data.u64() as usize].read(&mut bytes)? {
                0 => return Ok(()),
                count => shared.read.fetch_add(count as u64, Ordering::Release),
            };
        }
    }
}
