//! Tables of figures with many connections and regions.

use std::fmt::Write as _;

use super::figures::Figure;
use super::pair::Carrier;
use crate::rounds::values;
use crate::sample::Sample;
use crate::stats::{Ratios, Spread};
use crate::targets::Bound;
use crate::verdicts::{self, Row};

/// A row: its samples in the order of the rounds, and the samples that it is compared with.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) samples: Vec<Sample>,
    /// Name and samples of the first row of its kind.
    pub(super) base: Option<(String, Vec<Sample>)>,
    pub(super) target: Option<Target>,
}

/// Target of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Target {
    /// Bound of the ratio to the first row of its kind.
    Ratio(Bound),
    /// Bound of the value itself.
    Value(Bound),
}

/// A table.
pub(super) struct Part {
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
}

/// Formats the figures of a carrier.
pub(super) fn part(carrier: Carrier, measured: &[(Figure, Vec<Sample>)]) -> Part {
    let line = |(figure, samples): &(Figure, Vec<Sample>)| {
        let base = figure.base.as_ref().and_then(|base| {
            let (_, samples) = measured.iter().find(|(other, _)| other.name == *base)?;
            Some((base.clone(), samples.clone()))
        });
        Line {
            name: figure.name.clone(),
            unit: figure.unit,
            samples: samples.clone(),
            base,
            target: figure.bound.map(Target::Ratio),
        }
    };
    let how = match carrier {
        Carrier::Kernel => "the kernel's TCP, loopback, two processes",
        Carrier::Smol => "smoltcp on a link in memory, one process",
    };
    Part {
        title: format!("Over {how}"),
        lines: measured.iter().map(line).collect(),
    }
}

impl Line {
    fn ratios(&self) -> Option<Ratios> {
        let (_, base) = self.base.as_ref()?;
        Some(Ratios::of(&self.samples, base))
    }

    fn spread(&self) -> Option<Spread> {
        Spread::of(values(&self.samples))
    }

    fn row(&self, title: &str) -> Option<Row> {
        let name = format!("{}: {}", short(title), self.name);
        Some(match self.target? {
            Target::Ratio(bound) => {
                let (base, _) = self.base.as_ref()?;
                Row::of_ratios(name, base, bound, &self.ratios()?, "")
            }
            Target::Value(bound) => Row::judged(name, self.unit, bound, self.spread().ok_or("")),
        })
    }
}

/// Returns the text before the first comma.
fn short(title: &str) -> &str {
    title.split(',').next().unwrap_or(title)
}

/// Formats all tables.
pub(super) fn report(parts: &[Part]) -> String {
    let rows = |part: &Part| {
        let rows: Vec<Row> = part
            .lines
            .iter()
            .filter_map(|line| line.row(&part.title))
            .collect();
        rows
    };
    let mut text = verdicts::table(&parts.iter().flat_map(rows).collect::<Vec<_>>());
    for part in parts.iter().filter(|part| !part.lines.is_empty()) {
        let _ = writeln!(text, "\n### {}\n", part.title);
        text.push_str("| | median (least to most) | unit | ratio to the first of its kind |\n|---|---|---|---|\n");
        for line in &part.lines {
            let told = |spread: Option<Spread>| spread.map(|spread| spread.to_string());
            let value = match line.samples.len() {
                // Memory is measured only once, so it has no extremes.
                1 => line
                    .spread()
                    .map(|spread| crate::stats::digits(spread.median)),
                _ => told(line.spread()),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                line.name,
                value.unwrap_or_else(|| verdicts::NOT_MEASURED.to_owned()),
                line.unit,
                told(line.ratios().and_then(|ratios| ratios.spread())).unwrap_or_default()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::figures::{Numbers, all};

    fn parts() -> Vec<Part> {
        let numbers = Numbers {
            conns: vec![1, 1_000],
            regions: vec![1, 1_000],
            seconds: 0.5,
        };
        let measured = |carrier| {
            let values = |figure: Figure| match figure.base {
                None => (figure, [2.0, 4.0].map(Sample::of).to_vec()),
                Some(_) => (figure, [3.0, 6.0].map(Sample::of).to_vec()),
            };
            all(carrier, &numbers).into_iter().map(values).collect()
        };
        let mut parts: Vec<Part> = Carrier::ALL
            .map(|carrier| {
                let measured: Vec<_> = measured(carrier);
                part(carrier, &measured)
            })
            .into();
        parts.push(Part {
            title: "Memory of idle connections".to_owned(),
            lines: vec![Line {
                name: "client".to_owned(),
                unit: "KiB",
                samples: vec![Sample::of(11.0)],
                base: None,
                target: Some(Target::Value(Bound::AtMost(12.0))),
            }],
        });
        parts
    }

    #[test]
    fn targets_are_of_ratios_and_of_values() {
        let text = report(&parts());
        let row = |begins: &str| text.lines().find(|line| line.starts_with(begins)).unwrap();
        assert!(text.starts_with("9 met, 2 not met.\n"), "{text}");
        assert_eq!(
            row("| Over the kernel's TCP: 8 B Send latency, 1 of 1000 active |"),
            "| Over the kernel's TCP: 8 B Send latency, 1 of 1000 active | 8 B Send latency, 1 of 1 active | at most 1.2 \
             | 1.50 (1.50 to 1.50) | **not met** |"
        );
        assert!(
            row("| Over smoltcp on a link in memory: 8 B Send latency, 1 of 1000")
                .ends_with("| met |")
        );
        assert_eq!(
            row("| Memory of idle connections: client |"),
            "| Memory of idle connections: client | KiB | at most 12 | 11.0 (11.0 to 11.0) | met |"
        );
        assert_eq!(row("| client |"), "| client | 11.0 | KiB |  |");
    }

    #[test]
    fn every_row_has_the_columns_of_its_head() {
        let text = report(&parts());
        let mut head = 0;
        for line in text.lines() {
            let columns = line.matches('|').count();
            match line.starts_with('|') {
                true if head == 0 => head = columns,
                true => assert_eq!(columns, head, "{line}"),
                false => head = 0,
            }
        }
    }
}
