//! Measures with `fi_pingpong -p tcp` of libfabric.

use std::io;

use super::{Peers, strange, strings};
use crate::process;

const PROGRAM: &str = "fi_pingpong";

pub(super) fn measure(peers: &Peers, size: usize, count: u64) -> io::Result<f64> {
    let port = process::free_port()?;
    // Both sides need the number and size of the messages.
    let mut load = strings(&["-p", "tcp", "-e", "msg"]);
    load.extend(["-S".to_owned(), size.to_string()]);
    load.extend(["-I".to_owned(), count.to_string()]);
    let with = |option: &str| {
        let mut args = load.clone();
        args.extend([option.to_owned(), port.to_string()]);
        args
    };
    let _server = peers.serve(port, PROGRAM, &with("-B"))?;
    let mut args = with("-P");
    args.push("127.0.0.1".to_owned());
    let said = peers.client(PROGRAM, &args)?;
    let micros = parse(&said).ok_or_else(|| strange(PROGRAM, &said))?;
    Ok(micros / 1e6)
}

/// Parses the microseconds of a message one way, from a column of the table.
fn parse(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("bytes"));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|name| name == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_is_read_by_the_name_of_its_column() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       5k      =5k      78k         2.74s      0.03     274.40       0.00\n";
        assert_eq!(parse(said), Some(274.40));
        assert_eq!(parse("fi_getinfo(): ret=-61 (No data available)\n"), None);
    }
}
