//! Servers whose standard error is a pipe that nobody reads. Peers that send garbage make them
//! print messages.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attacks::{AttackOutcome, Pace};
use crate::controller::Region;
use crate::honest::{self, Client, Honest, ROOM, Rounds, Visitors, Visits, Work};
use crate::pings::Pings;
use crate::raw::{Peer, drain, tcp_from};
use crate::report::Figures;
use crate::victim::{self, UWARP, Watch};
use crate::{PATIENCE, Result};

/// Size of the pipe in bytes: two pages. A pipe has room as long as one of its pages is free, so
/// one of a single page would be full after the first message.
const PIPE: usize = 8192;

/// Server that is attacked, which is killed on drop.
struct Server {
    child: Child,
    /// Standard error of the server.
    unread: PipeReader,
    /// The same pipe as the server has, to see whether it has room. None at the end.
    writer: Option<PipeWriter>,
}

impl Server {
    /// The command is dropped, because it holds a copy of the pipe.
    fn start(mut command: Command) -> Result<Server> {
        let (unread, writer) = std::io::pipe()?;
        rustix::pipe::fcntl_setpipe_size(&writer, PIPE)?;
        let child = command
            .stdin(Stdio::null())
            .stderr(writer.try_clone()?)
            .spawn()?;
        Ok(Server {
            child,
            unread,
            writer: Some(writer),
        })
    }

    /// Ends the server. Returns what it printed.
    fn end(mut self) -> Result<String> {
        self.child.kill()?;
        self.child.wait()?;
        drop(self.writer.take());
        let mut bytes = Vec::new();
        self.unread.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Fails if the pipe still has room, because then no message could have blocked the server.
    fn check_full(&self) -> Result<()> {
        let writer = self.writer.as_ref().ok_or("the server has ended")?;
        let mut fds = [PollFd::new(writer, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec::default()))? {
            0 => Ok(()),
            _ => Err("the pipe at standard error is not full".into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects and sends garbage: in the place of an MPA Request, or an FPDU with a wrong CRC. Waits
/// until the server has closed the connection.
fn garbage(number: usize, to: SocketAddr) -> Result<()> {
    /// The length of a ULPDU, the ULPDU, and a CRC.
    const FPDU: [u8; 36] = {
        let mut fpdu = [0x55; 36];
        (fpdu[0], fpdu[1]) = (0, 30);
        fpdu
    };
    let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number / 2 % 8)?);
    let (mut stream, bytes) = match number % 2 {
        0 => (tcp_from(from, to)?, &b"GET / HTTP/1.1\r\n\r\n"[..]),
        _ => (Peer::connect_from(from, to)?.stream, &FPDU[..]),
    };
    // The server may close before it has received all bytes.
    let _ = stream.write_all(bytes);
    drain(&mut stream)?;
    Ok(())
}

/// Attacks a server with garbage. `connect` makes an honest peer: one that stays connected if its
/// argument is true, or else a newcomer.
fn attack<W: Work>(
    mut server: Server,
    to: SocketAddr,
    connect: impl Fn(bool) -> Result<W> + Clone + Send + 'static,
    pace: &mut Pace,
    whole: bool,
) -> Result<Option<(AttackOutcome, Figures)>> {
    let id = server.child.id();
    let visit = move |connect: &dyn Fn(bool) -> Result<W>| connect(false)?.round();
    let rounds = Rounds::of::<W>();
    let honest = Honest::start(connect(true)?, rounds, honest::rest(whole))?;
    honest.wait_round()?;
    let descriptors = victim::usage(id)?.descriptors;
    let quiet = honest.rounds.sample(whole);
    visit(&connect)?;
    let before = victim::Usage {
        descriptors,
        ..victim::usage(id)?
    };

    let watch = Watch::start(id);
    let (from, processor) = (Instant::now(), victim::processor(id)?);
    let newcomer = connect.clone();
    let visitors = Visitors::start(move |_| visit(&newcomer));
    let attacked = pace.try_for_each(|number| garbage(number, to));
    let rates = honest.rounds.rates(from, Instant::now());
    let load = pace.summary();
    let visits: Visits = visitors.end()?;
    attacked?;
    let processor = victim::processor(id)? - processor;
    let most = watch.most();
    drop(watch);

    if server.child.try_wait()?.is_some() {
        return Err("the process is dead".into());
    }
    server.check_full()?;
    honest.wait_round()?;
    visit(&connect)?;
    victim::wait_recovered(id, before)?;
    let afterwards = honest.rounds.sample(whole);
    honest.end()?;
    let said = server.end()?;
    if !said.starts_with("uwarp") {
        return Err(format!("it should print messages, and printed:\n{said}").into());
    }
    let outcome = AttackOutcome::new(
        load,
        &format!(
            "the pipe is full after {} bytes; the other messages are dropped, and the server serves honest peers as before",
            said.len()
        ),
    );
    let figures = Figures {
        before,
        most,
        processor,
        rates,
        quiet: [quiet, afterwards],
        visits,
    };
    Ok(Some((outcome, figures)))
}

/// `uwarp rping -s -P`
pub(crate) fn of_a_command(
    pace: &mut Pace,
    whole: bool,
) -> Result<Option<(AttackOutcome, Figures)>> {
    // The command prints its port only together with a line for each step.
    let to = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(UWARP);
    command.args(["rping", "-s", "-P", "-a", "127.0.0.1", "-p"]);
    command.arg(to.port().to_string()).stdout(Stdio::null());
    let mut server = Server::start(command)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(to).is_err() {
        if server.child.try_wait()?.is_some() || Instant::now() > deadline {
            return Err("the server does not listen".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    attack(server, to, move |_| Pings::connect(to), pace, whole)
}

/// A C program on the drop-in library.
pub(crate) fn of_a_program(
    pace: &mut Pace,
    whole: bool,
) -> Result<Option<(AttackOutcome, Figures)>> {
    if let Some(why) = Program::missing() {
        if std::env::var_os("UWARP_REQUIRE_DROPIN").is_some_and(|value| value == "1") {
            return Err(why.into());
        }
        eprintln!("robustness: SKIPPED, words_on_stderr_of_a_program: {why}");
        return Ok(None);
    }
    let program = Program::build()?;
    let mut command = Command::new(&program.uwarp);
    command.args(["run", "--"]).arg(&program.server);
    command.arg(ROOM.to_string()).stdout(Stdio::piped());
    let mut server = Server::start(command)?;
    let stdout = server
        .child
        .stdout
        .take()
        .ok_or("the server has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let numbers: std::result::Result<Vec<u64>, _> =
        line.split_whitespace().map(str::parse).collect();
    let Ok(&[port, addr, rkey, other_addr, other_rkey]) = numbers.as_deref() else {
        let said = server.end()?;
        return Err(format!("the server printed '{line}', and:\n{said}").into());
    };
    let to = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port)?));
    let region = |addr, rkey| -> Result<Region> {
        Ok(Region {
            number: 0,
            addr,
            rkey: u32::try_from(rkey)?,
            len: ROOM,
        })
    };
    let (own, spare) = (region(addr, rkey)?, region(other_addr, other_rkey)?);
    let connect = move |stays: bool| Client::connect(to, if stays { own } else { spare });
    attack(server, to, connect, pace, whole)
}

/// The C program and the command that runs it on the library.
struct Program {
    /// Executable, which is removed on drop.
    server: PathBuf,
    uwarp: PathBuf,
}

impl Program {
    /// Compiles the program. Also builds the library, which cargo does not build for a test, unless
    /// `UWARP_BIN` names a command with the library in the same directory.
    fn build() -> Result<Program> {
        let server = format!("uwarp-robustness-server-{}", std::process::id());
        let program = Program {
            server: std::env::temp_dir().join(server),
            uwarp: match std::env::var_os("UWARP_BIN") {
                Some(uwarp) => uwarp.into(),
                None => build_library()?,
            },
        };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/robustness/server.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        compiler.arg(&program.server).arg(source);
        run(compiler.args(["-lrdmacm", "-libverbs"]))?;
        Ok(program)
    }

    /// Returns the reason why the program cannot be compiled here, if there is one.
    fn missing() -> Option<&'static str> {
        let header = Path::new("/usr/include/rdma/rdma_cma.h");
        let compiles = Command::new("cc").arg("--version").output().is_ok();
        (!header.exists() || !compiles).then_some(
            "a C compiler and the headers of rdma-core (libibverbs-dev, librdmacm-dev) are needed",
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.server);
    }
}

/// Builds the library beside the command under test, with the same profile. Returns the command.
fn build_library() -> Result<PathBuf> {
    let built = Path::new(UWARP).parent().ok_or("no directory")?;
    let target = built.parent().ok_or("no target directory")?;
    let profile = match built.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--locked", "--quiet", "-p", "uwarp-dropin"]);
    run(cargo
        .args(["--profile", profile, "--target-dir"])
        .arg(target))?;
    Ok(UWARP.into())
}

/// Runs a command, which must succeed.
fn run(command: &mut Command) -> Result<()> {
    let ended = command.stdin(Stdio::null()).output()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let name = command.get_program().display();
        return Err(format!("{name} ended with {}:\n{said}", ended.status).into());
    }
    Ok(())
}
