//! The two sides of a raw TCP connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use socket2::SockRef;

use super::{Kind, Load};
use crate::process::Side;
use crate::stats::median;

/// Size in bytes of the buffer for reads.
const READ: usize = 256 * 1024;
/// Number of round trips between two clock reads.
const BATCH: usize = 64;

/// Sets the options of a connection.
pub(crate) fn prepare(stream: &TcpStream, congestion: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_congestion(congestion.as_bytes())
}

/// Runs a server: prints its address, and serves one connection after another.
pub(crate) fn serve(congestion: &str) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream, congestion)?;
        if let Err(error) = serve_one(&mut stream)
            && error.kind() != ErrorKind::UnexpectedEof
        {
            eprintln!("raw server: {error}");
        }
    }
}

/// Runs a client, and prints its result.
pub(crate) fn connect(addr: SocketAddr, congestion: &str, load: Load) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    prepare(&stream, congestion)?;
    let (value, cpu) = load.run(&mut stream)?;
    println!("{value} {}", cpu.unwrap_or(f64::NAN));
    Ok(())
}

impl Load {
    /// Announces the load to the server and runs it. Returns the value, and the processor time of
    /// both sides of a stream in seconds per 10^9 bytes.
    fn run(&self, stream: &mut TcpStream) -> io::Result<(f64, Option<f64>)> {
        let mut head = [0; 9];
        head[0] = self.kind as u8;
        head[1..].copy_from_slice(&(self.size as u64).to_le_bytes());
        stream.write_all(&head)?;
        stream.set_nonblocking(self.kind.spins(Side::Client))?;
        match self.kind.is_stream() {
            true => self.stream(stream),
            false => Ok((self.ping_pong(stream)?, None)),
        }
    }

    /// Runs a stream. Its value is bytes per second.
    fn stream(&self, stream: &mut TcpStream) -> io::Result<(f64, Option<f64>)> {
        let message = vec![0x5a; self.size];
        let mut all = 0_u64;
        // Number of writes between two clock reads: 1 MiB together, but at most 64 writes.
        let batch = ((1 << 20) / self.size.max(1)).clamp(1, 64);
        let mut write = |stream: &mut TcpStream, time| {
            let began = Instant::now();
            let mut sent = 0_u64;
            while began.elapsed() < time {
                for _ in 0..batch {
                    write_all(stream, &message)?;
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
        stream.shutdown(Shutdown::Write)?;
        let mut answer = [0; 8];
        read(stream, &mut answer)?;
        let took = began.elapsed().as_secs_f64();
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let ours = (processor_time() - before) / gigabytes(sent);
        // The server's processor time includes the warm-up.
        let theirs = u64::from_le_bytes(answer) as f64 / 1e9 / gigabytes(all);
        Ok((sent as f64 / took, Some(ours + theirs)))
    }

    /// Runs a ping-pong. Returns half a round trip in seconds, as the median of batches.
    fn ping_pong(&self, stream: &mut TcpStream) -> io::Result<f64> {
        let mut bytes = vec![0; self.size];
        let mut times = Vec::new();
        let began = Instant::now();
        while times.is_empty() || began.elapsed() < self.time + self.time / 10 {
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

/// Serves one client.
fn serve_one(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [kind, size @ ..] = head;
    let kind = Kind::value_variants().get(usize::from(kind));
    let kind = *kind.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
    let size = usize::try_from(u64::from_le_bytes(size)).unwrap_or(0);
    stream.set_nonblocking(kind.spins(Side::Server))?;
    if kind.is_stream() {
        return drain(stream);
    }
    let mut bytes = vec![0; size];
    loop {
        read(stream, &mut bytes)?;
        write_all(stream, &bytes)?;
    }
}

/// Reads until the end of the stream. Responds with the processor time in nanoseconds.
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; READ];
    let before = processor_time();
    while again(|| stream.read(&mut bytes))? > 0 {}
    let nanos = (processor_time() - before) * 1e9;
    write_all(stream, &(nanos as u64).to_le_bytes())
}

/// Returns the processor time of this process in seconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Fills `bytes`. Retries while a nonblocking socket has no bytes.
fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    all(bytes.len(), |at| stream.read(&mut bytes[at..]))
}

/// Writes all of `bytes`. Retries while a nonblocking socket has no room.
fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    all(bytes.len(), |at| stream.write(&bytes[at..]))
}

/// Repeats `act`, whose argument is the number of bytes so far, until it has transferred `len`
/// bytes.
fn all(len: usize, mut act: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        match again(|| act(at))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn client_and_server_agree_on_every_kind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        for &kind in Kind::value_variants() {
            let (size, time) = (8, Duration::from_millis(2));
            let client = std::thread::spawn(move || {
                Load { kind, size, time }.run(&mut TcpStream::connect(addr)?)
            });
            let (mut stream, _) = listener.accept().unwrap();
            let served = serve_one(&mut stream);
            assert_eq!(served.is_ok(), kind.is_stream());
            let (_, cpu) = client.join().unwrap().unwrap();
            assert_eq!(cpu.is_some(), kind.is_stream());
        }
    }
}
