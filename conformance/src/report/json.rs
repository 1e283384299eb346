//! Report of a run as a JSON document.

use serde_json::{Value, json};

use super::about::About;
use super::fields::fields_of;
use crate::run::{Failure, Outcome, Verdict, Who};

/// Converts the outcomes of a run to JSON for other programs. Bytes are hexadecimal strings.
#[must_use]
pub fn json(about: &About, outcomes: &[Outcome]) -> Value {
    json!({
        "suite": "uwarp-conformance",
        "version": env!("CARGO_PKG_VERSION"),
        "date": about.date,
        "seed": about.seed,
        "target": about.target,
        "cases": outcomes.iter().map(case).collect::<Vec<_>>(),
    })
}

fn case(outcome: &Outcome) -> Value {
    let mut value = json!({
        "id": outcome.id,
        "level": outcome.level.to_string(),
        "rule": outcome.rule,
        "requirements": outcome.requirements,
        "verdict": outcome.verdict.word(),
        "milliseconds": outcome.millis,
        "ending": outcome.ending.map(|ending| ending.to_string()),
        "log": outcome.log.iter().map(|entry| json!({
            "who": match entry.who {
                Who::Suite => "suite",
                Who::Target => "target",
                Who::Note => "note",
            },
            "connection": entry.connection,
            "microseconds": entry.at,
            "text": entry.text,
            "bytes": hex(&entry.bytes),
            "fields": fields_of(entry).iter().map(|field| json!({
                "at": field.at,
                "name": field.name,
                "bytes": hex(&field.bytes),
                "says": field.says,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    });
    match &outcome.verdict {
        Verdict::Pass => {}
        Verdict::Fail(failure) => add(&mut value, failure),
        Verdict::Deviation(reason, failure) => {
            value["reason"] = json!(reason);
            add(&mut value, failure);
        }
        Verdict::Skipped(reason)
        | Verdict::Unexpected(reason)
        | Verdict::Infrastructure(reason) => value["reason"] = json!(reason),
    }
    value
}

fn add(value: &mut Value, failure: &Failure) {
    value["step"] = json!(failure.step);
    value["sent"] = json!(failure.sent);
    value["expected"] = json!(failure.expected);
    value["received"] = json!(failure.received);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
