//! Report of a run with full loads, and the limits that a run must keep.

use std::fs;
use std::path::Path;

use crate::attacks::AttackOutcome;
use crate::honest::Visits;
use crate::victim::Usage;
use crate::{LATE, LEAST, Result};

/// Result of one attack, which is a row of the table.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) outcome: AttackOutcome,
    pub(crate) figures: Figures,
}

/// Figures of an attacked process, and of the honest peers that it serves.
pub(crate) struct Figures {
    pub(crate) before: Usage,
    /// Peak during the attack.
    pub(crate) most: Usage,
    /// Processor time of the process during the attack in seconds, including its work for the
    /// honest peers.
    pub(crate) processor: f64,
    /// Throughput of the honest peer during the attack in bytes a second: over the whole attack,
    /// and in the worst second.
    pub(crate) rates: [f64; 2],
    /// Three samples of its throughput before the attack, and three after it.
    pub(crate) quiet: [[f64; 3]; 2],
    /// Visits of other honest peers.
    pub(crate) visits: Visits,
}

impl Figures {
    /// Returns the throughput of the honest peer during the attack, as fractions of its throughput
    /// without one: over the whole attack, and in the worst second.
    fn ratios(&self) -> [f64; 2] {
        let [before, after] = self.quiet.map(|rates| rates.iter().sum::<f64>() / 3.0);
        // The reference is the better of the two averages, because a lasting slowdown is an effect
        // of the attack as well.
        self.rates.map(|rate| rate / before.max(after))
    }
}

impl Row {
    /// Fails if the victim used more than this number of bytes besides the application's memory.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        let Figures { before, most, .. } = &self.figures;
        let added = most.memory.saturating_sub(before.memory);
        let allowed = self.outcome.own_memory + bytes;
        if added > allowed {
            return Err(format!("it took {added} bytes of memory, of {allowed} allowed").into());
        }
        Ok(())
    }

    /// Fails if the honest peer had too little throughput, or if a visitor waited too long.
    pub(crate) fn check_fairness(&self) -> Result<()> {
        let [ratio, _] = self.figures.ratios();
        if ratio < LEAST {
            return Err(format!(
                "the honest peer had {ratio:.2} of its throughput during {}; at least {LEAST} is asked for",
                self.outcome.load
            )
            .into());
        }
        let visits = self.figures.visits;
        if visits.slowest > LATE {
            let when = if visits.afterwards { "after" } else { "during" };
            return Err(format!(
                "an honest peer that connected {when} the attack took {:?}",
                visits.slowest
            )
            .into());
        }
        Ok(())
    }

    /// Formats the row of the table.
    pub(crate) fn line(&self) -> String {
        let Figures {
            before,
            most,
            processor,
            quiet,
            visits,
            ..
        } = &self.figures;
        let when = if visits.afterwards { " after it" } else { "" };
        let [ratio, worst] = self.figures.ratios();
        let quiet = quiet.as_flattened().iter().map(|rate| rate / 1e6);
        let low = quiet.clone().fold(f64::INFINITY, f64::min);
        let high = quiet.fold(0.0, f64::max);
        format!(
            "| {} | {} | {} | {:.1} MiB, {:.1} before | {}, {} before | {}{when}, {} ms | {processor:.1} s | {ratio:.2} | {worst:.2} | {low:.0} to {high:.0} MB/s |",
            self.title,
            self.outcome.load,
            self.outcome.result,
            most.memory as f64 / MIB,
            before.memory as f64 / MIB,
            most.descriptors,
            before.descriptors,
            visits.many,
            visits.slowest.as_millis(),
        )
    }
}

/// Beginning of each row.
pub(crate) const ROW: &str = "| ";

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// Writes the report with these rows to a file.
pub(crate) fn write(path: &Path, rows: &[String]) -> Result<()> {
    let cores = std::thread::available_parallelism()?;
    let mut text = HEAD.replace("CORES", &cores.to_string());
    for row in rows {
        text.push_str(row);
        text.push('\n');
    }
    fs::write(path, text)?;
    Ok(())
}

const HEAD: &str = "\
# Hostile and broken peers against a real process

Written by `./ci.sh robustness`. `docs/testing.md` describes the test.

* *Most memory*: resident memory of the process without pages of its file, sampled every 20 ms, or the kernel's count
  if that is more. *Before*: with one other connection.
* *Most descriptors*: the same for open descriptors.
* *Newcomers*: number of honest peers that came during the attack, and the longest time that one took for TCP's connect,
  a Write of 1 MiB, the Read and the comparison (at rping: for 16 pings of 64 KiB). More than 1 s fails the run. Without
  descriptors the process can serve no newcomer; these came as soon as the attackers had closed.
* *Processor*: processor time of the process during the attack, for the honest peers too.
* *Ratio*: throughput of the honest peer during the attack, divided by its throughput without one (the better of
  the 3 s before and the 3 s after). Below 0.50 the run fails. *Worst second*: the lowest ratio of a single second.
* *Without*: lowest and highest throughput in the six seconds without an attack.

Where the process is killed, memory before is that of its first life, most and processor are those of all lives, the
newcomers are those that came after each kill as soon as the next process listened, and the honest peer connects again as
soon as one of them was served.

Attacker, victim and honest peer share the machine, and the honest peer and its server alone keep two cores busy.
Attackers therefore keep to the rate in the table. This run had CORES cores.

| attack | load | outcome | most memory | most descriptors | newcomers | processor | ratio | worst second | without |
|---|---|---|---|---|---|---|---|---|---|
";
