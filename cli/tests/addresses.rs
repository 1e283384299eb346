//! Error messages about unusable addresses and ports, from every command that takes them.

mod common;

use std::net::UdpSocket;

use common::{Ended, Uwarp, uwarp};

fn has_ipv6() -> bool {
    UdpSocket::bind("[::1]:0").is_ok()
}

/// Runs every command that takes an address without a port. Returns the option's name and the
/// result.
fn with_address(address: &str) -> Vec<(&'static str, Ended)> {
    [
        (
            "-a of a client",
            vec!["rping", "-c", "-p", "1", "-a", address],
        ),
        (
            "-a of a server",
            vec!["rping", "-s", "-p", "0", "-a", address],
        ),
        (
            "-I",
            vec!["rping", "-c", "-a", "127.0.0.1", "-p", "1", "-I", address],
        ),
        ("-a of an agent", vec!["agent", "-p", "0", "-a", address]),
        ("the server of perf", vec!["perf", "send_bw", address]),
        ("--bind", vec!["perf", "-p", "0", "--bind", address]),
        (
            "--bind of a client",
            vec!["perf", "send_bw", "127.0.0.1", "--bind", address],
        ),
    ]
    .map(|(what, args)| (what, uwarp(&args)))
    .into()
}

#[test]
fn a_port_within_an_address_is_told_from_the_address() {
    for (what, ended) in with_address("127.0.0.1:30001") {
        let ended = ended.expect(2);
        assert!(
            ended.stderr.contains(
                "it contains a port; give the address alone, `127.0.0.1`, and the port 30001 in its own option"
            ),
            "{what}: {}",
            ended.stderr
        );
    }
    for (what, ended) in with_address("[::1]:30001") {
        let ended = ended.expect(2);
        assert!(
            ended.stderr.contains("the port 30001"),
            "{what}: {}",
            ended.stderr
        );
    }
}

#[test]
fn what_is_no_address_is_told_what_is_wrong_with_it() {
    for (address, words) in [
        ("[::1", "a `]` is missing"),
        ("1:2", "it contains a port"),
        ("1:2:3", "it is not an IPv6 address"),
        ("", "it is empty"),
    ] {
        for (what, ended) in with_address(address) {
            let ended = ended.expect(2);
            assert!(
                ended.stderr.contains(words),
                "{what}, '{address}': {}",
                ended.stderr
            );
        }
    }
}

#[test]
fn a_link_local_address_without_a_zone_is_told_that_it_needs_one() {
    if !has_ipv6() {
        return;
    }
    let words = "fe80::1 is a link-local address, and its zone is missing: which link it is on";
    for (what, ended) in with_address("fe80::1") {
        if ["-I", "--bind of a client"].contains(&what) {
            // These commands fail earlier, because their target is an IPv4 address.
            continue;
        }
        let ended = ended.expect(1);
        assert!(ended.stderr.contains(words), "{what}: {}", ended.stderr);
        assert!(
            !ended.stderr.contains("Invalid argument"),
            "{what}: {}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains("fe80::1%eth0"),
            "{what}: {}",
            ended.stderr
        );
    }
    // The address is wrong, so the agent must not suggest another control port.
    let agent = uwarp(&["agent", "-p", "0", "--control", "[fe80::1]:0"]).expect(1);
    agent.says("try: add the interface of that link to the address");
    assert!(!agent.stderr.contains("--control"), "{}", agent.stderr);
    let target = ["conformance", "--target", "[fe80::1]:7174"];
    let ended = uwarp(&target);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let said = ended.stdout + &ended.stderr;
    assert!(said.contains(words), "{said}");
    let from = ["rping", "-c", "-a", "::1", "-p", "1", "-I", "fe80::1"];
    uwarp(&from).expect(1).says(words);
}

#[test]
fn a_zone_that_does_not_exist_is_named() {
    if !has_ipv6() {
        return;
    }
    for (what, ended) in with_address("fe80::1%uwarp-none") {
        let ended = ended.expect(1);
        assert!(
            ended
                .stderr
                .contains("this machine has no interface 'uwarp-none'"),
            "{what}: {}",
            ended.stderr
        );
    }
}

#[test]
fn two_families_are_told_apart_and_the_target_is_not_blamed() {
    let words = "cannot connect from ::1, an IPv6 address, to 127.0.0.1, an IPv4 address";
    let rping = ["rping", "-c", "-a", "127.0.0.1", "-p", "1", "-I", "::1"];
    let perf = ["perf", "send_bw", "127.0.0.1", "--bind", "::1"];
    let device = ["rping", "-c", "-a", "127.0.0.1", "-p", "1", "--device"];
    let device = [&device[..], &["tcp:::1"]].concat();
    for args in [&rping[..], &perf, &device] {
        let ended = uwarp(args).expect(1);
        ended
            .says(words)
            .says("at fault: the two addresses given here")
            .says("try: use two addresses of one family");
    }
}

#[test]
fn an_address_with_a_port_has_one_and_brackets_where_it_needs_them() {
    for (target, words) in [
        ("127.0.0.1", "it has no port; expected HOST:PORT"),
        ("::1:7174", "expected `[ADDRESS]:PORT`"),
        ("127.0.0.1:65536", "`65536` is not a port"),
        ("[::1:7174", "a `]` is missing"),
    ] {
        for option in ["--target", "--listen"] {
            let ended = uwarp(&["conformance", option, target]).expect(2);
            assert!(ended.stderr.contains(words), "{option}: {}", ended.stderr);
        }
    }
    uwarp(&["conformance", "--target", "127.0.0.1:0"])
        .expect(2)
        .says("nothing can listen on port 0");
}

#[test]
fn a_client_is_told_that_nothing_listens_on_port_0() {
    for args in [
        &["rping", "-c", "-a", "127.0.0.1", "-p", "0"][..],
        &["perf", "send_bw", "127.0.0.1", "-p", "0"],
    ] {
        uwarp(args).expect(2).says("nothing can listen on port 0");
    }
}

#[test]
fn an_address_that_this_machine_does_not_have_is_named() {
    let words = "192.0.2.77:0 is not an address of this machine";
    for args in [
        &["rping", "-s", "-p", "0", "-a", "192.0.2.77"][..],
        &["perf", "-p", "0", "--bind", "192.0.2.77"],
        &["agent", "-p", "0", "-a", "192.0.2.77"],
        &[
            "rping",
            "-c",
            "-a",
            "127.0.0.1",
            "-p",
            "1",
            "-I",
            "192.0.2.77",
        ],
        &["perf", "send_bw", "127.0.0.1", "--bind", "192.0.2.77"],
    ] {
        uwarp(args).expect(1).says(words);
    }
}

/// The zone names the loopback interface, because a test without privileges has no other interface.
#[test]
fn an_address_with_brackets_and_one_with_a_zone_are_taken() {
    if !has_ipv6() {
        return;
    }
    for address in ["[::1]", "::1%1"] {
        let mut server = Uwarp::start(&["rping", "-s", "-a", address, "-p", "0", "-d"]);
        let line = server.stdout_until("rdma_listen ");
        let port = line.rsplit(':').next().unwrap().to_owned();
        let ended = uwarp(&["rping", "-c", "-a", address, "-p", &port, "-C", "1"]);
        ended.expect(0);
        server.end().expect(0);
    }
}

/// Runs `script` after `setup` in a new network namespace, if the system allows one.
fn in_a_namespace(setup: &str, script: &str) -> Option<Ended> {
    let script = format!("{setup} && echo READY && {{ {script}\n}}");
    // An unprivileged user may create a network namespace inside a new user namespace.
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--map-root-user", "--net", "sh", "-c", &script])
        .env("UWARP", env!("CARGO_BIN_EXE_uwarp"));
    let ended = Uwarp::start_with(&mut command).end();
    if ended.stdout.contains("READY") {
        return Some(ended);
    }
    let required = std::env::var("UWARP_REQUIRE_NETNS").is_ok_and(|value| value == "1");
    assert!(!required, "no network namespace: {}", ended.stderr);
    None
}

/// Each client retries until its server listens.
#[test]
fn a_link_local_address_with_its_zone_works_for_clients_and_servers() {
    let script = "
        trap 'kill $server' EXIT
        ask() {
            for _ in $(seq 200); do
                \"$@\" && return
                sleep 0.1
            done
            exit 1
        }
        $UWARP rping -s -a fe80::5%lo -p 7174 &
        server=$!
        ask $UWARP rping -c -a fe80::5%lo -I fe80::5%lo -p 7174 -C 1
        wait $server || exit 1
        $UWARP perf --bind fe80::5%lo -p 7175 &
        server=$!
        ask $UWARP perf send_bw fe80::5%lo --bind '[fe80::5%lo]' -p 7175 -n 5
        wait $server || exit 1
        $UWARP rping -s -P -a fe80::5%lo -p 7176 &
        server=$!
        ask $UWARP rping -c -a fe80::5%lo -p 7176 -C 1
        ask $UWARP conformance --target '[fe80::5%lo]:7176' --no-agent mpa/5044-7.1.1/2
        echo DONE";
    let setup = "ip link set lo up && ip addr add fe80::5/64 dev lo nodad";
    let Some(ended) = in_a_namespace(setup, script) else {
        return;
    };
    assert!(
        ended.stdout.contains("DONE"),
        "{}\n{}",
        ended.stdout,
        ended.stderr
    );
    assert!(ended.stdout.contains("1 passed"), "{}", ended.stdout);
    assert!(!ended.stderr.contains("zone"), "{}", ended.stderr);
}

/// Without IPv6 the kernel reports the same error as for a lack of local ports.
#[test]
fn a_machine_without_ipv6_is_not_said_to_be_short_of_ports() {
    // The loopback interface of a new namespace is down and has no address.
    let script = "
        $UWARP rping -c -a ::1 -p 7174
        $UWARP perf send_bw ::1 -p 7174";
    let Some(ended) = in_a_namespace("true", script) else {
        return;
    };
    let words = "[::1]:7174 cannot be reached from here";
    assert_eq!(ended.stderr.matches(words).count(), 2, "{}", ended.stderr);
    assert!(!ended.stderr.contains("ports"), "{}", ended.stderr);
}
