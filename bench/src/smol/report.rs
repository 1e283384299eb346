//! Tables of figures over TCP in user space.

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
    fn spread(&self) -> Option<Spread> {
        let (_, scale) = self.figure.unit();
        Spread::of(values(&self.samples).into_iter().map(|value| value / scale))
    }
}

fn find<'a>(all: &'a [Measured], name: &str) -> Option<&'a Measured> {
    all.iter().find(|measured| measured.figure.name == name)
}

/// Returns the figure with the best median.
fn best<'a>(all: &'a [Measured], names: &[String]) -> Option<&'a Measured> {
    let median = |measured: &&Measured| measured.spread().map_or(f64::NEG_INFINITY, |s| s.median);
    names
        .iter()
        .filter_map(|name| find(all, name))
        .max_by(|one, other| median(one).total_cmp(&median(other)))
}

/// Creates the row of a target with its result.
fn row(goal: &Goal, all: &[Measured]) -> Option<Row> {
    let measured = find(all, &goal.name)?;
    let with = best(all, &goal.with)?;
    let ratios = Ratios::of(&measured.samples, &with.samples);
    let why = [measured, with]
        .into_iter()
        .find_map(|measured| measured.failure.as_deref());
    let told = match goal.with.len() {
        1 => with.figure.name.clone(),
        _ => format!("the best of {}: {}", goal.with.len(), with.figure.name),
    };
    Some(Row::of_ratios(
        &goal.name,
        told,
        goal.bound,
        &ratios,
        why.unwrap_or_default(),
    ))
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
        let has_command = section != Section::Memory && section != Section::Loss;
        let _ = writeln!(text, "\n### {title}\n");
        text.push_str(match has_command {
            true => "| | median (least to most) | unit | how |\n|---|---|---|---|\n",
            false => "| | median (least to most) | unit |\n|---|---|---|\n",
        });
        for measured in of {
            let figure = &measured.figure;
            let value = match (measured.spread(), &measured.failure) {
                (Some(spread), _) => spread.to_string(),
                (None, Some(why)) => why.clone(),
                (None, None) => verdicts::NOT_MEASURED.to_owned(),
            };
            let _ = write!(text, "| {} | {value} | {} |", figure.name, figure.unit().0);
            if has_command {
                let _ = write!(text, " {} |", figure.command());
            }
            text.push('\n');
        }
    }
    text
}

/// Returns true if a selected figure is divided by this one. This figure must then be measured as
/// well.
pub(super) fn is_base(figure: &Figure, goals: &[Goal], wanted: impl Fn(&str) -> bool) -> bool {
    let of = |goal: &&Goal| goal.with.contains(&figure.name);
    goals.iter().filter(of).any(|goal| wanted(&goal.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smol::child::Who;
    use crate::smol::figures::{self, All, Of, Work};

    /// Creates results of two rounds, in which bare and raw figures are 2 and uwarp's are 3.
    /// Without `offloads`, uwarp's figures with offloads are missing.
    fn measured(offloads: bool) -> (Vec<Goal>, Vec<Measured>) {
        let All { figures, goals } = figures::all();
        let of = |figure: Figure| {
            let (_, scale) = figure.unit();
            let (ours, missing) = match figure.of {
                Of::Loopback(..) => (false, false),
                Of::Memory { who, .. } => (who == Who::Ours, false),
                Of::Device { offload, work, .. } => {
                    let ours = matches!(work, Work::Ours(..));
                    (ours, ours && offload && !offloads)
                }
            };
            let value = match (missing, ours) {
                (true, _) => f64::NAN,
                (_, true) => 3.0 * scale,
                (_, false) => 2.0 * scale,
            };
            Measured {
                figure,
                samples: vec![Sample::of(value); 2],
                failure: missing.then(|| "it has none".to_owned()),
            }
        };
        let all = figures.into_iter().map(of).collect();
        (goals, all)
    }

    #[test]
    fn every_goal_has_a_row_and_every_row_its_columns() {
        for offloads in [true, false] {
            let (goals, all) = measured(offloads);
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
            // Each of the six tables has a line under its head.
            assert_eq!(rows, goals.len() + all.len() + 6);
        }
    }

    #[test]
    fn a_device_without_offloads_is_named_as_such() {
        let (goals, all) = measured(false);
        let text = report(&goals, &all);
        let row = |begins: &str| text.lines().find(|line| line.starts_with(begins)).unwrap();
        assert_eq!(
            row("| 64 KiB Write, FPDUs over segments, TAP, offloads, out |"),
            "| 64 KiB Write, FPDUs over segments, TAP, offloads, out | bare smoltcp, TAP, offloads, out | at least 0.8 | it has none | not measured |"
        );
        let (goals, all) = measured(true);
        let text = report(&goals, &all);
        let row = |begins: &str| text.lines().find(|line| line.starts_with(begins)).unwrap();
        assert!(
            row("| 64 KiB Write, FPDUs over segments, TAP, offloads, out |")
                .ends_with("1.50 (1.50 to 1.50) | met |")
        );
        assert!(row("| 8 B Write, TAP |").ends_with("| **not met** |"));
    }

    #[test]
    fn the_best_setting_is_the_one_of_the_best_median() {
        let (goals, mut all) = measured(true);
        let set = |all: &mut Vec<Measured>, name: &str, values: [f64; 2]| {
            let found = all.iter_mut().find(|measured| measured.figure.name == name);
            let of = Sample::of;
            found.unwrap().samples = values.map(of).into();
        };
        set(
            &mut all,
            "bare smoltcp, congestion control cubic, 1 % lost",
            [4e9, 3e9],
        );
        set(
            &mut all,
            "bare smoltcp, congestion control reno, 1 % lost",
            [5e9, 0.1e9],
        );
        let text = report(&goals, &all);
        let row = text
            .lines()
            .find(|line| {
                line.starts_with("| 64 KiB Write, no congestion control, early recovery, 1 % lost")
            })
            .unwrap();
        assert_eq!(
            row,
            "| 64 KiB Write, no congestion control, early recovery, 1 % lost | the best of 3: bare smoltcp, congestion control cubic, 1 % lost \
             | at least 0.9 | 0.88 (0.75 to 1.00) | **not met** |"
        );
    }
}
