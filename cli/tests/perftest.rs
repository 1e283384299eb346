//! `uwarp perf` with the options and output formats of perftest, and with perftest as the peer.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;

use common::{Ended, TempDir, TempFile, Uwarp, uwarp};
use serde_json::Value;

/// Starts a server on a free port of loopback. Returns the process and the port.
fn server(args: &[&str]) -> (Uwarp, String) {
    let mut server = Uwarp::start(&[&["perf", "-P", "-p", "0"], args].concat());
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap().to_owned();
    (server, port)
}

fn client(port: &str, test: &str, args: &[&str]) -> Ended {
    uwarp(&[&["perf", test, "127.0.0.1", "-p", port], args].concat())
}

/// Returns the rows of a table, which follow the headings of the columns.
fn rows(stdout: &str) -> Vec<&str> {
    let after = stdout
        .lines()
        .skip_while(|line| !line.starts_with(" #bytes"));
    after
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .collect()
}

#[test]
fn options_that_mean_nothing_here_are_taken_and_named_once() {
    let (_server, port) = server(&["-R", "-F"]);
    let all = "-F -R -z -x 3 -d mlx5_0 -i 1 -m 4096 -c RC -n 5";
    let all: Vec<_> = all.split(' ').collect();
    let ended = client(&port, "send_bw", &all).expect(0);
    assert_eq!(
        ended.stderr,
        "uwarp perf: -F, -R, -z, -x, -d, -i, -m, -c have no effect here; they are accepted because perftest has them\n"
    );
    let ended = client(&port, "send_bw", &["-R", "-n", "5"]).expect(0);
    assert_eq!(
        ended.stderr,
        "uwarp perf: -R has no effect here; it is accepted because perftest has it\n"
    );
    let ended = client(&port, "send_bw", &["-n", "5"]).expect(0);
    assert_eq!(ended.stderr, "");
    // -1 is the default of -x in perftest.
    let ended = client(&port, "send_bw", &["-x", "-1", "-c", "rc", "-n", "5"]).expect(0);
    ended.says("uwarp perf: -x, -c have no effect here");
}

#[test]
fn options_of_a_client_are_taken_by_a_server_and_named_once() {
    let at_server = |test: &str, options: &[&str]| {
        let args = [&["perf", test, "-p", "0"], options].concat();
        let mut server = Uwarp::start(&args);
        let line = server.stdout_until("Waiting for client");
        let port = line.rsplit(':').next().unwrap();
        client(port, test, &["-n", "5"]).expect(0);
        server.end().expect(0).stderr
    };
    assert_eq!(
        at_server("write_bw", &["--out_json", "-N", "-w", "1", "-y", "1"]),
        "uwarp perf: --out_json, -N, -w, -y have no effect at a server; \
         they are accepted because perftest's servers accept them\n"
    );
    assert_eq!(
        at_server("read_lat", &["-H", "-U"]),
        "uwarp perf: -H, -U have no effect at a server; \
         they are accepted because perftest's servers accept them\n"
    );
    // Load options get no message, because the help lists them as options of clients.
    assert_eq!(at_server("read_lat", &["-s", "64"]), "");
}

#[test]
fn other_options_of_perftest_are_refused_in_a_line_with_the_reason() {
    for (args, words) in [
        (
            &["-W", "counters/port_xmit_data"][..],
            "perftest's -W is not supported: there are no hardware counters",
        ),
        (&["-g"], "iWARP has no multicast"),
        (&["-C"], "times are in microseconds"),
        (&["--use_cuda=0"], "perftest's --use_cuda is not supported"),
        (&["--tclass", "3"], "iWARP has no equivalent"),
        (&["--reversed"], "start the client on the other side"),
        (&["--recv_post_list=4"], "lists of up to 64"),
        (&["--no_ddp"], "it is a feature of an adapter"),
        (&["--verb_type=accl"], "older libraries"),
        (
            &["-c", "UD"],
            "perftest's -c UD is not supported: iWARP has reliable connections only (RC)",
        ),
        (&["--connection=XRC"], "perftest's -c XRC is not supported"),
    ] {
        let ended = uwarp(&[&["perf", "send_bw", "127.0.0.1"], args].concat()).expect(2);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        ended.says(words);
    }
    // Options that perftest does not have are reported by clap.
    uwarp(&["perf", "--nonsense"])
        .expect(2)
        .says("unexpected argument '--nonsense'");
}

#[test]
fn the_version_is_that_of_uwarp() {
    for option in ["-V", "--version"] {
        let ended = uwarp(&["perf", option]).expect(0);
        assert!(
            ended.stdout.contains(env!("CARGO_PKG_VERSION")),
            "{}",
            ended.stdout
        );
    }
}

#[test]
fn single_times_are_listed_before_the_row_as_perftest_lists_them() {
    let (_server, port) = server(&[]);
    let listed = |options: &[&str]| {
        let args = [&["-n", "7"], options].concat();
        client(&port, "read_lat", &args).expect(0).stdout
    };
    let times = |stdout: &str| -> Vec<f64> {
        let times = stdout.lines().filter_map(|line| line.split_once(", "));
        times
            .filter_map(|(number, time)| {
                number.parse::<u32>().ok()?;
                Some(time.parse().unwrap())
            })
            .collect()
    };
    let sorted = listed(&["-H"]);
    assert!(sorted.contains("#, usec\n1, "), "{sorted}");
    assert_eq!(times(&sorted).len(), 7);
    assert!(times(&sorted).is_sorted(), "{sorted}");
    // The headings of the columns are repeated after the list.
    assert_eq!(sorted.matches(" #bytes #iterations").count(), 2, "{sorted}");
    assert_eq!(times(&listed(&["-U"])).len(), 7);
    assert_eq!(times(&listed(&["-U", "-H"])).len(), 14);
    assert_eq!(times(&listed(&[])).len(), 0);
    let json = listed(&["-U", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"][0]["samples"].as_array().unwrap().len(), 7);
}

#[test]
fn a_peak_that_is_not_wanted_is_0_in_the_table_and_null_in_json() {
    let (_server, port) = server(&[]);
    let table = client(&port, "write_bw", &["-N", "-n", "50"]).expect(0);
    let peak = rows(&table.stdout)[0].split_whitespace().nth(2);
    assert_eq!(peak, Some("0.00"), "{}", table.stdout);
    let json = client(&port, "write_bw", &["-N", "-n", "50", "--json"]).expect(0);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(json["rows"][0]["figures"]["bandwidth"]["peak"].is_null());
    assert_eq!(json["plan"]["peak"], false);
}

#[test]
fn a_limit_that_no_row_reaches_fails_the_run_after_its_report() {
    let (_server, port) = server(&[]);
    let run = |args: &[&str]| client(&port, "write_bw", &[&["-n", "50"], args].concat());
    let ended = run(&["-w", "1e12"]).expect(1);
    ended.says("MB/sec, below the limit of 1000000000000 (-w)");
    assert_eq!(rows(&ended.stdout).len(), 1, "{}", ended.stdout);
    run(&["-w", "1e12", "--report_gbits"])
        .expect(1)
        .says("Gb/sec");
    run(&["-y", "1e12"]).expect(1).says("message rate");
    let json = run(&["-w", "1e12", "--json"]).expect(1);
    assert!(serde_json::from_str::<Value>(&json.stdout).is_ok());
    run(&["-w", "0.000001", "-y", "0.0000001"]).expect(0);
}

#[test]
fn the_busy_time_of_the_machine_is_a_column() {
    let (_server, port) = server(&[]);
    for test in ["send_bw", "send_lat"] {
        let ended = client(&port, test, &["-D", "0.2", "--cpu_util"]).expect(0);
        assert!(ended.stdout.contains("CPU_Util[%]"), "{}", ended.stdout);
        let percent = rows(&ended.stdout)[0].split_whitespace().last().unwrap();
        let percent: f64 = percent.parse().unwrap();
        assert!((0.0..=100.0).contains(&percent), "{}", ended.stdout);
    }
}

#[test]
fn a_margin_is_told_and_makes_a_row() {
    let (_server, port) = server(&[]);
    let ended = client(&port, "send_bw", &["-D", "1", "-f", "0.1"]).expect(0);
    assert!(
        ended.stdout.contains("1 s, excluding 0.1 s at both ends"),
        "{}",
        ended.stdout
    );
    assert_eq!(rows(&ended.stdout).len(), 1, "{}", ended.stdout);
}

/// The duration ends before the first message completes, because 32 MiB take more than a
/// millisecond. No completion follows the one that starts the measurement.
#[test]
fn margins_that_leave_no_message_are_an_error_and_no_row() {
    let mut server = Uwarp::start(&["perf", "-p", "0"]);
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap();
    let options = "-D 0.001 -f 0.000499 -t 1 -Q 1 -s 32M --warm-up 0";
    let options: Vec<_> = options.split(' ').collect();
    let ended = client(port, "read_bw", &options).expect(1);
    ended
        .says("nothing was measured: no message of 33554432 bytes completed between the margins")
        .says("try: use a longer -D, a smaller -f");
    assert_eq!(rows(&ended.stdout), Vec::<&str>::new());
    // The server's part was successful.
    server.end().expect(0);
}

#[test]
fn perftests_form_of_json_is_saved_with_its_names() {
    let (_server, port) = server(&[]);
    let file = TempFile::new("perftest_out.json");
    let saved = |test: &str, args: &[&str]| -> Value {
        let options = ["-n", "20", "--out_json", "--out_json_file", file.name()];
        let ended = client(&port, test, &[&options, args].concat()).expect(0);
        assert_eq!(rows(&ended.stdout).len(), 1, "{}", ended.stdout);
        serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap()
    };
    let json = saved("write_bw", &["-s", "4096", "-q", "2"]);
    let (info, results) = (&json["test_info"], &json["results"]);
    assert_eq!(info["test"], "RDMA_Write_BW_Test");
    assert_eq!(info["Number_of_qps"], 2);
    assert_eq!(info["Transport_type"], "IW");
    assert_eq!(info["Using_SRQ"], "OFF");
    assert_eq!(results["MsgSize"], 4096);
    assert_eq!(results["n_iterations"], 40);
    for name in ["BW_peak", "BW_average", "MsgRate"] {
        assert!(results[name].as_f64().unwrap() > 0.0, "{name}");
    }
    // As in the table, the count includes both directions.
    let json = saved("write_bw", &["-s", "4096", "-b"]);
    assert_eq!(json["results"]["n_iterations"], 40);
    let json = saved("atomic_lat", &["-A", "CMP_AND_SWAP"]);
    assert_eq!(
        json["test_info"]["test"],
        "Atomic_CMP_AND_SWAP_Latency_Test"
    );
    for name in [
        "t_min",
        "t_max",
        "t_typical",
        "t_avg",
        "t_stdev",
        "percentile_99",
        "percentile_99.9",
    ] {
        assert!(json["results"][name].is_f64(), "{name}");
    }
    let dir = TempDir::new("no-directory-for-json");
    let nowhere = format!("{}/missing/x.json", dir.name());
    let unwritable = ["-n", "5", "--out_json", "--out_json_file", &nowhere];
    client(&port, "send_bw", &unwritable)
        .expect(1)
        .says(&format!("{nowhere} cannot be written"));
}

#[test]
fn write_with_imm_and_use_srq_are_options_as_of_perftest() {
    let (_server, port) = server(&[]);
    for test in ["write_bw", "write_lat"] {
        let ended = client(&port, test, &["--write_with_imm", "-n", "10"]).expect(0);
        assert!(ended.stdout.contains("With Immediate"), "{}", ended.stdout);
    }
    let ended = client(&port, "send_bw", &["--use-srq", "-q", "4", "-n", "50"]).expect(0);
    assert!(
        ended.stdout.contains("Using SRQ       : ON"),
        "{}",
        ended.stdout
    );
    let ended = client(&port, "atomic_bw", &["-A", "cmp_and_swap", "-n", "50"]).expect(0);
    assert!(ended.stdout.contains("CMP_AND_SWAP"), "{}", ended.stdout);
}

#[test]
fn an_endless_run_has_a_row_for_each_duration_and_ends_in_good_order() {
    let mut server = Uwarp::start(&["perf", "-p", "0"]);
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap();
    let mut client = Uwarp::start_interruptible(&[
        "perf",
        "write_bw",
        "127.0.0.1",
        "-p",
        port,
        "--run_infinitely",
        "-D",
        "0.05",
    ]);
    for _ in 0..3 {
        client.stdout_until(" 65536 ");
    }
    let id = client.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(sent.success());
    client.end().expect(0);
    // The client ended the session properly, so the server ends successfully.
    server.end().expect(0);
}

fn has_ipv6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[test]
fn a_server_takes_clients_of_this_host_alone_unless_it_is_bound() {
    let (mut server, port) = server(&[]);
    server.stdout_until("Clients of this host only; use --bind");
    client(&port, "send_bw", &["-n", "5"]).expect(0);
    let addrs: &[&str] = if has_ipv6() {
        &["::1", "[::1]", "::1%1", "localhost"]
    } else {
        &["localhost"]
    };
    for addr in addrs {
        uwarp(&["perf", "send_bw", addr, "-p", &port, "-n", "5"]).expect(0);
    }
    // Another loopback address stands for addresses that other hosts can reach.
    let other = SocketAddr::from(([127, 0, 0, 2], port.parse().unwrap()));
    assert!(TcpStream::connect(other).is_err());
}

#[test]
fn a_bound_server_listens_there_and_a_bound_client_comes_from_there() {
    let (mut server, port) = server(&["--bind", "127.0.0.3"]);
    let to = ["perf", "send_bw", "127.0.0.3", "-n", "5", "-p", &port];
    uwarp(&[&to[..], &["--bind", "127.0.0.4"]].concat()).expect(0);
    server.stdout_until(": 127.0.0.4:");
    uwarp(&[&to[..], &["--source_ip", "127.0.0.5"]].concat()).expect(0);
    server.stdout_until(": 127.0.0.5:");
    client(&port, "send_bw", &["-n", "5"])
        .expect(1)
        .says("nothing listens at 127.0.0.1:");
    if has_ipv6() {
        let mut both = Uwarp::start(&["perf", "-P", "-p", "0", "--bind", "::"]);
        let line = both.stdout_until("Waiting for client");
        assert!(line.contains("[::]:"), "{line}");
        let port = line.rsplit(':').next().unwrap();
        for addr in ["127.0.0.1", "::1"] {
            uwarp(&["perf", "send_bw", addr, "-p", port, "-n", "5"]).expect(0);
        }
    }
}

/// First message of perftest, which has its version (`ib_write_bw` of Debian 12).
const OF_PERFTEST: [u8; 16] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn a_server_of_perftest_is_named_with_what_to_run() {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = fake.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(&OF_PERFTEST).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ended = client(&addr.port().to_string(), "write_bw", &[]).expect(1);
    ended
        .says(&format!("{addr} is perftest 6.06"))
        .says("expected: uwarp perf on both sides, or perftest on both")
        .says("try: run uwarp perf there; or perftest with -R on both sides, here: uwarp run -- ib_write_bw -R ADDRESS");
    assert!(
        !ended.stderr.contains("message of uwarp") && !ended.stderr.contains("line 1"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_client_of_perftest_is_named_and_the_server_goes_on() {
    let mut server = Uwarp::start(&["perf", "-p", "0"]);
    let line = server.stdout_until("Waiting for client");
    let port = line.rsplit(':').next().unwrap();
    let addr = format!("127.0.0.1:{port}");
    let mut stream = TcpStream::connect(&addr).unwrap();
    stream.write_all(&OF_PERFTEST).unwrap();
    let said = server.stderr_until("is perftest 6.06");
    assert!(said.contains(&stream.local_addr().unwrap().to_string()));
    // The command suggested for this side has no address, because this side is the server.
    server.stderr_until(
        "try: run uwarp perf TEST ADDRESS there; or perftest with -R on both sides, here: uwarp run -- ib_write_bw -R",
    );
    server.stderr_until("the server continues");
    // With --dont_xchg_versions perftest starts with the keys of its QP.
    let mut stream = TcpStream::connect(&addr).unwrap();
    stream
        .write_all(b"0000:0001:000011:a1b2c3:00000000:")
        .unwrap();
    server.stderr_until("is perftest, which");
    client(port, "send_bw", &["-n", "5"]).expect(0);
    server.end().expect(0);
}
