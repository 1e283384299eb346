//! C program that uses librdmacm and libibverbs as many RDMA tutorials do (`tests/c/textbook.c`).

use super::{Row, Way, check, row};
use crate::c;
use crate::process::{Place, free_port};

const PACKAGES: &[&str] = &["libibverbs-dev", "librdmacm-dev", "gcc"];

pub(super) const ROWS: &[Row] = &[row("textbook", PACKAGES, &[], Way::Own(run))];

fn run(place: Place<'_>) -> Result<String, String> {
    let program = c::compile(place.prefix, "cc", "textbook.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let number = free_port()?;
    let port = number.to_string();
    let mut server = place.start(&[program, &port])?;
    server.until_listening(number)?;
    let client = place.start(&[program, &port, "127.0.0.1"])?.end();
    let client = client.map_err(|error| format!("{error}\n{}", server.words("was the server")))?;
    // The program prints the same on every device.
    check(
        &client,
        &["wrote 88117dc5\nread  88117dc5\nthey are equal\n"],
    )?;
    let said = server.end()?;
    check(&said, &["lent 262144 bytes\nthe client wrote 88117dc5\n"])?;
    Ok(client + &said)
}
