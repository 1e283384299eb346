//! Every command ends without a message and with one exit status if the reader of its stdout or
//! stderr has closed it.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{TempDir, TempFile, Uwarp, without_reader};

/// Exit status 128 plus the number of SIGPIPE. A shell shows it for a program that this signal
/// ended.
const CLOSED_PIPE: i32 = 141;

/// Names of all commands.
const COMMANDS: [&str; 10] = [
    "demo",
    "agent",
    "rping",
    "run",
    "perf",
    "conformance",
    "dump",
    "devinfo",
    "completions",
    "man",
];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command
        .args(args)
        .env_remove("UWARP_LOG")
        .stdin(Stdio::null());
    command
}

#[track_caller]
fn is_quiet(args: &[&str], output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{args:?}: {said}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{args:?}: {said}"
    );
}

/// Runs a command whose stdout has no reader. Its stderr must stay empty.
#[track_caller]
fn without_stdout(args: &[&str]) {
    is_quiet(
        args,
        &command(args).stdout(without_reader()).output().unwrap(),
    );
}

/// Runs a command whose stderr has no reader. Its stdout must stay empty.
#[track_caller]
fn without_stderr(args: &[&str]) {
    is_quiet(
        args,
        &command(args).stderr(without_reader()).output().unwrap(),
    );
}

#[test]
fn every_command_has_a_row_here() {
    use clap_names::of_help;
    let help = command(&["--help"]).output().unwrap();
    let names = of_help(&String::from_utf8(help.stdout).unwrap());
    for name in names {
        assert!(
            COMMANDS.contains(&name.as_str()) || !has_output_of_its_own(&name),
            "{name} is not tested here"
        );
    }
}

/// Parser for the text of `--help`, which returns the names of the commands.
mod clap_names {
    pub(super) fn of_help(help: &str) -> Vec<String> {
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let commands = commands.take_while(|line| !line.is_empty());
        commands
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }
}

fn has_output_of_its_own(name: &str) -> bool {
    name != "help"
}

#[test]
fn the_help_of_every_command_may_be_cut_short() {
    without_stdout(&["--help"]);
    without_stdout(&["--version"]);
    for name in COMMANDS {
        without_stdout(&[name, "--help"]);
    }
}

#[test]
fn wrong_usage_of_every_command_may_go_unread() {
    without_stderr(&[]);
    without_stderr(&["nonsense"]);
    for name in COMMANDS {
        without_stderr(&[name, "--no-such-option"]);
    }
    // Options of perftest have an error message of their own.
    without_stderr(&["perf", "-W", "counters"]);
}

#[test]
fn the_output_of_every_command_may_be_cut_short() {
    without_stdout(&["demo"]);
    without_stdout(&["agent", "-a", "127.0.0.1", "-p", "0"]);
    without_stdout(&["rping", "-s", "-a", "127.0.0.1", "-p", "0", "-d"]);
    without_stdout(&["perf", "-p", "0"]);
    without_stdout(&["conformance", "--list"]);
    without_stdout(&["conformance", "--coverage"]);
    let capture = TempFile::new("closed.pcapng");
    let made = command(&["demo", "--pcap", capture.name()])
        .output()
        .unwrap();
    assert!(made.status.success());
    without_stdout(&["dump", capture.name()]);
    without_stdout(&["devinfo"]);
    without_stdout(&["completions", "bash"]);
    let pages = TempDir::new("closed-man");
    without_stdout(&["man", pages.name()]);
}

#[test]
fn the_output_of_a_client_may_be_cut_short() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    let port = addr.port().to_string();
    without_stdout(&["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-v"]);

    let mut server = Uwarp::start(&["perf", "-P", "-p", "0", "--bind", "127.0.0.1"]);
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap();
    without_stdout(&["perf", "send_lat", "127.0.0.1", "-p", port, "-n", "5"]);
    // This client would run forever if its output were read.
    let endless = ["--run_infinitely", "-D", "0.01"];
    without_stdout(&[&["perf", "send_bw", "127.0.0.1", "-p", port], &endless[..]].concat());
}

/// Only stdout has no reader. Progress goes to stderr, which is read.
#[test]
fn the_report_of_a_conformance_run_may_be_cut_short() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    let target = addr.to_string();
    let args = ["conformance", "--target", &target, "--no-agent"];
    let mut conformance = command(&[&args[..], &["mpa/5044-7.1.1/2"]].concat());
    let output = conformance.stdout(without_reader()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{said}");
    assert!(!said.contains("uwarp conformance:"), "{said}");
}

#[test]
fn what_a_command_says_of_its_failure_may_go_unread() {
    // The port is bound and does not listen, so that no other program can listen there.
    let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    nobody
        .bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let addr = nobody.local_addr().unwrap().as_socket().unwrap();
    let port = addr.port().to_string();
    let target = addr.to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();

    let dir = TempDir::new("pipes-missing");
    let missing = |name: &str| format!("{}/{name}", dir.name());
    without_stderr(&["demo", "--pcap", &missing("directory/x.pcapng")]);
    without_stderr(&["agent", "-a", "127.0.0.1", "-p", "0", "--control", &taken]);
    without_stderr(&["rping", "-c", "-a", "127.0.0.1", "-p", &port]);
    without_stderr(&["perf", "send_bw", "127.0.0.1", "-p", &port]);
    without_stderr(&["conformance", "--target", &target, "--no-agent"]);
    without_stderr(&["dump", &missing("file.pcapng")]);
    without_stderr(&["run", "--", &missing("program")]);
    without_stderr(&["man", "/proc/uwarp"]);
}

#[test]
fn a_log_may_go_unread() {
    let args = ["rping", "-c", "-a", "127.0.0.1", "-p", "1"];
    let mut command = command(&args);
    command.env("UWARP_LOG", "debug").stderr(without_reader());
    is_quiet(&args, &command.output().unwrap());
}

#[test]
fn a_capture_on_stdout_ends_with_its_reader() {
    // With a capture on stdout, text goes to stderr. This server has no text to print.
    let args = [
        "rping",
        "-s",
        "-P",
        "-a",
        "127.0.0.1",
        "-p",
        "0",
        "--pcap",
        "-",
    ];
    without_stdout(&args);
}

/// `uwarp run` does not change how its program handles a closed pipe.
#[test]
fn a_program_that_is_run_gets_sigpipe_as_from_a_shell() {
    use std::os::unix::process::ExitStatusExt;
    let dir = std::env::temp_dir().join(format!("uwarp-pipes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // Another process makes the copy. Otherwise a child that another test forks now could hold the
    // file open for writing, and the copy could not be executed.
    let uwarp = dir.join("uwarp");
    let mut copy = Command::new("cp");
    copy.arg(env!("CARGO_BIN_EXE_uwarp")).arg(&uwarp);
    assert!(copy.status().unwrap().success());
    std::fs::write(dir.join("libuwarp_dropin.so"), "a library").unwrap();
    let mut run = Command::new(&uwarp);
    let ended = run
        .args(["run", "--", "yes"])
        .stdin(Stdio::null())
        .stdout(without_reader())
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(13), "{said}");
}

/// Peers that send garbage cause two lines each, and nobody reads the pipe. The server must go on
/// serving others.
#[test]
fn a_server_whose_stderr_nobody_reads_serves_others_despite_garbage() {
    let (reader, writer) = std::io::pipe().unwrap();
    // The pipe holds some twenty messages.
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let port = port.to_string();
    let words = ["rping", "-s", "-P", "-a", "127.0.0.1", "-p", &port];
    let mut server = Ending(command(&words).stderr(writer).spawn().unwrap());
    let connect = || TcpStream::connect(format!("127.0.0.1:{port}"));
    while connect().is_err() {
        assert!(server.0.try_wait().unwrap().is_none(), "the server ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..800 {
        let mut stream = connect().unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        // The server closes the connection when it has read the garbage.
        let _ = stream.read(&mut [0; 64]);
    }
    let client = ["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "2"];
    let output = command(&client).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(server);
    let mut said = String::new();
    { reader }.read_to_string(&mut said).unwrap();
    let lines = said.matches("the server continues").count();
    assert!((1..=200).contains(&lines), "{lines} messages");
}

/// Before, the first packet that the pipe had no room for blocked the client for ever.
#[test]
fn a_capture_into_a_pipe_that_nobody_reads_loses_packets_and_stops_nothing() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    let (reader, writer) = std::io::pipe().unwrap();
    let port = addr.port().to_string();
    let args = ["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-V"];
    let many = ["-C", "200", "-S", "65535", "--pcap", "-"];
    let mut client = command(&[&args[..], &many].concat());
    let client = client.stdout(writer).stderr(Stdio::piped());
    let ended = client.spawn().unwrap().wait_with_output().unwrap();
    drop(reader);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("client DISCONNECT EVENT"), "{said}");
    assert_eq!(said.matches("packets are dropped").count(), 1, "{said}");
    assert!(said.contains("packets were dropped"), "{said}");
}

/// Before, the end of the command reported it, and the file ended in the middle of a packet. A
/// limit of the file size acts as a disk that becomes full.
#[test]
fn a_disk_that_becomes_full_is_reported_at_once_and_the_file_stays_whole() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    let file = TempFile::new("full.pcapng");
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut client = Command::new("sh");
    client.args(["-c", script, "sh", env!("CARGO_BIN_EXE_uwarp")]);
    client.args([
        "rping",
        "-c",
        "-a",
        "127.0.0.1",
        "-V",
        "-C",
        "50",
        "-S",
        "4000",
    ]);
    client.args(["-p", &addr.port().to_string(), "--pcap", file.name()]);
    let ended = client.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("the capture ended early").count(), 1, "{said}");
    let told = said.find("the capture ended early");
    assert!(told < said.find("client DISCONNECT EVENT"), "{said}");
    let mut packets = uwarp_verbs::capture::Reader::open(file.path()).unwrap();
    assert!(packets.by_ref().map(Result::unwrap).count() > 0);
    assert!(!packets.cut_off());
}

#[test]
fn a_disk_that_is_full_from_the_start_is_a_failure_in_words() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut demo = command(&["demo", "--pcap", "-"]);
    let ended = demo.stdout(full.unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be created: No space left"), "{said}");
}

/// A process that is ended with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
