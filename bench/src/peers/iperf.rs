//! Measures with iperf3, which uses one stream and writes of one size. It only measures for whole
//! seconds.

use std::io;

use serde_json::Value;

use super::{Peers, strange, strings};
use crate::process;

const PROGRAM: &str = "iperf3";

pub(super) fn measure(peers: &Peers, size: usize) -> io::Result<f64> {
    let port = process::free_port()?.to_string();
    let mut server = strings(&["-s", "-1", "-B", "127.0.0.1", "-p"]);
    server.push(port.clone());
    let _server = peers.serve(port.parse().unwrap_or_default(), PROGRAM, &server)?;
    let size = size.to_string();
    let args = strings(&[
        "-c",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "1",
        "-l",
        &size,
        "--json",
    ]);
    let said = peers.client(PROGRAM, &args)?;
    parse(&said).ok_or_else(|| strange(PROGRAM, &said))
}

/// Parses the bytes per second at the receiver.
fn parse(said: &str) -> Option<f64> {
    let said: Value = serde_json::from_str(said).ok()?;
    Some(said["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_has_bits_of_the_receiver() {
        let said = r#"{"end": {"sum_sent": {"bits_per_second": 16e9}, "sum_received": {"bits_per_second": 8e9}}}"#;
        assert_eq!(parse(said), Some(1e9));
        assert_eq!(parse(r#"{"error": "unable to connect"}"#), None);
    }
}
