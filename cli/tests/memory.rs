//! Servers under a limit of the address space (`ulimit -v`): clients that need more memory than is
//! left are refused with a cause, and the servers go on.

#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{Ended, Uwarp, client, uwarp};
use uwarp_verbs::{ConnectOptions, Device, Qp, QpCaps};

/// Memory in KiB that a server has beyond what it needs without a client.
const SPARE: u64 = 16 << 10;
/// Number of clients at once. Their threads alone need more than [`SPARE`].
const CLIENTS: usize = 40;
/// Cause that a refused client gets.
const CAUSE: &str = "the server has too little memory left for another client";
/// Beginning of what the server itself prints.
const OWN_CAUSE: &str = "this process has too little memory left for another client";

/// Starts `uwarp` with at most `limit` KiB of address space.
fn limited(limit: u64, args: &[&str]) -> Uwarp {
    let script = format!("ulimit -v {limit}; exec \"$0\" \"$@\"");
    let uwarp = env!("CARGO_BIN_EXE_uwarp");
    Uwarp::start_with(Command::new("sh").args(["-c", &script, uwarp]).args(args))
}

/// Starts a server with [`SPARE`]. `ready`: text of the line with its address.
fn server(args: &[&str], ready: &str) -> (Uwarp, SocketAddr) {
    let start = |limit| {
        let mut server = limited(limit, args);
        let line = server.stdout_until(ready);
        let addr = line.rsplit(' ').next().unwrap().parse().unwrap();
        (server, addr)
    };
    // A limit that is far away, because a process without a limit reserves more.
    let (unloaded, _) = start(4 << 20);
    let status = fs::read_to_string(format!("/proc/{}/status", unloaded.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    start(peak.parse::<u64>().unwrap() + SPARE)
}

/// Opens connections that then say nothing. Returns those that the server accepted, and the number
/// of the others.
fn silent_clients(device: &Device, addr: SocketAddr) -> (Vec<Qp>, usize) {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let all = (0..CLIENTS).map(|_| {
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        qp.connect(addr, &ConnectOptions::default()).map(|_| qp)
    });
    let accepted: Vec<_> = all.filter_map(Result::ok).collect();
    let refused = CLIENTS - accepted.len();
    (accepted, refused)
}

/// Runs an honest client until it passes. The server may still be ending its other clients when the
/// first attempt comes.
fn passes(mut client: impl FnMut() -> Ended) {
    let mut last = None;
    for _ in 0..100 {
        let ended = client();
        if ended.status.success() {
            return;
        }
        last = Some(ended);
        thread::sleep(Duration::from_millis(100));
    }
    panic!("no client is served any more: {last:?}");
}

/// Loads a server of rping with clients that are silent, and with clients that send large pings.
fn load(addr: SocketAddr) {
    let device = Device::tcp().unwrap();
    let (accepted, refused) = silent_clients(&device, addr);
    assert!(
        !accepted.is_empty() && refused > 0,
        "{refused} were refused"
    );
    // Some of these are refused, and others end for lack of a buffer.
    let busy = |_| thread::spawn(move || client(addr, &["-C", "20", "-S", "65535"]));
    let busy: Vec<_> = (0..8).map(busy).collect();
    drop(accepted);
    for client in busy {
        client.join().unwrap();
    }
}

#[test]
fn a_server_of_rping_refuses_the_clients_that_need_more_memory_than_is_left() {
    let args = ["rping", "-s", "-P", "-a", "127.0.0.1", "-p", "0", "-d"];
    let (mut server, addr) = server(&args, "rdma_listen ");
    load(addr);
    server.stderr_until(OWN_CAUSE);
    passes(|| client(addr, &["-C", "10", "-S", "65535", "-V"]));
}

#[test]
fn an_agent_refuses_the_clients_and_controllers_that_need_more_memory_than_is_left() {
    let args = ["agent", "-a", "127.0.0.1", "-p", "0", "--no-token"];
    let (mut server, control) = server(&args, "control on ");
    let rdma: SocketAddr = {
        let all = server.stdout_so_far();
        let line = all.lines().find(|line| line.contains("RDMA on ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    load(rdma);
    server.stderr_until("cannot serve another client: no more memory in this process");
    passes(|| client(rdma, &["-C", "10", "-S", "65535", "-V"]));

    let greeting = || {
        let stream = TcpStream::connect(control).unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(stream);
        lines.read_line(&mut line).unwrap();
        (lines, line)
    };
    let all: Vec<_> = (0..CLIENTS).map(|_| greeting()).collect();
    let refused = all.iter().filter(|(_, line)| line.contains(CAUSE)).count();
    assert!((1..CLIENTS).contains(&refused), "{refused} were refused");
    drop(all);
    let is_served = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        greeting().1.contains("uwarp-agent")
    });
    assert!(is_served, "no controller is served any more");
}

#[test]
fn a_server_of_perf_declines_a_plan_that_needs_more_memory_than_is_left() {
    let args = ["perf", "-P", "-p", "0", "--device", "tcp:127.0.0.1"];
    let (_server, addr) = server(&args, "Waiting for client");
    let port = addr.port().to_string();
    let perf = |more: &[&str]| {
        uwarp(
            &[
                &["perf", "write_bw", "127.0.0.1", "-p", &port, "-n", "10"],
                more,
            ]
            .concat(),
        )
    };
    // The server accepts all of them for a moment, and drops the oldest.
    let device = Device::tcp().unwrap();
    let silent: Vec<_> = (0..3).map(|_| silent_clients(&device, addr)).collect();
    let declined = perf(&["-s", "64M", "-q", "4"]).expect(1);
    declined.says("the server has too little memory left for this test");
    passes(|| perf(&["-s", "64K"]));
    drop(silent);
}
