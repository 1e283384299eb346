//! Raw TCP with the same number of connections. It shows the kernel's own cost of more active
//! connections.
//!
//! One thread writes to its connections in turn, in messages as long as uwarp's FPDUs. The other
//! side polls all connections with epoll, without sleeping, and reads the available bytes. uwarp's
//! servers do the same. At the end, the writer announces the number of written bytes on a control
//! connection. The reader responds on this connection after it has read all bytes.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use socket2::SockRef;

/// Length of a message in bytes: the FPDU of a 64 B Write, with length field, tagged header and
/// CRC.
const MESSAGE: usize = 2 + 14 + 64 + 4;
/// Size in bytes of the buffer for reads.
const READ: usize = 256 * 1024;
/// Maximum number of connections that one epoll call reports.
const EVENTS: usize = 256;

fn prepare(stream: &TcpStream, congestion: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_congestion(congestion.as_bytes())
}

/// The reading side of all connections.
struct Reader {
    control: TcpStream,
    streams: Vec<TcpStream>,
    epoll: OwnedFd,
}

impl Reader {
    /// Accepts the control connection first, then the others.
    fn accept(listener: &TcpListener, conns: usize, congestion: &str) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let accept = |at: usize| {
            let (stream, _) = listener.accept()?;
            prepare(&stream, congestion)?;
            let data = epoll::EventData::new_u64(at as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
            io::Result::Ok(stream)
        };
        let control = accept(conns)?;
        let streams = (0..conns).map(accept).collect::<io::Result<_>>()?;
        Ok(Reader {
            control,
            streams,
            epoll,
        })
    }

    /// Reads until all written bytes have arrived, and then responds. Returns the number of bytes.
    fn drain(&mut self) -> io::Result<u64> {
        let mut bytes = vec![0; READ];
        let mut events = Vec::with_capacity(EVENTS);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let (mut count, mut due) = (0, None);
        while due != Some(count) {
            events.clear();
            epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&now),
            )?;
            for event in &events {
                let Some(stream) = self.streams.get_mut(event.data.u64() as usize) else {
                    let mut told = [0; 8];
                    self.control.read_exact(&mut told)?;
                    due = Some(u64::from_le_bytes(told));
                    continue;
                };
                match stream.read(&mut bytes)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    read => count += read as u64,
                }
            }
        }
        self.control.write_all(&[1])?;
        Ok(count)
    }
}

/// The writing side of all connections.
struct Writer {
    control: TcpStream,
    streams: Vec<TcpStream>,
}

impl Writer {
    fn connect(addr: SocketAddr, conns: usize, congestion: &str) -> io::Result<Self> {
        let connect = |_| {
            let stream = TcpStream::connect(addr)?;
            prepare(&stream, congestion)?;
            io::Result::Ok(stream)
        };
        Ok(Writer {
            control: connect(0)?,
            streams: (0..conns).map(connect).collect::<io::Result<_>>()?,
        })
    }

    /// Writes `list` messages at a time, to `active` connections in turn. Returns the number of
    /// messages, and the time until the other side has read all of them.
    fn write(&mut self, active: usize, list: usize, time: Duration) -> io::Result<(u64, Duration)> {
        let bytes = vec![0x5a; list * MESSAGE];
        let mut messages = 0;
        let began = Instant::now();
        while began.elapsed() < time {
            for stream in &mut self.streams[..active] {
                stream.write_all(&bytes)?;
                messages += list as u64;
            }
        }
        let total = messages * MESSAGE as u64;
        self.control.write_all(&total.to_le_bytes())?;
        self.control.read_exact(&mut [0])?;
        Ok((messages, began.elapsed()))
    }
}

/// Runs a server process. It reads from its connections after each line of input.
pub(super) fn serve(conns: usize, congestion: &str) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut reader = Reader::accept(&listener, conns, congestion)?;
    for line in io::stdin().lock().lines() {
        line?;
        reader.drain()?;
    }
    Ok(())
}

/// Runs a client process. It answers each line of input with a rate in millions of messages per
/// second.
pub(super) fn client(conns: usize, addr: SocketAddr, congestion: &str) -> io::Result<()> {
    let mut writer = Writer::connect(addr, conns, congestion)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let asked = parse(&line).filter(|(active, ..)| *active <= conns);
        let (active, list, time) =
            asked.ok_or_else(|| io::Error::other(format!("a raw client cannot {line}")))?;
        let (messages, took) = writer.write(active, list, time)?;
        println!("{}", messages as f64 / took.as_secs_f64() / 1e6);
    }
    Ok(())
}

/// Parses a command: `rate`, the number of active connections, the messages per write, and the
/// seconds.
fn parse(line: &str) -> Option<(usize, usize, Duration)> {
    let mut words = line.split_whitespace();
    if words.next()? != "rate" {
        return None;
    }
    let (active, list) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let time = Duration::try_from_secs_f64(words.next()?.parse().ok()?).ok()?;
    Some((active, list, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_written_has_been_read_when_it_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let reader = std::thread::spawn(move || {
            let mut reader = Reader::accept(&listener, 3, "reno").unwrap();
            [(); 2].map(|()| reader.drain().unwrap())
        });
        let mut writer = Writer::connect(addr, 3, "reno").unwrap();
        let mut written = |active, list| {
            let time = Duration::from_millis(2);
            let (messages, took) = writer.write(active, list, time).unwrap();
            assert!(took >= time && messages > 0);
            assert_eq!(messages % (active * list) as u64, 0);
            messages * MESSAGE as u64
        };
        let written = [written(3, 16), written(2, 1)];
        assert_eq!(reader.join().unwrap(), written);
    }

    #[test]
    fn a_line_says_how_many_and_how_long() {
        let asked = parse("rate 16 1 0.5");
        assert_eq!(asked, Some((16, 1, Duration::from_millis(500))));
        assert_eq!(parse("rate 16"), None);
        assert_eq!(parse("latency 16 1 0.5"), None);
    }
}
