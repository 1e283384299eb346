//! libfabric's provider `verbs`: connected endpoints, and `ofi_rxm` above them.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["libfabric-bin"];
const FILES: &[&str] = &["libfabric.so.1"];

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "fi_info-verbs",
        packages: PACKAGES,
        files: FILES,
        flags: &[],
        needs_roce: true,
        way: Way::Alone {
            words: "fi_info -p verbs",
            says: &["provider: verbs", "FI_PROTO_RDMA_CM_IB_RC"],
        },
    },
    Row {
        name: "fi_info-verbs-iwarp",
        packages: PACKAGES,
        files: FILES,
        flags: &["--persona", "iwarp"],
        needs_roce: false,
        way: Way::Alone {
            words: "fi_info -p verbs",
            says: &["provider: verbs", "FI_PROTO_IWARP"],
        },
    },
    row(
        "fi_pingpong-msg",
        PACKAGES,
        FILES,
        Way::Pair {
            server: "fi_pingpong -p verbs -e msg -B {port} -c -I 10",
            client: "fi_pingpong -p verbs -e msg -P {port} -c -I 10 127.0.0.1",
            says: &["bytes"],
        },
    ),
    row(
        "fi_pingpong-rdm",
        PACKAGES,
        FILES,
        // The server may wait for ever at its end: `ofi_rxm` of libfabric 1.17 closes the
        // connection on the event of its end, without a look at completions that came since it last
        // polled.
        Way::Service {
            server: "fi_pingpong -p verbs;ofi_rxm -e rdm -B {port} -c -I 10",
            client: "fi_pingpong -p verbs;ofi_rxm -e rdm -P {port} -c -I 10 127.0.0.1",
            says: &["bytes"],
        },
    ),
];
