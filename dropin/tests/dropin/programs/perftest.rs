//! perftest: all eight tools with `-R`, which connects through librdmacm.

use super::{Row, Way, row};

/// Creates a row for a tool with flags. In the matrix, `$name` follows the tool's name. `$says` is
/// part of a line in its result: bytes per message, and number of messages. With `-a`, the
/// last size is 8 MiB.
macro_rules! tool {
    ($tool:literal, $name:literal, $flags:literal, $says:literal) => {
        row(
            concat!($tool, $name),
            &["perftest"],
            &[$tool],
            Way::Pair {
                server: concat!($tool, " -R -F -p {port} ", $flags),
                client: concat!($tool, " -R -F -p {port} ", $flags, " 127.0.0.1"),
                says: &["#bytes", $says],
            },
        )
    };
}

pub(super) const ROWS: &[Row] = &[
    tool!("ib_write_bw", "", "-n 1000", "65536      1000"),
    tool!("ib_write_lat", "", "-n 1000", "2       1000"),
    tool!("ib_read_bw", "", "-n 1000", "65536      1000"),
    tool!("ib_read_lat", "", "-n 1000", "2       1000"),
    tool!("ib_send_bw", "", "-n 1000", "65536      1000"),
    tool!("ib_send_lat", "", "-n 1000", "2       1000"),
    tool!("ib_atomic_bw", "", "-n 1000", "8          1000"),
    tool!("ib_atomic_lat", "", "-n 1000", "8       1000"),
    tool!("ib_send_bw", "-e", "-n 1000 -e", "65536      1000"),
    // TCP accepts these messages as fast as the client posts them, so all requests complete at
    // once. The client then waits for events with no request outstanding, until a Write from the
    // server allows more Sends.
    tool!(
        "ib_send_bw",
        "-e-s-64-r-32",
        "-n 5000 -s 64 -r 32 -e",
        "64         5000"
    ),
    tool!(
        "ib_send_bw",
        "-e-s-8192-r-32",
        "-n 5000 -s 8192 -r 32 -e",
        "8192       5000"
    ),
    tool!(
        "ib_send_bw",
        "-e-q-8",
        "-n 500 -s 64 -q 8 -e",
        "64         4000"
    ),
    tool!(
        "ib_send_bw",
        "-e-b",
        "-n 1000 -s 64 -b -e",
        "64         1000"
    ),
    tool!("ib_read_bw", "-e", "-n 1000 -e", "65536      1000"),
    tool!("ib_atomic_bw", "-e", "-n 1000 -e", "8          1000"),
    tool!("ib_send_lat", "-e", "-n 1000 -e", "2       1000"),
    tool!("ib_read_lat", "-e", "-n 1000 -e", "2       1000"),
    tool!("ib_atomic_lat", "-e", "-n 1000 -e", "8       1000"),
    tool!(
        "ib_write_bw",
        "-1-MiB",
        "-n 100 -s 1048576",
        "1048576    100"
    ),
    tool!("ib_send_bw", "-b", "-n 1000 -b", "65536      1000"),
    tool!("ib_write_bw", "-b", "-n 1000 -b", "65536      1000"),
    tool!("ib_read_bw", "-b", "-n 1000 -b", "65536      1000"),
    tool!("ib_atomic_bw", "-b", "-n 1000 -b", "8          1000"),
    tool!("ib_write_bw", "-q-8", "-n 200 -q 8", "65536      1600"),
    tool!("ib_send_bw", "-q-8", "-n 200 -q 8", "65536      1600"),
    tool!("ib_read_bw", "-q-8", "-n 200 -q 8", "65536      1600"),
    tool!("ib_atomic_bw", "-q-8", "-n 200 -q 8", "8          1600"),
    tool!("ib_write_lat", "-I", "-n 1000 -s 64 -I 64", "64      1000"),
    tool!("ib_send_lat", "-I", "-n 500 -s 64 -I 64", "64      500"),
    tool!(
        "ib_write_bw",
        "-I",
        "-n 1000 -s 64 -I 64",
        "64         1000"
    ),
    tool!("ib_send_bw", "-I", "-n 500 -s 64 -I 64", "64         500"),
    tool!(
        "ib_send_bw",
        "-use-srq",
        "-n 1000 --use-srq",
        "65536      1000"
    ),
    tool!(
        "ib_send_lat",
        "-use-srq",
        "-n 1000 --use-srq",
        "2       1000"
    ),
    tool!("ib_write_bw", "-a", "-n 5 -a", "8388608    5"),
    tool!("ib_send_bw", "-a", "-n 5 -a", "8388608    5"),
    tool!("ib_read_bw", "-a", "-n 5 -a", "8388608    5"),
    tool!("ib_write_lat", "-a", "-n 10 -a", "8388608 10"),
    tool!("ib_send_lat", "-a", "-n 10 -a", "8388608 10"),
    tool!("ib_read_lat", "-a", "-n 10 -a", "8388608 10"),
];
