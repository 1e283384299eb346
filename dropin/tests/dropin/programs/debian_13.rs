//! Programs of Debian 13, in a root of it. Most rows are those of Debian 12.

use super::{Row, Way, check, ucx};
use crate::process::{Place, free_port};

/// Particulars of these versions, for the matrix.
pub(crate) const REMARKS: &str = "\
* perftest is linked with the providers of rdma-core, which need all private names of the same version. `libmlx5` of 56 imports
  `ibv_cmd_create_cq_ex2`.
* `cmtime` listens on one number by TCP and by librdmacm, so it needs `--port-offset`. Its second part connects queue pairs that do not
  exist, and ends with an error of `rdma_connect`, as on any iWARP device.
* `ucx_perftest` is built with MPI, and connects by TCP only with `-P 0` or from a terminal. The tests check that each protocol is on the
  device (`UCX_PROTO_INFO=y`). UCX does its atomic operations over `rc_verbs` by Sends here, as 1.13 does. It prints the error
  `flush(remote) is not supported` when it flushes `rc_verbs`, which has no effect on the result.
";

/// Rows of other tables that run unchanged.
const SAME: &[&str] = &[
    "ibv_devices",
    "ibv_devinfo",
    "ibv_devinfo-iwarp",
    "ibv_asyncwatch",
    "rping-ipv4",
    "rping-ipv6",
    "rping-64-KiB",
    "rping-q",
    "ucmatose",
    "ucmatose-m",
    "rdma_client",
    "rdma_xclient",
    "textbook",
    "numbers",
    "datagrams",
    "collective",
    "file-service",
    "ibv_rc_pingpong",
    "ibv_rc_pingpong-g",
    "ibv_rc_pingpong-e",
    "ibv_rc_pingpong-N",
    "ibv_rc_pingpong-64-KiB",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong-q-32-e",
    "ibv_uc_pingpong",
    "ibv_uc_pingpong-g",
    "ibv_uc_pingpong-e",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong-e",
    "ibv_ud_pingpong-s-1024",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ib_send_bw-e",
    "numbers-ib_write_bw",
    "numbers-ib_write_lat",
    "numbers-ib_read_bw",
    "numbers-ib_read_lat",
    "numbers-ib_send_bw",
    "numbers-ib_send_lat",
    "numbers-ib_atomic_bw",
    "numbers-ib_atomic_lat",
    "numbers-ib_send_bw-e",
    "numbers-ib_write_bw-c-UC",
    "numbers-ib_send_bw-c-UC",
    "numbers-ib_send_lat-c-UD",
    "numbers-ib_send_bw-c-UD",
    "openmpi-ucx-2-ranks",
    "openmpi-ucx-4-ranks",
    "mpich-ucx-2-ranks",
    "mpich-ucx-4-ranks",
];

const OWN: &[Row] = &[Row {
    name: "cmtime",
    packages: &["rdmacm-utils"],
    files: &["cmtime"],
    // This cmtime listens on one number by TCP and by librdmacm. The offset leads from the ports of
    // these tests to ports that are neither theirs nor ephemeral.
    flags: &["--port-offset", "50000"],
    needs_roce: false,
    way: Way::Own(cmtime),
}];

/// Returns the rows of Debian 13.
pub(crate) fn rows() -> Vec<Row> {
    let all = super::rows();
    let same = SAME.iter().map(|name| {
        let found = all.iter().find(|row| row.name == *name);
        found
            .unwrap_or_else(|| panic!("no table has the row {name}"))
            .clone()
    });
    same.chain(OWN.iter().chain(ucx::PERFTESTS_WITH_MPI).cloned())
        .collect()
}

/// Runs the part of cmtime that has queue pairs. The part after it connects with the numbers of
/// queue pairs that do not exist, which no iWARP device can do, and ends with an error.
fn cmtime(place: Place<'_>) -> Result<String, String> {
    let number = free_port()?;
    let port = number.to_string();
    let words = ["stdbuf", "-oL", "cmtime", "-c", "20", "-p", &port];
    let mut server = place.start(&words)?;
    server.until_listening(number)?;
    let mut client = place.start(&[&words[..], &["-s", "127.0.0.1"]].concat())?;
    client.until_said("Connect (20) test - no QPs")?;
    let said = client.output();
    check(
        &said,
        &["Connect (20) QPs test", "qp_conn                20"],
    )?;
    Ok(said)
}
