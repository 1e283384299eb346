//! Report for a terminal: each failure in full, and a summary at the end.

use std::collections::BTreeMap;

use super::fields::fields_of;
use super::hexdump::hexdump;
use crate::catalogue::requirements;
use crate::run::{Failure, LogEntry, Outcome, Verdict, Who};
use crate::words::many;

/// Maximum number of bytes shown for a field.
const SHOWN: usize = 64;
/// Maximum number of fields shown for a log entry.
const FIELDS: usize = 40;
/// Maximum number of log entries shown before a failure.
const ENTRIES: usize = 6;

/// Number of cases with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Cases in which the target follows the rule.
    pub passed: usize,
    /// Cases in which the target breaks the rule.
    pub failed: usize,
    /// Cases that could not be tried.
    pub skipped: usize,
    /// Cases that failed, as the file of deviations expects.
    pub deviations: usize,
    /// Cases that passed, although the file of deviations expects a failure.
    pub unexpected: usize,
    /// Cases without a verdict, because the suite, its agent or the network failed.
    pub errors: usize,
}

impl Counts {
    /// Counts the verdicts of these outcomes.
    #[must_use]
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut counts = Counts::default();
        for outcome in outcomes {
            *match outcome.verdict {
                Verdict::Pass => &mut counts.passed,
                Verdict::Fail(_) => &mut counts.failed,
                Verdict::Skipped(_) => &mut counts.skipped,
                Verdict::Deviation(..) => &mut counts.deviations,
                Verdict::Unexpected(_) => &mut counts.unexpected,
                Verdict::Infrastructure(_) => &mut counts.errors,
            } += 1;
        }
        counts
    }

    /// Returns the number of cases with a verdict about the target.
    #[must_use]
    pub fn played(&self) -> usize {
        self.passed + self.failed + self.deviations + self.unexpected
    }
}

/// Formats a case that did not pass: its rule, its requirements, and the sent, expected and
/// received data with their bytes.
#[must_use]
pub fn failure(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} {} ({})\n  rule: {}\n",
        outcome.verdict.word().to_uppercase(),
        outcome.id,
        outcome.level,
        outcome.rule
    );
    match &outcome.verdict {
        Verdict::Fail(failure) => text.push_str(&details(outcome, failure)),
        Verdict::Deviation(reason, failure) => {
            text.push_str(&format!("  known: {reason}\n  received: {}\n", failure.received));
        }
        Verdict::Unexpected(reason) => text.push_str(&format!(
            "  the deviation no longer shows: {reason}\n  try: remove its entry from the file of deviations\n"
        )),
        Verdict::Skipped(why) | Verdict::Infrastructure(why) => {
            text.push_str(&format!("  why: {why}\n"));
        }
        Verdict::Pass => {}
    }
    text
}

fn details(outcome: &Outcome, failure: &Failure) -> String {
    let mut text = String::new();
    if !failure.sent.is_empty() {
        text.push_str(&format!("  sent: {}\n", failure.sent));
    }
    text.push_str(&format!("  expected: {}\n", failure.expected));
    text.push_str(&format!("  received: {}\n", failure.received));
    if let Some(ending) = failure.ending {
        text.push_str(&format!("  the connection's end: {ending}\n"));
    }
    let catalogue = requirements();
    for id in &outcome.requirements {
        let words = catalogue.get(id).map_or("", |row| row.text.as_str());
        text.push_str(&format!("  {id} (RFC {}): {words}\n", section(id)));
    }
    text.push_str("  on the wire:\n");
    let skip = outcome.log.len().saturating_sub(ENTRIES);
    for entry in &outcome.log[skip..] {
        text.push_str(&line(entry));
    }
    text
}

/// Formats the RFC and section of a requirement id: `5044-7.1.2-03` gives `5044 section 7.1.2`.
fn section(id: &str) -> String {
    let mut parts = id.splitn(3, '-');
    match (parts.next(), parts.next()) {
        (Some(rfc), Some(section)) => format!("{rfc} section {section}"),
        _ => id.to_owned(),
    }
}

fn line(entry: &LogEntry) -> String {
    let arrow = match entry.who {
        Who::Suite => "->",
        Who::Target => "<-",
        Who::Note => "--",
    };
    let (seconds, micros) = (entry.at / 1_000_000, entry.at % 1_000_000);
    format!(
        "    {seconds}.{micros:06} {arrow} {}\n{}",
        entry.text,
        named(entry)
    )
}

/// Formats the bytes of a log entry field by field. Long fields have sixteen bytes per line.
fn named(entry: &LogEntry) -> String {
    fields_of(entry)
        .iter()
        .take(FIELDS)
        .map(|field| {
            if field.bytes.len() <= 8 {
                let digits: Vec<String> = field
                    .bytes
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                format!(
                    "      {:04x}  {:<24} {:<26} {}\n",
                    field.at,
                    digits.join(" "),
                    field.name,
                    field.says
                )
            } else {
                format!(
                    "      {:04x}  {:<24} {:<26} {}\n{}",
                    field.at,
                    "",
                    field.name,
                    field.says,
                    hexdump(&field.bytes, "        ", SHOWN)
                )
            }
        })
        .collect()
}

/// Returns the reasons for skipped cases with their counts, most frequent first.
fn skipped(outcomes: &[Outcome]) -> Vec<(usize, &str)> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in outcomes {
        if let Verdict::Skipped(reason) = &outcome.verdict {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let mut counted: Vec<(usize, &str)> =
        reasons.iter().map(|(why, count)| (*count, *why)).collect();
    counted.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    counted
}

/// Formats the summary at the end of a report.
#[must_use]
pub fn summary(outcomes: &[Outcome]) -> String {
    let counts = Counts::of(outcomes);
    let mut text = String::new();
    for (count, why) in skipped(outcomes) {
        text.push_str(&format!("{count} skipped: {why}\n"));
    }
    if counts.unexpected > 0 {
        let (what, shows) = match counts.unexpected {
            1 => ("known deviation", "no longer shows"),
            _ => ("known deviations", "no longer show"),
        };
        text.push_str(&format!("{} {what} {shows}: failed\n", counts.unexpected));
    }
    text.push_str(&format!(
        "{} passed, {} failed, {} skipped",
        counts.passed,
        counts.failed + counts.unexpected,
        counts.skipped
    ));
    if counts.deviations > 0 {
        text.push_str(&format!(", {}", many(counts.deviations, "known deviation")));
    }
    if counts.errors > 0 {
        text.push_str(&format!(", {} could not be played", counts.errors));
    }
    if counts.played() == 0 {
        text.push_str(": nothing was played, so nothing is known about the target");
    }
    text
}

#[cfg(test)]
mod tests;
