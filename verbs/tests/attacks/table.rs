//! Checks that SECURITY.md's table of attacks and the tests here name each other.

use std::collections::BTreeSet;

const SOURCES: [&str; 10] = [
    include_str!("denial.rs"),
    include_str!("disclosure.rs"),
    include_str!("half_open.rs"),
    include_str!("in_time.rs"),
    include_str!("limits.rs"),
    include_str!("local.rs"),
    include_str!("short_memory.rs"),
    include_str!("slow.rs"),
    include_str!("spoofing.rs"),
    include_str!("tampering.rs"),
];

/// Sections of RFC 5042, 5 to 8, that describe an attack.
const SECTIONS: [&str; 27] = [
    "5.1.1", "5.1.2", "5.1.3", "5.2", "5.3", "6.1.1", "6.2.1", "6.2.2", "6.2.3", "6.3.1", "6.3.2",
    "6.3.3", "6.3.4", "6.3.5", "6.3.6", "6.4.1", "6.4.2", "6.4.3.1", "6.4.3.2", "6.4.3.3", "6.4.4",
    "6.4.5", "6.4.6", "6.5", "7.1", "7.2", "7.3",
];

fn tests() -> BTreeSet<String> {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    let names = lines.filter_map(|line| line.strip_prefix("fn s")?.strip_suffix("() {"));
    names
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .map(|name| format!("s{name}"))
        .collect()
}

/// Returns the rows of the table without its head. The columns are attack, section, defence and
/// test.
fn rows() -> Vec<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, text) = text.split_once("## Attacks of RFC 5042").unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = |row: &str| -> Vec<String> {
        let cells = row.trim_end_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let rows = rows.map(cells).filter(|cells| cells.len() == 4);
    rows.filter(|cells| cells[0] != "Attack").collect()
}

/// Returns the names of tests in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`')
        .filter(|word| word.starts_with('s') && word[1..].starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn every_test_that_the_table_names_exists_and_every_test_is_in_the_table() {
    let mut found = BTreeSet::new();
    for row in rows() {
        for name in named(&row[3]) {
            found.insert(name.to_owned());
        }
    }
    assert_eq!(found, tests());
    assert!(found.len() > 30);
}

#[test]
fn every_attack_of_the_rfc_is_in_the_table_under_its_section() {
    let sections: BTreeSet<String> = rows().into_iter().map(|row| row[1].clone()).collect();
    assert_eq!(sections, SECTIONS.map(str::to_owned).into());
}

/// Each row has a test whose name begins with its section, or gives a reason why there is none.
#[test]
fn every_row_has_tests_of_its_section_or_a_reason() {
    for row in rows() {
        let prefix = format!("s{}_", row[1].replace('.', "_"));
        let mut names = named(&row[3]).peekable();
        if names.peek().is_none() {
            assert!(row[3].starts_with("none: "), "{row:?}");
        }
        for name in names {
            assert!(
                name.starts_with(&prefix),
                "{name} is listed under section {}",
                row[1]
            );
        }
    }
}
