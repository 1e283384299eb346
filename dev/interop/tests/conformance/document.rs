//! Writes `conformance-siw.md`, a report with the suite's findings about siw, for siw's
//! maintainers.

use std::collections::BTreeMap;
use std::fmt::Write;

use uwarp_conformance::report::Counts;
use uwarp_conformance::{Ending, Requirement, Verdict, requirements};

use super::findings::{Finding, Shown, findings};
use super::{Played, Run};

/// Content of the document: the results of all cases, and the known deviations.
pub(crate) struct Document<'a> {
    pub(crate) versions: &'a [String],
    pub(crate) played: &'a [Played],
    /// Known deviations, parsed from `dev/interop/siw.toml`.
    pub(crate) known: &'a toml::Table,
}

/// Number of cases of a finding that are described in full. The others are rows of a table.
const IN_FULL: usize = 3;
/// Maximum number of characters of `Failure::sent` that are shown.
const SENT: usize = 240;

const HEAD: &str = "# Conformance of Linux siw\n\n\
Written by `./ci.sh interop --dangerous`.\n\n\
The target is the siw driver of the Linux kernel in a virtual machine, with the C agent (`docs/agent.md`) as its application. \
The peer is `uwarp conformance` (`docs/conformance.md`), which shares no code with uwarp's stack, with `--strict`, over the \
kernel's TCP at both ends of one link, with CRCs, without Markers, MPA revision 2. Cases whose rule holds in both roles of MPA \
are played in both.\n\n\
Every finding below was seen in this run. A heading is the explanation from `dev/interop/siw.toml`, with numbers Q1, Q2, ... of \
`docs/peers.md`; the suite reports what was sent, expected and received. Requirements, such as `5040-4.8-03`, are in \
`conformance/data/`. [The page](conformance-siw/index.html) has each case with its log, and uwarp's own endpoint in other columns.\n\n\
To play one case: `UWARP_CONFORMANCE_CASES=ID ./ci.sh interop conformance`. To read its steps: \
`uwarp conformance --explain ID`.\n\n";

impl Document<'_> {
    pub(crate) fn markdown(&self) -> String {
        let mut out = HEAD.to_owned();
        for version in self.versions {
            let _ = writeln!(out, "* {version}");
        }
        self.counts(&mut out);
        self.endings(&mut out);
        let of = |dangerous: bool| -> Vec<&Played> {
            let siw = [Run::SiwResponds, Run::SiwInitiates, Run::Dangerous];
            let played = self.played.iter();
            played
                .filter(|one| siw.contains(&one.run) && (one.run == Run::Dangerous) == dangerous)
                .collect()
        };
        let (ordinary, dangerous) = (findings(&of(false)), findings(&of(true)));
        overview(&mut out, ordinary.iter().chain(&dangerous));
        let catalogue = requirements();
        out += "\n## Findings\n";
        for (index, finding) in ordinary.iter().enumerate() {
            tell(&mut out, index + 1, finding, &catalogue);
        }
        out += "\n## What may end the guest\n\n\
            Cases that are played with `--dangerous` alone, each in a guest of its own.\n";
        for (index, finding) in dangerous.iter().enumerate() {
            tell(&mut out, ordinary.len() + index + 1, finding, &catalogue);
        }
        out += &not_always(self.known);
        self.skipped(&mut out);
        out
    }

    /// Appends a table with a row for each RFC and target.
    fn counts(&self, out: &mut String) {
        out.push_str("\n## Verdicts\n\n| RFC | target | passed | deviations | skipped |\n|---|---|---|---|---|\n");
        let mut rows: BTreeMap<(&str, usize), Counts> = BTreeMap::new();
        for (index, played) in self.played.iter().enumerate() {
            for outcome in &played.outcomes {
                let one = Counts::of(std::slice::from_ref(outcome));
                for name in [rfc(&outcome.id), "all"] {
                    let sum = rows.entry((name, index)).or_default();
                    sum.passed += one.passed;
                    sum.deviations += one.deviations;
                    sum.skipped += one.skipped;
                }
            }
        }
        for ((name, index), counts) in rows {
            let title = self.played[index].run.title();
            let (passed, known, skipped) = (counts.passed, counts.deviations, counts.skipped);
            let _ = writeln!(out, "| {name} | {title} | {passed} | {known} | {skipped} |");
        }
    }

    /// Appends a table of how connections ended. The suite grades the ending separately from the
    /// verdict.
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
        for played in self.played {
            let _ = write!(out, "| {}", played.run.title());
            for ending in all {
                let outcomes = played.outcomes.iter();
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
        let runs = [Run::SiwResponds, Run::SiwInitiates];
        for played in self.played.iter().filter(|one| runs.contains(&one.run)) {
            for outcome in &played.outcomes {
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

/// Lists the cases that `siw.toml` marks with `sometimes`, whatever their results in this run.
fn not_always(known: &toml::Table) -> String {
    let mut out = "\n## Not in every run\n\n\
        Deviations that show in some runs only, and may be missing above.\n\n"
        .to_owned();
    let deviations = known.get("deviation").and_then(toml::Value::as_array);
    for deviation in deviations.into_iter().flatten() {
        let text = |name: &str| deviation.get(name).and_then(toml::Value::as_str);
        let sometimes = deviation.get("sometimes").and_then(toml::Value::as_bool);
        if sometimes == Some(true) {
            let cases = deviation.get("cases").and_then(toml::Value::as_array);
            let cases = cases.into_iter().flatten().filter_map(toml::Value::as_str);
            let cases: Vec<String> = cases.map(|id| format!("**`{id}`**")).collect();
            let reason = text("reason").unwrap_or_default();
            let _ = writeln!(out, "* {}: {}", cases.join(", "), reason);
        }
    }
    out
}

fn overview<'a>(out: &mut String, all: impl Iterator<Item = &'a Finding<'a>>) {
    out.push_str(
        "\n## All findings\n\n| | what siw does | as | cases | where |\n|---|---|---|---|---|\n",
    );
    for (index, finding) in all.enumerate() {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            index + 1,
            cell(&named(finding.reason)),
            finding.roles(),
            finding.cases(),
            finding.sections()
        );
    }
}

fn tell(
    out: &mut String,
    number: usize,
    finding: &Finding<'_>,
    catalogue: &BTreeMap<String, Requirement>,
) {
    let title = named(finding.reason);
    let _ = writeln!(out, "\n### {number}. {}\n", cell(&title));
    let _ = writeln!(out, "{}.", finding.sections());
    let rest = finding.shown.len().saturating_sub(IN_FULL);
    // A single remaining case is also described in full, instead of in a table of one row.
    let in_full = if rest > 1 { IN_FULL } else { IN_FULL + 1 };
    for shown in finding.shown.iter().take(in_full) {
        in_detail(out, shown, catalogue);
    }
    if finding.shown.len() <= in_full {
        return;
    }
    out.push_str(
        "\n| also | siw is | requirements | rule | expected | received |\n|---|---|---|---|---|---|\n",
    );
    for shown in finding.shown.iter().skip(in_full) {
        let _ = writeln!(
            out,
            "| **`{}`** ({}) | {} | {} | {} | {} | {} |",
            shown.outcome.id,
            shown.outcome.level,
            shown.roles.join(", "),
            shown.outcome.requirements.join(", "),
            cell(&shown.outcome.rule),
            cell(&shown.failure.expected),
            cell(&shown.failure.received),
        );
    }
}

fn in_detail(out: &mut String, shown: &Shown<'_>, catalogue: &BTreeMap<String, Requirement>) {
    let (outcome, failure) = (shown.outcome, shown.failure);
    let _ = writeln!(
        out,
        "\n**`{}`** ({}; siw as {}): {}\n",
        outcome.id,
        outcome.level,
        shown.roles.join(" and as "),
        cell(&outcome.rule)
    );
    for id in &outcome.requirements {
        let text = catalogue.get(id).map_or("", |row| row.text.as_str());
        let _ = writeln!(out, "* {id}: {}", cell(text));
    }
    if !failure.sent.is_empty() {
        let mut sent: String = failure.sent.chars().take(SENT).collect();
        if sent.len() < failure.sent.len() {
            sent += " ...";
        }
        let _ = writeln!(out, "* sent: {}", cell(&sent));
    }
    let _ = writeln!(out, "* expected: {}", cell(&failure.expected));
    let _ = writeln!(out, "* received: {}", cell(&failure.received));
    if let Some(ending) = outcome.ending {
        let _ = writeln!(out, "* the connection's end: {ending}");
    }
    if let Some(trouble) = shown.trouble {
        let _ = writeln!(out, "* the guest's kernel: {}", cell(&words(trouble)));
    }
}

/// Returns the lines of a kernel log that name the error and its place.
fn words(trouble: &str) -> String {
    let what = ["BUG", "Oops", "use-after-free", "protection fault", "panic"];
    let lines = || {
        trouble.lines().map(|line| match line.split_once("] ") {
            Some((time, rest)) if time.starts_with('[') => rest,
            _ => line,
        })
    };
    let first = lines().find(|line| what.iter().any(|word| line.contains(word)));
    let place = lines().find(|line| line.starts_with("RIP: "));
    let found: Vec<&str> = first.into_iter().chain(place).collect();
    format!("`{}`", found.join("; "))
}

/// Formats the reason as a sentence, without the name of the target.
fn named(reason: &str) -> String {
    let reason = reason.strip_prefix("siw: ").unwrap_or(reason);
    let mut chars = reason.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

/// Returns the RFC of a case: `5044` for `mpa/5044-7.1.2/3`.
fn rfc(id: &str) -> &str {
    let rest = id.split_once('/').map_or("", |(_, rest)| rest);
    rest.split(['-', '/']).next().unwrap_or(rest)
}

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('\n', " ")
        .replace('<', "&lt;")
}
