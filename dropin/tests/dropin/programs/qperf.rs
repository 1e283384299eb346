//! qperf with `-cm 1`, which connects through librdmacm. `{port}` is qperf's control port.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["qperf"];
const FILES: &[&str] = &["qperf"];

pub(super) const ROWS: &[Row] = &[
    row(
        "qperf-rc_bw",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_bw",
            says: &["rc_bw:"],
        },
    ),
    row(
        "qperf-rc_bi_bw",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_bi_bw",
            says: &["rc_bi_bw:"],
        },
    ),
    row(
        "qperf-rc_lat",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_lat",
            says: &["rc_lat:"],
        },
    ),
    row(
        "qperf-rc_rdma_read_bw",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_rdma_read_bw",
            says: &["rc_rdma_read_bw:"],
        },
    ),
    row(
        "qperf-rc_rdma_read_lat",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_rdma_read_lat",
            says: &["rc_rdma_read_lat:"],
        },
    ),
    row(
        "qperf-rc_rdma_write_bw",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_rdma_write_bw",
            says: &["rc_rdma_write_bw:"],
        },
    ),
    row(
        "qperf-rc_rdma_write_lat",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_rdma_write_lat",
            says: &["rc_rdma_write_lat:"],
        },
    ),
    row(
        "qperf-rc_rdma_write_poll_lat",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_rdma_write_poll_lat",
            says: &["rc_rdma_write_poll_lat:"],
        },
    ),
    row(
        "qperf-rc_compare_swap_mr",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_compare_swap_mr",
            says: &["rc_compare_swap_mr:"],
        },
    ),
    row(
        "qperf-rc_fetch_add_mr",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 rc_fetch_add_mr",
            says: &["rc_fetch_add_mr:"],
        },
    ),
    row(
        "qperf-ver_rc_compare_swap",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 ver_rc_compare_swap",
            says: &["ver_rc_compare_swap:"],
        },
    ),
    row(
        "qperf-ver_rc_fetch_add",
        PACKAGES,
        FILES,
        Way::Service {
            server: "qperf -lp {port}",
            client: "qperf 127.0.0.1 -lp {port} -cm 1 -t 1 ver_rc_fetch_add",
            says: &["ver_rc_fetch_add:"],
        },
    ),
];
