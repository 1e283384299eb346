//! `UWARP_TRACE=errors`: the record of frames that goes to stderr when a connection ends in error.
//! Without the variable nothing is printed.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use common::{Ended, PATIENCE, Uwarp};
use uwarp_oracle::{Code, Crc, REPLY, Untagged, fpdu, startup};

/// Starts a server for one client. For each entry of `turns` it reads the given number of bytes and
/// sends the answer.
fn server(turns: Vec<(usize, Vec<u8>)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for (expected, answer) in turns {
            stream.read_exact(&mut vec![0; expected]).unwrap();
            stream.write_all(&answer).unwrap();
        }
        // Waits until the client has closed, because a reset could arrive before the answer.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (addr, thread)
}

/// Runs an rping client of MPA revision 1 without CRC, with the given value of `UWARP_TRACE`.
fn client(trace: Option<&str>, turns: Vec<(usize, Vec<u8>)>) -> Ended {
    let (addr, thread) = server(turns);
    let port = addr.port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "1"]);
    command.args(["--mpa", "1", "--crc", "off"]);
    match trace {
        Some(value) => command.env("UWARP_TRACE", value),
        None => command.env_remove("UWARP_TRACE"),
    };
    let ended = Uwarp::start_with(&mut command).end();
    thread.join().unwrap();
    ended
}

/// Returns the turns of a server that completes the startup and answers the first Send with a
/// Terminate, because it has no receive buffer.
fn no_receive() -> Vec<(usize, Vec<u8>)> {
    let refused = Untagged::send(1).with(&[0; 16]);
    let fpdu = fpdu(&Code::ddp(2, 2).about(&refused), Crc::Zero);
    let reply = startup(REPLY, 0, 1, b"");
    vec![(20, reply), (40, fpdu)]
}

#[test]
fn a_connection_that_ends_in_error_shows_its_last_frames_when_asked_to() {
    let ended = client(Some("errors"), no_receive()).expect(1);
    let trace: Vec<&str> = ended
        .stderr
        .lines()
        .skip_while(|line| !line.starts_with("uwarp: QP "))
        .take(7)
        .collect();
    let [head, facts, title, request, reply, send, terminate] = trace[..] else {
        panic!("{}", ended.stderr);
    };
    assert!(head.contains("no buffer available"), "{head}");
    assert!(
        facts.contains("layer: DDP; code: Terminate 1/2/02; RFC 5041"),
        "{facts}"
    );
    assert!(title.starts_with("  the last 4 of 4 frames"), "{title}");
    for (line, [arrow, words]) in [
        (
            request,
            ["-> ", " MPA Request, revision 1, 0 bytes of private data"],
        ),
        (
            reply,
            ["<- ", " MPA Reply, revision 1, 0 bytes of private data"],
        ),
        (send, ["-> ", " Send MSN 1 MO 0 16 bytes, Last"]),
        (terminate, ["<- ", " Terminate MSN 1, 1/2/02: "]),
    ] {
        let line = line.trim_start();
        assert!(line.starts_with(arrow) && line.contains(words), "{line}");
    }
    assert_eq!(
        ended.stderr.matches("uwarp: QP ").count(),
        1,
        "{}",
        ended.stderr
    );
}

/// The client closes its connection even if its stderr is full.
#[test]
fn a_stderr_that_takes_nothing_does_not_keep_the_connection_open() {
    let (addr, thread) = server(no_receive());
    let (reader, mut writer) = std::io::pipe().unwrap();
    // Fills the pipe, which has this capacity.
    writer.write_all(&[b' '; 1 << 16]).unwrap();
    let port = addr.port().to_string();
    let mut client = Command::new(env!("CARGO_BIN_EXE_uwarp"))
        .args(["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "1"])
        .args(["--mpa", "1", "--crc", "off"])
        .env("UWARP_TRACE", "errors")
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    thread.join().unwrap();
    // Writing to stderr now fails in the client. The client must end like any command whose reader
    // has gone.
    drop(reader);
    assert_eq!(client.wait().unwrap().code(), Some(141));
}

#[test]
fn what_is_no_iwarp_shows_in_the_record() {
    let turns = vec![(20, b"HTTP/1.1 400 Bad Request\r\n".to_vec())];
    let ended = client(Some("errors"), turns).expect(1);
    ended.says("no MPA startup frame, but \"HTTP/1.1 400 Bad");
}

#[test]
fn nothing_is_shown_unless_asked_for() {
    for trace in [None, Some("")] {
        let ended = client(trace, no_receive()).expect(1);
        assert!(!ended.stderr.contains("frames"), "{}", ended.stderr);
    }
}

#[test]
fn a_value_that_means_nothing_is_told_once() {
    let ended = client(Some("all"), no_receive()).expect(1);
    ended
        .says("UWARP_TRACE=all: \"all\" is unknown")
        .says("\"errors\"");
    assert_eq!(
        ended.stderr.matches("UWARP_TRACE").count(),
        1,
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("the last 4"), "{}", ended.stderr);
}

#[test]
fn a_connection_that_was_closed_in_order_shows_nothing() {
    let (server, addr) = Uwarp::server(&[]);
    let port = addr.port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "3"]);
    let ended = Uwarp::start_with(command.env("UWARP_TRACE", "errors")).end();
    let stderr = ended.expect(0).stderr;
    assert!(!stderr.contains("frame"), "{stderr}");
    server.end().expect(0);
}
