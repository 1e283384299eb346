//! `uwarp perf` as two processes: its output, and its error messages if a side is used wrongly.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use common::{Ended, Uwarp, uwarp};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use uwarp_verbs::options::OPTIONS;

const TESTS: [&str; 10] = [
    "write_bw",
    "read_bw",
    "send_bw",
    "write_imm_bw",
    "atomic_bw",
    "write_imm_lat",
    "atomic_lat",
    "write_lat",
    "read_lat",
    "send_lat",
];

/// Starts a server on a free port. Returns the process and the port.
fn server(args: &[&str]) -> (Uwarp, String) {
    let base = ["perf", "-p", "0", "--device", "tcp:127.0.0.1"];
    let mut server = Uwarp::start(&[&base, args].concat());
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap().to_owned();
    (server, port)
}

/// Runs a client that sends few messages.
fn client(port: &str, test: &str, args: &[&str]) -> Ended {
    let count = if test.ends_with("_lat") { "10" } else { "100" };
    uwarp(&[&["perf", test, "127.0.0.1", "-p", port, "-n", count], args].concat())
}

fn parsed(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}:\n{}", ended.stdout))
}

/// Returns the numbers in the rows of a table. The rows follow the headings of the columns.
fn rows(stdout: &str) -> Vec<Vec<f64>> {
    let behind = stdout
        .lines()
        .skip_while(|line| !line.starts_with(" #bytes"));
    behind
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .map(|line| {
            let words = line.split_whitespace().filter(|word| *word != "+");
            words.map(|word| word.parse().unwrap()).collect()
        })
        .collect()
}

#[test]
fn each_test_prints_a_row_of_perftest() {
    let (_server, port) = server(&["-P"]);
    for test in TESTS {
        let (size, option): (f64, &[_]) = if test.starts_with("atomic") {
            (8.0, &[])
        } else {
            (4096.0, &["-s", "4K"])
        };
        let ended = client(&port, test, option).expect(0);
        assert_eq!(ended.stderr, "", "{test}");
        let rows = rows(&ended.stdout);
        assert_eq!(rows.len(), 1, "{test}:\n{}", ended.stdout);
        let (count, columns) = if test.ends_with("_lat") {
            (10.0, 9)
        } else {
            (100.0, 7)
        };
        assert_eq!(rows[0].len(), columns, "{test}:\n{}", ended.stdout);
        assert_eq!(rows[0][..2], [size, count], "{test}");
    }
}

#[test]
fn all_sizes_are_those_of_perftest() {
    let (server, port) = server(&[]);
    // Sends few messages, because messages of 8 MiB take long on a busy machine.
    let all = [
        "perf",
        "write_bw",
        "127.0.0.1",
        "-p",
        &port,
        "-a",
        "-n",
        "5",
    ];
    let ended = uwarp(&all).expect(0);
    let sizes: Vec<_> = rows(&ended.stdout).iter().map(|row| row[0]).collect();
    let due: Vec<f64> = (1..=23).map(|bit| f64::from(1 << bit)).collect();
    assert_eq!(due, sizes);
    // The server ends after one client.
    server.end().expect(0);
}

#[test]
fn json_is_all_that_is_printed_and_has_the_documented_fields() {
    let (_server, port) = server(&["-P"]);
    let bandwidth = parsed(&client(&port, "send_bw", &["-s", "64", "--json"]).expect(0));
    assert_eq!(bandwidth["plan"]["test"], "send_bw");
    let row = &bandwidth["rows"][0];
    assert_eq!((&row["size"], &row["messages"]), (&64.into(), &100.into()));
    for field in ["average", "peak", "rate"] {
        assert!(row["figures"]["bandwidth"][field].as_f64().unwrap() > 0.0);
    }
    assert!(row["cpu"].is_f64() && row["peer_cpu"].is_f64() && row["seconds"].is_f64());
    assert!(row.get("machine_cpu").is_some() && row.get("samples").is_none());

    let latency = parsed(&client(&port, "read_lat", &["--json"]).expect(0));
    let figures = &latency["rows"][0]["figures"]["latency"];
    for field in ["min", "max", "p50", "mean", "deviation", "p99", "p999"] {
        assert!(figures[field].is_f64(), "{field} in {figures}");
    }

    let both = parsed(&client(&port, "write_bw", &["-b", "--json", "-q", "2"]).expect(0));
    let row = &both["rows"][0];
    assert_eq!(row["messages"], 200);
    assert_eq!(row["opposite"]["messages"], 200);
}

/// docs/perf.md must name every field of the JSON and every option that only `uwarp perf` has.
#[test]
fn the_documentation_names_every_field_and_option() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/perf.md");
    let text = std::fs::read_to_string(text).unwrap();
    let (_server, port) = server(&["-P"]);
    let mut fields = Vec::new();
    for (test, option) in [("write_bw", "-b"), ("write_lat", "-U")] {
        collect(
            &parsed(&client(&port, test, &["--json", option]).expect(0)),
            &mut fields,
        );
    }
    let help = uwarp(&["perf", "--help"]).expect(0).stdout;
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    // The help has the options of the table, which are those of all commands that open a device.
    let own = |name: &str| name != "help" && OPTIONS.iter().all(|option| option.flag != Some(name));
    let options = words
        .filter(|word| word.len() > 3 && word.strip_prefix("--").is_some_and(own))
        .map(str::to_owned);
    for name in options.chain(fields) {
        let found = text
            .split(['`', ' ', '\n', ',', '|'])
            .any(|word| word == name);
        assert!(found, "docs/perf.md has no {name}");
    }
}

/// Collects the names of all fields.
fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.push(name.clone());
                collect(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

#[test]
fn fpdus_go_over_a_number_of_segments_that_can_be() {
    let (_server, port) = server(&["-P"]);
    let figures = client(&port, "write_bw", &["--json", "--fpdu-segments", "506"]).expect(0);
    assert_eq!(parsed(&figures)["rows"][0]["messages"], 100);
    for (count, words) in [
        (
            "0",
            "an FPDU goes over one TCP segment at least; expected 1 to 506",
        ),
        (
            "507",
            "no FPDU is as long as that; expected 1 to 506 TCP segments",
        ),
        (
            "many",
            "that is not a number; expected one of TCP segments, 1 to 506",
        ),
    ] {
        uwarp(&["perf", "--fpdu-segments", count])
            .expect(2)
            .says(words);
    }
}

#[test]
fn a_client_without_a_server_is_told_what_to_start() {
    // The port is bound, so that no other test listens there.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let addr = bound.local_addr().unwrap().as_socket().unwrap();
    let port = addr.port().to_string();
    let ended = client(&port, "write_bw", &[]).expect(1);
    ended
        .says(&format!("nothing listens at 127.0.0.1:{port}"))
        .says(&format!("uwarp perf -p {port}"));
    assert!(!ended.stderr.contains("rping"), "{}", ended.stderr);
}

#[test]
fn wrong_usage_is_told_what_is_right() {
    let wrong = |args: &[&str]| uwarp(&[&["perf"], args].concat()).expect(2);
    let at = "127.0.0.1";
    wrong(&["bandwidth"]).says("write_bw");
    wrong(&["write_bw", at, "-s", "2G"]).says("at most 1G");
    wrong(&["write_bw", at, "-q", "0"]).says("the number of QPs is 0, and must be 1 to 65536");
    wrong(&["write_bw", at, "-t", "8", "-l", "9"]).says("the post list is 9");
    wrong(&["write_lat", at, "-b"]).says("write_lat cannot be bidirectional");
    wrong(&["write_lat", at, "-e"]).says("a Write raises none at its target");
    wrong(&["send_bw", at, "--target-sleeps"]).says("it takes part");
    wrong(&["write_bw", at, "-n", "5", "-D", "1"]).says("--duration");
    wrong(&["write_bw", at, "-a", "-s", "4K"]).says("--size");
    wrong(&["write_bw", at, "-P"]).says("--persistent");
    wrong(&["write_bw", "--json"]).says("<ADDRESS>");
    wrong(&["write_bw", at, "-H"]).says("it measures bandwidth");
    wrong(&["read_lat", at, "-U", "-D", "1"]).says("for a duration");
    wrong(&["read_lat", at, "-N"]).says("-N is for bandwidth tests");
    wrong(&["read_lat", at, "-w", "1"]).says("-w is for bandwidth tests");
    wrong(&["write_bw", at, "-w", "fast"]).says("a number that is not negative");
    wrong(&["write_bw", at, "-f", "1"]).says("--duration");
    wrong(&["write_bw", at, "-D", "2", "-f", "1"]).says("less than half of the duration");
    wrong(&["write_bw", at, "--cpu_util"]).says("--duration");
    wrong(&["write_bw", at, "--use-srq"]).says("its messages take no receives");
    wrong(&["atomic_bw", at, "-s", "16"]).says("8 bytes");
    wrong(&["atomic_bw", at, "-A", "ADD"]).says("FETCH_AND_ADD");
    wrong(&["read_bw", at, "--write_with_imm"]).says("not for read_bw");
    wrong(&["write_bw", at, "--run_infinitely", "-n", "5"]).says("--iters");
    wrong(&["write_bw", at, "--out_json_file", "x"]).says("--out_json");
}

#[test]
fn the_help_says_how_to_begin() {
    let help = uwarp(&["perf", "--help"]).expect(0).stdout;
    assert!(help.contains("uwarp perf write_bw 127.0.0.1 -a"), "{help}");
    for test in TESTS {
        assert!(help.contains(test), "no {test}:\n{help}");
    }
}

#[test]
fn a_server_that_is_something_else_is_named() {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = fake.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        let _ = stream.read(&mut [0; 20]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let ended = client(&addr.port().to_string(), "write_bw", &[]).expect(1);
    ended.says("not an MPA Reply").says("(uwarp perf: 18515)");
    assert!(!ended.stderr.contains("rping"), "{}", ended.stderr);
}

#[test]
fn a_peer_that_is_iwarp_and_nothing_more_is_told_apart_and_does_not_end_the_server() {
    let (mut server, port) = server(&[]);
    let addr = format!("127.0.0.1:{port}").parse().unwrap();
    common::client(addr, &["-C", "1"]).expect(1);
    server.stderr_until("not uwarp perf");
    client(&port, "send_bw", &[]).expect(0);
    server.end().expect(0);
}

#[test]
fn a_client_that_wants_too_much_memory_is_declined_and_the_server_goes_on() {
    let (mut server, port) = server(&["--max-memory", "1M"]);
    let wants = client(&port, "write_bw", &["-s", "1048576"]).expect(1);
    wants.says("--max-memory");
    server.stderr_until("bytes of memory at the server");
    client(&port, "write_bw", &["-s", "64"]).expect(0);
    server.end().expect(0);
}

#[test]
fn a_server_goes_on_after_a_client_that_dies_when_it_is_persistent() {
    let (mut server, port) = server(&["-P"]);
    let mut dying = Uwarp::start(&["perf", "send_bw", "127.0.0.1", "-p", &port, "-D", "60"]);
    dying.stdout_until(" #bytes");
    server.stdout_until(" #bytes");
    dying.kill();
    server.stderr_until("the server continues");
    client(&port, "send_bw", &[]).expect(0);
}

/// Returns the congestion control of each TCP connection that a process has to this port. The names
/// come from getsockopt(2).
fn congestion(of: &Uwarp, port: u16) -> io::Result<Vec<String>> {
    let pid = Pid::from_raw(of.id().cast_signed()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut names = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", of.id()))? {
        let number = entry?.file_name().into_string().unwrap().parse().unwrap();
        let socket = match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(fd) => Socket::from(fd),
            // The descriptor was closed meanwhile.
            Err(Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        // Files have no peer, and neither do sockets that are not connected.
        let Ok(peer) = socket.peer_addr() else {
            continue;
        };
        if peer.as_socket().is_some_and(|peer| peer.port() == port) {
            let name = String::from_utf8(socket.tcp_congestion()?).unwrap();
            names.push(name.trim_end_matches('\0').to_owned());
        }
    }
    Ok(names)
}

#[test]
fn the_congestion_control_that_is_reported_is_that_of_the_connections() {
    let (mut server, port) = server(&["-P"]);
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let allowed = allowed.unwrap_or_default();
    let named = allowed.split_whitespace();
    let named = named.map(|name| format!("tcp:127.0.0.1,congestion={name}"));
    for device in iter::once("tcp".to_owned()).chain(named) {
        let args = [
            "perf",
            "send_bw",
            "127.0.0.1",
            "-p",
            &port,
            "--device",
            &device,
        ];
        let mut running = Uwarp::start(&[&args[..], &["-D", "60"]].concat());
        let line = running.stdout_until(" Congestion ");
        let reported = line.rsplit(" : ").next().unwrap().to_owned();
        let found = congestion(&running, port.parse().unwrap());
        running.kill();
        server.stderr_until("the server continues");
        let found = match found {
            Ok(_) if reported == "unknown" => {
                eprintln!("SKIPPED: this kernel does not report the congestion control");
                return;
            }
            Ok(found) => found,
            Err(error) => {
                eprintln!("SKIPPED: sockets of another process cannot be inspected: {error}");
                return;
            }
        };
        // There is one connection for control and one for data.
        assert_eq!(found, [&*reported; 2], "{device}");
        let json = uwarp(&[&args[..], &["-n", "10", "--json"]].concat()).expect(0);
        assert_eq!(parsed(&json)["congestion"], reported, "{device}");
        if let Some((_, name)) = device.split_once("congestion=") {
            assert_eq!(reported, name);
        }
    }
}

#[test]
fn a_server_with_a_token_serves_only_clients_that_have_it() {
    let (_server, port) = server(&["-P", "--token", "secret"]);
    for wrong in [&[][..], &["--token", "other"]] {
        let ended = client(&port, "write_bw", wrong).expect(1);
        ended.says("the client sent no token, or a wrong one");
    }
    client(&port, "write_bw", &["--token", "secret"]).expect(0);
}

#[test]
fn a_server_reads_its_token_from_the_environment_and_a_client_does_not() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    let args = ["perf", "-P", "-p", "0", "--device", "tcp:127.0.0.1"];
    let mut server = Uwarp::start_with(command.args(args).env("UWARP_TOKEN", "secret"));
    let line = server.stdout_until("Waiting for client");
    let addr: SocketAddr = line.rsplit(' ').next().unwrap().parse().unwrap();
    let port = addr.port().to_string();
    let client = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
        command.args(["perf", "write_bw", "127.0.0.1", "-n", "10", "-p", &port]);
        let ended = command.args(more).env("UWARP_TOKEN", "secret").output();
        ended.unwrap().status.code()
    };
    assert_eq!(client(&[]), Some(1));
    assert_eq!(client(&["--token", "secret"]), Some(0));
}

#[test]
fn a_server_refuses_an_empty_token() {
    let args = ["perf", "-p", "0", "--token", ""];
    uwarp(&args).expect(2).says("the token is empty");
}
