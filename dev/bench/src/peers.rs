//! Other programs that move data over TCP, beside `uwarp perf` with the same messages from 8 B to
//! 1 MiB.

use std::io;

use serde_json::Value;

use crate::machine;
use crate::options::Common;
use crate::perf;
use crate::programs::{Programs, Tool, column, versions};
use crate::report::Section;
use crate::rows::{self, Base, Row, Table, Unit};

/// Commands and their Debian packages.
pub(crate) const PACKAGES: [(&str, &str); 4] = [
    ("ucx_perftest", "ucx-utils"),
    ("fi_pingpong", "libfabric-bin"),
    ("qperf", "qperf"),
    ("iperf3", "iperf3"),
];

/// Environment that restricts UCX to TCP over the loopback device.
const UCX_TCP: &str = "UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n";
/// The same with the fastest segment size for messages of 64 KiB. By default, segments have 8 KiB.
const TUNED: &str = "UCX_TLS=tcp UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n \
    UCX_TCP_TX_SEG_SIZE=256k UCX_TCP_RX_SEG_SIZE=256k";

/// A bandwidth of UCX.
const fn ucx_bw(name: &'static str, options: &'static str, environment: &'static str) -> Tool {
    Tool {
        name,
        program: PACKAGES[0],
        environment,
        server: "-p {port}",
        client: "127.0.0.1 -w 100 -f -v {options} -p {port} -s {size} -n {count}",
        options,
        parse: |said| ucx(said, "overall_mr"),
        unit: Unit::Rate,
        round_trip: false,
    }
}

const PUT: Tool = ucx_bw("UCX `ucp_put_bw`", "-t ucp_put_bw", UCX_TCP);
const PUT_TUNED: Tool = ucx_bw("UCX `ucp_put_bw`, tuned", "-t ucp_put_bw", TUNED);
const GET: Tool = ucx_bw("UCX `ucp_get`", "-t ucp_get", UCX_TCP);
/// By default only one Get is outstanding.
const GET_TUNED: Tool = ucx_bw("UCX `ucp_get`, tuned", "-t ucp_get -O 16", TUNED);
const TAG: Tool = ucx_bw("UCX `tag_bw`", "-t tag_bw", UCX_TCP);
const TAG_TUNED: Tool = ucx_bw("UCX `tag_bw`, tuned", "-t tag_bw", TUNED);
const TAG_LATENCY: Tool = Tool {
    parse: |said| Some(ucx(said, "50.0_percentile_lat")? / 1e6),
    unit: Unit::Latency,
    ..ucx_bw("UCX `tag_lat`", "-t tag_lat", UCX_TCP)
};
/// Both sides need the number and size of the messages.
const PINGPONG: Tool = Tool {
    name: "libfabric `fi_pingpong`",
    program: PACKAGES[1],
    environment: "",
    server: "-p tcp -e msg -S {size} -I {count} -B {port}",
    client: "-p tcp -e msg -S {size} -I {count} -P {port} 127.0.0.1",
    options: "",
    parse: pingpong,
    unit: Unit::Latency,
    round_trip: false,
};
const QPERF: Tool = Tool {
    name: "qperf `tcp_bw`",
    program: PACKAGES[2],
    environment: "",
    server: "-lp {port}",
    client: "127.0.0.1 -lp {port} -t 1 -uu -m {size} {options}",
    options: "tcp_bw",
    parse: qperf,
    unit: Unit::Bandwidth,
    round_trip: false,
};
const QPERF_LATENCY: Tool = Tool {
    name: "qperf `tcp_lat`",
    options: "tcp_lat",
    unit: Unit::Latency,
    ..QPERF
};
const IPERF: Tool = Tool {
    name: "iperf3",
    program: PACKAGES[3],
    environment: "",
    server: "-s -1 -B 127.0.0.1 -p {port}",
    client: "-c 127.0.0.1 -p {port} -t 1 -l {size} --json",
    options: "",
    parse: iperf,
    unit: Unit::Bandwidth,
    round_trip: false,
};

/// Parses a column of the CSV output of UCX.
fn ucx(said: &str, name: &str) -> Option<f64> {
    column(said, "iterations,", |c| c == ',', name)
}

/// Parses the seconds of a message one way, from the table of `fi_pingpong`.
fn pingpong(said: &str) -> Option<f64> {
    Some(column(said, "bytes", char::is_whitespace, "usec/xfer")? / 1e6)
}

/// Parses the bytes per second or the seconds of qperf, which only measures for whole seconds.
fn qperf(said: &str) -> Option<f64> {
    said.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let mut words = value.split_whitespace();
        let number: f64 = words.next()?.parse().ok()?;
        match (name.trim(), words.next()?) {
            ("bw", "bytes/sec") => Some(number),
            ("latency", "ns") => Some(number * 1e-9),
            _ => None,
        }
    })
}

/// Parses the bytes per second at the receiver of iperf3, which only measures for whole seconds.
fn iperf(said: &str) -> Option<f64> {
    let said: Value = serde_json::from_str(said).ok()?;
    Some(said["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

const WRITE: Table = Table::new("Write", Unit::Bandwidth);
const READ: Table = Table::new("Read", Unit::Bandwidth);
const SEND: Table = Table::new("Send", Unit::Bandwidth);
const POLLING: Table = Table::new("Send and Write latency, polling", Unit::Latency);
const WAITING: Table = Table::new("Send latency, waiting", Unit::Latency);

/// Lengths of a message in bytes.
const SIZES: &[usize] = &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20];
/// Lengths of a message at which a CRC matters.
const LARGE: &[usize] = &[64 << 10, 1 << 20];

/// A test of `uwarp perf`: table, name, test, CRC, and sizes; and the tests of other programs that
/// it is compared with. Other programs have no CRC.
#[rustfmt::skip]
type Comparison = (&'static Table, &'static str, &'static str, bool, &'static [usize], &'static [Tool]);

#[rustfmt::skip]
const COMPARISONS: [Comparison; 9] = [
    (&WRITE,   "Write",                 "write_bw",    true,  SIZES, &[PUT, PUT_TUNED]),
    (&READ,    "Read",                  "read_bw",     true,  SIZES, &[GET, GET_TUNED]),
    (&READ,    "Read, CRC off",         "read_bw",     false, LARGE, &[GET_TUNED]),
    (&SEND,    "Send",                  "send_bw",     true,  SIZES, &[TAG, TAG_TUNED, QPERF]),
    (&SEND,    "Send, CRC off",         "send_bw",     false, LARGE, &[TAG_TUNED, IPERF]),
    (&POLLING, "Send latency",          "send_lat",    true,  SIZES, &[TAG_LATENCY, PINGPONG]),
    (&POLLING, "Send latency, CRC off", "send_lat",    false, LARGE, &[TAG_LATENCY, PINGPONG]),
    (&POLLING, "Write latency",         "write_lat",   true,  &[8],  &[TAG_LATENCY, PINGPONG]),
    (&WAITING, "Send latency, waiting", "send_lat -e", true,  SIZES, &[QPERF_LATENCY]),
];

/// Work of a row.
#[derive(Clone, Debug)]
enum Work {
    /// `uwarp perf` with these arguments, and with the CRC or not.
    Ours(String, bool),
    Theirs(Tool, usize),
}

/// Returns uwarp's options for a bandwidth. The number of outstanding requests is the same as in
/// the main table.
fn outstanding(size: usize) -> &'static str {
    match size {
        0..=65_535 => "-t64 -o64 -r256",
        65_536..=1_048_575 => "-t16 -o16 -r64",
        _ => "-t16 -o16 --warm-up=50",
    }
}

/// Returns all rows. The rows of other programs follow uwarp's row of the same size. A row that
/// several comparisons have is there once.
fn all() -> Vec<Row<Work>> {
    let mut all: Vec<Row<Work>> = Vec::new();
    for (table, what, test, crc, sizes, others) in COMPARISONS {
        for &size in sizes {
            let told = told_size(size);
            let name = |tool: &Tool| format!("{told}, {}", tool.name);
            let ahead = |tool| Base::Ahead(name(tool).into());
            let bases: Vec<Base> = others.iter().map(ahead).collect();
            let more = match table.unit {
                Unit::Latency => "",
                _ => outstanding(size),
            };
            let args = format!("{test} -s{size} {more}");
            let off = if crc { "" } else { " --crc off" };
            let how = format!("`{}{off}`", args.trim());
            let ours = format!("{told} {what}");
            let work = Work::Ours(args, crc);
            all.push(Row::new(table, ours, how, &bases, work));
            for tool in others {
                if all.iter().all(|row| row.name != name(tool)) {
                    let work = Work::Theirs(*tool, size);
                    all.push(Row::new(table, name(tool), tool.how(size), &[], work));
                }
            }
        }
    }
    all
}

fn told_size(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// Measures all rows in this number of rounds.
pub(crate) fn run(common: &Common, rounds: usize) -> io::Result<Section> {
    let with_crc = perf::Server::start(&common.uwarp(), true)?;
    let without = perf::Server::start(&common.uwarp(), false)?;
    let mut programs = Programs::new(&common.pinning(), None);
    let mut rows = all();
    let time = common.time(Unit::Latency);
    rows::run(&mut rows, rounds, |work, unit| match work {
        Work::Ours(args, true) => with_crc.measure(args, unit, time),
        Work::Ours(args, false) => without.measure(args, unit, time),
        Work::Theirs(tool, size) => programs.measure(tool, *size, true, time),
    });
    let versions = versions(&PACKAGES.map(|(_, package)| package));
    let about = format!(
        "{} {versions}",
        machine::about(rounds, &common.conditions())
    );
    Ok(Section::of_rows("Beside other programs", &about, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_of_ucx_is_read_by_the_names_of_its_columns() {
        let said = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    30000,5.535,20.596,92.539,0.37,0.08,48554,10806\n";
        assert_eq!((PUT.parse)(said), Some(10806.0));
        assert_eq!((TAG_LATENCY.parse)(said), Some(5.535 / 1e6));
        assert_eq!((PUT.parse)("[ERROR] no transport"), None);
        assert_eq!(ucx("iterations,overall_mr\n1,2\n", "avg_mr"), None);
    }

    #[test]
    fn the_table_of_pingpong_is_read_by_the_name_of_its_column() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       5k      =5k      78k         2.74s      0.03     274.40       0.00\n";
        assert_eq!(pingpong(said), Some(274.40 / 1e6));
        assert_eq!(
            pingpong("fi_getinfo(): ret=-61 (No data available)\n"),
            None
        );
    }

    #[test]
    fn the_values_of_qperf_are_found_by_name_and_unit() {
        let said = "tcp_bw:\n    bw  =  2120548352 bytes/sec\n";
        assert_eq!(qperf(said), Some(2_120_548_352.0));
        let said = "tcp_lat:\n    latency  =  27296 ns\n";
        assert!((qperf(said).unwrap() - 27.296e-6).abs() < 1e-12);
        assert_eq!(qperf("tcp_lat:\n    latency  =  27.3 us\n"), None);
    }

    #[test]
    fn the_json_of_iperf_has_bits_of_the_receiver() {
        let said = r#"{"end": {"sum_sent": {"bits_per_second": 16e9}, "sum_received": {"bits_per_second": 8e9}}}"#;
        assert_eq!(iperf(said), Some(1e9));
        assert_eq!(iperf(r#"{"error": "unable to connect"}"#), None);
    }

    #[test]
    fn every_comparison_is_with_a_row_of_its_unit_and_no_name_is_there_twice() {
        let all = all();
        rows::assert_complete(&all);
        let is = |row: &&Row<Work>| row.name == "64 KiB, UCX `ucp_get`, tuned";
        let how = &all.iter().find(is).unwrap().how;
        assert!(
            how.contains("-f -v -t ucp_get -O 16 -p PORT -s 65536"),
            "{how}"
        );
    }
}
