//! Compares unmodified RDMA programs on the drop-in library with `uwarp perf` and raw TCP. Compares
//! MPI over uwarp with MPI over libfabric's own TCP provider.
//!
//! The programs are Debian's perftest and a small MPI program (`c/mpi.c`), which is compiled on
//! first use. They run under `uwarp run`, which finds the library next to itself.

mod mpi;

use std::io;

use crate::baseline::{self, Kind};
use crate::machine;
use crate::options::Common;
use crate::perf;
use crate::process::Pinning;
use crate::programs::{self, Programs, Tool, versions};
use crate::report::Section;
use crate::rows::{self, Base, Row, Sample, Table, Unit};
use mpi::{Mpi, Ranks};

/// Programs with their Debian packages. Missing ones can be installed.
const PACKAGES: [(&str, &str); 4] = [
    ("ib_write_bw", "perftest"),
    ("mpirun", "openmpi-bin"),
    ("mpicc", "libopenmpi-dev"),
    ("fi_info", "libfabric-bin"),
];

const BANDWIDTH: Table = Table::new("Bandwidth of perftest, CRC on", Unit::Bandwidth);
const LATENCY: Table = Table::new("Latency of perftest, 8 B, CRC on", Unit::Latency);
const PING_PONG: Table = Table::new("Open MPI by `verbs` on uwarp, and by `tcp`", Unit::Latency);
const PUT: Table = Table::new("`MPI_Put` of 1 MiB by the same", Unit::Bandwidth);

/// Work of a row.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A raw ping-pong of 8 bytes, pinned or not.
    Raw(bool),
    /// `uwarp perf` with these arguments.
    Perf(&'static str),
    /// A program of perftest, the size of a message, and whether it is pinned. Its latency is that
    /// of a message as perftest defines it.
    Perftest(Tool, usize, bool),
    Mpi(Ranks),
}

/// Options with which programs connect by librdmacm.
const CM: &str = "-R -F";
/// Options with which programs connect by the numbers of their queue pairs. A Write completes when
/// the peer has placed it, unless a setting of the library says otherwise.
const NUMBERS: &str = "-F";

/// A bandwidth of perftest.
const fn bw(program: &'static str, options: &'static str, size: usize) -> Work {
    Work::Perftest(perftest(program, options, Unit::Bandwidth), size, true)
}

/// A latency of perftest with messages of 8 bytes.
const fn lat(program: &'static str, options: &'static str, pinned: bool) -> Work {
    Work::Perftest(perftest(program, options, Unit::Latency), 8, pinned)
}

/// The latency of a Read, which is that of a round trip.
const READ_LATENCY: Work = Work::Perftest(
    Tool {
        round_trip: true,
        ..perftest("ib_read_lat", CM, Unit::Latency)
    },
    8,
    true,
);

const fn perftest(program: &'static str, options: &'static str, unit: Unit) -> Tool {
    Tool {
        name: program,
        program: (program, "perftest"),
        environment: "",
        server: "{options} -p {port} -s {size} -n {count}",
        client: "{options} -p {port} -s {size} -n {count} 127.0.0.1",
        options,
        parse: programs::perftest,
        unit,
        round_trip: false,
    }
}

const fn mpi(provider: &'static str, puts: u32, size: usize) -> Work {
    Work::Mpi(Ranks {
        provider,
        puts,
        size,
    })
}

/// Tables, names, bases and work of all rows, in the order of a round. A row and the one that it is
/// compared with are neighbours.
///
/// With librdmacm, the server of `ib_write_bw` polls for the message that ends the test, and so
/// receives the Writes itself. By numbers, it sleeps in a read from its TCP connection, and the
/// thread of the library receives them.
#[rustfmt::skip]
const ROWS: [(&Table, &str, &[Base], Work); 40] = [
    (&BANDWIDTH, "`uwarp perf write_bw`, 64 KiB", &[], Work::Perf("write_bw -s64K -t128")),
    (&BANDWIDTH, "`ib_write_bw`, 64 KiB", &[Base::row("`uwarp perf write_bw`, 64 KiB")], bw("ib_write_bw", CM, 64 << 10)),
    (&BANDWIDTH, "`ib_write_bw` by numbers, 64 KiB", &[Base::row("`ib_write_bw`, 64 KiB")], Work::Perftest(Tool { environment: "UWARP_PLACED_WRITES=0", ..perftest("ib_write_bw", NUMBERS, Unit::Bandwidth) }, 64 << 10, true)),
    (&BANDWIDTH, "`ib_write_bw` by numbers, complete when placed, 64 KiB", &[Base::row("`ib_write_bw`, 64 KiB")], bw("ib_write_bw", NUMBERS, 64 << 10)),
    (&BANDWIDTH, "`ib_write_bw -c UC`, 64 KiB", &[Base::row("`ib_write_bw`, 64 KiB")], bw("ib_write_bw", "-F -c UC", 64 << 10)),
    (&BANDWIDTH, "`uwarp perf read_bw`, 64 KiB", &[], Work::Perf("read_bw -s64K -t128 -o128")),
    (&BANDWIDTH, "`ib_read_bw`, 64 KiB", &[Base::row("`uwarp perf read_bw`, 64 KiB")], bw("ib_read_bw", CM, 64 << 10)),
    (&BANDWIDTH, "`ib_read_bw` by numbers, 64 KiB", &[Base::row("`ib_read_bw`, 64 KiB")], bw("ib_read_bw", NUMBERS, 64 << 10)),
    (&BANDWIDTH, "`uwarp perf send_bw`, 64 KiB", &[], Work::Perf("send_bw -s64K -t128 -r512")),
    (&BANDWIDTH, "`ib_send_bw`, 64 KiB", &[Base::row("`uwarp perf send_bw`, 64 KiB")], bw("ib_send_bw", CM, 64 << 10)),
    (&BANDWIDTH, "`ib_send_bw` by numbers, 64 KiB", &[Base::row("`ib_send_bw`, 64 KiB")], bw("ib_send_bw", NUMBERS, 64 << 10)),
    (&BANDWIDTH, "`uwarp perf write_bw`, 1 MiB", &[], Work::Perf("write_bw -s1M -t128 --warm-up=50")),
    (&BANDWIDTH, "`ib_write_bw`, 1 MiB", &[Base::row("`uwarp perf write_bw`, 1 MiB")], bw("ib_write_bw", CM, 1 << 20)),
    (&BANDWIDTH, "`uwarp perf read_bw`, 1 MiB", &[], Work::Perf("read_bw -s1M -t128 -o128 --warm-up=50")),
    (&BANDWIDTH, "`ib_read_bw`, 1 MiB", &[Base::row("`uwarp perf read_bw`, 1 MiB")], bw("ib_read_bw", CM, 1 << 20)),
    (&BANDWIDTH, "`uwarp perf send_bw`, 1 MiB", &[], Work::Perf("send_bw -s1M -t128 -r512 --warm-up=50")),
    (&BANDWIDTH, "`ib_send_bw`, 1 MiB", &[Base::row("`uwarp perf send_bw`, 1 MiB")], bw("ib_send_bw", CM, 1 << 20)),
    (&LATENCY, "`uwarp perf send_lat`", &[], Work::Perf("send_lat -s8")),
    (&LATENCY, "`ib_send_lat`", &[Base::row("`uwarp perf send_lat`")], lat("ib_send_lat", CM, true)),
    (&LATENCY, "`ib_send_lat -c UD`", &[Base::row("`ib_send_lat`")], lat("ib_send_lat", "-F -c UD", true)),
    (&LATENCY, "`ib_send_lat -c UC`", &[Base::row("`ib_send_lat`")], lat("ib_send_lat", "-F -c UC", true)),
    (&LATENCY, "`uwarp perf read_lat` (both ways)", &[], Work::Perf("read_lat -s8")),
    (&LATENCY, "`ib_read_lat` (both ways)", &[Base::row("`uwarp perf read_lat` (both ways)")], READ_LATENCY),
    (&LATENCY, "raw ping-pong, both spin, not pinned", &[], Work::Raw(false)),
    (&LATENCY, "`ib_write_lat`, not pinned", &[Base::row("raw ping-pong, both spin, not pinned")], lat("ib_write_lat", CM, false)),
    (&LATENCY, "`ib_write_lat` by numbers, complete when placed, not pinned", &[Base::row("`ib_write_lat`, not pinned")], lat("ib_write_lat", NUMBERS, false)),
    (&LATENCY, "raw ping-pong, both spin", &[], Work::Raw(true)),
    (&LATENCY, "`ib_write_lat`, all threads of a side on one processor", &[Base::row("raw ping-pong, both spin")], lat("ib_write_lat", CM, true)),
    (&PING_PONG, "ping-pong of 8 B, tcp", &[], mpi("tcp", 0, 8)),
    (&PING_PONG, "ping-pong of 8 B, verbs", &[Base::row("ping-pong of 8 B, tcp")], mpi("verbs", 0, 8)),
    (&PING_PONG, "ping-pong of 4 KiB, tcp", &[], mpi("tcp", 0, 4 << 10)),
    (&PING_PONG, "ping-pong of 4 KiB, verbs", &[Base::row("ping-pong of 4 KiB, tcp")], mpi("verbs", 0, 4 << 10)),
    (&PING_PONG, "ping-pong of 64 KiB, tcp", &[], mpi("tcp", 0, 64 << 10)),
    (&PING_PONG, "ping-pong of 64 KiB, verbs", &[Base::row("ping-pong of 64 KiB, tcp")], mpi("verbs", 0, 64 << 10)),
    (&PING_PONG, "ping-pong of 1 MiB, tcp", &[], mpi("tcp", 0, 1 << 20)),
    (&PING_PONG, "ping-pong of 1 MiB, verbs", &[Base::row("ping-pong of 1 MiB, tcp")], mpi("verbs", 0, 1 << 20)),
    (&PUT, "16 at a time, tcp", &[], mpi("tcp", 16, 1 << 20)),
    (&PUT, "16 at a time, verbs", &[Base::row("16 at a time, tcp")], mpi("verbs", 16, 1 << 20)),
    // As in the OSU benchmarks.
    (&PUT, "64 at a time, tcp", &[], mpi("tcp", 64, 1 << 20)),
    (&PUT, "64 at a time, verbs", &[Base::row("64 at a time, tcp")], mpi("verbs", 64, 1 << 20)),
];

fn all() -> Vec<Row<Work>> {
    let row = |&(table, name, bases, work): &(_, &str, &[Base], Work)| {
        let how = match work {
            Work::Raw(_) => Kind::Spin.how(8),
            Work::Perf(args) => format!("`uwarp perf {args}`"),
            Work::Perftest(tool, size, _) => tool.how(size),
            Work::Mpi(ranks) => ranks.how(),
        };
        Row::new(table, name, how, bases, work)
    };
    ROWS.iter().map(row).collect()
}

/// Servers that run during all rounds, and state of the programs.
struct Lab {
    perf: perf::Server,
    raw: baseline::Server,
    /// A raw server that may run on any processor.
    raw_free: baseline::Server,
    perftest: Programs,
    mpi: Mpi,
}

impl Lab {
    fn new(common: &Common) -> io::Result<Self> {
        let uwarp = common.uwarp();
        Ok(Lab {
            perf: perf::Server::start(&uwarp, true)?,
            raw: baseline::Server::start(&common.congestion, &uwarp.pinning)?,
            raw_free: baseline::Server::start(&common.congestion, &Pinning::ANY)?,
            perftest: Programs::new(&uwarp.pinning, Some(&uwarp)),
            mpi: Mpi::new(&uwarp),
        })
    }

    fn measure(&mut self, common: &Common, work: Work, unit: Unit) -> io::Result<Sample> {
        let time = common.time(unit);
        match work {
            Work::Raw(true) => self.raw.measure(Kind::Spin, 8, time),
            Work::Raw(false) => self.raw_free.measure(Kind::Spin, 8, time),
            Work::Perf(args) => self.perf.measure(args, unit, time),
            Work::Perftest(tool, size, pinned) => self.perftest.measure(&tool, size, pinned, time),
            Work::Mpi(ranks) => self.mpi.measure(ranks, common.time(Unit::Latency)),
        }
    }
}

/// Measures all selected rows, and writes the report.
pub(crate) fn run(common: &Common) -> io::Result<()> {
    common.prepare(&PACKAGES)?;
    let mut lab = Lab::new(common)?;
    let mut rows = rows::select(all(), &common.only);
    rows::run(&mut rows, common.rounds, |work, unit| {
        lab.measure(common, *work, unit)
    });
    let versions = versions(&["perftest", "openmpi-bin", "libopenmpi-dev", "libfabric1"]);
    let about = format!(
        "{} {versions}",
        machine::about(common.rounds, &common.conditions())
    );
    let section = Section::of_rows("Unmodified programs", &about, &rows);
    common.output.publish(&[section])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_measured_just_before() {
        let all = all();
        rows::assert_complete(&all);
        for (place, row) in all.iter().enumerate() {
            let near = &all[place.saturating_sub(3)..place];
            for base in &row.bases {
                let mut names = near.iter().map(|other| &other.name);
                assert!(names.any(|name| base.includes(name)), "{}", row.name);
            }
        }
    }
}
