//! fio's engine `rdma`, with processes and with threads. fio itself checks the data of Sends
//! (`--verify`). It cannot check the data of Writes and Reads, because one of the two sides takes
//! no part in them. For Writes and Reads, the buffers of both sides are files (`--mem=mmapshared`),
//! and the test compares the files afterwards.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Row, Way, check, row};
use crate::process::{Place, free_port};

const PACKAGES: &[&str] = &["fio"];
const FILES: &[&str] = &["fio"];

/// Length of a message in bytes (`--bs`).
const BLOCK: usize = 1 << 20;
/// Number of outstanding messages (`--iodepth`), each with its own buffer.
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

/// File with the buffers of one side. fio removes the file when it ends, but a hard link (`kept`)
/// keeps the contents.
struct Memory {
    file: PathBuf,
    kept: PathBuf,
}

impl Memory {
    /// Creates the file, with pseudo-random bytes that differ between the two sides.
    fn new(place: &Place<'_>, port: u16, side: &str) -> Result<Self, String> {
        let at = |what: &str| {
            place
                .prefix
                .scratch()
                .join(format!("fio-{port}-{side}{what}"))
        };
        let (file, kept) = (at(""), at("-kept"));
        let mut byte = u32::from(port)
            ^ u32::from_le_bytes(side.as_bytes()[..4].try_into().unwrap_or_default());
        let bytes = std::iter::repeat_with(|| {
            byte = byte.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            byte.to_be_bytes()[0]
        });
        // The file has one block more than needed, because fio aligns its buffers.
        let bytes: Vec<u8> = bytes.take((DEPTH + 1) * BLOCK).collect();
        let made = fs::write(&file, bytes)
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o666)))
            .and_then(|()| fs::hard_link(&file, &kept));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Memory { file, kept })
    }

    /// Returns the first [`DEPTH`] blocks of the file.
    fn blocks(&self) -> Result<Vec<Vec<u8>>, String> {
        let bytes = fs::read(&self.kept).map_err(|error| error.to_string())?;
        Ok(bytes
            .chunks(BLOCK)
            .take(DEPTH)
            .map(<[u8]>::to_vec)
            .collect())
    }

    fn option(&self) -> String {
        format!("--mem=mmapshared:{}", self.file.display())
    }
}

/// Runs fio with this verb. (Whatever the verb, the option of the server is `--rw=read`, and that
/// of the client `--rw=write`.)
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

/// Runs fio with Writes or Reads, and checks that each changed block equals a block of the other
/// side. fio decides which block it copies.
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
        // A Read fills each buffer of the client.
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
