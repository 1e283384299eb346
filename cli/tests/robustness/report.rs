//! docs/robustness.md.

use std::fs;
use std::path::Path;

use crate::attacks::{Attack, Told};
use crate::honest::Visits;
use crate::victim::Usage;
use crate::{LATE, LEAST, Result};

/// What came of one attack.
pub(crate) struct Row {
    title: &'static str,
    told: Told,
    before: Usage,
    most: Usage,
    of_scene: Option<OfScene>,
    visits: Option<Visits>,
}

/// What is known only where the process that is attacked is the one that the honest peer beside it uses.
struct OfScene {
    /// Seconds of a processor that the victim had while it was attacked, also for the honest peer.
    processor: f64,
    /// The honest peer's rates during the attack, over all of it and in the worst second, as parts of its rate without one.
    ratios: [f64; 2],
    /// Its lowest and highest rate without one, bytes a second.
    quiet: [f64; 2],
}

impl Row {
    pub(crate) fn new(
        attack: &Attack,
        told: Told,
        [before, most]: [Usage; 2],
        processor: f64,
    ) -> Row {
        let of_scene = told.itself.is_none().then_some(OfScene {
            processor,
            ratios: [0.0; 2],
            quiet: [0.0; 2],
        });
        let (before, most) = told.itself.unwrap_or((before, most));
        Row {
            title: attack.title,
            told,
            before,
            most,
            of_scene,
            visits: None,
        }
    }

    /// With what honest peers had: during the attack, three times before and three times after it; and those that came.
    pub(crate) fn measured(
        mut self,
        rates: [f64; 2],
        quiet: [[f64; 3]; 2],
        visits: Option<Visits>,
    ) -> Row {
        if let Some(of_scene) = &mut self.of_scene {
            let [before, after] = quiet.map(|rates| rates.iter().sum::<f64>() / 3.0);
            // The better of the two: what lasts is an effect, too.
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

    /// It took no more memory than so many bytes, besides those of the application.
    pub(crate) fn is_bounded(&self, octets: u64) -> Result<()> {
        let added = self.most.memory.saturating_sub(self.before.memory);
        let allowed = self.told.own_memory + octets;
        if added > allowed {
            return Err(format!("it took {added} bytes of memory, of {allowed} allowed").into());
        }
        Ok(())
    }

    /// Honest peers had their part, and those that came were served soon.
    pub(crate) fn is_fair(&self) -> Result<()> {
        if let Some(of_scene) = &self.of_scene
            && of_scene.ratios[0] < LEAST
        {
            return Err(format!(
                "the honest peer had {:.2} of its throughput during {}; at least {LEAST} is asked for",
                of_scene.ratios[0], self.told.load
            )
            .into());
        }
        if let Some(visits) = self.visits
            && visits.slowest > LATE
        {
            return Err(format!("an honest peer that came took {:?}", visits.slowest).into());
        }
        Ok(())
    }

    /// Of the table.
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
            self.told.load,
            self.told.outcome,
            most.memory as f64 / MIB,
            before.memory as f64 / MIB,
            most.descriptors,
            before.descriptors,
        )
    }
}

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// Writes the table.
pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let cores = std::thread::available_parallelism()?;
    let mut text = HEAD.replace("CORES", &cores.to_string());
    for row in rows {
        text.push_str(&row.line());
        text.push('\n');
    }
    fs::write(path, text)?;
    Ok(())
}

const HEAD: &str = "\
# Hostile and broken peers against a real process

Written by `./ci.sh robustness`, which takes about 17 minutes, most of them for a million guesses, and needs about 20,000 descriptors (`ulimit -Hn`). `cargo test` plays the same attacks
with small loads and asserts all but the throughput.

`uwarp agent` runs as a process of its own, with its default limits, and is attacked over loopback from other addresses. Beside each
attack an honest peer Writes 1 MiB in pieces of 64 KiB, reads it back and compares, again and again, as fast as it can. While the attack is on, four
times a second another honest peer connects to the listener that is attacked and does the same once (but where the process has no descriptors, or is
killed). After each attack the process must run, have closed all
that the attack opened, have said nothing on stderr (but that it is out of descriptors, where it is), and serve both; the memory that the attack was about must be as it was.

* *Most memory*: resident memory of the process, but for pages of its file, looked at every 20 ms, or the most that the kernel has counted if that is more; before, there had been one other connection. Each attack has a
  bound of its own for what it may add to what the application registers, or it has failed: 8 MiB, 16 MiB for a million connections that get as far as a guess, and where connections are held, or all attacks follow each other, 12 to 80 MiB.
  Where all attacks follow each other, the later half of the rounds may add 512 KiB, or that of up to twice as many rounds, where large buffers were still being added to what is kept; the process then has one arena of the allocator for all of its threads (`GLIBC_TUNABLES`), because which of several grows is chance.
* *Most descriptors*: the same for open descriptors. They must all be closed in the end.
* *Newcomers*: how many honest peers came during the attack, and the longest time one of them took, from TCP's connect until its megabyte was written, read back and
  compared. More than 1 s and the run fails.
* *Processor*: what the process used while it was attacked, for the honest peers too.
* *Ratio*: the honest peer's throughput during the attack, divided by its throughput without one (the better of just before and
  just after, 3 s each). Below 0.50 the run fails. *Worst second*: the same, of the one second of the attack in which it was lowest.
* *Without*: the lowest and the highest of the six seconds without an attack, so how much a ratio can be off.

A process that is killed is another one in each of its lives; its memory is that of the first after one round, and the most of all.

Attacker, victim and honest peer share the machine, and the honest peer and its server alone keep two cores busy. So attackers keep to a rate, which the
table has: the ratio is to tell what the process does about an attack, and not how an operating system shares cores among three programs. This run had CORES cores.

| attack | load | outcome | most memory | most descriptors | newcomers | processor | ratio | worst second | without |
|---|---|---|---|---|---|---|---|---|---|
";
