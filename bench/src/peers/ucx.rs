//! Measures with `ucx_perftest` of UCX over its tcp transport.

use std::io;

use super::{Peers, Test, strange, strings};
use crate::process;

const PROGRAM: &str = "ucx_perftest";

/// Environment that restricts UCX to TCP over the loopback device.
pub(super) const ENVIRONMENT: [(&str, &str); 3] = [
    ("UCX_TLS", "tcp"),
    ("UCX_NET_DEVICES", "lo"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];

/// Names and values of environment variables.
pub(super) type Environment = &'static [(&'static str, &'static str)];

/// The fastest segment size for messages of 64 KiB. By default, segments have 8 KiB.
const LARGE_SEGMENTS: Environment = &[
    ("UCX_TCP_TX_SEG_SIZE", "256k"),
    ("UCX_TCP_RX_SEG_SIZE", "256k"),
];

/// Returns the environment and the arguments to add for a test.
fn tuning(test: Test) -> (Environment, &'static [&'static str]) {
    match test {
        Test::UcxPutTuned | Test::UcxTagTuned => (LARGE_SEGMENTS, &[]),
        // By default only one Get is outstanding.
        Test::UcxGetTuned => (LARGE_SEGMENTS, &["-O", "16"]),
        _ => (&[], &[]),
    }
}

pub(super) fn measure(peers: &Peers, test: Test, size: usize, count: u64) -> io::Result<f64> {
    let name = match test {
        Test::UcxPut | Test::UcxPutTuned => "ucp_put_bw",
        Test::UcxGet | Test::UcxGetTuned => "ucp_get",
        Test::UcxTag | Test::UcxTagTuned => "tag_bw",
        _ => "tag_lat",
    };
    // Each server accepts only one client.
    let port = process::free_port()?;
    let port_of = ["-p".to_owned(), port.to_string()];
    let (environment, more) = tuning(test);
    let _server = peers.serve_with(port, PROGRAM, &port_of, environment)?;
    let mut args = strings(&["127.0.0.1", "-t", name, "-w", "100", "-f", "-v"]);
    args.extend(strings(more));
    args.extend(port_of);
    args.extend(["-s".to_owned(), size.to_string()]);
    args.extend(["-n".to_owned(), count.to_string()]);
    let said = peers.client_with(PROGRAM, &args, environment)?;
    let row = parse(&said).ok_or_else(|| strange(PROGRAM, &said))?;
    Ok(match test {
        Test::UcxTagLatency => row.median / 1e6,
        _ => row.rate * size as f64,
    })
}

/// The row of results.
#[derive(PartialEq, Debug)]
struct Row {
    /// Median of the latency in microseconds.
    median: f64,
    /// Average rate of the whole run, in messages per second.
    rate: f64,
}

/// Parses the CSV output: a line of names, and a line of numbers.
fn parse(said: &str) -> Option<Row> {
    let mut lines = said
        .lines()
        .skip_while(|line| !line.starts_with("iterations,"));
    let names: Vec<&str> = lines.next()?.split(',').collect();
    let numbers: Vec<&str> = lines.next()?.split(',').collect();
    let number = |wanted: &str| {
        let at = names.iter().position(|name| name.trim() == wanted)?;
        numbers.get(at)?.trim().parse().ok()
    };
    Some(Row {
        median: number("50.0_percentile_lat")?,
        rate: number("overall_mr")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_csv_is_read_by_the_names_of_its_columns() {
        let said = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    30000,5.535,20.596,92.539,0.37,0.08,48554,10806\n";
        let row = Row {
            median: 5.535,
            rate: 10806.0,
        };
        assert_eq!(parse(said), Some(row));
        assert_eq!(parse("[ERROR] no transport"), None);
        assert_eq!(parse("iterations,overall_mr\n1,2\n"), None);
    }
}
