//! Tables of unmodified programs.

use std::fmt::Write as _;

use super::figures::{Figure, Goal, Section};
use crate::rounds::values;
use crate::sample::Sample;
use crate::stats::{Ratios, Spread};
use crate::verdicts::{self, Row};

/// A figure, with a sample for each round. `failure` is the reason if a sample is missing.
pub(super) struct Measured {
    pub(super) figure: Figure,
    pub(super) samples: Vec<Sample>,
    pub(super) failure: Option<String>,
}

impl Measured {
    pub(super) fn new(figure: Figure) -> Self {
        Measured {
            figure,
            samples: Vec::new(),
            failure: None,
        }
    }

    fn spread(&self) -> Option<Spread> {
        let (_, scale) = self.figure.unit();
        Spread::of(values(&self.samples).into_iter().map(|value| value / scale))
    }
}

fn find<'a>(all: &'a [Measured], name: &str) -> Option<&'a Measured> {
    all.iter().find(|measured| measured.figure.name == name)
}

/// Creates the row of a target with its result.
fn row(goal: &Goal, all: &[Measured]) -> Option<Row> {
    let measured = find(all, goal.name)?;
    let (unit, scale) = measured.figure.unit();
    let (with, ratios, failure) = match goal.with {
        // The value is expressed as a ratio to its unit, so that the row also has medians by
        // distance.
        None => {
            let values = Ratios::to(&measured.samples, |_, _| scale);
            (unit, values, measured.failure.as_deref())
        }
        Some(name) => {
            let with = find(all, name)?;
            let failure = measured.failure.as_deref().or(with.failure.as_deref());
            (name, Ratios::of(&measured.samples, &with.samples), failure)
        }
    };
    let why = failure.unwrap_or_default();
    Some(Row::of_ratios(goal.name, with, goal.bound, &ratios, why))
}

/// Formats all tables.
pub(super) fn report(goals: &[Goal], all: &[Measured]) -> String {
    let rows: Vec<Row> = goals.iter().filter_map(|goal| row(goal, all)).collect();
    let mut text = verdicts::table(&rows);
    for (section, title) in Section::ALL {
        let mut of = all
            .iter()
            .filter(|measured| measured.figure.section == section)
            .peekable();
        if of.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "\n### {title}\n");
        text.push_str("| | median (least to most) | unit | how |\n|---|---|---|---|\n");
        for measured in of {
            let figure = &measured.figure;
            let value = match (measured.spread(), &measured.failure) {
                (Some(spread), _) => spread.to_string(),
                (None, Some(why)) => why.clone(),
                (None, None) => verdicts::NOT_MEASURED.to_owned(),
            };
            let (name, unit, how) = (figure.name, figure.unit().0, figure.command());
            let _ = writeln!(text, "| {name} | {value} | {unit} | {how} |");
        }
    }
    text
}

/// Returns true if a selected figure is divided by this one. This figure must then be measured as
/// well.
pub(super) fn is_base(figure: &Figure, goals: &[Goal], wanted: impl Fn(&str) -> bool) -> bool {
    let of = |goal: &&Goal| goal.with == Some(figure.name);
    goals.iter().filter(of).any(|goal| wanted(goal.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dropin::figures;

    fn measured(failure: Option<&str>) -> Vec<Measured> {
        let of = |figure: Figure| {
            let (_, scale) = figure.unit();
            let value = if failure.is_some() { f64::NAN } else { scale };
            Measured {
                figure,
                samples: vec![Sample::of(value); 2],
                failure: failure.map(str::to_owned),
            }
        };
        figures::all().into_iter().map(of).collect()
    }

    #[test]
    fn every_goal_has_a_row_and_every_row_its_columns() {
        let (goals, all) = (figures::goals(), measured(None));
        let text = report(&goals, &all);
        let (mut head, mut rows) = (0, 0);
        for line in text.lines() {
            let columns = line.matches('|').count();
            match line.starts_with('|') {
                true if head == 0 => head = columns,
                true => {
                    assert_eq!(columns, head, "{line}");
                    rows += 1;
                }
                false => head = 0,
            }
        }
        // Each of the four tables has a line under its head.
        assert_eq!(rows, goals.len() + all.len() + 4);
        assert!(
            text.contains("four spinning threads | us | at most 60 | 1.00 (1.00 to 1.00) | met |")
        );
    }

    #[test]
    fn what_is_not_installed_is_named_as_such() {
        let (goals, all) = (figures::goals(), measured(Some("it is not installed")));
        let text = report(&goals, &all);
        assert!(text.starts_with(&format!("0 met, 0 not met, {} not measured.", goals.len())));
        assert!(text.contains("| at least 0.9 | it is not installed | not measured |"));
    }
}
