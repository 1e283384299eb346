//! Runs C programs: one changes memory while it is sent (`tests/c/changing.c`), and one is a
//! storage target with many Reads (`tests/c/storage.c`).

use super::{Row, Way, check, row};
use crate::c;
use crate::process::{Place, free_port};

const PACKAGES: &[&str] = &["libibverbs-dev", "librdmacm-dev", "gcc"];

pub(super) const ROWS: &[Row] = &[
    row("memory-changes-write", PACKAGES, &[], Way::Own(write)),
    row("memory-changes-send", PACKAGES, &[], Way::Own(send)),
    row("memory-changes-read", PACKAGES, &[], Way::Own(read)),
    row("storage-target", PACKAGES, &[], Way::Own(storage)),
];

/// Runs server and client of a program with these arguments. Returns the output of the client, then
/// that of the server.
fn pair(place: Place<'_>, source: &str, words: &[&str]) -> Result<[String; 2], String> {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let program = c::compile(place.prefix, "cc", source, &libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let number = free_port()?;
    let port = number.to_string();
    let words = [&[program, port.as_str()], words].concat();
    let mut server = place.start(&words)?;
    server.until_listening(number)?;
    let client = place.start(&[&words[..], &["127.0.0.1"]].concat())?.end();
    let client = client.map_err(|error| format!("{error}\n{}", server.words("was the server")))?;
    Ok([client, server.end()?])
}

fn changing(place: Place<'_>, kind: &str) -> Result<String, String> {
    let [client, server] = pair(place, "changing.c", &[kind])?;
    check(&client, &["64 of 262144 bytes each are done\n"])?;
    check(&server, &["all has come\n"])?;
    Ok(client + &server)
}

fn write(place: Place<'_>) -> Result<String, String> {
    changing(place, "write")
}

fn send(place: Place<'_>) -> Result<String, String> {
    changing(place, "send")
}

fn read(place: Place<'_>) -> Result<String, String> {
    changing(place, "read")
}

fn storage(place: Place<'_>) -> Result<String, String> {
    let [client, server] = pair(place, "storage.c", &[])?;
    check(&client, &["128 blocks were written, read and compared\n"])?;
    check(
        &server,
        &["with more than one Read at once: yes, with 8 elements each\n"],
    )?;
    Ok(client + &server)
}
