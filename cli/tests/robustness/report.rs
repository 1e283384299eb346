//! Report of a run with full loads, and the limits that a run must keep.

use std::fs;
use std::path::Path;

use crate::attacks::{Attack, AttackOutcome};
use crate::honest::Visits;
use crate::victim::Usage;
use crate::{LATE, LEAST, Result};

/// Result of one attack, which is a row of the table.
pub(crate) struct Row {
    title: &'static str,
    outcome: AttackOutcome,
    before: Usage,
    most: Usage,
    of_scene: Option<OfScene>,
    visits: Option<Visits>,
}

/// Figures of an attack whose victim also serves the honest peer.
struct OfScene {
    /// Processor time of the victim during the attack in seconds, including its work for the honest
    /// peer.
    processor: f64,
    /// Throughput of the honest peer during the attack, as fractions of its throughput without an
    /// attack: over the whole attack, and in the worst second.
    ratios: [f64; 2],
    /// Lowest and highest throughput of the honest peer without an attack, in bytes a second.
    quiet: [f64; 2],
}

impl Row {
    pub(crate) fn new(
        attack: &Attack,
        outcome: AttackOutcome,
        [before, most]: [Usage; 2],
        processor: f64,
    ) -> Row {
        let of_scene = outcome.itself.is_none().then_some(OfScene {
            processor,
            ratios: [0.0; 2],
            quiet: [0.0; 2],
        });
        let (before, most) = outcome.itself.unwrap_or((before, most));
        Row {
            title: attack.title,
            outcome,
            before,
            most,
            of_scene,
            visits: None,
        }
    }

    /// Adds the honest peer's throughput: during the attack (`rates`), and in three samples before
    /// and three after the attack (`quiet`). Also adds the visits of other honest peers during the
    /// attack.
    pub(crate) fn measured(
        mut self,
        rates: [f64; 2],
        quiet: [[f64; 3]; 2],
        visits: Option<Visits>,
    ) -> Row {
        if let Some(of_scene) = &mut self.of_scene {
            let [before, after] = quiet.map(|rates| rates.iter().sum::<f64>() / 3.0);
            // The reference is the better of the two averages, because a lasting slowdown is an
            // effect of the attack as well.
            of_scene.ratios = rates.map(|rate| rate / before.max(after));
            let all = quiet.as_flattened();
            of_scene.quiet = [
                all.iter().copied().fold(f64::INFINITY, f64::min),
                all.iter().copied().fold(0.0, f64::max),
            ];
        }
        self.visits = visits;
        self
    }

    /// Fails if the victim used more than this number of bytes besides the application's memory.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        let added = self.most.memory.saturating_sub(self.before.memory);
        let allowed = self.outcome.own_memory + bytes;
        if added > allowed {
            return Err(format!("it took {added} bytes of memory, of {allowed} allowed").into());
        }
        Ok(())
    }

    /// Fails if the honest peer had too little throughput, or if a visitor waited too long.
    pub(crate) fn check_fairness(&self) -> Result<()> {
        if let Some(of_scene) = &self.of_scene
            && of_scene.ratios[0] < LEAST
        {
            return Err(format!(
                "the honest peer had {:.2} of its throughput during {}; at least {LEAST} is asked for",
                of_scene.ratios[0], self.outcome.load
            )
            .into());
        }
        if let Some(visits) = self.visits
            && visits.slowest > LATE
        {
            return Err(format!(
                "an honest peer that connected during the attack took {:?}",
                visits.slowest
            )
            .into());
        }
        Ok(())
    }

    /// Formats the row of the table.
    pub(crate) fn line(&self) -> String {
        let (before, most) = (self.before, self.most);
        let visits = self.visits.map_or("none".to_owned(), |visits| {
            format!("{}, {} ms", visits.many, visits.slowest.as_millis())
        });
        let of_scene = self
            .of_scene
            .as_ref()
            .map_or("- | - | - | -".to_owned(), |of| {
                let ([ratio, worst], [low, high]) = (of.ratios, of.quiet.map(|rate| rate / 1e6));
                let processor = of.processor;
                format!("{processor:.1} s | {ratio:.2} | {worst:.2} | {low:.0} to {high:.0} MB/s")
            });
        format!(
            "| {} | {} | {} | {:.1} MiB, {:.1} before | {}, {} before | {visits} | {of_scene} |",
            self.title,
            self.outcome.load,
            self.outcome.result,
            most.memory as f64 / MIB,
            before.memory as f64 / MIB,
            most.descriptors,
            before.descriptors,
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
  a Write of 1 MiB, the Read and the comparison. More than 1 s fails the run.
* *Processor*: processor time of the process during the attack, for the honest peers too.
* *Ratio*: throughput of the honest peer during the attack, divided by its throughput without one (the better of
  the 3 s before and the 3 s after). Below 0.50 the run fails. *Worst second*: the lowest ratio of a single second.
* *Without*: lowest and highest throughput in the six seconds without an attack.

Where the process is killed, memory before is that of its first life after one round, and most is that of all lives.

Attacker, victim and honest peer share the machine, and the honest peer and its server alone keep two cores busy.
Attackers therefore keep to the rate in the table. This run had CORES cores.

| attack | load | outcome | most memory | most descriptors | newcomers | processor | ratio | worst second | without |
|---|---|---|---|---|---|---|---|---|---|
";
