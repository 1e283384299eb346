//! fio's engine `rdma`: forks and threads.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["fio"];
const FILES: &[&str] = &["fio"];

/// fio names a job by what follows `--name`; the server's options for a job stand behind it.
macro_rules! pair {
    ($verb:literal, $reads:literal, $server:literal, $thread:literal) => {
        Way::Pair {
            server: concat!(
                "fio --name=server --ioengine=rdma --port={port} --bs=1m --size=64m --iodepth=8 --rw=",
                $server,
                $thread
            ),
            client: concat!(
                "fio --name=client --ioengine=rdma --hostname=127.0.0.1 --port={port} --verb=",
                $verb,
                " --bs=1m --size=64m --iodepth=8 --rw=",
                $reads,
                $thread
            ),
            says: &["err= 0", "run="],
        }
    };
}

pub(super) const ROWS: &[Row] = &[
    row(
        "fio-write-fork",
        PACKAGES,
        FILES,
        pair!("write", "write", "read", ""),
    ),
    row(
        "fio-write-thread",
        PACKAGES,
        FILES,
        pair!("write", "write", "read", " --thread"),
    ),
    row(
        "fio-read-thread",
        PACKAGES,
        FILES,
        pair!("read", "write", "read", " --thread"),
    ),
    row(
        "fio-send-fork",
        PACKAGES,
        FILES,
        pair!("send", "write", "read", ""),
    ),
    row(
        "fio-send-thread",
        PACKAGES,
        FILES,
        pair!("send", "write", "read", " --thread"),
    ),
];
