//! Connections that end badly, told in words, and messages that find no receive (`tests/c/ends.c`).

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::c;
use crate::prefix::Prefix;
use crate::process::{Place, Running, free_port, unread};
use crate::raw;

/// Flags under which nothing is held so briefly that it matters here.
const LONG: &[&str] = &["--hold", "600000"];

/// A server and its client, each with its flags of `uwarp run`.
struct Pair {
    server: Running,
    client: Running,
    port: u16,
}

/// The server posts a receive when `file` is there; the client does `what`.
fn pair(
    prefix: &Prefix,
    flags: &[&str],
    file: Option<&PathBuf>,
    what: &str,
) -> Result<Pair, String> {
    let program = c::compile(prefix, "cc", "ends.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is no text")?;
    let file = file.map_or(Some("-"), |file| file.to_str());
    let port = free_port()?;
    let number = port.to_string();
    let place = Place { prefix, flags };
    let mut server = place.start(&[program, &number, file.ok_or("the path is no text")?])?;
    server.until_listening(port)?;
    let client = place.start(&[program, &number, "127.0.0.1", what])?;
    Ok(Pair {
        server,
        client,
        port,
    })
}

impl Pair {
    /// Waits for the end of both, which is a good one; gives what the server said, and the client.
    fn end(&mut self) -> Result<[String; 2], String> {
        let client = self.client.end();
        let client =
            client.map_err(|error| format!("{error}\n{}", self.server.words("was the server")))?;
        Ok([self.server.end()?, client])
    }
}

/// The words of ours in what a program said.
fn words(said: &str) -> Vec<&str> {
    said.lines()
        .filter_map(|line| line.strip_prefix("uwarp: "))
        .collect()
}

/// That one line of ours is in it, with these words.
fn is_told(said: &str, parts: &[&str]) -> Result<(), String> {
    match words(said)[..] {
        [line] if parts.iter().all(|part| line.contains(part)) => Ok(()),
        _ => Err(format!("one line with {parts:?} is due, not:\n{said}")),
    }
}

/// That a program has said these lines.
fn says(said: &str, lines: &[&str]) -> Result<(), String> {
    match lines.iter().all(|line| said.lines().any(|is| is == *line)) {
        true => Ok(()),
        false => Err(format!("{lines:?} are due, not:\n{said}")),
    }
}

/// How long the client says that its connection stood, in milliseconds.
fn stood(said: &str) -> Result<u64, String> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("disconnected after "));
    let number = line.and_then(|line| line.strip_suffix(" ms")?.parse().ok());
    number.ok_or_else(|| format!("it was not disconnected:\n{said}"))
}

/// Three Reads by a key that nobody gave end in "status 10" and flushed requests; why is told once, by either side.
pub(crate) fn the_cause_of_a_status_is_told_once_in_words(prefix: &Prefix) -> Result<(), String> {
    let [server, client] = pair(prefix, &[], None, "read")?.end()?;
    says(&client, &["1: status 10", "2: status 5", "3: status 5"])?;
    is_told(&client, &["the connection of queue pair", "STag"])?;
    is_told(&server, &["the connection of queue pair", "STag"])
}

/// The same with `UWARP_QUIET=1`.
pub(crate) fn nothing_is_told_when_it_is_to_be_quiet(prefix: &Prefix) -> Result<(), String> {
    for said in pair(prefix, &["--quiet"], None, "read")?.end()? {
        if !words(&said).is_empty() {
            return Err(format!("it is not quiet:\n{said}"));
        }
        says(&said, &["1: status 10"])
            .or_else(|_| says(&said, &["established", "disconnected"]))?;
    }
    Ok(())
}

/// RFC 5041 section 7.1, RFC 5040 section 7: a message without a buffer is an error that ends the stream.
pub(crate) fn strict_ends_a_connection_that_has_no_receive_posted(
    prefix: &Prefix,
) -> Result<(), String> {
    let [server, client] = pair(prefix, &["--strict"], None, "send")?.end()?;
    is_told(&server, &["no receive is posted for it"])?;
    is_told(&client, &["no buffer available"])
}

/// By default a message waits for its receive.
pub(crate) fn a_message_is_held_until_a_receive_is_posted(prefix: &Prefix) -> Result<(), String> {
    let file = prefix
        .scratch()
        .join(format!("post-{}", std::process::id()));
    let mut pair = pair(prefix, &[], Some(&file), "send")?;
    pair.client.until_said("sent")?;
    let port = pair.port;
    pair.server
        .wait_until("took the message", |_| unread(port) == 0)?;
    std::fs::write(&file, []).map_err(|error| error.to_string())?;
    pair.server.until_said("received 'a message'")?;
    drop(pair.client);
    let said = pair.server.end()?;
    match words(&said)[..] {
        [] => says(&said, &["100: status 0", "disconnected"]),
        _ => Err(said),
    }
}

/// It waits as long as it was told, and the connection ends as with `--strict` then.
pub(crate) fn a_message_is_held_for_a_time_that_has_an_end(prefix: &Prefix) -> Result<(), String> {
    const HOLD: u64 = 300;
    let flags = ["--hold", &HOLD.to_string()];
    let [server, client] = pair(prefix, &flags, None, "send")?.end()?;
    is_told(&server, &["was held for 300 ms, and no receive was posted"])?;
    is_told(&client, &["no buffer available"])?;
    match stood(&client)? {
        ..HOLD => Err(format!("it was not held for {HOLD} ms:\n{client}")),
        _ => Ok(()),
    }
}

/// A peer that is gone does not have the program wait for the end of the time: a reset is heard at once, and when it has closed the
/// message waits for two seconds more.
pub(crate) fn the_end_of_the_peer_is_noticed_while_a_message_is_held(
    prefix: &Prefix,
) -> Result<(), String> {
    let closed = "in which the peer closed the connection, and no receive was posted";
    for (what, told) in [("abort", "connection lost"), ("close", closed)] {
        let [server, client] = pair(prefix, LONG, None, what)?.end()?;
        says(&client, &["sent"])?;
        says(&server, &["established", "disconnected"])?;
        is_told(&server, &[told])?;
    }
    Ok(())
}

/// Runs `tests/c/closing.c`, whose 16 Writes of 64 KiB complete before it closes, against a peer that then does `reads`.
/// Returns what the program said, and what came of the peer.
fn close_with<T: Send + 'static>(
    prefix: &Prefix,
    reads: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> Result<(String, T), String> {
    let program = c::compile(prefix, "cc", "closing.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is no text")?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?;
    let peer = thread::spawn(move || raw::accept(&listener).map(reads));
    let flags = &["--mpa", "1"];
    let place = Place { prefix, flags };
    let said = place.start(&[program, &port.port().to_string()])?.end()?;
    let read = peer.join().map_err(|_| "the peer has panicked")?;
    Ok((said, read.map_err(|error| format!("the peer: {error}"))?))
}

/// At 128 kB/s the close takes 8 s, which is longer than one without progress may.
pub(crate) fn a_slow_peer_gets_all_that_completed_before_the_close(
    prefix: &Prefix,
) -> Result<(), String> {
    let (said, read) = close_with(prefix, raw::read_slowly)?;
    says(&said, &["complete", "disconnected, status 0"])?;
    match read {
        Ok(total) if total > 16 * 64 * 1024 => Ok(()),
        other => Err(format!("the peer has read {other:?}:\n{said}")),
    }
}

/// `-ETIMEDOUT`, and the number of bytes in words.
pub(crate) fn a_close_that_loses_data_is_disconnected_with_a_status(
    prefix: &Prefix,
) -> Result<(), String> {
    // The peer reads on only when it was reset.
    let reads = |mut stream: TcpStream| {
        let mut byte = [0];
        while stream.peek(&mut byte).is_ok() && stream.take_error().is_ok_and(|e| e.is_none()) {
            thread::sleep(Duration::from_millis(10));
        }
        stream.read_to_end(&mut Vec::new())
    };
    let (said, _) = close_with(prefix, reads)?;
    says(&said, &["complete", "disconnected, status -110"])?;
    is_told(
        &said,
        &["the connection of queue pair", "bytes may be lost"],
    )
}

/// RFC 7306 section 1.1: nothing in MPA startup says whether a peer knows it. One that does not ends the connection, and the program, whose
/// Write with immediate data was complete when TCP had it, is told why in words.
pub(crate) fn immediate_data_that_the_peer_does_not_know_is_refused_in_words(
    prefix: &Prefix,
) -> Result<(), String> {
    let program = c::compile(prefix, "cc", "ends.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is no text")?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?;
    let port = port.port().to_string();
    let peer = thread::spawn(move || raw::refuse_extension(&listener));
    let flags = &["--mpa", "1"];
    let place = Place { prefix, flags };
    let said = place.start(&[program, &port, "127.0.0.1", "imm"])?.end()?;
    says(&said, &["1: status 0", "100: status 5"])?;
    is_told(
        &said,
        &[
            "the peer does not know RFC 7306",
            "refused the message Immediate Data",
        ],
    )?;
    // Its connection is over, so that it is done.
    let refused = peer.join().map_err(|_| "the peer has panicked")?;
    refused.map_err(|error| format!("the peer: {error}"))
}

/// Linux siw takes 256 bytes, of which four are IRD and ORD: with its profile more is refused, and the program is told why it is.
pub(crate) fn private_data_that_siw_cannot_take_is_refused_in_words(
    prefix: &Prefix,
) -> Result<(), String> {
    let [server, client] = pair(prefix, &["--peer", "siw"], None, "private")?.end()?;
    says(&client, &["253 bytes: Invalid argument"])?;
    is_told(&client, &["253 bytes of private data", "at most 252"])?;
    says(&server, &["established", "disconnected"])
}
