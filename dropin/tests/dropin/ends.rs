//! Tests of connections that end in error, of the printed reason, and of messages that arrive
//! before a receive is posted (`tests/c/ends.c`).

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::c;
use crate::prefix::Prefix;
use crate::process::{Place, Running, free_port, unread};
use crate::raw;

/// Flags with a hold time that is longer than any test.
const LONG: &[&str] = &["--hold", "600000"];

/// A server and its client, both run with the same flags.
struct Pair {
    server: Running,
    client: Running,
    port: u16,
}

/// Starts a server and its client. The server posts a receive as soon as `file` exists. The client
/// runs the action `what` of `tests/c/ends.c`.
fn pair(
    prefix: &Prefix,
    flags: &[&str],
    file: Option<&PathBuf>,
    what: &str,
) -> Result<Pair, String> {
    let program = c::compile(prefix, "cc", "ends.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let file = file.map_or(Some("-"), |file| file.to_str());
    let port = free_port()?;
    let number = port.to_string();
    let place = Place { prefix, flags };
    let mut server = place.start(&[program, &number, file.ok_or("the path is not UTF-8")?])?;
    server.until_listening(port)?;
    let client = place.start(&[program, &number, "127.0.0.1", what])?;
    Ok(Pair {
        server,
        client,
        port,
    })
}

impl Pair {
    /// Waits until both programs end. Fails if either program failed. Returns the output of the
    /// server and of the client.
    fn end(&mut self) -> Result<[String; 2], String> {
        let client = self.client.end();
        let client =
            client.map_err(|error| format!("{error}\n{}", self.server.words("was the server")))?;
        Ok([self.server.end()?, client])
    }
}

/// Returns the lines that the library printed, without their prefix.
fn words(said: &str) -> Vec<&str> {
    said.lines()
        .filter_map(|line| line.strip_prefix("uwarp: "))
        .collect()
}

/// Checks that the library printed one line, with these parts.
fn printed_reason(said: &str, parts: &[&str]) -> Result<(), String> {
    match words(said)[..] {
        [line] if parts.iter().all(|part| line.contains(part)) => Ok(()),
        _ => Err(format!("expected one line with {parts:?}, got:\n{said}")),
    }
}

/// Checks that a program printed these lines.
fn says(said: &str, lines: &[&str]) -> Result<(), String> {
    match lines.iter().all(|line| said.lines().any(|is| is == *line)) {
        true => Ok(()),
        false => Err(format!("expected {lines:?}, got:\n{said}")),
    }
}

/// Returns the duration of the connection in milliseconds, as the client printed it.
fn connected_ms(said: &str) -> Result<u64, String> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("disconnected after "));
    let number = line.and_then(|line| line.strip_suffix(" ms")?.parse().ok());
    number.ok_or_else(|| format!("it was not disconnected:\n{said}"))
}

/// Of three Reads with an unknown key, into eight elements each, the first completes with status
/// 10, and the others are flushed (status 5). Each side prints the reason once.
pub(crate) fn the_cause_of_a_status_is_told_once_in_words(prefix: &Prefix) -> Result<(), String> {
    let [server, client] = pair(prefix, &[], None, "read")?.end()?;
    says(&client, &["1: status 10", "2: status 5", "3: status 5"])?;
    printed_reason(&client, &["the connection of queue pair", "STag"])?;
    printed_reason(&server, &["the connection of queue pair", "STag"])
}

/// Of two Reads into eight elements each, the first has one wrong lkey. It completes with status 4,
/// once, and the other one is flushed (status 5).
pub(crate) fn one_wrong_element_fails_its_read_with_one_status(
    prefix: &Prefix,
) -> Result<(), String> {
    let [server, client] = pair(prefix, &[], None, "lkey")?.end()?;
    says(&client, &["1: status 4", "2: status 5", "100: status 5"])?;
    printed_reason(&client, &["the connection of queue pair", "element 2"])?;
    says(&server, &["established", "disconnected"])
}

/// With `--quiet`, the library prints no reason.
pub(crate) fn nothing_is_told_when_it_is_to_be_quiet(prefix: &Prefix) -> Result<(), String> {
    for said in pair(prefix, &["--quiet"], None, "read")?.end()? {
        if !words(&said).is_empty() {
            return Err(format!("expected no messages, got:\n{said}"));
        }
        says(&said, &["1: status 10"])
            .or_else(|_| says(&said, &["established", "disconnected"]))?;
    }
    Ok(())
}

/// RFC 5041 section 7.1, RFC 5040 section 7: a message without a buffer is an error that ends the
/// stream.
pub(crate) fn strict_ends_a_connection_that_has_no_receive_posted(
    prefix: &Prefix,
) -> Result<(), String> {
    let [server, client] = pair(prefix, &["--strict"], None, "send")?.end()?;
    printed_reason(&server, &["no receive is posted for it"])?;
    printed_reason(&client, &["no buffer available"])
}

/// By default a message is held until a receive is posted for it.
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

/// The message is held for the time in `--hold`. Then the connection ends as with `--strict`.
pub(crate) fn a_message_is_held_for_a_time_that_has_an_end(prefix: &Prefix) -> Result<(), String> {
    const HOLD: u64 = 300;
    let flags = ["--hold", &HOLD.to_string()];
    let [server, client] = pair(prefix, &flags, None, "send")?.end()?;
    printed_reason(&server, &["was held for 300 ms, and no receive was posted"])?;
    printed_reason(&client, &["no buffer available"])?;
    match connected_ms(&client)? {
        ..HOLD => Err(format!("it was not held for {HOLD} ms:\n{client}")),
        _ => Ok(()),
    }
}

/// A message is held for a shorter time if the peer ends the connection. A reset is noticed
/// immediately. After a close, the message is held for two more seconds.
pub(crate) fn the_end_of_the_peer_is_noticed_while_a_message_is_held(
    prefix: &Prefix,
) -> Result<(), String> {
    let closed = "the peer closed the connection meanwhile, and no receive was posted";
    for (what, told) in [("abort", "connection lost"), ("close", closed)] {
        let [server, client] = pair(prefix, LONG, None, what)?.end()?;
        says(&client, &["sent"])?;
        says(&server, &["established", "disconnected"])?;
        printed_reason(&server, &[told])?;
    }
    Ok(())
}

/// Runs `tests/c/closing.c`, whose 16 Writes of 64 KiB complete before it closes the connection.
/// The peer accepts the connection and calls `reads`. Returns the program's output and the peer's
/// result.
fn close_with<T: Send + 'static>(
    prefix: &Prefix,
    reads: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> Result<(String, T), String> {
    let program = c::compile(prefix, "cc", "closing.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?;
    let peer = thread::spawn(move || raw::accept(&listener).map(reads));
    let flags = &["--mpa", "1"];
    let place = Place { prefix, flags };
    let said = place.start(&[program, &port.port().to_string()])?.end()?;
    let read = peer.join().map_err(|_| "the peer has panicked")?;
    Ok((said, read.map_err(|error| format!("the peer: {error}"))?))
}

/// The peer reads 128 kB/s, so the close takes 8 s. If a peer reads nothing, the close times out
/// earlier.
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

/// The event has the status `-ETIMEDOUT`, and the message says that bytes may be lost.
pub(crate) fn a_close_that_loses_data_is_disconnected_with_a_status(
    prefix: &Prefix,
) -> Result<(), String> {
    // The peer reads only after the connection was reset.
    let reads = |mut stream: TcpStream| {
        let mut byte = [0];
        while stream.peek(&mut byte).is_ok() && stream.take_error().is_ok_and(|e| e.is_none()) {
            thread::sleep(Duration::from_millis(10));
        }
        stream.read_to_end(&mut Vec::new())
    };
    let (said, _) = close_with(prefix, reads)?;
    says(&said, &["complete", "disconnected, status -110"])?;
    printed_reason(
        &said,
        &["the connection of queue pair", "bytes may be lost"],
    )
}

/// RFC 7306 section 1.1: MPA startup does not tell whether a peer supports this RFC. A peer that
/// does not support it ends the connection. By this time the Write with Immediate Data has
/// completed, because TCP accepted its bytes. So the library prints the reason.
pub(crate) fn immediate_data_that_the_peer_does_not_know_is_refused_in_words(
    prefix: &Prefix,
) -> Result<(), String> {
    let program = c::compile(prefix, "cc", "ends.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?;
    let port = port.port().to_string();
    let peer = thread::spawn(move || raw::refuse_extension(&listener));
    let flags = &["--mpa", "1"];
    let place = Place { prefix, flags };
    let said = place.start(&[program, &port, "127.0.0.1", "imm"])?.end()?;
    says(&said, &["1: status 0", "100: status 5"])?;
    printed_reason(
        &said,
        &[
            "the peer does not know RFC 7306",
            "refused the message Immediate Data",
        ],
    )?;
    // The connection has ended, so the peer's thread ends as well.
    let refused = peer.join().map_err(|_| "the peer has panicked")?;
    refused.map_err(|error| format!("the peer: {error}"))
}

/// Linux siw accepts 256 bytes of private data, of which four are IRD and ORD. So with `--peer
/// siw`, private data of more than 252 bytes is refused, and the reason is printed.
pub(crate) fn private_data_that_siw_cannot_take_is_refused_in_words(
    prefix: &Prefix,
) -> Result<(), String> {
    let [server, client] = pair(prefix, &["--peer", "siw"], None, "private")?.end()?;
    says(&client, &["253 bytes: Invalid argument"])?;
    printed_reason(&client, &["253 bytes of private data", "at most 252"])?;
    says(&server, &["established", "disconnected"])
}
