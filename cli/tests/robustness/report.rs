//! docs/robustness.md.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::attacks::Told;
use crate::victim::Usage;

/// What came of one attack.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) told: Told,
    pub(crate) before: Usage,
    pub(crate) most: Usage,
    /// Seconds of a processor that the victim had while it was attacked, also for the honest peer.
    pub(crate) processor: f64,
    /// The honest peer's rates during the attack, over all of it and in the worst second, as parts of its rate without one.
    pub(crate) ratios: [f64; 2],
}

/// Writes the table.
pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let cores = std::thread::available_parallelism()?;
    let mut text = HEAD.replace("CORES", &cores.to_string());
    for row in rows {
        let (before, most, [ratio, worst]) = (row.before, row.most, row.ratios);
        writeln!(
            text,
            "| {} | {} | {} | {} MiB, {} before | {}, {} before | {:.1} s | {ratio:.2} | {worst:.2} |",
            row.title,
            row.told.load,
            row.told.outcome,
            most.memory >> 20,
            before.memory >> 20,
            most.descriptors,
            before.descriptors,
            row.processor,
        )?;
    }
    fs::write(path, text)?;
    Ok(())
}

const HEAD: &str = "\
# Hostile and broken peers against a real process

Written by `./ci.sh robustness`, which takes a few minutes and needs about 20,000 descriptors (`ulimit -Hn`). `cargo test` plays the same attacks
with small loads and asserts all but the throughput.

`uwarp agent` runs as a process of its own, with its default limits, and is attacked over loopback from other addresses. Beside each
attack an honest peer Writes 1 MiB in pieces of 64 KiB, reads it back and compares, again and again, as fast as it can; and around each attack, in the middle of some, another
honest peer connects to the port that is attacked and does the same once. After each attack the process must run, have closed all
that the attack opened, have said nothing on stderr (but that it is out of descriptors, where it is), and serve both; the memory that the attack was about must be as it was.

* *Most memory*: resident memory of the process, looked at every 20 ms. An attack may add 128 MiB to what the application registers, or it has failed.
* *Most descriptors*: the same for open descriptors. They must all be closed in the end.
* *Processor*: what the process used while it was attacked, for the honest peer too.
* *Ratio*: the honest peer's throughput during the attack, divided by its throughput without one (the better of just before and
  just after). Below 0.50 the run fails. *Worst second*: the same, of the one second of the attack in which it was lowest.

Attacker, victim and honest peer share the machine, and the honest peer and its server alone keep two cores busy. So attackers keep to a rate, which the
table has: the ratio is to tell what the process does about an attack, and not how an operating system shares cores among three programs. This run had CORES cores.

| attack | load | outcome | most memory | most descriptors | processor | ratio | worst second |
|---|---|---|---|---|---|---|---|
";
