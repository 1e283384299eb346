//! Programs of rdmacm-utils, which use librdmacm.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["rdmacm-utils"];
const RPING: &[&str] = &["rping"];
const UCMATOSE: &[&str] = &["ucmatose"];

pub(super) const ROWS: &[Row] = &[
    row(
        "rping-ipv4",
        PACKAGES,
        RPING,
        Way::Pair {
            server: "rping -s -a 127.0.0.1 -p {port} -C 10 -V -v",
            client: "rping -c -a 127.0.0.1 -p {port} -C 10 -V -v",
            says: &["ping data: rdma-ping-9"],
        },
    ),
    row(
        "rping-ipv6",
        PACKAGES,
        RPING,
        Way::Pair {
            server: "rping -s -a ::1 -p {port} -C 10 -V -v",
            client: "rping -c -a ::1 -p {port} -C 10 -V -v",
            says: &["ping data: rdma-ping-9"],
        },
    ),
    row(
        "rping-64-KiB",
        PACKAGES,
        RPING,
        Way::Pair {
            server: "rping -s -a 127.0.0.1 -p {port} -C 100 -S 65535 -V",
            client: "rping -c -a 127.0.0.1 -p {port} -C 100 -S 65535 -V",
            says: &[],
        },
    ),
    row(
        "rping-q",
        PACKAGES,
        RPING,
        Way::Pair {
            server: "rping -s -a 127.0.0.1 -p {port} -C 10 -V -q",
            client: "rping -c -a 127.0.0.1 -p {port} -C 10 -V -q",
            says: &[],
        },
    ),
    row(
        "ucmatose",
        PACKAGES,
        UCMATOSE,
        Way::Pair {
            server: "ucmatose -p {port} -c 4 -C 20 -S 2000",
            client: "ucmatose -s 127.0.0.1 -p {port} -c 4 -C 20 -S 2000",
            says: &["data transfers complete", "return status 0"],
        },
    ),
    row(
        "ucmatose-m",
        PACKAGES,
        UCMATOSE,
        Way::Pair {
            server: "ucmatose -p {port} -m -c 2",
            client: "ucmatose -s 127.0.0.1 -p {port} -m -c 2",
            says: &["data transfers complete", "return status 0"],
        },
    ),
    row(
        "cmtime",
        PACKAGES,
        &["cmtime"],
        Way::Service {
            server: "cmtime -p {port}",
            client: "cmtime -s 127.0.0.1 -p {port} -c 20",
            says: &["connect"],
        },
    ),
    row(
        "rdma_client",
        PACKAGES,
        &["rdma_server", "rdma_client"],
        Way::Pair {
            server: "rdma_server -p {port}",
            client: "rdma_client -s 127.0.0.1 -p {port}",
            says: &["rdma_client: end 0"],
        },
    ),
    row(
        "rdma_xclient",
        PACKAGES,
        &["rdma_xserver", "rdma_xclient"],
        Way::Pair {
            server: "rdma_xserver -p {port} -c r",
            client: "rdma_xclient -s 127.0.0.1 -p {port} -c r",
            says: &["rdma_xclient: end 0"],
        },
    ),
];
