//! Programs that exchange the numbers of their queue pairs themselves, and never call librdmacm:
//! the ping-pongs of ibverbs-utils, and perftest without `-R`.

use super::{Row, Way, check};
use crate::c;
use crate::process::{Place, unprivileged};

/// Creates a row for a program with flags, which both sides have. In the matrix, `$name` is its
/// name. `$says` is part of the client's result.
macro_rules! pair {
    ($package:literal, $program:literal, $name:literal, $flags:literal, $says:literal) => {
        Row {
            name: $name,
            packages: &[$package],
            files: &[$program],
            flags: &[],
            needs_roce: true,
            way: Way::Pair {
                server: concat!($program, " -p {port} ", $flags),
                client: concat!($program, " -p {port} ", $flags, " 127.0.0.1"),
                says: &[$says],
            },
        }
    };
}

macro_rules! pingpong {
    ($program:literal, $name:literal, $flags:literal) => {
        pair!("ibverbs-utils", $program, $name, $flags, "1000 iters in")
    };
}

macro_rules! perftest {
    ($program:literal, $name:literal, $flags:literal, $says:literal) => {
        pair!("perftest", $program, $name, $flags, $says)
    };
}

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "numbers",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(numbers),
    },
    Row {
        name: "datagrams",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(datagrams),
    },
    Row {
        name: "numbers-two-hosts",
        packages: &["ibverbs-utils", "perftest", "iproute2", "util-linux"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Apart(two_hosts),
    },
    Row {
        name: "numbers-one-way",
        packages: &["ibverbs-utils", "iproute2", "util-linux"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Apart(one_way),
    },
    Row {
        name: "collective",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(collective),
    },
    Row {
        name: "file-service",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(file_service),
    },
    Row {
        name: "crowd",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(crowd),
    },
    Row {
        name: "descriptors",
        packages: &["libibverbs-dev", "librdmacm-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(descriptors),
    },
    Row {
        name: "killed",
        packages: &["libibverbs-dev", "gcc"],
        files: &[],
        flags: &[],
        needs_roce: true,
        way: Way::Own(killed),
    },
    // Without `-g` there is no GRH: the peer is on this host.
    pingpong!("ibv_rc_pingpong", "ibv_rc_pingpong", ""),
    pingpong!("ibv_rc_pingpong", "ibv_rc_pingpong-g", "-g 0 -c"),
    pingpong!("ibv_rc_pingpong", "ibv_rc_pingpong-e", "-g 0 -c -e"),
    pingpong!("ibv_rc_pingpong", "ibv_rc_pingpong-N", "-g 0 -c -N"),
    pingpong!(
        "ibv_rc_pingpong",
        "ibv_rc_pingpong-64-KiB",
        "-g 0 -c -s 65536"
    ),
    pingpong!("ibv_srq_pingpong", "ibv_srq_pingpong", "-g 0 -c"),
    pingpong!(
        "ibv_srq_pingpong",
        "ibv_srq_pingpong-q-32-e",
        "-g 0 -q 32 -e"
    ),
    pingpong!("ibv_uc_pingpong", "ibv_uc_pingpong", ""),
    pingpong!("ibv_uc_pingpong", "ibv_uc_pingpong-g", "-g 0"),
    pingpong!("ibv_uc_pingpong", "ibv_uc_pingpong-e", "-g 0 -e"),
    pingpong!("ibv_ud_pingpong", "ibv_ud_pingpong", "-g 0"),
    pingpong!("ibv_ud_pingpong", "ibv_ud_pingpong-e", "-g 0 -e"),
    pingpong!("ibv_ud_pingpong", "ibv_ud_pingpong-s-1024", "-g 0 -s 1024"),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw",
        "-F -n 1000",
        "65536      1000"
    ),
    perftest!(
        "ib_write_lat",
        "numbers-ib_write_lat",
        "-F -n 1000",
        "2       1000"
    ),
    perftest!(
        "ib_read_bw",
        "numbers-ib_read_bw",
        "-F -n 1000",
        "65536      1000"
    ),
    perftest!(
        "ib_read_lat",
        "numbers-ib_read_lat",
        "-F -n 1000",
        "2       1000"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw",
        "-F -n 1000",
        "65536      1000"
    ),
    perftest!(
        "ib_send_lat",
        "numbers-ib_send_lat",
        "-F -n 1000",
        "2       1000"
    ),
    perftest!(
        "ib_atomic_bw",
        "numbers-ib_atomic_bw",
        "-F -n 1000",
        "8          1000"
    ),
    perftest!(
        "ib_atomic_lat",
        "numbers-ib_atomic_lat",
        "-F -n 1000",
        "8       1000"
    ),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw-a",
        "-F -n 5 -a",
        "8388608    5"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-a",
        "-F -n 5 -a",
        "8388608    5"
    ),
    perftest!(
        "ib_read_bw",
        "numbers-ib_read_bw-a",
        "-F -n 5 -a",
        "8388608    5"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-e",
        "-F -n 1000 -e",
        "65536      1000"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-b",
        "-F -n 1000 -b",
        "65536      1000"
    ),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw-b",
        "-F -n 1000 -b",
        "65536      1000"
    ),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw-q-8",
        "-F -n 200 -q 8",
        "65536      1600"
    ),
    perftest!(
        "ib_read_bw",
        "numbers-ib_read_bw-q-64",
        "-F -n 20 -q 64",
        "65536      1280"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-use-srq",
        "-F -n 1000 --use-srq -q 4",
        "65536      4000"
    ),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw-c-UC",
        "-F -n 1000 -c UC",
        "65536      1000"
    ),
    perftest!(
        "ib_write_lat",
        "numbers-ib_write_lat-c-UC",
        "-F -n 1000 -c UC",
        "2       1000"
    ),
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-c-UC",
        "-F -n 1000 -c UC",
        "65536      1000"
    ),
    perftest!(
        "ib_send_lat",
        "numbers-ib_send_lat-c-UC",
        "-F -n 1000 -c UC",
        "2       1000"
    ),
    perftest!(
        "ib_send_lat",
        "numbers-ib_send_lat-c-UD",
        "-F -n 1000 -c UD",
        "2       1000"
    ),
    // So many datagrams fit into the receive buffer that every system grants.
    perftest!(
        "ib_send_bw",
        "numbers-ib_send_bw-c-UD",
        "-F -n 100 -s 1024 -c UD",
        "1024       100"
    ),
    perftest!(
        "ib_write_bw",
        "numbers-ib_write_bw-x",
        "-F -n 1000 -x 0",
        "65536      1000"
    ),
];

/// Output of `tests/c/numbers.c`. RTR is state 2, RTS is 3, and ERR is 6.
const NUMBERS: &str = "steps out of order, or without an attribute
  RTR from RESET 1
  receive in RESET 1
  INIT 0
  RTS from INIT 1
  RTR with the state alone 1
  send in INIT 1
  RTR 0
  state 2
  RTR again 1
  RTS 0
  INIT and RTR after RTS 1 1
  from another state 1
  state 3, peer 1, PSNs 5 6, MTU 3, Reads 3 4, timeout 8, retries 1 7
  GID 1
a send before the peer knows its number, and a peer in RTR
  1: success
  2: success
a Write and a Read
  3: success
  4: success
  by number
a Send and a Write with immediate data
  30: success, opcode 128, 64 bytes, immediate data 0x1020304
  31: success, opcode 129, 64 bytes, immediate data 0x1020304
  32: success
  33: success
the same by calls
  40: success, opcode 128, 24 bytes, immediate data 0x5060708
  41: success
both are reset, and meet again
  5: success
  6: success
  7: success
  8: success
to itself
  9: success
  10: success
the peer is destroyed
  state 3, completions 0
  11: Work Request Flushed Error
  12: transport retry counter exceeded
  state 6, RTS 1
the peer never knows the number
  1: transport retry counter exceeded
  2: Work Request Flushed Error
an unreliable connection
  RTS without a PSN 1
  Read 1
without a receive, and with one
  1: success
  2: success
  3: success
  4: success
the peer is destroyed
  5: success
  6: success
  7: success
  state 3
a queue pair of the parent and one of the child
  1: success
  2: success
  child 0
";

/// Output of `tests/c/datagrams.c`.
const DATAGRAMS: &str = "handles
  without a GRH 1, to no host 1
steps
  INIT without a key 1
  post in RTR 1
  state 3, key 0x11111111
a datagram of two elements, with Immediate Data
  flags 3, length 51, from 1, sl 2, imm 7
  two element
  traffic class 0x28
an answer to a handle from the completion
  flags 1, length 46, from 1, sl 2, imm 0
  answer
  traffic class 0x28
by calls
  flags 3, length 45, from 1, sl 2, imm 9
  calls
  traffic class 0x28
  no destination 1
what is refused
  without a handle 1, an unknown operation 1
what fails
  longer than the MTU: local length error, state 6
  a Write: local QP operation error, state 6
  a Write without a handle: local QP operation error, state 6
  a Read: local QP operation error, state 6
dropped, and then one that arrives
  flags 1, length 45, from 1, sl 2, imm 0
  last.
  traffic class 0x28
";

fn datagrams(place: Place<'_>) -> Result<String, String> {
    let program = c::compile(place.prefix, "cc", "datagrams.c", &["-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let device = "UWARP_DEVICE=tcp:127.0.0.1";
    let said = place
        .start(&["env", device, "UWARP_QUIET=1", program])?
        .end()?;
    match said == DATAGRAMS {
        true => Ok(said),
        false => Err(said),
    }
}

fn numbers(place: Place<'_>) -> Result<String, String> {
    own(place, "numbers.c", SHORT, NUMBERS)
}

/// The verbs of NCCL, by a program of our own.
fn collective(place: Place<'_>) -> Result<String, String> {
    own(
        place,
        "collective.c",
        LONG,
        "500 messages of 65536 bytes over 2 queue pairs\n",
    )
}

/// The verbs of 3FS, by a program of our own.
fn file_service(place: Place<'_>) -> Result<String, String> {
    own(place, "file_service.c", LONG, "400 requests of 8 blocks\n")
}

fn crowd(place: Place<'_>) -> Result<String, String> {
    let says = "1000 pairs of two processes\n3000 queue pairs of one process\n";
    own(place, "crowd.c", LONG, says)
}

/// No descriptor is left of a connection, and a child of a fork has its own objects.
fn descriptors(place: Place<'_>) -> Result<String, String> {
    let says = "by numbers: no descriptor is left\nby librdmacm: no descriptor is left\na child and its parent: each has its own objects\n";
    linked(
        place,
        "descriptors.c",
        &["-lrdmacm", "-libverbs"],
        LONG,
        says,
    )
}

/// ERR is state 6.
fn killed(place: Place<'_>) -> Result<String, String> {
    let states = [
        "RESET",
        "INIT",
        "RTR",
        "RTS",
        "connected",
        "while it receives",
        "while it writes",
    ];
    let says = states.map(|state| format!("{state}: retry exceeded 1, state 6\n"));
    own(place, "killed.c", SHORT, &says.concat())
}

/// Setting of a program some of whose sends fail because the peer is not there. The others must not
/// fail on a busy machine.
const SHORT: &str = "UWARP_OOB_TIMEOUT=5000";
/// Setting of a program whose peer is there, on a busy machine too.
const LONG: &str = "UWARP_OOB_TIMEOUT=60000";

/// Runs a C program with this setting, which must print this.
fn own(place: Place<'_>, source: &str, timeout: &str, says: &str) -> Result<String, String> {
    linked(place, source, &["-libverbs", "-pthread"], timeout, says)
}

/// As [`own`], with these arguments for the linker.
fn linked(
    place: Place<'_>,
    source: &str,
    libraries: &[&str],
    timeout: &str,
    says: &str,
) -> Result<String, String> {
    let program = c::compile(place.prefix, "cc", source, libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let environment = ["env", timeout, "UWARP_QUIET=1"];
    let said = place
        .start(&[&environment[..], &[program]].concat())?
        .end()?;
    match said == says {
        true => Ok(said),
        false => Err(said),
    }
}

/// Script that runs in a new network namespace and creates a second one, with an Ethernet link
/// between them. `$1` is the command `uwarp`. A sleeping process keeps the second namespace alive.
/// GID 0 is the IPv4 address, and GID 1 the IPv6 address.
const NETWORK: &str = r#"set -e
unshare -n -u sh -c 'hostname uwarp-other; exec sleep 300' &
other=$!
server=
trap 'kill $other $server' EXIT
until [ "$(nsenter -t $other -n -u hostname)" = uwarp-other ]; do sleep 0.01; done
there() { nsenter -t $other -n -u "$@"; }
ip link set lo up
there ip link set lo up
ip link add uw0 type veth peer name uw1
ip link set uw1 netns $other
ip addr add 192.0.2.1/24 dev uw0
there ip addr add 192.0.2.2/24 dev uw1
ip addr add 2001:db8::1/64 dev uw0 nodad
there ip addr add 2001:db8::2/64 dev uw1 nodad
ip link set uw0 up
there ip link set uw1 up
uwarp=$1
"#;

/// Programs over that link, in both families. All use port 18515, which is 4853 in hexadecimal.
const TWO_HOSTS: &str = r#"pair() { # ADDRESS PROGRAM ARGUMENT...
  address=$1
  shift
  there "$uwarp" run -- "$@" >server &
  server=$!
  until there cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 .* 0A '; do sleep 0.01; done
  "$uwarp" run -- "$@" "$address"
  wait $server || { cat server; exit 1; }
  server=
}
pair 192.0.2.2 ibv_rc_pingpong -g 0 -c
pair 192.0.2.2 ibv_rc_pingpong -g 1 -c
pair 192.0.2.2 ib_write_bw -F -n 500 -x 0
pair 192.0.2.2 ib_read_bw -F -n 500 -x 1
pair 192.0.2.2 ibv_uc_pingpong -g 1
pair 192.0.2.2 ibv_ud_pingpong -g 0
pair 192.0.2.2 ibv_ud_pingpong -g 1
pair 192.0.2.2 ib_send_lat -F -n 500 -c UD -x 0
pair 192.0.2.2 ib_send_lat -F -n 500 -c UD -x 1
echo all is well
"#;

/// A firewall of the second host drops all that comes to its ports for queue pairs. The pair meets
/// by a call in reverse if the queue pair of the first host, which has the smaller number, is to
/// call.
const ONE_WAY: &str = r#"
there ip rule add pref 100 lookup local
there ip rule del pref 0
there ip rule add pref 50 from 192.0.2.1 ipproto tcp dport 32100-32399 blackhole
pair() { # PORTS-OF-THE-FIRST PORTS-OF-THE-SECOND
  UWARP_OOB_PORTS=$2 there "$uwarp" run -- ibv_rc_pingpong -g 0 -c >server &
  server=$!
  until there cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 .* 0A '; do sleep 0.01; done
  UWARP_OOB_PORTS=$1 UWARP_LOG=uwarp_verbs=debug "$uwarp" run -- ibv_rc_pingpong -g 0 -c 192.0.2.2
  wait $server || { cat server; exit 1; }
  server=
}
pair 32100-32199 32200-32299
echo the first was to call
pair 32300-32399 32200-32299
echo the second was to call
echo all is well
"#;

fn one_way(place: Place<'_>) -> Result<String, String> {
    let said = script(place, ONE_WAY)?;
    // Both connections came to the port of the first host: it was called.
    let called = ["local=192.0.2.1:32100 peer", "local=192.0.2.1:32300 peer"];
    check(&said, &called)?;
    check(&said, &["1000 iters in", "all is well"])?;
    Ok(said)
}

/// Runs a script after that of the network.
fn script(place: Place<'_>, script: &str) -> Result<String, String> {
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", &format!("{NETWORK}{script}"), "sh"]);
    command.arg(place.prefix.uwarp());
    command.current_dir(place.prefix.scratch());
    place.spawn(&mut command, "two hosts".to_owned())?.end()
}

fn two_hosts(place: Place<'_>) -> Result<String, String> {
    let said = script(place, TWO_HOSTS)?;
    let gids = ["GID ::ffff:192.0.2.1", "GID 2001:db8::1", "65536      500"];
    check(&said, &gids)?;
    check(&said, &["all is well"])?;
    Ok(said)
}
