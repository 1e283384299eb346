//! Formats the report as Markdown tables.

use std::fmt::Write as _;

use crate::figures::{Figure, RAW_64K, Section};
use crate::ours::Metric;
use crate::peers::Test;
use crate::rounds::{Measured, cpu, values};
use crate::sample::Sample;
use crate::stats::{Ratios, Spread, digits};
use crate::sweep::{PAIRS, Pair, Swept};
use crate::targets::{self, Measure, Target};
use crate::verdicts::{self, MET, NOT_MEASURED, NOT_MET, Row};

/// Formats each target with its result.
pub(crate) fn targets(measured: &Measured, swept: Option<&Swept>) -> String {
    let mut rows = Vec::new();
    for target in targets::all() {
        rows.extend(row(&target, measured));
    }
    if let Some(swept) = swept {
        rows.extend(peer_rows(swept));
    }
    verdicts::table(&rows)
}

fn row(target: &Target, measured: &Measured) -> Option<Row> {
    let (figure, samples) = measured.find(target.section, target.name)?;
    let (unit, scale) = figure.unit();
    let section = match target.section {
        Section::CrcOff => ", CRC off",
        Section::Sleeping if matches!(target.measure, Measure::Cpu(_)) => ", both sleep",
        _ => "",
    };
    let name = format!("{}{section}", target.name);
    let (ratios, with) = match target.measure {
        Measure::Raw(base) => (
            Ratios::to(samples, measured.base(base)?),
            base.told().to_owned(),
        ),
        Measure::Ours(section, name) => {
            let (_, others) = measured.find(section, name)?;
            (Ratios::of(samples, others), format!("{name}, both poll"))
        }
        Measure::Cpu(raw) => (
            measured.cpu_ratios(samples, raw)?,
            format!("processor time per GB of {raw}"),
        ),
        // The value is expressed as a ratio to its unit, so that the row also has medians by
        // distance.
        Measure::Value => (Ratios::to(samples, |_, _| scale), unit.to_owned()),
    };
    Some(Row::of_ratios(name, with, target.bound, &ratios, ""))
}

/// Returns the rows of targets against other programs. uwarp must be faster than each program at
/// every size, and several times faster in two tests at 64 KiB.
fn peer_rows(swept: &Swept) -> Vec<Row> {
    let mut rows = Vec::new();
    for pair in PAIRS {
        for test in pair.peers {
            rows.push(peer_row(swept, pair, *test));
        }
    }
    for (test, bound) in [(Test::UcxTag, 3.0), (Test::UcxPut, 6.0)] {
        let cell = swept
            .cells
            .iter()
            .find(|cell| cell.size == 64 << 10 && cell.pair.peers.contains(&test));
        let ahead = cell.and_then(|cell| cell.ahead(test));
        rows.push(Row {
            name: "64 KiB, bandwidth".to_owned(),
            with: test.name().to_owned(),
            bound: format!("at least {bound}"),
            reached: ahead.map_or_else(|| "not measured".to_owned(), |ahead| ahead.to_string()),
            verdict: match ahead {
                Some(ahead) if ahead.median >= bound => MET,
                _ => NOT_MET,
            },
        });
    }
    rows
}

/// Formats the range of sizes, such as `8 B to 1 MiB`.
fn told_sizes(sizes: &[usize]) -> String {
    match sizes {
        [] => String::new(),
        [one] => told_size(*one),
        [first, .., last] => format!("{} to {}", told_size(*first), told_size(*last)),
    }
}

fn peer_row(swept: &Swept, pair: Pair, test: Test) -> Row {
    let of = |cell: &&crate::sweep::Cell| cell.pair.name == pair.name;
    let all: Vec<(usize, Spread)> = swept
        .cells
        .iter()
        .filter(of)
        .filter_map(|cell| Some((cell.size, cell.ahead(test)?)))
        .collect();
    let behind: Vec<String> = all
        .iter()
        .filter(|(_, ahead)| ahead.median <= 1.0)
        .map(|(size, ahead)| format!("{} at {}", digits(ahead.median), told_size(*size)))
        .collect();
    let missing = swept.failures.iter().find(|(failed, _)| *failed == test);
    let (reached, verdict) = match (&all[..], missing) {
        ([], Some((_, why))) => (why.clone(), NOT_MEASURED),
        ([], None) => ("no values".to_owned(), NOT_MEASURED),
        (all, _) if behind.is_empty() && all.len() == pair.sizes.len() => {
            let medians = Spread::of(all.iter().map(|(_, ahead)| ahead.median));
            let told = medians
                .map(|spread| format!("{} to {} times", digits(spread.least), digits(spread.most)));
            (told.unwrap_or_default(), MET)
        }
        (all, _) if behind.is_empty() => (
            format!("ahead at {} sizes, the others failed", all.len()),
            NOT_MET,
        ),
        _ => (behind.join(", "), NOT_MET),
    };
    Row {
        name: format!("{}, {}", pair.name, told_sizes(pair.sizes)),
        with: test.name().to_owned(),
        bound: match pair.crc {
            true => "ahead at every size".to_owned(),
            false => "reported".to_owned(),
        },
        reached,
        verdict: if pair.crc { verdict } else { "" },
    }
}

/// Formats the tables of all figures.
pub(crate) fn tables(measured: &Measured) -> String {
    let mut text = String::new();
    for (section, title) in Section::ALL {
        let of: Vec<_> = measured
            .figures
            .iter()
            .filter(|(figure, _)| figure.section == section)
            .collect();
        if of.is_empty() {
            continue;
        }
        let has_cpu = of
            .iter()
            .any(|(_, samples)| Spread::of(values(&cpu(samples))).is_some())
            && !matches!(section, Section::Latency | Section::Rate);
        let _ = writeln!(text, "### {title}\n");
        text.push_str("| | median (least to most) | unit | ratio to raw | to |");
        text.push_str(if has_cpu {
            " CPU s/GB, both sides | ratio to raw writes of 64 KiB |"
        } else {
            ""
        });
        text.push_str(" how |\n|---|---|---|---|---|");
        text.push_str(if has_cpu { "---|---|---|\n" } else { "---|\n" });
        for (figure, samples) in of {
            line(&mut text, figure, samples, measured, has_cpu);
        }
        text.push('\n');
    }
    text
}

fn line(
    text: &mut String,
    figure: &Figure,
    samples: &[Sample],
    measured: &Measured,
    has_cpu: bool,
) {
    let (unit, scale) = figure.unit();
    let told =
        |spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.to_string());
    let value = Spread::of(values(samples).into_iter().map(|value| value / scale));
    let ratio = figure.base.and_then(|base| {
        let ratio = Ratios::to(samples, measured.base(base)?).spread()?;
        Some((ratio.to_string(), base.told()))
    });
    let (ratio, to) = ratio.unwrap_or_default();
    let _ = write!(
        text,
        "| {} | {} | {unit} | {ratio} | {to} |",
        figure.name,
        value.map_or_else(|| "failed".to_owned(), |value| value.to_string()),
    );
    if has_cpu {
        let cpu_ratio = if figure.is_raw() {
            None
        } else {
            let ratios = measured.cpu_ratios(samples, RAW_64K);
            ratios.and_then(|ratios| ratios.spread())
        };
        let _ = write!(
            text,
            " {} | {} |",
            told(Spread::of(values(&cpu(samples)))),
            told(cpu_ratio)
        );
    }
    let _ = writeln!(text, " {} |", figure.command());
}

/// Formats the tables of the comparison with other programs.
pub(crate) fn peers(swept: &Swept) -> String {
    let mut text = String::new();
    for pair in PAIRS {
        let unit = match pair.metric {
            Metric::Latency => "us, one way, the median of a run",
            _ => "GB/s",
        };
        let _ = writeln!(text, "### {} ({unit})\n", pair.name);
        text.push_str("| size | uwarp |");
        for test in pair.peers {
            let _ = write!(text, " {} | ahead |", test.name());
        }
        text.push_str("\n|---|---|");
        text.push_str(&"---|---|".repeat(pair.peers.len()));
        text.push('\n');
        for cell in swept
            .cells
            .iter()
            .filter(|cell| cell.pair.name == pair.name)
        {
            let scale = match pair.metric {
                Metric::Latency => 1e-6,
                _ => 1e9,
            };
            let median = |samples: &[Sample]| {
                let scaled = values(samples).into_iter().map(|value| value / scale);
                Spread::of(scaled).map_or_else(|| "-".to_owned(), |spread| digits(spread.median))
            };
            let _ = write!(
                text,
                "| {} | {} |",
                told_size(cell.size),
                median(&cell.ours)
            );
            for (test, samples) in &cell.theirs {
                let ahead = cell.ahead(*test);
                let ahead = ahead.map_or_else(|| "-".to_owned(), |ahead| ahead.to_string());
                let _ = write!(text, " {} | {ahead} |", median(samples));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    for (size, values) in &swept.iperf {
        if let Some(spread) = Spread::of(values.iter().map(|value| value / 1e9)) {
            let size = told_size(*size);
            let _ = writeln!(text, "iperf3 `-l {size}`: {spread} GB/s.");
        }
    }
    for (test, why) in &swept.failures {
        let _ = writeln!(text, "{}: {why}.", test.name());
    }
    text
}

fn told_size(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;
    use crate::sweep::Cell;

    /// Creates results of two rounds, in which raw figures are 1 and uwarp's are 2.
    fn measured() -> Measured {
        let samples = |figure: &Figure| {
            let (_, scale) = figure.unit();
            let value = if figure.is_raw() { scale } else { 2.0 * scale };
            let cpu = Some(value);
            vec![
                Sample {
                    cpu,
                    ..Sample::of(value)
                };
                2
            ]
        };
        let all = figures::all().into_iter();
        Measured {
            figures: all
                .map(|figure| (figure.clone(), samples(&figure)))
                .collect(),
        }
    }

    fn swept(ours: f64) -> Swept {
        let mut cells = Vec::new();
        for pair in PAIRS {
            cells.extend(pair.sizes.iter().map(|size| {
                Cell {
                    pair,
                    size: *size,
                    ours: vec![Sample::of(if pair.metric == Metric::Latency {
                        1.0 / ours
                    } else {
                        ours
                    })],
                    theirs: pair
                        .peers
                        .iter()
                        .map(|test| (*test, vec![Sample::of(1.0)]))
                        .collect(),
                }
            }));
        }
        Swept {
            cells,
            iperf: vec![(64 << 10, vec![1e9])],
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_target_has_its_number_and_its_verdict() {
        let text = targets(&measured(), Some(&swept(4.0)));
        let row = |begins: &str| text.lines().find(|line| line.starts_with(begins)).unwrap();
        assert_eq!(
            row("| 64 KiB Write |"),
            "| 64 KiB Write | raw writes of 64 KiB | at least 1.2 | 2.00 (2.00 to 2.00) | met |"
        );
        assert!(row("| 8 B Write, both poll |").ends_with("| **not met** |"));
        assert!(row("| 8 B Send, both in poll(2) on the channel |").ends_with("|  |"));
        assert!(
            row("| 8 B Write, lists of 64 |")
                .contains("| M/s | at least 10 | 2.00 (2.00 to 2.00) | **not met**")
        );
        assert!(row("| 64 KiB Write, both sleep |").contains("at most 1.3"));
        assert!(row("| Write, 8 B to 1 MiB |").contains("4.00 to 4.00 times | met"));
        assert!(row("| 64 KiB, bandwidth | UCX `ucp_put_bw`").ends_with("| **not met** |"));
    }

    #[test]
    fn sizes_at_which_a_peer_is_ahead_are_named() {
        let text = targets(&measured(), Some(&swept(0.5)));
        assert!(text.contains("0.50 at 8 B, 0.50 at 64 B"));
    }

    #[test]
    fn a_peer_that_is_missing_is_named_as_such() {
        let mut swept = swept(4.0);
        for cell in &mut swept.cells {
            cell.theirs.retain(|(test, _)| *test != Test::Pingpong);
        }
        let why = "fi_pingpong is not installed".to_owned();
        swept.failures.push((Test::Pingpong, why));
        let text = targets(&measured(), Some(&swept));
        assert!(text.contains("fi_pingpong is not installed | not measured |"));
        assert!(peers(&swept).contains("fi_pingpong is not installed."));
    }

    #[test]
    fn every_row_of_a_table_has_as_many_columns_as_its_head() {
        let columns = |line: &str| line.matches('|').count();
        for text in [
            tables(&measured()),
            peers(&swept(4.0)),
            targets(&measured(), None),
        ] {
            let mut head = 0;
            for line in text.lines() {
                if !line.starts_with('|') {
                    head = 0;
                } else if head == 0 {
                    head = columns(line);
                } else {
                    assert_eq!(columns(line), head, "{line}");
                }
            }
        }
    }
}
