//! Descriptions of the cases, without playing any: `--list`, `--explain`, `--coverage`.

use std::collections::BTreeMap;

use uwarp_conformance::{Selection, codes, coverage, explain, list, requirements, section_of};

use crate::failure::{Failure, Report};
use crate::output::Output;

/// Prints the cases that match the patterns, one per line. Without patterns, prints all cases.
///
/// # Errors
/// A pattern matches no case, or the output cannot be written.
pub(super) fn print_list(patterns: &[String]) -> Result<(), Failure> {
    let cases = list();
    for pattern in patterns {
        let one = Selection(vec![pattern.clone()]);
        if !cases.iter().any(|case| one.takes(&case.id)) {
            let report = Report::new(format!("no case has an id like {pattern}"));
            return Err(Failure::Usage(report.advice("--list shows them all")));
        }
    }
    let selection = Selection(patterns.to_vec());
    for case in cases {
        if selection.takes(&case.id) {
            Output::Stdout.line(format_args!("{} {} {}", case.id, case.level, case.rule))?;
        }
    }
    Ok(())
}

/// Prints the steps of a case.
///
/// # Errors
/// No case has this id, or the output cannot be written.
pub(super) fn print_case(id: &str) -> Result<(), Failure> {
    let Some((case, steps)) = explain(id) else {
        let report = Report::new(format!("there is no case {id}"));
        return Err(Failure::Usage(report.advice("--list shows them all")));
    };
    let out = Output::Stdout;
    out.line(format_args!("{} ({})\n{}", case.id, case.level, case.rule))?;
    let catalogue = requirements();
    for id in &case.requirements {
        let words = catalogue.get(id).map_or("", |row| row.text.as_str());
        out.line(format_args!("  {id}: {words}"))?;
    }
    for (number, step) in steps.iter().enumerate() {
        out.line(format_args!("{:>3}. {step}", number + 1))?;
    }
    Ok(())
}

/// Numbers of requirements: all of them, those with a case, those with a reason for having no case,
/// and those with neither.
#[derive(Clone, Copy, Default)]
struct Rows([usize; 4]);

impl Rows {
    fn add(&mut self, other: Rows) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }

    fn print(self, what: &str) -> Result<(), Failure> {
        let [rows, cases, exceptions, missing] = self.0;
        Output::Stdout.line(format_args!(
            "{what:<16} {rows:>5} {cases:>6} {exceptions:>9} {missing:>8}"
        ))
    }
}

/// Prints how many requirements of each section and RFC have a case, or a reason for having none.
/// The requirements with neither follow, one per line.
///
/// # Errors
/// The output cannot be written.
pub(super) fn print_coverage() -> Result<(), Failure> {
    let coverage = coverage();
    let mut rfcs: BTreeMap<String, BTreeMap<String, Rows>> = BTreeMap::new();
    let catalogue = requirements().into_values();
    for row in catalogue.filter(|row| row.observable == "wire") {
        let section = section_of(&row.id).to_owned();
        let rfc = section.split('-').next().unwrap_or_default().to_owned();
        let counted = if coverage.cases.contains_key(&row.id) {
            [1, 1, 0, 0]
        } else if coverage.exceptions.contains_key(&row.id) {
            [1, 0, 1, 0]
        } else {
            [1, 0, 0, 1]
        };
        let sections = rfcs.entry(rfc).or_default();
        sections.entry(section).or_default().add(Rows(counted));
    }
    Output::Stdout.line(format_args!(
        "{:<16} {:>5} {:>6} {:>9} {:>8}",
        "section", "rows", "cases", "exception", "missing"
    ))?;
    let mut all = Rows::default();
    for (rfc, sections) in &rfcs {
        let mut of_rfc = Rows::default();
        for (section, rows) in sections {
            rows.print(section)?;
            of_rfc.add(*rows);
        }
        of_rfc.print(&format!("RFC {rfc}"))?;
        all.add(of_rfc);
    }
    all.print("all")?;
    let codes = codes();
    let [cases, exceptions, missing] = [
        codes.cases.len(),
        codes.exceptions.len(),
        codes.missing.len(),
    ];
    Rows([cases + exceptions + missing, cases, exceptions, missing]).print("Terminate codes")?;
    for row in &coverage.missing {
        Output::Stdout.line(format_args!("{} ({}): {}", row.id, row.level, row.text))?;
    }
    for code in &codes.missing {
        Output::Stdout.line(format_args!("Terminate {code}"))?;
    }
    Ok(())
}
