//! fio's engine `rdma`, with forks and threads. fio itself checks the data of Sends (`--verify`).
//! It cannot for a Write or a Read, because one of the two sides does nothing. There the buffers of
//! both sides are files (`--mem=mmapshared`), which the test compares afterwards.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Row, Way, check, row};
use crate::process::{Place, free_port};

const PACKAGES: &[&str] = &["fio"];
const FILES: &[&str] = &["fio"];

/// Bytes of a message, and number of messages under way.
const BLOCK: usize = 1 << 20;
const DEPTH: usize = 8;

pub(super) const ROWS: &[Row] = &[
    pair("fio-write-fork", |place| run(place, "write", &[])),
    pair("fio-write-thread", |place| {
        run(place, "write", &["--thread"])
    }),
    pair("fio-read-fork", |place| run(place, "read", &[])),
    pair("fio-read-thread", |place| run(place, "read", &["--thread"])),
    pair("fio-send-fork", |place| run(place, "send", &[])),
    pair("fio-send-thread", |place| run(place, "send", &["--thread"])),
];

const fn pair(name: &'static str, run: fn(Place<'_>) -> Result<String, String>) -> Row {
    row(name, PACKAGES, FILES, Way::Own(run))
}

/// Memory of a side. fio removes the file when it ends; a second name keeps the contents.
struct Memory {
    file: PathBuf,
    kept: PathBuf,
}

impl Memory {
    /// Creates the file, with random bytes that differ between the two sides.
    fn new(place: &Place<'_>, port: u16, side: &str) -> Result<Self, String> {
        let at = |what: &str| {
            place
                .prefix
                .scratch()
                .join(format!("fio-{port}-{side}{what}"))
        };
        let (file, kept) = (at(""), at("-kept"));
        let mut octet = u32::from(port)
            ^ u32::from_le_bytes(side.as_bytes()[..4].try_into().unwrap_or_default());
        let octets = std::iter::repeat_with(|| {
            octet = octet.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            octet.to_be_bytes()[0]
        });
        // One block more, because fio aligns its buffers.
        let octets: Vec<u8> = octets.take((DEPTH + 1) * BLOCK).collect();
        let made = fs::write(&file, octets)
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o666)))
            .and_then(|()| fs::hard_link(&file, &kept));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Memory { file, kept })
    }

    /// Blocks in the file.
    fn blocks(&self) -> Result<Vec<Vec<u8>>, String> {
        let octets = fs::read(&self.kept).map_err(|error| error.to_string())?;
        Ok(octets
            .chunks(BLOCK)
            .take(DEPTH)
            .map(<[u8]>::to_vec)
            .collect())
    }

    fn option(&self) -> String {
        format!("--mem=mmapshared:{}", self.file.display())
    }
}

/// For this engine, a side with `--rw=read` is a server and one with `--rw=write` a client, with
/// any verb.
fn run(place: Place<'_>, verb: &str, flags: &[&str]) -> Result<String, String> {
    match verb {
        "send" => {
            // Each received block has a checksum at its start. If the client sent none, the server
            // would end with an error.
            let verify = ["--verify=crc32c"];
            let written = ["--verify=crc32c", "--do_verify=0"];
            pair_of(place, verb, [&verify, &written], flags)
        }
        _ => compared(place, verb, flags),
    }
}

/// A Write or a Read: the changed blocks must be blocks of the other side. fio decides which buffer
/// goes where.
fn compared(place: Place<'_>, verb: &str, flags: &[&str]) -> Result<String, String> {
    let port = free_port()?;
    let [served, called] = ["server", "client"].map(|side| Memory::new(&place, port, side));
    let (served, called) = (served?, called?);
    let before = served.blocks()?;
    let [ours, theirs] = [&served, &called].map(Memory::option);
    // By default fio changes buffers after it has sent them.
    let theirs = [&theirs, "--scramble_buffers=0"];
    let said = pair_of(place, verb, [&[&ours], &theirs], flags)?;
    let [there, here] = [served.blocks()?, called.blocks()?];
    let (changed, from): (Vec<_>, _) = match verb {
        "read" if there != before => return Err("a Read has changed what it reads".to_owned()),
        // Each buffer of the client is used.
        "read" => (here.iter().collect(), &there),
        _ => {
            let changed = there.iter().zip(&before).filter(|(now, old)| now != old);
            (changed.map(|(now, _)| now).collect(), &here)
        }
    };
    if changed.is_empty() {
        return Err("nothing was placed".to_owned());
    }
    match changed.iter().all(|block| from.contains(block)) {
        true => Ok(said),
        false => Err("a changed block is not one of the other side".to_owned()),
    }
}

/// Runs server and client, each with its own options.
fn pair_of(
    place: Place<'_>,
    verb: &str,
    own: [&[&str]; 2],
    flags: &[&str],
) -> Result<String, String> {
    let port = free_port()?;
    // Options of the engine must follow its name.
    let (at, verb) = (format!("--port={port}"), format!("--verb={verb}"));
    let sizes = ["--bs=1m", "--size=64m", "--iodepth=8"];
    let words = ["fio", "--name=server", "--ioengine=rdma", &at, "--rw=read"];
    let mut server = place.start(&[&words[..], own[0], &sizes, flags].concat())?;
    server.until_listening(port)?;
    let words = ["fio", "--name=client", "--ioengine=rdma", &at, "--rw=write"];
    let to = ["--hostname=127.0.0.1", &verb];
    let client = place
        .start(&[&words[..], &to, own[1], &sizes, flags].concat())?
        .end();
    let client = client.map_err(|error| format!("{error}\n{}", server.words("was the server")))?;
    check(&client, &["err= 0", "run="])?;
    let said = server.end()?;
    check(&said, &["err= 0"])?;
    Ok(client + &said)
}
