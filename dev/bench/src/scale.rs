//! Measures many connections beside few of them: the latency of one, the rate of all beside raw
//! TCP, and the memory.
//!
//! For each number of connections there is a server, which this command starts from itself. All
//! connections exist during the measurement and take turns. The memory is measured before that, for
//! each number of connections in a process of its own: in this process, connections would use heap
//! that others have freed, and seem to need less.

mod conns;
mod raw;

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::machine;
use crate::options::Common;
use crate::report::Section;
use crate::rows::{self, Base, Row, Sample, Table, Unit};
use conns::Conns;
use raw::RawConns;

/// Result with any error of the verbs.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Number of descriptors that the process needs besides its connections, with a reserve.
const BESIDES: usize = 200;
/// Number of active connections that is compared with all connections of a pair.
const FEW: usize = 16;
/// Maximum number of active connections.
const MOST_ACTIVE: usize = 1_000;

/// Options.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1_000, 10_000])]
    conns: Vec<usize>,
    #[command(flatten)]
    common: Common,
}

const LATENCY: Table = Table::new("One active connection: 8 B Sends", Unit::Latency);
const RATE: Table = Table::new("Many active connections: 64 B Writes", Unit::Rate);
const MEMORY: Table = Table::new("Memory of the client of an idle connection", Unit::Memory);

/// Work of a row, and the number of connections.
type Work = (usize, What);

#[derive(Clone, Copy, Debug)]
enum What {
    Latency,
    /// Writes on some active connections, in lists.
    Rate(Active),
    RawRate(Active),
    /// Memory before the first use, or after 64 KiB each way.
    Memory(bool),
}

/// Number of active connections, and number of messages that are posted or written together.
#[derive(Clone, Copy, Debug)]
struct Active {
    conns: usize,
    list: usize,
}

/// Returns all rows for these numbers of connections.
fn all(numbers: &[usize]) -> Vec<Row<Work>> {
    let mut all = Vec::new();
    let mut add = |table, name: String, base: Option<String>, work| {
        let base = base.map(|name| Base::Row(name.into()));
        all.push(Row::new(table, name, "", base.as_slice(), work));
    };
    let latency = |conns: usize| format!("1 of {conns} active");
    for &conns in numbers {
        let base = (conns != numbers[0]).then(|| latency(numbers[0]));
        add(&LATENCY, latency(conns), base, (conns, What::Latency));
    }
    let many = numbers.iter().copied();
    let many = many.filter(|conns| (FEW + 1..=MOST_ACTIVE).contains(conns));
    for (all_conns, list) in many.max().into_iter().flat_map(|n| [(n, 16), (n, 1)]) {
        for conns in [FEW, all_conns] {
            let name = |what| format!("{what} of {list}, {conns} of {all_conns} active");
            let active = Active { conns, list };
            let raw = name("raw TCP, writes");
            add(&RATE, raw.clone(), None, (all_conns, What::RawRate(active)));
            let work = (all_conns, What::Rate(active));
            add(&RATE, name("lists"), Some(raw), work);
        }
    }
    for &conns in numbers.iter().filter(|conns| **conns > FEW) {
        for (told, used) in [("never used", false), ("after 64 KiB each way", true)] {
            let name = format!("one of {conns}, {told}");
            add(&MEMORY, name, None, (conns, What::Memory(used)));
        }
    }
    all
}

/// Measures all selected rows, and writes the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    let common = &options.common;
    let mut rows = rows::select(all(&options.conns), &common.only);
    raise_limit(options.conns.iter().sum::<usize>() + 2 * MOST_ACTIVE + BESIDES)?;
    common.prepare(&[])?;
    let about = machine::about(common.rounds, &common.conditions());
    let pinning = common.pinning();
    let (client, server) = pinning.processors.unzip();
    // The threads of the client's devices inherit the processor.
    run_on(client)?;
    let congestion = &common.congestion;
    let mut memory: BTreeMap<usize, [f64; 2]> = BTreeMap::new();
    for &(conns, what) in rows.iter().map(|row| &row.work) {
        if matches!(what, What::Memory(_)) && !memory.contains_key(&conns) {
            memory.insert(conns, conns::memory(conns, congestion, &pinning)?);
        }
    }
    let mut ours: BTreeMap<usize, Conns> = BTreeMap::new();
    let mut raw: BTreeMap<usize, RawConns> = BTreeMap::new();
    for &(conns, what) in rows.iter().map(|row| &row.work) {
        match what {
            What::RawRate(_) if !raw.contains_key(&conns) => {
                raw.insert(conns, RawConns::open(conns, congestion, server)?);
            }
            What::Latency | What::Rate(_) if !ours.contains_key(&conns) => {
                ours.insert(conns, Conns::open(conns, congestion, &pinning)?);
            }
            _ => {}
        }
    }
    rows::run(&mut rows, common.rounds, |(conns, what), unit| {
        let time = common.time(unit);
        let value = match *what {
            What::Latency => ours[conns].latency(time),
            What::Rate(active) => ours[conns].rate(active, time),
            What::RawRate(active) => raw[conns].rate(active, time),
            What::Memory(used) => Ok(memory[conns][usize::from(used)]),
        };
        value.map(Sample::of).map_err(io::Error::other)
    });
    let section = Section::of_rows("Many connections", &about, &rows);
    Ok(common.output.publish(&[section])?)
}

/// Serves many connections of uwarp.
pub(crate) fn serve(conns: usize, congestion: &str) -> Result<()> {
    conns::serve(conns, congestion, |line| println!("{line}"))
}

/// Connects to a server that has printed `line`, prints the memory of a connection, and keeps the
/// connections until this process is killed.
pub(crate) fn tell_memory(conns: usize, congestion: &str, line: &str) -> Result<()> {
    let connected = Conns::connect(conns, congestion, line, None)?;
    let [never_used, used] = connected.memory;
    println!("{never_used} {used}");
    loop {
        std::thread::park();
    }
}

/// Moves this thread to a processor, if there is one for it.
fn run_on(processor: Option<usize>) -> io::Result<()> {
    let Some(processor) = processor else {
        return Ok(());
    };
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(sched_setaffinity(None, &only)?)
}

/// Raises the limit of descriptors. Root may also raise the hard limit.
fn raise_limit(needed: usize) -> io::Result<()> {
    let needed = needed as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is the greatest.
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(needed));
    let (current, raised) = (raised(current), raised(maximum));
    setrlimit(Resource::Nofile, Rlimit { current, maximum: raised }).map_err(|_| {
        let maximum = maximum.unwrap_or(u64::MAX);
        io::Error::other(format!(
            "so many connections need {needed} descriptors, and the hard limit here is {maximum}: raise it as \
             root (`prlimit --nofile={needed} --pid $$` for this shell), or ask for fewer with --conns"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_base_is_measured_and_no_name_is_there_twice() {
        let all = all(&[1, 100, 1_000, 10_000]);
        rows::assert_complete(&all);
        let count = |table| all.iter().filter(|row| row.table == table).count();
        assert_eq!([&LATENCY, &RATE, &MEMORY].map(count), [4, 8, 6]);
    }

    #[test]
    fn connections_of_both_kinds_carry_messages() {
        let time = std::time::Duration::from_millis(2);
        let active = Active { conns: 2, list: 16 };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || conns::serve(3, "reno", |line| tell.send(line).unwrap()));
        let ours = Conns::connect(3, "reno", &told.recv().unwrap(), None).unwrap();
        assert!(ours.latency(time).unwrap() > 0.0);
        assert!(ours.rate(active, time).unwrap() > 0.0);
        let raw = RawConns::open(3, "reno", None).unwrap();
        assert!(raw.rate(active, time).unwrap() > 0.0);
    }
}
