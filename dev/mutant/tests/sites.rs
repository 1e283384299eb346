//! Checks that the catalogue and the sites in the stack name the same faults.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use uwarp_mutant::Mutant;

/// Collects the names of the faults at all sites below a directory.
fn sites(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sites(&path, names);
        } else if path.file_name().is_some_and(|name| name != "mutants.rs") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            // A site may be inside another site.
            for (at, begin) in text.match_indices("mutate!(") {
                names.insert(fault(&text[at + begin.len()..]));
            }
        }
    }
}

/// Returns the name of the fault from the text `right, Name => wrong)`. The name is the word before
/// the first `=>` outside inner brackets.
fn fault(site: &str) -> String {
    let mut depth = 0;
    for (at, character) in site.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '=' if depth == 0 && site[at..].starts_with("=>") => {
                let before = site[..at].trim_end();
                let start = before.rfind(|c: char| !c.is_alphanumeric());
                return before[start.map_or(0, |start| start + 1)..].to_owned();
            }
            _ => {}
        }
    }
    panic!("a site without a fault: {site:.80}")
}

#[test]
fn every_fault_has_a_site_and_every_site_a_fault() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = BTreeSet::new();
    for layer in ["mpa", "ddp", "rdmap", "engine", "verbs"] {
        sites(&root.join(layer).join("src"), &mut names);
    }
    let catalogue: BTreeSet<String> = Mutant::ALL
        .iter()
        .map(|mutant| mutant.name().to_owned())
        .collect();
    assert_eq!(names, catalogue);
}

#[test]
fn a_fault_is_found_by_its_name() {
    for mutant in Mutant::ALL {
        assert_eq!(Mutant::named(mutant.name()), Some(*mutant));
    }
    assert_eq!(Mutant::named("NoSuchFault"), None);
}
