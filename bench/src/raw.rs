//! Raw TCP, written well: what an application could reach without RDMA.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// Octets of one read.
const READ: usize = 256 * 1024;
/// Looks at the clock once in so many round trips.
const BATCH: usize = 64;

/// What a connection is for; its first octet says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The client writes, the server reads, and answers with the count at the end.
    Stream,
    /// Messages there and back; both sides spin on a socket that does not block.
    Spin,
    /// The same, and both sides block in the read.
    Block,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Stream, Kind::Spin, Kind::Block];
}

/// The other side, in a process of its own; it ends with this.
pub(crate) struct Server {
    child: Child,
    addr: SocketAddr,
    congestion: Option<String>,
}

impl Server {
    pub(crate) fn start(congestion: Option<&str>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--raw-server").stdout(Stdio::piped());
        if let Some(name) = congestion {
            command.args(["--congestion", name]);
        }
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let addr = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the raw server did not start"))?;
        Ok(Server {
            child,
            addr,
            congestion: congestion.map(str::to_owned),
        })
    }

    fn connect(&self, kind: Kind, size: usize) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.addr)?;
        prepare(&stream, self.congestion.as_deref())?;
        stream.write_all(&[kind as u8])?;
        stream.write_all(&(size as u64).to_le_bytes())?;
        Ok(stream)
    }

    /// Octets a second, by writes of this size.
    pub(crate) fn stream(&self, size: usize, time: Duration) -> io::Result<f64> {
        let mut stream = self.connect(Kind::Stream, size)?;
        let octets = vec![0x5a; size];
        // Not measured: windows and buffers grow.
        let warm = Instant::now() + time / 10;
        while Instant::now() < warm {
            stream.write_all(&octets)?;
        }
        let began = Instant::now();
        let mut sent = 0_u64;
        while began.elapsed() < time {
            for _ in 0..(1 << 20) / size.min(1 << 20) {
                stream.write_all(&octets)?;
                sent += size as u64;
            }
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_exact(&mut [0; 8])?;
        Ok(sent as f64 / began.elapsed().as_secs_f64())
    }

    /// Half of a round trip, in seconds: the median of batches.
    pub(crate) fn ping_pong(&self, kind: Kind, size: usize, time: Duration) -> io::Result<f64> {
        let mut stream = self.connect(kind, size)?;
        stream.set_nonblocking(kind == Kind::Spin)?;
        let mut octets = vec![0; size];
        let mut times = Vec::new();
        let until = Instant::now() + time;
        loop {
            let began = Instant::now();
            if began >= until {
                break;
            }
            for _ in 0..BATCH {
                stream.write_all(&octets)?;
                read(&mut stream, &mut octets)?;
            }
            times.push(began.elapsed().as_secs_f64() / (2 * BATCH) as f64);
        }
        Ok(crate::compare::median(&mut times))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prepare(stream: &TcpStream, congestion: Option<&str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let Some(name) = congestion {
        SockRef::from(stream).set_tcp_congestion(name.as_bytes())?;
    }
    Ok(())
}

/// Reads all of `octets`; on a socket that does not block, by trying again and again.
fn read(stream: &mut TcpStream, octets: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < octets.len() {
        match stream.read(&mut octets[at..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The other side: prints where it listens, and serves one connection after the other.
pub(crate) fn serve(congestion: Option<&str>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream, congestion)?;
        match serve_one(&mut stream) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
    }
}

fn serve_one(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [kind, size @ ..] = head;
    let kind = Kind::ALL.get(usize::from(kind));
    let size = usize::try_from(u64::from_le_bytes(size)).unwrap_or(0);
    if matches!(kind, None | Some(Kind::Stream)) {
        let mut octets = vec![0; READ];
        let mut count = 0_u64;
        loop {
            match stream.read(&mut octets)? {
                0 => return stream.write_all(&count.to_le_bytes()),
                read => count += read as u64,
            }
        }
    }
    stream.set_nonblocking(kind == Some(&Kind::Spin))?;
    let mut octets = vec![0; size];
    loop {
        read(stream, &mut octets)?;
        stream.write_all(&octets)?;
    }
}
