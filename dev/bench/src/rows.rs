//! Rows of tables, and the rounds that measure each row once.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Arguments;
use std::io::{self, IsTerminal, stderr};

use crate::stats::Spread;

/// Unit of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// 10^9 bytes per second.
    Bandwidth,
    /// 10^6 messages per second.
    Rate,
    /// Microseconds.
    Latency,
    /// Kibibytes.
    Memory,
}

impl Unit {
    /// Returns the name in tables, and the size in bytes, messages or seconds.
    pub(crate) fn scale(self) -> (&'static str, f64) {
        match self {
            Unit::Bandwidth => ("GB/s", 1e9),
            Unit::Rate => ("M/s", 1e6),
            Unit::Latency => ("us", 1e-6),
            Unit::Memory => ("KiB", 1024.0),
        }
    }
}

/// A table of the report.
#[derive(PartialEq, Debug)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
}

impl Table {
    pub(crate) const fn new(title: &'static str, unit: Unit) -> Self {
        Table { title, unit }
    }
}

/// Value of a measurement, with its processor time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// Bytes per second, messages per second, seconds, or bytes.
    pub(crate) value: f64,
    /// Processor time of both sides in seconds per 10^9 bytes.
    pub(crate) cpu: Option<f64>,
}

impl Sample {
    pub(crate) const fn of(value: f64) -> Self {
        Sample { value, cpu: None }
    }

    fn cpu(&self) -> f64 {
        self.cpu.unwrap_or(f64::NAN)
    }
}

/// Rows by which a row is divided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    /// The row with this name.
    Row(Cow<'static, str>),
    /// The best, in each round, of the rows whose names begin with this.
    Best(&'static str),
    /// The row with this name. Above 1, the divided row is faster, for latencies as well.
    Ahead(Cow<'static, str>),
}

impl Base {
    pub(crate) const fn row(name: &'static str) -> Self {
        Base::Row(Cow::Borrowed(name))
    }

    pub(crate) fn includes(&self, name: &str) -> bool {
        match self {
            Base::Row(base) | Base::Ahead(base) => name == base,
            Base::Best(prefix) => name.starts_with(prefix),
        }
    }

    /// Formats a ratio to this base.
    pub(crate) fn told(&self, ratio: Spread) -> String {
        match self {
            Base::Row(name) => format!("{ratio} to {name}"),
            Base::Best(prefix) => format!("{ratio} to the best {prefix}"),
            Base::Ahead(name) => format!("{ratio} times as fast as {name}"),
        }
    }
}

/// A row of a table, with a sample for each round.
#[derive(Clone, Debug)]
pub(crate) struct Row<W> {
    pub(crate) table: &'static Table,
    pub(crate) name: String,
    pub(crate) bases: Vec<Base>,
    /// Description of how to repeat the measurement.
    pub(crate) how: String,
    /// Parameters of the measurement.
    pub(crate) work: W,
    pub(crate) samples: Vec<Sample>,
    /// Reason of the last sample that is missing.
    pub(crate) failure: Option<String>,
}

impl<W> Row<W> {
    pub(crate) fn new(
        table: &'static Table,
        name: impl Into<String>,
        how: impl Into<String>,
        bases: &[Base],
        work: W,
    ) -> Self {
        Row {
            table,
            name: name.into(),
            bases: bases.to_vec(),
            how: how.into(),
            work,
            samples: Vec::new(),
            failure: None,
        }
    }

    /// Returns the values in the unit of the table.
    pub(crate) fn values(&self) -> Vec<f64> {
        let (_, scale) = self.table.unit.scale();
        (self.samples.iter().map(|sample| sample.value / scale)).collect()
    }

    /// Returns the processor times in seconds per 10^9 bytes. Only bandwidths have some.
    pub(crate) fn cpu(&self) -> Option<Spread> {
        let is_bandwidth = self.table.unit == Unit::Bandwidth;
        Spread::of(self.samples.iter().map(Sample::cpu)).filter(|_| is_bandwidth)
    }

    /// Computes the ratios of the samples to those of the base in the same round.
    pub(crate) fn ratios(&self, base: &Base, all: &[Row<W>]) -> Option<Spread> {
        let ratios = self.divided(base, all, |sample| sample.value);
        let inverted = matches!(base, Base::Ahead(_)) && self.table.unit == Unit::Latency;
        let ahead = |ratio: f64| if inverted { 1.0 / ratio } else { ratio };
        Spread::of(ratios.into_iter().map(ahead))
    }

    /// Computes the ratios of the processor times to those of the base that is one row, and returns
    /// them with the name of that row.
    pub(crate) fn cpu_ratios(&self, all: &[Row<W>]) -> Option<(Spread, &str)> {
        let (base, name) = self.bases.iter().find_map(|base| match base {
            Base::Row(name) => Some((base, name)),
            _ => None,
        })?;
        Some((Spread::of(self.divided(base, all, Sample::cpu))?, name))
    }

    fn divided(&self, base: &Base, all: &[Row<W>], value: fn(&Sample) -> f64) -> Vec<f64> {
        let is_base = |row: &&Row<W>| base.includes(&row.name) && row.table.unit == self.table.unit;
        let bases: Vec<&Row<W>> = all.iter().filter(is_base).collect();
        let ratio = |(round, sample): (usize, &Sample)| {
            let same_round = bases.iter().filter_map(|row| row.samples.get(round));
            value(sample) / same_round.map(value).fold(f64::NAN, f64::max)
        };
        self.samples.iter().enumerate().map(ratio).collect()
    }
}

/// Keeps the rows that have one of these words in their names, and the rows by which those are
/// divided. Keeps all rows if there are no words.
pub(crate) fn select<W>(rows: Vec<Row<W>>, words: &[String]) -> Vec<Row<W>> {
    let named = |row: &Row<W>| words.iter().any(|word| row.name.contains(word.as_str()));
    let wanted = rows.iter().filter(|row| named(row));
    let bases: Vec<Base> = wanted.flat_map(|row| row.bases.clone()).collect();
    let is_base = |row: &Row<W>| bases.iter().any(|base| base.includes(&row.name));
    let keep = |row: &Row<W>| words.is_empty() || named(row) || is_base(row);
    rows.into_iter().filter(keep).collect()
}

/// Measures every row once in each round. Each reason for a missing value is printed once.
pub(crate) fn run<W>(
    rows: &mut [Row<W>],
    rounds: usize,
    mut measure: impl FnMut(&W, Unit) -> io::Result<Sample>,
) {
    let count = rows.len();
    let mut told = HashSet::new();
    for round in 1..=rounds {
        for (at, row) in rows.iter_mut().enumerate() {
            let (at, name) = (at + 1, &row.name);
            progress(format_args!(
                "round {round} of {rounds}: {at} of {count}, {name}"
            ));
            let sample = measure(&row.work, row.table.unit).unwrap_or_else(|error| {
                let why = error.to_string();
                if told.insert(why.clone()) {
                    progress(format_args!(""));
                    eprintln!("SKIPPED: {name}: {why}");
                }
                row.failure = Some(why);
                Sample::of(f64::NAN)
            });
            row.samples.push(sample);
        }
    }
    progress(format_args!(""));
}

/// Shows the current measurement in one line of a terminal, which the next one overwrites.
fn progress(what: Arguments<'_>) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
    }
}

/// Asserts that each name is there once, and that each base is a row of the same unit.
#[cfg(test)]
pub(crate) fn assert_complete<W>(rows: &[Row<W>]) {
    for (at, row) in rows.iter().enumerate() {
        let name = &row.name;
        assert!(rows[..at].iter().all(|other| other.name != *name), "{name}");
        for base in &row.bases {
            let mut bases = rows.iter().filter(|other| base.includes(&other.name));
            assert!(
                bases.any(|other| other.table.unit == row.table.unit),
                "{name}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: Table = Table::new("Bandwidth", Unit::Bandwidth);
    const LATENCY: Table = Table::new("Latency", Unit::Latency);

    fn row(table: &'static Table, name: &str, bases: &[Base], values: &[f64]) -> Row<()> {
        let sample = |&value: &f64| Sample {
            cpu: Some(value / 10.0),
            ..Sample::of(value)
        };
        Row {
            samples: values.iter().map(sample).collect(),
            ..Row::new(table, name, "", bases, ())
        }
    }

    fn median(row: &Row<()>, all: &[Row<()>]) -> Option<f64> {
        let spread = row.ratios(row.bases.first()?, all)?;
        Some((spread.median * 1e6).round() / 1e6)
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let raw = [row(&BANDWIDTH, "raw", &[], &[10.0, 1.0, 11.0])];
        // The ratio is 2 in each round, although one round was ten times slower.
        let ours = row(&BANDWIDTH, "ours", &[Base::row("raw")], &[20.0, 2.0, 22.0]);
        let ratios = ours.ratios(&ours.bases[0], &raw).unwrap();
        assert_eq!(ratios.to_string(), "2.00 (2.00 to 2.00)");
        let (cpu, name) = ours.cpu_ratios(&raw).unwrap();
        assert!((cpu.median - 2.0).abs() < 1e-9 && name == "raw");
    }

    #[test]
    fn the_best_is_chosen_in_each_round_among_rows_of_the_same_unit() {
        let all = [
            row(&BANDWIDTH, "raw writes of 1", &[], &[6.0, 3.0]),
            row(&BANDWIDTH, "raw writes of 2", &[], &[3.0, f64::NAN]),
            row(&LATENCY, "raw writes of 3", &[], &[90.0, 90.0]),
        ];
        let best = [Base::Best("raw writes")];
        let ours = row(&BANDWIDTH, "ours", &best, &[12.0, 6.0]);
        assert_eq!(median(&ours, &all), Some(2.0));
    }

    #[test]
    fn ahead_is_more_of_a_bandwidth_and_less_of_a_latency() {
        let ahead = [Base::Ahead("theirs".into())];
        for (table, ours, theirs) in [(&BANDWIDTH, 6.0, 2.0), (&LATENCY, 2.0, 6.0)] {
            let all = [row(table, "theirs", &[], &[theirs])];
            assert_eq!(
                median(&row(table, "ours", &ahead, &[ours]), &all),
                Some(3.0)
            );
        }
    }

    #[test]
    fn a_filter_keeps_the_rows_that_the_named_ones_are_divided_by() {
        let rows = vec![
            row(&BANDWIDTH, "raw", &[], &[]),
            row(&BANDWIDTH, "64 KiB Write", &[Base::row("raw")], &[]),
            row(&BANDWIDTH, "64 KiB Send", &[Base::row("raw")], &[]),
        ];
        let names = |words: &[String]| -> Vec<String> {
            let kept = select(rows.clone(), words);
            kept.into_iter().map(|row| row.name).collect()
        };
        assert_eq!(names(&["Write".to_owned()]), ["raw", "64 KiB Write"]);
        assert_eq!(names(&[]).len(), 3);
    }

    #[test]
    fn what_fails_has_a_reason_and_no_value() {
        let mut rows = [row(&BANDWIDTH, "ours", &[], &[])];
        run(&mut rows, 2, |(), _| Err(io::Error::other("not installed")));
        assert_eq!(rows[0].failure.as_deref(), Some("not installed"));
        assert_eq!(rows[0].samples.len(), 2);
        assert!(rows[0].values().iter().all(|value| value.is_nan()));
    }
}
