//! `docs/conformance-siw.md`: what the suite found about siw. Nothing in it changes from run to run unless a verdict or a
//! version does.

use std::collections::BTreeMap;
use std::fmt::Write;

use uwarp_conformance::report::Counts;
use uwarp_conformance::{Ending, Failure, Outcome, Verdict};

/// One column: siw in a role, or another target.
pub(crate) struct Part<'a> {
    pub(crate) title: &'static str,
    pub(crate) outcomes: &'a [Outcome],
}

/// A whole run.
pub(crate) struct Document<'a> {
    pub(crate) versions: &'a [String],
    pub(crate) parts: [Part<'a>; 2],
    pub(crate) dangerous: Option<Part<'a>>,
    pub(crate) uwarp: Option<Part<'a>>,
}

const HEAD: &str = "# Conformance of Linux siw\n\n\
Written by `./ci.sh interop`: do not edit.\n\n\
The target is the siw driver of the Linux kernel, in a virtual machine, with [the C agent](agent.md) as its application. The \
suite is `uwarp conformance` with `--strict`, on the kernel's TCP at both ends of one link, CRC on, Markers off, revision 2. Cases \
whose rule holds in both roles of MPA are played twice: with siw as the Responder, and as the Initiator. Cases of one role are \
counted under \"siw\".\n\n\
Every deviation below was seen in this run. Its reason is from `interop/siw.toml`; expected and received are the suite's.\n\n";

impl Document<'_> {
    pub(crate) fn markdown(&self) -> String {
        let mut out = HEAD.to_owned();
        for version in self.versions {
            let _ = writeln!(out, "* {version}");
        }
        self.counts(&mut out);
        self.endings(&mut out);
        out += "\n## Deviations\n";
        deviations(&mut out, &self.parts.iter().collect::<Vec<_>>());
        if let Some(dangerous) = &self.dangerous {
            out += "\n## Cases that may end the guest\n\nEach in a guest of its own.\n";
            deviations(&mut out, &[dangerous]);
        }
        self.skipped(&mut out);
        out
    }

    fn columns(&self) -> impl Iterator<Item = &Part<'_>> {
        self.parts.iter().chain(&self.dangerous).chain(&self.uwarp)
    }

    /// A row for each RFC and target.
    fn counts(&self, out: &mut String) {
        out.push_str("\n## Verdicts\n\n| RFC | target | passed | deviations | skipped |\n|---|---|---|---|---|\n");
        let mut rfcs: BTreeMap<&str, Vec<(&str, Vec<Outcome>)>> = BTreeMap::new();
        for part in self.columns() {
            for outcome in part.outcomes {
                for name in [rfc(&outcome.id), "all"] {
                    let rows = rfcs.entry(name).or_default();
                    match rows.last_mut() {
                        Some((title, outcomes)) if *title == part.title => {
                            outcomes.push(outcome.clone());
                        }
                        _ => rows.push((part.title, vec![outcome.clone()])),
                    }
                }
            }
        }
        for (name, rows) in rfcs {
            for (title, outcomes) in rows {
                let counts = Counts::of(&outcomes);
                let (passed, known, skipped) = (counts.passed, counts.deviations, counts.skipped);
                let _ = writeln!(out, "| {name} | {title} | {passed} | {known} | {skipped} |");
            }
        }
    }

    /// How connections ended, graded apart from the verdict.
    fn endings(&self, out: &mut String) {
        out.push_str(
            "\n## How connections ended\n\nIn the cases that wait for the end of one.\n\n| target",
        );
        let all = [
            Ending::RightTerminate,
            Ending::SwappedTerminate,
            Ending::WrongTerminate,
            Ending::Close,
            Ending::Reset,
            Ending::Silence,
            Ending::Died,
        ];
        for ending in all {
            let _ = write!(out, " | {ending}");
        }
        let _ = writeln!(out, " |\n|{}", "---|".repeat(all.len() + 1));
        for part in self.columns() {
            let _ = write!(out, "| {}", part.title);
            for ending in all {
                let outcomes = part.outcomes.iter();
                let count = outcomes
                    .filter(|outcome| outcome.ending == Some(ending))
                    .count();
                let _ = write!(out, " | {count}");
            }
            out.push_str(" |\n");
        }
    }

    fn skipped(&self, out: &mut String) {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for part in &self.parts {
            for outcome in part.outcomes {
                if let Verdict::Skipped(why) = &outcome.verdict {
                    let ids = reasons.entry(why).or_default();
                    if !ids.contains(&outcome.id.as_str()) {
                        ids.push(&outcome.id);
                    }
                }
            }
        }
        if reasons.is_empty() {
            return;
        }
        out.push_str("\n## Not tried\n\n| why | cases |\n|---|---|\n");
        for (why, ids) in reasons {
            let _ = writeln!(out, "| {} | {} |", cell(why), ids.join(", "));
        }
    }
}

/// A case that is known to fail, and the targets that fail alike.
struct Row<'a> {
    outcome: &'a Outcome,
    failure: &'a Failure,
    targets: Vec<&'static str>,
}

/// A section for each reason, with a row for each case.
fn deviations(out: &mut String, parts: &[&Part<'_>]) {
    let mut reasons: Vec<(&str, Vec<Row<'_>>)> = Vec::new();
    for part in parts {
        for outcome in part.outcomes {
            let Verdict::Deviation(reason, failure) = &outcome.verdict else {
                continue;
            };
            let at = reasons.iter().position(|(known, _)| known == reason);
            let at = at.unwrap_or_else(|| {
                reasons.push((reason, Vec::new()));
                reasons.len() - 1
            });
            let rows = &mut reasons[at].1;
            let alike = |row: &&mut Row<'_>| {
                (&row.outcome.id, row.outcome.ending) == (&outcome.id, outcome.ending)
                    && told(row.failure) == told(failure)
            };
            match rows.iter_mut().find(alike) {
                Some(row) => row.targets.push(part.title),
                None => rows.push(Row {
                    outcome,
                    failure,
                    targets: vec![part.title],
                }),
            }
        }
    }
    for (number, (reason, rows)) in reasons.into_iter().enumerate() {
        let _ = write!(
            out,
            "\n### {}. {reason}\n\n| case | target | rule | expected | received | the connection's end |\n|---|---|---|---|---|---|\n",
            number + 1
        );
        for Row {
            outcome,
            failure,
            targets,
        } in rows
        {
            let ending = outcome.ending.map(|ending| ending.to_string());
            let _ = writeln!(
                out,
                "| {} ({}) | {} | {} | {} | {} | {} |",
                outcome.id,
                outcome.level,
                targets.join(", "),
                cell(&outcome.rule),
                cell(&failure.expected),
                cell(&told(failure)),
                ending.unwrap_or_default()
            );
        }
    }
}

/// What came, without the numbers that are others in each run.
fn told(failure: &Failure) -> String {
    match failure.received.split_once("{\"conn\":") {
        Some((before, rest)) => {
            let number = rest.find(',').unwrap_or(rest.len());
            format!("{before}{{\"conn\":N{}", &rest[number..])
        }
        None => failure.received.clone(),
    }
}

/// `mpa/5044-7.1.2/3` is of `5044`.
fn rfc(id: &str) -> &str {
    let rest = id.split_once('/').map_or("", |(_, rest)| rest);
    rest.split(['-', '/']).next().unwrap_or(rest)
}

/// A text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('\n', " ")
        .replace('<', "&lt;")
}
