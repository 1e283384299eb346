//! What the suite tells of its cases without playing any: `--list`, `--explain`, `--coverage`.

use uwarp_conformance::{Selection, codes, coverage, explain, list, requirements, section_of};

use crate::failure::{Failure, Report};
use crate::output::Output;

/// The cases that patterns take, one a line; all without any.
///
/// # Errors
/// A pattern takes none, or nobody reads the list.
pub(super) fn tell_list(patterns: &[String]) -> Result<(), Failure> {
    let cases = list();
    for pattern in patterns {
        let one = Selection(vec![pattern.clone()]);
        if !cases.iter().any(|case| one.takes(&case.id)) {
            let report = Report::new(format!("no case has an id like {pattern}"));
            return Err(Failure::Usage(report.advice("--list alone shows them all")));
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

/// What a case does, step by step.
///
/// # Errors
/// There is none of this id, or nobody reads it.
pub(super) fn tell_case(id: &str) -> Result<(), Failure> {
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

/// How many requirements of each section have a case, or a reason to have none.
///
/// # Errors
/// Nobody reads it.
pub(super) fn tell_coverage() -> Result<(), Failure> {
    let coverage = coverage();
    let out = Output::Stdout;
    let mut sections: Vec<(String, [usize; 4])> = Vec::new();
    for row in requirements().into_values() {
        if row.observable != "wire" {
            continue;
        }
        let section = section_of(&row.id).to_owned();
        if sections.last().is_none_or(|(last, _)| *last != section) {
            sections.push((section, [0; 4]));
        }
        if let Some((_, counts)) = sections.last_mut() {
            counts[0] += 1;
            if coverage.cases.contains_key(&row.id) {
                counts[1] += 1;
            } else if coverage.exceptions.contains_key(&row.id) {
                counts[2] += 1;
            } else if row.is_must() || row.is_should() {
                counts[3] += 1;
            }
        }
    }
    out.line(format_args!(
        "{:<16} {:>5} {:>6} {:>9} {:>8}",
        "section", "rows", "cases", "exception", "missing"
    ))?;
    let mut sum = [0; 4];
    for (section, counts) in &sections {
        let [rows, cases, exceptions, missing] = counts;
        out.line(format_args!(
            "{section:<16} {rows:>5} {cases:>6} {exceptions:>9} {missing:>8}"
        ))?;
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    let [rows, cases, exceptions, missing] = sum;
    out.line(format_args!(
        "{:<16} {rows:>5} {cases:>6} {exceptions:>9} {missing:>8}",
        "all"
    ))?;
    let codes = codes();
    let [cases, exceptions, missing] = [
        codes.cases.len(),
        codes.exceptions.len(),
        codes.missing.len(),
    ];
    out.line(format_args!(
        "{:<16} {:>5} {cases:>6} {exceptions:>9} {missing:>8}",
        "Terminate codes",
        cases + exceptions + missing
    ))
}
