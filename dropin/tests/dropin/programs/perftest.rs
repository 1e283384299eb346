//! perftest: all eight tools with `-R`, which connects by librdmacm.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["perftest"];

pub(super) const ROWS: &[Row] = &[
    row(
        "ib_write_bw",
        PACKAGES,
        &["ib_write_bw"],
        Way::Pair {
            server: "ib_write_bw -R -F -p {port} -n 1000",
            client: "ib_write_bw -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_lat",
        PACKAGES,
        &["ib_write_lat"],
        Way::Pair {
            server: "ib_write_lat -R -F -p {port} -n 1000",
            client: "ib_write_lat -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_read_bw",
        PACKAGES,
        &["ib_read_bw"],
        Way::Pair {
            server: "ib_read_bw -R -F -p {port} -n 1000",
            client: "ib_read_bw -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_read_lat",
        PACKAGES,
        &["ib_read_lat"],
        Way::Pair {
            server: "ib_read_lat -R -F -p {port} -n 1000",
            client: "ib_read_lat -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            server: "ib_send_bw -R -F -p {port} -n 1000",
            client: "ib_send_bw -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_lat",
        PACKAGES,
        &["ib_send_lat"],
        Way::Pair {
            server: "ib_send_lat -R -F -p {port} -n 1000",
            client: "ib_send_lat -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_atomic_bw",
        PACKAGES,
        &["ib_atomic_bw"],
        Way::Pair {
            server: "ib_atomic_bw -R -F -p {port} -n 1000",
            client: "ib_atomic_bw -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_atomic_lat",
        PACKAGES,
        &["ib_atomic_lat"],
        Way::Pair {
            server: "ib_atomic_lat -R -F -p {port} -n 1000",
            client: "ib_atomic_lat -R -F -p {port} -n 1000 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw-e-r-1000",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            // With as many receives as messages the client never waits for an event while it waits for leave to send on.
            server: "ib_send_bw -R -F -p {port} -n 1000 -r 1000 -e",
            client: "ib_send_bw -R -F -p {port} -n 1000 -r 1000 -e 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_read_bw-e",
        PACKAGES,
        &["ib_read_bw"],
        Way::Pair {
            server: "ib_read_bw -R -F -p {port} -n 1000 -e",
            client: "ib_read_bw -R -F -p {port} -n 1000 -e 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_lat-e",
        PACKAGES,
        &["ib_send_lat"],
        Way::Pair {
            server: "ib_send_lat -R -F -p {port} -n 1000 -e",
            client: "ib_send_lat -R -F -p {port} -n 1000 -e 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_bw-1-MiB",
        PACKAGES,
        &["ib_write_bw"],
        Way::Pair {
            server: "ib_write_bw -R -F -p {port} -n 100 -s 1048576",
            client: "ib_write_bw -R -F -p {port} -n 100 -s 1048576 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw-b",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            server: "ib_send_bw -R -F -p {port} -n 1000 -b",
            client: "ib_send_bw -R -F -p {port} -n 1000 -b 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_bw-b",
        PACKAGES,
        &["ib_write_bw"],
        Way::Pair {
            server: "ib_write_bw -R -F -p {port} -n 1000 -b",
            client: "ib_write_bw -R -F -p {port} -n 1000 -b 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_read_bw-b",
        PACKAGES,
        &["ib_read_bw"],
        Way::Pair {
            server: "ib_read_bw -R -F -p {port} -n 1000 -b",
            client: "ib_read_bw -R -F -p {port} -n 1000 -b 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_bw-q-8",
        PACKAGES,
        &["ib_write_bw"],
        Way::Pair {
            server: "ib_write_bw -R -F -p {port} -n 200 -q 8",
            client: "ib_write_bw -R -F -p {port} -n 200 -q 8 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw-q-8",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            server: "ib_send_bw -R -F -p {port} -n 200 -q 8",
            client: "ib_send_bw -R -F -p {port} -n 200 -q 8 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_lat-I",
        PACKAGES,
        &["ib_write_lat"],
        Way::Pair {
            server: "ib_write_lat -R -F -p {port} -n 1000 -s 64 -I 64",
            client: "ib_write_lat -R -F -p {port} -n 1000 -s 64 -I 64 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_lat-I",
        PACKAGES,
        &["ib_send_lat"],
        Way::Pair {
            server: "ib_send_lat -R -F -p {port} -n 500 -s 64 -I 64",
            client: "ib_send_lat -R -F -p {port} -n 500 -s 64 -I 64 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw-use-srq",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            server: "ib_send_bw -R -F -p {port} -n 1000 --use-srq",
            client: "ib_send_bw -R -F -p {port} -n 1000 --use-srq 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_write_bw-a",
        PACKAGES,
        &["ib_write_bw"],
        Way::Pair {
            server: "ib_write_bw -R -F -p {port} -n 5 -a",
            client: "ib_write_bw -R -F -p {port} -n 5 -a 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_send_bw-a",
        PACKAGES,
        &["ib_send_bw"],
        Way::Pair {
            server: "ib_send_bw -R -F -p {port} -n 5 -a",
            client: "ib_send_bw -R -F -p {port} -n 5 -a 127.0.0.1",
            says: &["#bytes"],
        },
    ),
    row(
        "ib_read_bw-a",
        PACKAGES,
        &["ib_read_bw"],
        Way::Pair {
            server: "ib_read_bw -R -F -p {port} -n 5 -a",
            client: "ib_read_bw -R -F -p {port} -n 5 -a 127.0.0.1",
            says: &["#bytes"],
        },
    ),
];
