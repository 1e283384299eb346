//! `uwarp agent`: prints its addresses, serves, and ends on a signal.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use common::{PATIENCE, TempFile, Uwarp, client, uwarp};

/// Starts an agent on free ports. Returns the process and its addresses for RDMA and for
/// controllers.
fn agent(args: &[&str]) -> (Uwarp, [SocketAddr; 2]) {
    let base = ["agent", "--no-token", "-a", "127.0.0.1", "-p", "0"];
    let mut agent = Uwarp::start_interruptible(&[&base, args].concat());
    let addrs = ["RDMA on ", "control on "].map(|what| {
        let line = agent.stdout_until(what);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    });
    (agent, addrs)
}

fn signal(agent: &Uwarp, name: &str) {
    let id = agent.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.unwrap().success());
}

/// Sends one command and returns the answer.
fn ask(control: SocketAddr, command: &str) -> String {
    let mut to = TcpStream::connect(control).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(to, "{command}").unwrap();
    let mut lines = BufReader::new(to).lines().map(Result::unwrap);
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("{\"hello\":\"uwarp-agent\"")
    );
    lines.next().unwrap()
}

#[test]
fn it_serves_both_ports_until_a_signal_ends_it_with_0() {
    for name in ["INT", "TERM"] {
        let (agent, [rdma, control]) = agent(&[]);
        client(rdma, &["-C", "3", "-S", "4096", "-V"]).expect(0);
        let answer = ask(control, "{\"id\":1,\"cmd\":\"query\"}");
        assert!(
            answer.contains(&format!("\"rdma_port\":{}", rdma.port())),
            "{answer}"
        );
        signal(&agent, name);
        let ended = agent.end().expect(0);
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn a_controller_needs_the_token_that_is_printed_and_the_control_port_is_on_loopback() {
    let mut agent = Uwarp::start_interruptible(&["agent", "-a", "0.0.0.0", "-p", "0"]);
    let token = agent.stdout_until("token ");
    let token = token.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(token.len(), 32);
    let control = agent.stdout_until("control on ");
    let control: SocketAddr = control.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(control.ip().is_loopback(), "{control}");
    let refused = ask(control, "{\"id\":1,\"cmd\":\"query\"}");
    assert!(refused.contains("\"ok\":false"), "{refused}");
    let right = format!("{{\"id\":1,\"cmd\":\"token\",\"token\":\"{token}\"}}");
    assert_eq!(ask(control, &right), "{\"id\":1,\"ok\":true}");
    // Without a token, other hosts must not reach the control port.
    let args = ["agent", "-p", "0", "--no-token", "--control", "0.0.0.0:0"];
    uwarp(&args)
        .expect(2)
        .says("other hosts can reach the control address");
}

#[test]
fn it_takes_all_the_descriptors_that_it_may_have() {
    let bin = env!("CARGO_BIN_EXE_uwarp");
    let limits = "ulimit -Sn 64 && ulimit -Hn 256 && exec \"$0\" agent -a 127.0.0.1 -p 0";
    let mut agent = Command::new("sh")
        .args(["-c", limits, bin])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(agent.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["256", "256"]);
}

#[test]
fn controllers_come_to_the_port_behind() {
    // Finds two consecutive free ports. Another test may take one of them before the agent does;
    // then another pair is tried.
    let found = (0..50).find_map(|_| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).ok()?;
        drop(free);
        let text = port.to_string();
        let mut agent = Uwarp::start(&["agent", "-a", "127.0.0.1", "-p", &text]);
        let line = agent.stdout_until_its_end("control on ");
        if line.is_none() {
            let said = agent.end().stderr;
            let taken = ["cannot listen", "cannot be served"];
            assert!(taken.iter().any(|words| said.contains(words)), "{said}");
        }
        Some((line?, port))
    });
    let (line, port) = found.unwrap();
    assert_eq!(
        line,
        format!("uwarp agent: control on 127.0.0.1:{}", port + 1)
    );
}

#[test]
fn a_port_in_use_is_told_and_ends_it_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let args = ["agent", "-a", "127.0.0.1", "-p"];
    let ended = uwarp(&[&args[..], &[&port, "--control", "0"]].concat()).expect(1);
    ended.says(&format!("uwarp agent: cannot listen on 127.0.0.1:{port}: "));
    let ended = uwarp(&[&args[..], &["0", "--control", &port]].concat()).expect(1);
    ended.says(&format!(
        "controllers cannot be served on 127.0.0.1:{port}: "
    ));
    ended.says("try: use another port (--control or -p)");
}

#[test]
fn wrong_flags_end_it_with_2() {
    for args in [
        &["agent", "-p", "65535"][..],
        &["agent", "-p", "65536"],
        &["agent", "-a", "127.0.0.1:7174"],
        &["agent", "--control", "x"],
        &["agent", "-P"],
        &["agent", "--mpa", "3"],
    ] {
        let ended = uwarp(args).expect(2);
        assert!(
            !ended.stderr.is_empty() && ended.stdout.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn its_settings_and_its_capture_are_those_of_every_command() {
    let file = TempFile::new("agent.pcapng");
    let args = [
        "--markers",
        "on",
        "--crc",
        "off",
        "--mpa",
        "1",
        "--pcap",
        file.name(),
    ];
    let (agent, [rdma, control]) = agent(&args);
    let answer = ask(control, "{\"cmd\":\"query\"}");
    assert!(
        answer.contains("\"markers\":true,\"crc\":false,\"mpa\":1,"),
        "{answer}"
    );
    client(rdma, &["-C", "1", "--mpa", "1", "--crc", "off"]).expect(0);
    signal(&agent, "INT");
    agent.end().expect(0);
    assert!(std::fs::metadata(file.path()).unwrap().len() > 500);
}

/// The agent removes its socket file, although it also handles the signal itself.
#[test]
fn over_unix_datagrams_it_ends_as_well() {
    let (ours, theirs) = (TempFile::new("agent-a"), TempFile::new("agent-b"));
    let device = format!("unix:{},{},ip=192.0.2.1/24", ours.name(), theirs.name());
    let mut agent = Uwarp::start_interruptible(&["agent", "-p", "0", "--device", &device]);
    let line = agent.stdout_until("control on ");
    assert!(line.contains("127.0.0.1:"), "{line}");
    assert!(ours.path().exists());
    signal(&agent, "INT");
    agent.end().expect(0);
    assert!(!ours.path().exists());
}
