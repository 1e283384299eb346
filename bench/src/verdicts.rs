//! Table of targets and their results.

use std::fmt::Write as _;

use crate::stats::{Ratios, Spread};
use crate::targets::Bound;

pub(crate) const MET: &str = "met";
pub(crate) const NOT_MET: &str = "**not met**";
pub(crate) const NOT_MEASURED: &str = "not measured";

/// A target and its result.
pub(crate) struct Row {
    pub(crate) name: String,
    /// Name of the figure with which it is compared.
    pub(crate) with: String,
    pub(crate) bound: String,
    pub(crate) reached: String,
    pub(crate) verdict: &'static str,
}

impl Row {
    /// Creates a row that is judged by the median. An `Err` is the reason for a missing value.
    pub(crate) fn judged(
        name: impl Into<String>,
        with: impl Into<String>,
        bound: Bound,
        reached: Result<Spread, &str>,
    ) -> Self {
        Row {
            name: name.into(),
            with: with.into(),
            bound: bound.told(),
            reached: match &reached {
                Ok(spread) => spread.to_string(),
                Err("") => NOT_MEASURED.to_owned(),
                Err(why) => (*why).to_owned(),
            },
            verdict: match &reached {
                Ok(_) if bound == Bound::Reported => "",
                Ok(spread) if bound.is_met(spread) => MET,
                Ok(_) => NOT_MET,
                Err(_) => NOT_MEASURED,
            },
        }
    }

    /// Creates a row of ratios. If the distance of the processors has changed, the row also has the
    /// median at each distance.
    pub(crate) fn of_ratios(
        name: impl Into<String>,
        with: impl Into<String>,
        bound: Bound,
        reached: &Ratios,
        why: &str,
    ) -> Self {
        let mut row = Row::judged(name, with, bound, reached.spread().ok_or(why));
        let by_distance = reached.by_distance();
        if !by_distance.is_empty() {
            row.reached.push_str("; ");
            row.reached.push_str(&by_distance);
        }
        row
    }
}

/// Formats the number of targets that are met, and a row for each target.
pub(crate) fn table(rows: &[Row]) -> String {
    let count = |verdict: &str| rows.iter().filter(|row| row.verdict == verdict).count();
    let mut text = format!("{} met, {} not met", count(MET), count(NOT_MET));
    match count(NOT_MEASURED) {
        0 => {}
        missing => {
            let _ = write!(text, ", {missing} not measured");
        }
    }
    text.push_str(".\n\n| measure | compared with | target | reached: median (least to most) | |\n|---|---|---|---|---|\n");
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.name, row.with, row.bound, row.reached, row.verdict
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_value_is_neither_met_nor_missed() {
        let spread = |value| Ok(Spread::of([value]).unwrap());
        let rows = [
            Row::judged("a", "b", Bound::AtLeast(0.8), spread(0.9)),
            Row::judged("c", "d", Bound::AtMost(0.8), spread(0.9)),
            Row::judged("e", "f", Bound::AtLeast(0.8), Err("it is not there")),
            Row::judged("g", "h", Bound::AtLeast(0.8), Err("")),
            Row::judged("i", "j", Bound::Reported, spread(1.0)),
        ];
        let lines: Vec<String> = table(&rows).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "1 met, 1 not met, 2 not measured.");
        let rows = &lines[4..];
        assert_eq!(
            rows[0],
            "| a | b | at least 0.8 | 0.90 (0.90 to 0.90) | met |"
        );
        assert!(rows[1].ends_with("| **not met** |"));
        assert!(rows[2].ends_with("| it is not there | not measured |"));
        assert!(rows[3].ends_with("| not measured | not measured |"));
        assert!(rows[4].ends_with("|  |"));
    }
}
