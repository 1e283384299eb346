//! The report: Markdown tables and JSON. The file has one section for each measured part.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::rows::{Row, Table};
use crate::stats::{Spread, digits};

/// Files that a run writes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Output {
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// File for all values as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A section of the report.
pub(crate) struct Section {
    pub(crate) heading: &'static str,
    pub(crate) text: String,
    pub(crate) values: Value,
}

impl Section {
    /// Creates a section with the tables of these rows, after some text.
    pub(crate) fn of_rows<W>(heading: &'static str, about: &str, rows: &[Row<W>]) -> Self {
        Section {
            heading,
            text: format!("{about}\n\n{}", tables(rows)),
            values: rows.iter().map(|row| values(row, rows)).collect(),
        }
    }
}

impl Output {
    /// Prints the sections and writes the files.
    pub(crate) fn publish(&self, sections: &[Section]) -> io::Result<()> {
        for section in sections {
            println!("\n{}", section.text);
        }
        if let Some(path) = &self.write {
            write(path, sections)?;
        }
        if let Some(path) = &self.json {
            let pair = |section: &Section| (section.heading.to_owned(), section.values.clone());
            let all = Value::Object(sections.iter().map(pair).collect());
            std::fs::write(path, format!("{all:#}\n"))?;
        }
        Ok(())
    }
}

/// Writes sections into the report at `path`. Creates the file if it does not exist. A section with
/// the same heading is replaced. Other sections remain.
fn write(path: &Path, sections: &[Section]) -> io::Result<()> {
    let mut report = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "# Report of the bench\n".into(),
        read => read?,
    };
    for section in sections {
        report = put(&report, section.heading, &section.text);
    }
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(path, report)
}

fn put(report: &str, heading: &str, text: &str) -> String {
    let begin = format!("\n## {heading}\n");
    let (before, rest) = report.split_once(&begin).unwrap_or((report, ""));
    let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
    format!("{before}{begin}\n{}\n{after}", text.trim())
}

/// Heads of the columns. The second one follows the unit.
#[rustfmt::skip]
const COLUMNS: [&str; 6] =
    ["", "median (least to most)", "ratio", "CPU s/GB, both sides", "ratio of CPU", "how"];

/// Formats the tables of these rows, each with its heading.
fn tables<W>(rows: &[Row<W>]) -> String {
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let Table { title, unit } = row.table;
        if rows[..at].iter().any(|before| before.table == row.table) {
            continue;
        }
        let mut head = COLUMNS.map(str::to_owned);
        head[1] = format!("{}: {}", unit.scale().0, head[1]);
        let of_table = rows.iter().filter(|other| other.table == row.table);
        let lines: Vec<_> = of_table.map(|row| line(row, rows)).collect();
        text.push_str(&format!("### {title}\n\n{}\n", table(&head, &lines)));
    }
    text
}

/// Formats a Markdown table. Leaves out the columns that are empty in all rows, except for the
/// first.
fn table<const N: usize>(head: &[String; N], rows: &[[String; N]]) -> String {
    let is_shown = |at: usize| at == 0 || rows.iter().any(|row| !row[at].is_empty());
    let line = |cells: &[String; N]| {
        let shown = cells.iter().enumerate().filter(|(at, _)| is_shown(*at));
        let cells: String = shown.map(|(_, cell)| format!(" {cell} |")).collect();
        format!("|{cells}\n")
    };
    let columns = (0..N).filter(|at| is_shown(*at)).count();
    let mut text = format!("{}|{}\n", line(head), "---|".repeat(columns));
    text.extend(rows.iter().map(line));
    text
}

fn line<W>(row: &Row<W>, all: &[Row<W>]) -> [String; 6] {
    let value = match (Spread::of(row.values()), &row.failure) {
        // A single value has no extremes.
        (Some(spread), _) if row.samples.len() == 1 => digits(spread.median),
        (Some(spread), Some(why)) => {
            let missing = row
                .samples
                .iter()
                .filter(|sample| sample.value.is_nan())
                .count();
            let rounds = row.samples.len();
            format!("{spread}, {missing} of {rounds} rounds failed: {why}")
        }
        (Some(spread), _) => spread.to_string(),
        (None, Some(why)) => format!("skipped: {why}"),
        (None, None) => "not measured".to_owned(),
    };
    let ratios = row.bases.iter();
    let ratios = ratios.filter_map(|base| Some(base.told(row.ratios(base, all)?)));
    let cpu = row.cpu();
    let cpu_ratios = cpu.and_then(|_| row.cpu_ratios(all));
    [
        row.name.clone(),
        value,
        ratios.collect::<Vec<_>>().join("; "),
        cpu.map(|cpu| cpu.to_string()).unwrap_or_default(),
        cpu_ratios.map_or_else(String::new, |(ratio, to)| format!("{ratio} to {to}")),
        row.how.clone(),
    ]
}

/// Returns all values of a row. Values that are missing are null.
fn values<W>(row: &Row<W>, all: &[Row<W>]) -> Value {
    let ratios = row.bases.iter();
    let ratios = ratios.filter_map(|base| Some(base.told(row.ratios(base, all)?)));
    let cpu: Vec<Option<f64>> = row.samples.iter().map(|sample| sample.cpu).collect();
    json!({
        "table": row.table.title,
        "name": row.name,
        "unit": row.table.unit.scale().0,
        "values": row.values(),
        "cpu": cpu,
        "ratios": ratios.collect::<Vec<_>>(),
        "how": row.how,
        "failure": row.failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Base, Sample, Unit};

    const REPORT: &str = "# Title\n\n## A\n\nold\n\n### Table\n\n## B\n\nother\n";
    const BANDWIDTH: Table = Table::new("Bandwidth", Unit::Bandwidth);

    fn row(name: &str, bases: &[Base], values: [f64; 2]) -> Row<()> {
        let sample = |value| Sample {
            cpu: Some(0.5),
            ..Sample::of(value)
        };
        Row {
            samples: values.map(sample).to_vec(),
            ..Row::new(&BANDWIDTH, name, "", bases, ())
        }
    }

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let report = put(REPORT, "A", "new\n");
        assert_eq!(report, "# Title\n\n## A\n\nnew\n\n## B\n\nother\n");
        assert_eq!(put(&report, "A", "new"), report);
        // A section that is not there is appended.
        assert_eq!(put(REPORT, "C", "new"), format!("{REPORT}\n## C\n\nnew\n"));
    }

    #[test]
    fn a_report_that_does_not_exist_is_made() {
        let folder = std::env::temp_dir().join(format!("uwarp-bench-{}", std::process::id()));
        let path = folder.join("reports/performance.md");
        let section = Section {
            heading: "A",
            text: "figures".to_owned(),
            values: Value::Null,
        };
        write(&path, &[section]).unwrap();
        let report = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(report, "# Report of the bench\n\n## A\n\nfigures\n");
    }

    #[test]
    fn rows_have_values_ratios_and_processor_time_and_empty_columns_are_left_out() {
        let rows = [
            row("raw", &[], [1e9, 2e9]),
            row("ours", &[Base::row("raw")], [2e9, 4e9]),
        ];
        let due = "### Bandwidth\n\n\
            |  | GB/s: median (least to most) | ratio | CPU s/GB, both sides | ratio of CPU |\n\
            |---|---|---|---|---|\n\
            | raw | 1.50 (1.00 to 2.00) |  | 0.50 (0.50 to 0.50) |  |\n\
            | ours | 3.00 (2.00 to 4.00) | 2.00 (2.00 to 2.00) to raw | 0.50 (0.50 to 0.50) \
            | 1.00 (1.00 to 1.00) to raw |\n\n";
        assert_eq!(tables(&rows), due);
    }

    #[test]
    fn a_row_without_values_tells_why_and_has_null_in_json() {
        let mut missing = row("ours", &[], [f64::NAN; 2]);
        missing.failure = Some("qperf is not installed".to_owned());
        let section = Section::of_rows("A", "about", &[missing]);
        let cell = "| ours | skipped: qperf is not installed |";
        assert!(section.text.contains(cell), "{}", section.text);
        assert_eq!(section.values[0]["values"], json!([null, null]));
        assert_eq!(section.values[0]["failure"], "qperf is not installed");
    }
}
