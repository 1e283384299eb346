//! Measures with qperf over TCP. It only measures for whole seconds.

use std::io;

use super::{Peers, Test, strange, strings};
use crate::process;

const PROGRAM: &str = "qperf";

pub(super) fn measure(peers: &Peers, test: Test, size: usize) -> io::Result<f64> {
    let (name, key) = match test {
        Test::QperfBandwidth => ("tcp_bw", "bw"),
        _ => ("tcp_lat", "latency"),
    };
    let port = process::free_port()?;
    let port_of = ["-lp".to_owned(), port.to_string()];
    let _server = peers.serve(port, PROGRAM, &port_of)?;
    let mut args = strings(&["127.0.0.1"]);
    args.extend(port_of);
    args.extend(strings(&["-t", "1", "-uu", "-m", &size.to_string(), name]));
    let said = peers.client(PROGRAM, &args)?;
    parse(&said, key).ok_or_else(|| strange(PROGRAM, &said))
}

/// Parses the value of `key` in bytes per second, or in seconds.
fn parse(said: &str, key: &str) -> Option<f64> {
    said.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let mut words = value.split_whitespace();
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "bytes/sec" => 1.0,
            "ns" => 1e-9,
            _ => return None,
        };
        (name.trim() == key).then_some(number * unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_values_are_found_by_name_and_unit() {
        let said = "tcp_bw:\n    bw  =  2120548352 bytes/sec\n";
        assert_eq!(parse(said, "bw"), Some(2_120_548_352.0));
        let said = "tcp_lat:\n    latency  =  27296 ns\n";
        assert!((parse(said, "latency").unwrap() - 27.296e-6).abs() < 1e-12);
        assert_eq!(parse(said, "bw"), None);
        assert_eq!(
            parse("tcp_lat:\n    latency  =  27.3 us\n", "latency"),
            None
        );
    }
}
