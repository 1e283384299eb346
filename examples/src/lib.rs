//! Functions that the examples share: they parse arguments, serve clients, wait for completions and
//! compute a checksum.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use uwarp_verbs::{
    AcceptOptions, Completion, ConnectRequest, Cq, Device, Listener, MemoryRegion, Qp, RemoteBuffer,
};

/// Result with an error of any type, whose message is printed.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Address of servers and clients if the command line has none.
const DEFAULT: &str = "127.0.0.1:7174";

/// Runs the side that the command line names: `server [ADDR]` or `client [ADDR [ARGUMENT]]`.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage.
pub fn run(
    about: &str,
    argument: &str,
    server: impl FnOnce(SocketAddr) -> Result,
    client: impl FnOnce(SocketAddr, Option<String>) -> Result,
) -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let addr = args.get(1).map_or(DEFAULT, String::as_str).parse();
    let side = args.first().map(String::as_str);
    let result = match (side, addr, args.len()) {
        (Some("server"), Ok(addr), 1..=2) => server(addr),
        (Some("client"), Ok(addr), 1..=2) => client(addr, None),
        (Some("client"), Ok(addr), 3) if !argument.is_empty() => client(addr, args.get(2).cloned()),
        _ => {
            let more = match argument {
                "" => String::new(),
                argument => format!(" [{argument}]"),
            };
            eprintln!(
                "{about}\n\nusage: {name} server [ADDR]\n       {name} client [ADDR{more}]\n"
            );
            eprintln!("ADDR is {DEFAULT} if not given. With port 0 a server takes a free one.");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts to listen, and prints the address.
pub fn listen(device: &Device, addr: SocketAddr) -> Result<Listener> {
    let listener = device.listen(addr)?;
    println!("listening on {}", listener.local_addr());
    Ok(listener)
}

/// Listens forever, and serves each client on its own thread.
pub fn serve(
    device: &Device,
    addr: SocketAddr,
    client: impl Fn(&Device, ConnectRequest) -> Result + Sync,
) -> Result {
    let listener = listen(device, addr)?;
    thread::scope(|scope| {
        loop {
            let request = listener.wait_request(None)?;
            let client = &client;
            scope.spawn(move || {
                if let Err(error) = client(device, request) {
                    eprintln!("client failed: {error}");
                }
            });
        }
    })
}

/// Waits for the next completion. Returns `None` if the connection has ended, which flushes the
/// posted work.
pub fn next(cq: &Cq) -> Result<Option<Completion>> {
    let Some(completion) = cq.wait(None) else {
        return Ok(None);
    };
    match completion.ok() {
        Ok(completion) => Ok(Some(completion)),
        Err(error) if error.is_flush() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one work request has completed. The end of the connection is an error here.
pub fn done(cq: &Cq) -> Result<Completion> {
    next(cq)?.ok_or_else(|| "the connection has ended".into())
}

/// Closes the connection, and waits until the other side has closed it, too.
pub fn close(qp: &Qp) -> Result {
    qp.disconnect();
    if qp.wait_closed(Duration::from_secs(10)) {
        return Ok(());
    }
    Err("the server does not close the connection".into())
}

/// FNV-1a, a checksum in three lines. It detects accidents, not forgeries.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Longest file in bytes that servers accept. They announce it when they accept ([`offer`]).
pub const LONGEST: u64 = 64 * 1024 * 1024;

/// Returns options with a server's private data: the token of its memory, if clients may access
/// any, and the length of the longest file that it accepts.
pub fn offer(memory: Option<&MemoryRegion>) -> AcceptOptions {
    let mut private_data = memory.map_or(Vec::new(), |memory| memory.remote().to_bytes().to_vec());
    private_data.extend_from_slice(&LONGEST.to_be_bytes());
    AcceptOptions::default().private_data(private_data)
}

/// Parses the private data of [`offer`]. Returns the server's memory that the client may access, if
/// any. Fails if the server does not accept a file of `len` bytes.
pub fn offered(private_data: &[u8], len: u64) -> Result<Option<RemoteBuffer>> {
    let (memory, most) = private_data
        .split_last_chunk::<8>()
        .ok_or("the server is another program: it sent no private data")?;
    let most = u64::from_be_bytes(*most);
    if len > most {
        return Err(
            format!("the file has {len} bytes, but the server accepts at most {most}").into(),
        );
    }
    Ok(RemoteBuffer::from_bytes(memory))
}

/// Compares the server's checksum, which has arrived in `inbox`, with ours.
pub fn compare(inbox: &MemoryRegion, sum: u64) -> Result {
    let mut theirs = [0; 8];
    inbox.read_at(0, &mut theirs)?;
    if u64::from_be_bytes(theirs) == sum {
        return Ok(());
    }
    Err("the server received other data".into())
}

/// Returns the bytes of the file, or 1 MB of generated bytes if there is no file.
pub fn load(file: Option<String>) -> Result<Vec<u8>> {
    match file {
        Some(file) => std::fs::read(&file).map_err(|error| format!("{file}: {error}").into()),
        None => Ok((0..1_000_000u32).map(|n| (n ^ (n >> 8)) as u8).collect()),
    }
}

/// Runs the program in the README of `uwarp-verbs` as a test.
#[cfg(doctest)]
#[doc = include_str!("../../verbs/README.md")]
struct FirstProgram;
