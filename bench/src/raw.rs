//! Raw TCP in a well-written program: the performance that an application can reach without RDMA.
//!
//! Client and server are separate processes. They use the same processors and the same congestion
//! control as those of `uwarp perf`. They run over any [`Stream`], which is kernel TCP or the
//! stream of `smol::bare`. [`work`] contains the work on the bytes themselves.

mod work;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::process::{self, Pinning, Running, Side};
use crate::sample::Sample;
use crate::stats::median;
pub(crate) use work::Work;
use work::{Sink, Source};

/// Size in bytes of the buffer for reads.
const READ: usize = 256 * 1024;
/// Number of round trips between two clock reads.
const BATCH: usize = 64;
/// First argument of a server process.
pub(crate) const SERVER: &str = "raw-server";
/// First argument of a client process.
pub(crate) const CLIENT: &str = "raw-client";

/// Kind of a connection. The first byte of the connection selects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A stream from the client. The server reads it, and responds after its end. Both sides block.
    Stream,
    /// Messages there and back. Both sides spin on a nonblocking socket.
    Spin,
    /// Messages there and back. Both sides block in the read.
    Block,
    /// Messages there and back. The client spins, and the server blocks like an application that
    /// sleeps until a message arrives.
    SleepingServer,
    /// A stream from the client. Both sides spin on a nonblocking socket.
    SpinningStream,
    /// A stream with work on the bytes at both ends. Both sides spin or block.
    Working { work: Work, spins: bool },
}

impl Kind {
    /// All kinds. The index of a kind is the byte that selects it.
    const ALL: [Kind; 13] = [
        Kind::Stream,
        Kind::Spin,
        Kind::Block,
        Kind::SleepingServer,
        Kind::SpinningStream,
        Kind::working(Work::ALL[0], false),
        Kind::working(Work::ALL[0], true),
        Kind::working(Work::ALL[1], false),
        Kind::working(Work::ALL[1], true),
        Kind::working(Work::ALL[2], false),
        Kind::working(Work::ALL[2], true),
        Kind::working(Work::ALL[3], false),
        Kind::working(Work::ALL[3], true),
    ];

    fn spins(self, side: Side) -> bool {
        match self {
            Kind::Stream | Kind::Block => false,
            Kind::Spin | Kind::SpinningStream => true,
            Kind::SleepingServer => side == Side::Client,
            Kind::Working { spins, .. } => spins,
        }
    }

    /// Returns true if bytes flow in one direction only.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Kind::Stream | Kind::SpinningStream) || self.work().is_some()
    }

    /// Returns the work on the bytes, if the kind has any.
    fn work(self) -> Option<Work> {
        match self {
            Kind::Working { work, .. } => Some(work),
            _ => None,
        }
    }

    /// Creates the kind of a stream with this work.
    pub(crate) const fn working(work: Work, spins: bool) -> Self {
        Kind::Working { work, spins }
    }

    /// Returns the byte that selects the kind.
    pub(crate) fn byte(self) -> u8 {
        let at = Self::ALL.iter().position(|kind| *kind == self);
        at.map_or(u8::MAX, |at| at as u8)
    }

    fn of(byte: u8) -> Option<Kind> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// A server process, which is killed on drop.
pub(crate) struct Server {
    _running: Running,
    pub(crate) addr: SocketAddr,
    congestion: Option<String>,
    pinning: Pinning,
}

impl Server {
    /// Starts a server on the loopback device.
    pub(crate) fn start(congestion: Option<&str>, pinning: &Pinning) -> io::Result<Self> {
        Self::start_at("127.0.0.1", congestion, pinning)
    }

    /// Starts a server at a local address of the kernel.
    pub(crate) fn start_at(
        host: &str,
        congestion: Option<&str>,
        pinning: &Pinning,
    ) -> io::Result<Self> {
        let mut command = pinning.command(Side::Server, std::env::current_exe()?);
        command.args([SERVER, congestion.unwrap_or_default(), host]);
        let (running, addr) = started(&mut command)?;
        Ok(Server {
            _running: running,
            addr,
            congestion: congestion.map(str::to_owned),
            pinning: pinning.clone(),
        })
    }

    /// Runs a client. Returns bytes per second for writes of this size, or seconds one way for
    /// messages of this size.
    pub(crate) fn measure(&self, kind: Kind, size: usize, time: Duration) -> io::Result<Sample> {
        let load = Load { kind, size, time };
        measure(self.addr, self.congestion.as_deref(), &self.pinning, load)
    }
}

/// Starts a server process and reads its address, which it prints first.
pub(crate) fn started(command: &mut Command) -> io::Result<(Running, SocketAddr)> {
    let child = command.stdout(Stdio::piped()).spawn()?;
    let mut running = Running(child);
    let mut line = String::new();
    if let Some(stdout) = running.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let addr = line
        .trim()
        .parse()
        .map_err(|_| io::Error::other("the server did not start"))?;
    Ok((running, addr))
}

/// Measures with a client on kernel TCP. The server may use any TCP stack.
pub(crate) fn measure(
    addr: SocketAddr,
    congestion: Option<&str>,
    pinning: &Pinning,
    load: Load,
) -> io::Result<Sample> {
    let mut command = pinning.command(Side::Client, std::env::current_exe()?);
    command
        .args([CLIENT, congestion.unwrap_or_default()])
        .arg(addr.to_string())
        .args(load.words());
    sample(&mut command, load.time)
}

/// Runs a client process and parses its output.
pub(crate) fn sample(command: &mut Command, time: Duration) -> io::Result<Sample> {
    let said = process::output(command, time + Duration::from_secs(20))?;
    let said: Value = serde_json::from_str(&said)?;
    Ok(Sample {
        cpu: said["cpu"].as_f64(),
        ..Sample::of(said["value"].as_f64().unwrap_or(f64::NAN))
    })
}

/// Runs a client or a server if the arguments of this program request one.
pub(crate) fn is_child(args: &[String]) -> Option<io::Result<()>> {
    let congestion = |text: &String| (!text.is_empty()).then(|| text.clone());
    match args {
        [_, what, name, host] if what == SERVER => Some(serve(host, congestion(name).as_deref())),
        [_, what, name, addr, load @ ..] if what == CLIENT => {
            let client = || {
                let invalid = || invalid("arguments of a raw client");
                let addr: SocketAddr = addr.parse().map_err(|_| invalid())?;
                let load = Load::parse(load).ok_or_else(invalid)?;
                let mut stream = TcpStream::connect(addr)?;
                prepare(&stream, congestion(name).as_deref())?;
                load.run(&mut stream)
            };
            Some(client())
        }
        _ => None,
    }
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what)
}

/// A byte stream to another process.
pub(crate) trait Stream: Read + Write {
    /// Selects whether reads spin. A spinning read returns [`ErrorKind::WouldBlock`] if there are
    /// no bytes, or polls until there are some.
    fn spin(&mut self, spins: bool) -> io::Result<()>;
    /// Ends the sending direction.
    fn finish(&mut self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn spin(&mut self, spins: bool) -> io::Result<()> {
        self.set_nonblocking(spins)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

/// Work of a client on its stream: the kind, the size of writes or messages, and the time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) size: usize,
    pub(crate) time: Duration,
}

impl Load {
    /// Formats the load as arguments of a process.
    pub(crate) fn words(&self) -> [String; 3] {
        [
            self.kind.byte().to_string(),
            self.size.to_string(),
            self.time.as_secs_f64().to_string(),
        ]
    }

    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let [kind, size, time] = words else {
            return None;
        };
        Some(Load {
            kind: Kind::of(kind.parse().ok()?)?,
            size: size.parse().ok()?,
            time: Duration::try_from_secs_f64(time.parse().ok()?).ok()?,
        })
    }

    /// Announces the load to the server, runs it, and prints the result.
    pub(crate) fn run(&self, stream: &mut impl Stream) -> io::Result<()> {
        let mut head = [0; 9];
        head[0] = self.kind.byte();
        head[1..].copy_from_slice(&(self.size as u64).to_le_bytes());
        stream.write_all(&head)?;
        let (value, cpu) = match self.kind.is_stream() {
            true => self.stream(stream)?,
            false => (self.ping_pong(stream)?, None),
        };
        println!("{}", json!({ "value": value, "cpu": cpu }));
        Ok(())
    }

    /// Runs a stream. Returns bytes per second, and the processor time of both sides in seconds per
    /// 10^9 bytes.
    fn stream(&self, stream: &mut impl Stream) -> io::Result<(f64, Option<f64>)> {
        stream.spin(self.kind.spins(Side::Client))?;
        let mut source = Source::new(self.kind.work(), self.size);
        let mut all = 0_u64;
        // Number of writes between two clock reads: 1 MiB together, but at most 64 writes.
        let batch = ((1 << 20) / self.size.max(1)).clamp(1, 64);
        let mut write = |stream: &mut dyn Stream, time| {
            let began = Instant::now();
            let mut sent = 0_u64;
            while began.elapsed() < time {
                for _ in 0..batch {
                    source.send(|bytes| write_all(stream, bytes))?;
                }
                sent += (batch * self.size) as u64;
            }
            all += sent;
            io::Result::Ok((sent, began))
        };
        // The first tenth is not measured, because windows and buffers must grow first.
        write(stream, self.time / 10)?;
        let before = processor_time();
        let (sent, began) = write(stream, self.time)?;
        stream.finish()?;
        let mut answer = [0; 8];
        read(stream, &mut answer)?;
        let took = began.elapsed().as_secs_f64();
        if let Some(crc) = source.crc() {
            let mut theirs = [0; 4];
            read(stream, &mut theirs)?;
            if u32::from_le_bytes(theirs) != crc {
                return Err(io::Error::other("what arrived has another CRC"));
            }
        }
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let ours = (processor_time() - before) / gigabytes(sent);
        // The server's processor time includes the warm-up.
        let theirs = u64::from_le_bytes(answer) as f64 / 1e9 / gigabytes(all);
        Ok((sent as f64 / took, Some(ours + theirs)))
    }

    /// Runs a ping-pong. Returns half a round trip in seconds, as the median of batches.
    fn ping_pong(&self, stream: &mut impl Stream) -> io::Result<f64> {
        stream.spin(self.kind.spins(Side::Client))?;
        let mut bytes = vec![0; self.size];
        let mut times = Vec::new();
        let began = Instant::now();
        while began.elapsed() < self.time + self.time / 10 {
            let before = Instant::now();
            for _ in 0..BATCH {
                write_all(stream, &bytes)?;
                read(stream, &mut bytes)?;
            }
            let took = before.elapsed().as_secs_f64() / (2 * BATCH) as f64;
            if before.duration_since(began) >= self.time / 10 {
                times.push(took);
            }
        }
        Ok(median(&mut times))
    }
}

/// Returns the processor time of this process in seconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn prepare(stream: &TcpStream, congestion: Option<&str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let Some(name) = congestion {
        SockRef::from(stream).set_tcp_congestion(name.as_bytes())?;
    }
    Ok(())
}

/// Fills `bytes`. Retries while a nonblocking socket has no bytes.
fn read(stream: &mut impl Stream, bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        match again(|| stream.read(&mut bytes[at..]))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

/// Writes all of `bytes`. Retries while a nonblocking socket has no room.
fn write_all(stream: &mut (impl Stream + ?Sized), bytes: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        match again(|| stream.write(&bytes[at..]))? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => at += count,
        }
    }
    Ok(())
}

/// Repeats `act` while it returns `WouldBlock` or is interrupted.
fn again(mut act: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match act() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Runs a server: prints its address, and serves one connection after another.
fn serve(host: &str, congestion: Option<&str>) -> io::Result<()> {
    let listener = TcpListener::bind((host, 0))?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream, congestion)?;
        match serve_one(&mut stream) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                eprintln!("raw server: {error}");
            }
            _ => {}
        }
    }
}

/// Serves one client.
pub(crate) fn serve_one(stream: &mut impl Stream) -> io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [kind, size @ ..] = head;
    let kind = Kind::of(kind).unwrap_or(Kind::Stream);
    stream.spin(kind.spins(Side::Server))?;
    let size = usize::try_from(u64::from_le_bytes(size)).unwrap_or(0);
    if kind.is_stream() {
        return drain(stream, Sink::new(kind.work(), size));
    }
    let mut bytes = vec![0; size];
    loop {
        read(stream, &mut bytes)?;
        write_all(stream, &bytes)?;
    }
}

/// Reads until the end of the stream. Responds with the processor time, and with the CRC if there
/// is a sink.
fn drain(stream: &mut impl Stream, mut sink: Option<Sink>) -> io::Result<()> {
    let mut bytes = vec![0; READ];
    let before = processor_time();
    loop {
        let count = again(|| stream.read(&mut bytes))?;
        if count == 0 {
            break;
        }
        if let Some(sink) = &mut sink {
            sink.take(&bytes[..count]);
        }
    }
    let nanos = (processor_time() - before) * 1e9;
    write_all(stream, &(nanos as u64).to_le_bytes())?;
    match sink.and_then(|sink| sink.crc()) {
        Some(crc) => write_all(stream, &crc.to_le_bytes()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_byte() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.byte()), Some(kind));
        }
        assert_eq!(Kind::of(200), None);
    }

    #[test]
    fn client_and_server_agree_on_every_kind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        for kind in Kind::ALL {
            let load = Load {
                kind,
                size: 8,
                time: Duration::from_millis(2),
            };
            assert_eq!(Load::parse(&load.words()), Some(load));
            let client = std::thread::spawn(move || {
                let mut stream = TcpStream::connect(addr)?;
                load.run(&mut stream)
            });
            let (mut stream, _) = listener.accept().unwrap();
            let served = serve_one(&mut stream);
            assert_eq!(served.is_ok(), kind.is_stream());
            client.join().unwrap().unwrap();
        }
    }
}
