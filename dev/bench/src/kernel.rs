//! The main table: `uwarp perf` over kernel TCP beside raw TCP.

use std::io;
use std::time::Duration;

use crate::baseline::{self, Kind};
use crate::machine;
use crate::options::Common;
use crate::perf::{self, Uwarp};
use crate::process::Pinning;
use crate::report::Section;
use crate::rows::{self, Base, Row, Sample, Table, Unit};

const POLLING: Table = Table::new("Bandwidth, CRC on, both sides poll", Unit::Bandwidth);
const CRC_OFF: Table = Table::new("Bandwidth, CRC off, both sides poll", Unit::Bandwidth);
const SLEEPING: Table = Table::new("Bandwidth, CRC on, one side or both sleep", Unit::Bandwidth);
const LATENCY: Table = Table::new("Latency, CRC on", Unit::Latency);
const RATE: Table = Table::new("Message rate, CRC on", Unit::Rate);

const WRITES_64K: Base = Base::row("raw writes of 64 KiB");
const WRITES_1M: Base = Base::row("raw writes of 1 MiB");
const SPINNING_64K: Base = Base::row("raw writes of 64 KiB, both spin");
/// Raw writes of all sizes, blocking or spinning.
const BEST: Base = Base::Best("raw writes");
const SPIN: Base = Base::row("raw ping-pong, both spin");
const SPIN_FREE: Base = Base::row("raw ping-pong, both spin, not pinned");
const SPIN_BOTH_WAYS: Base = Base::row("raw request and response, both spin");
const BLOCK: Base = Base::row("raw ping-pong, both block");
const BLOCK_BOTH_WAYS: Base = Base::row("raw request and response, both block");
const SLEEPING_SERVER: Base = Base::row("raw request and response, the server blocks");
const RATE_8: Base = Base::row("raw writes of 8 B");
const RATE_64: Base = Base::row("raw writes of 64 B");

/// Raw TCP: table, name, kind, size of writes or messages, and factor of the value: 2 for there and
/// back, and the inverse of the size for writes per second.
#[rustfmt::skip]
const RAW: [(&Table, &str, Kind, usize, f64); 14] = [
    (&POLLING, "raw writes of 64 KiB",                        Kind::Stream,         64 << 10,  1.0),
    (&POLLING, "raw writes of 256 KiB",                       Kind::Stream,         256 << 10, 1.0),
    (&POLLING, "raw writes of 1 MiB",                         Kind::Stream,         1 << 20,   1.0),
    (&POLLING, "raw writes of 64 KiB, both spin",             Kind::SpinningStream, 64 << 10,  1.0),
    (&POLLING, "raw writes of 256 KiB, both spin",            Kind::SpinningStream, 256 << 10, 1.0),
    (&POLLING, "raw writes of 1 MiB, both spin",              Kind::SpinningStream, 1 << 20,   1.0),
    (&LATENCY, "raw ping-pong, both spin",                    Kind::Spin,           8,         1.0),
    (&LATENCY, "raw request and response, both spin",         Kind::Spin,           8,         2.0),
    (&LATENCY, "raw ping-pong, both block",                   Kind::Block,          8,         1.0),
    (&LATENCY, "raw request and response, both block",        Kind::Block,          8,         2.0),
    (&LATENCY, "raw request and response, the server blocks", Kind::SleepingServer, 8,         2.0),
    (&LATENCY, "raw ping-pong, both spin, not pinned",        Kind::Spin,           8,         1.0),
    (&RATE,    "raw writes of 8 B",                           Kind::Stream,         8,         1.0 / 8.0),
    (&RATE,    "raw writes of 64 B",                          Kind::Stream,         64,        1.0 / 64.0),
];

/// `uwarp perf`, measured with the CRC and without: name, bases and arguments.
#[rustfmt::skip]
const BANDWIDTH: [(&str, &[Base], &str); 9] = [
    ("64 KiB Write", &[WRITES_64K, SPINNING_64K], "write_bw -s64K -t16"),
    ("64 KiB Read",  &[WRITES_64K, SPINNING_64K], "read_bw -s64K -t16"),
    ("64 KiB Send",  &[WRITES_64K, SPINNING_64K], "send_bw -s64K -t16"),
    ("1 MiB Write",  &[BEST],                     "write_bw -s1M -t16 --warm-up=50"),
    ("1 MiB Read",   &[BEST],                     "read_bw -s1M -t16 --warm-up=50"),
    ("1 MiB Send",   &[BEST],                     "send_bw -s1M -t16 -r64 --warm-up=50"),
    ("4 KiB Write",  &[WRITES_64K],               "write_bw -s4K -t64"),
    ("4 KiB Read",   &[WRITES_64K],               "read_bw -s4K -t64 -o64"),
    ("4 KiB Send",   &[WRITES_64K],               "send_bw -s4K -t64"),
];

/// Suffix of the names of rows whose processes may run on any processor. A process with a second
/// thread besides the spinning one is not pinned, because both threads would share that processor.
const NOT_PINNED: &str = ", not pinned";

/// `uwarp perf` with the CRC: table, name, bases and arguments.
#[rustfmt::skip]
const PERF: [(&Table, &str, &[Base], &str); 31] = [
    // Sent without a copy, which shows the cost of the copy.
    (&POLLING, "64 KiB Write, sent in place", &[WRITES_64K], "write_bw -s64K -t16 --send-in-place"),
    (&POLLING, "64 KiB Send, sent in place",  &[WRITES_64K], "send_bw -s64K -t16 --send-in-place"),
    (&POLLING, "1 MiB Write, sent in place",  &[BEST],       "write_bw -s1M -t16 --warm-up=50 --send-in-place"),
    (&POLLING, "1 MiB Send, sent in place",   &[BEST],       "send_bw -s1M -t16 -r64 --warm-up=50 --send-in-place"),
    // The target of a Write or a Read is not in a call of uwarp.
    (&SLEEPING, "64 KiB Write, both sleep", &[WRITES_64K],      "write_bw -s64K -t16 -e --target-sleeps"),
    (&SLEEPING, "64 KiB Read, both sleep",  &[WRITES_64K],      "read_bw -s64K -t16 -e --target-sleeps"),
    (&SLEEPING, "64 KiB Send, both sleep",  &[WRITES_64K],      "send_bw -s64K -t16 -e"),
    (&SLEEPING, "1 MiB Write, both sleep",  &[BEST, WRITES_1M], "write_bw -s1M -t16 -e --target-sleeps --warm-up=50"),
    (&SLEEPING, "1 MiB Read, both sleep",   &[BEST, WRITES_1M], "read_bw -s1M -t16 -e --target-sleeps --warm-up=50"),
    (&SLEEPING, "1 MiB Send, both sleep",   &[BEST, WRITES_1M], "send_bw -s1M -t16 -r64 -e --warm-up=50"),
    (&SLEEPING, "64 KiB Write, the target alone sleeps", &[WRITES_64K], "write_bw -s64K -t16 --target-sleeps"),
    (&SLEEPING, "64 KiB Read, the target alone sleeps",  &[WRITES_64K], "read_bw -s64K -t16 --target-sleeps"),
    (&SLEEPING, "1 MiB Write, the target alone sleeps",  &[BEST],       "write_bw -s1M -t16 --target-sleeps --warm-up=50"),
    (&SLEEPING, "1 MiB Read, the target alone sleeps",   &[BEST],       "read_bw -s1M -t16 --target-sleeps --warm-up=50"),
    (&LATENCY, "8 B Write, one poll, then memory alone, not pinned", &[SPIN_FREE], "write_lat -s8 --wait memory"),
    (&LATENCY, "8 B Write, both poll",            &[SPIN],           "write_lat -s8"),
    (&LATENCY, "8 B Send, both poll",             &[SPIN],           "send_lat -s8"),
    (&LATENCY, "8 B Read, both poll (both ways)", &[SPIN_BOTH_WAYS], "read_lat -s8"),
    (&LATENCY, "8 B Write, one poll, then memory alone, all threads of a side on one processor", &[SPIN], "write_lat -s8 --wait memory"),
    (&LATENCY, "8 B Send, both in the wait call",          &[BLOCK], "send_lat -s8 -e"),
    (&LATENCY, "8 B Send, both in poll(2) on the channel", &[BLOCK], "send_lat -s8 --wait channel"),
    (&LATENCY, "8 B Read, both sleep (both ways)",         &[BLOCK_BOTH_WAYS], "read_lat -s8 -e --target-sleeps"),
    (&LATENCY, "8 B Read, the target sleeps (both ways)",  &[SLEEPING_SERVER], "read_lat -s8 --target-sleeps"),
    (&LATENCY, "8 B Write until placed, the target sleeps (both ways)", &[SLEEPING_SERVER], "write_lat -s8 --target-sleeps"),
    (&LATENCY, "8 B Write until placed, both sleep (both ways)",        &[BLOCK_BOTH_WAYS], "write_lat -s8 -e --target-sleeps"),
    (&RATE, "8 B Write, lists of 64",                 &[RATE_8],  "write_bw -s8 -l64"),
    (&RATE, "64 B Write, lists of 64",                &[RATE_64], "write_bw -s64 -l64"),
    (&RATE, "8 B Write, one a post, 64 outstanding",  &[RATE_8],  "write_bw -s8 -t64"),
    (&RATE, "64 B Write, one a post, 64 outstanding", &[RATE_64], "write_bw -s64 -t64"),
    (&RATE, "8 B Send, lists of 64",                  &[RATE_8],  "send_bw -s8 -l64"),
    (&RATE, "8 B Send, one a post, 64 outstanding",   &[RATE_8],  "send_bw -s8 -t64"),
];

/// Work of a row, and whether its processes are pinned.
type Work = (Of, bool);

#[derive(Clone, Copy, Debug)]
enum Of {
    Raw(Kind, usize, f64),
    /// `uwarp perf` with these arguments, and with the CRC or not.
    Perf(&'static str, bool),
}

/// Returns all rows in the order of a round: in each table raw TCP first, and then uwarp.
fn all() -> Vec<Row<Work>> {
    let mut all = Vec::new();
    for table in [&POLLING, &CRC_OFF, &SLEEPING, &LATENCY, &RATE] {
        let mut add = |name: &str, how: String, bases: &[Base], of| {
            let work = (of, !name.ends_with(NOT_PINNED));
            all.push(Row::new(table, name, how, bases, work));
        };
        for &(_, name, kind, size, factor) in RAW.iter().filter(|row| row.0 == table) {
            add(name, kind.how(size), &[], Of::Raw(kind, size, factor));
        }
        for (name, bases, args) in BANDWIDTH {
            if *table == POLLING {
                add(name, format!("`{args}`"), bases, Of::Perf(args, true));
            } else if *table == CRC_OFF {
                let (name, how) = (format!("{name}, CRC off"), format!("`{args} --crc off`"));
                add(&name, how, bases, Of::Perf(args, false));
            }
        }
        for &(_, name, bases, args) in PERF.iter().filter(|row| row.0 == table) {
            add(name, format!("`{args}`"), bases, Of::Perf(args, true));
        }
    }
    all
}

/// Servers that run during all rounds.
struct Servers {
    raw: baseline::Server,
    crc: perf::Server,
    no_crc: perf::Server,
    /// Another raw server and another uwarp server with CRC. Both may run on any processor.
    free: (baseline::Server, perf::Server),
}

impl Servers {
    fn start(common: &Common) -> io::Result<Self> {
        let (uwarp, mut free) = (common.uwarp(), common.uwarp());
        free.pinning = Pinning::ANY;
        let raw = |uwarp: &Uwarp| baseline::Server::start(&uwarp.congestion, &uwarp.pinning);
        Ok(Servers {
            free: (raw(&free)?, perf::Server::start(&free, true)?),
            raw: raw(&uwarp)?,
            crc: perf::Server::start(&uwarp, true)?,
            no_crc: perf::Server::start(&uwarp, false)?,
        })
    }

    fn measure(&self, (of, pinned): Work, unit: Unit, time: Duration) -> io::Result<Sample> {
        match of {
            Of::Raw(kind, size, factor) => {
                let server = if pinned { &self.raw } else { &self.free.0 };
                let sample = server.measure(kind, size, time)?;
                let value = sample.value * factor;
                Ok(Sample { value, ..sample })
            }
            Of::Perf(args, false) => self.no_crc.measure(args, unit, time),
            Of::Perf(args, true) if pinned => self.crc.measure(args, unit, time),
            Of::Perf(args, true) => self.free.1.measure(args, unit, time),
        }
    }
}

/// Measures all selected rows.
pub(crate) fn run(common: &Common) -> io::Result<Section> {
    let mut rows = rows::select(all(), &common.only);
    let servers = Servers::start(common)?;
    rows::run(&mut rows, common.rounds, |work, unit| {
        servers.measure(*work, unit, common.time(unit))
    });
    let about = machine::about(common.rounds, &common.conditions());
    Ok(Section::of_rows("Kernel TCP", &about, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_divided_by_raw_tcp() {
        let all = all();
        rows::assert_complete(&all);
        assert_eq!(all.len(), RAW.len() + 2 * BANDWIDTH.len() + PERF.len());
        assert_eq!(all.iter().filter(|row| !row.work.1).count(), 2);
        for base in all.iter().flat_map(|row| &row.bases) {
            assert!(RAW.iter().any(|raw| base.includes(raw.1)), "{base:?}");
        }
    }
}
