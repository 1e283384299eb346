//! Checks that the project cites the requirements that no peer can check. An `api` requirement must
//! be cited at a test of the verbs or of their engine. An `internal` requirement must be cited at
//! the code that fulfils it, or at a unit test. Otherwise `exceptions.toml` must have a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use uwarp_conformance::{Requirement, coverage, requirements};

/// A place in a source file that cites a requirement id.
struct Citation {
    file: PathBuf,
    line: usize,
    in_test: bool,
}

/// Citations, keyed by requirement id.
type Citations = BTreeMap<String, Vec<Citation>>;

/// Names of directories that contain no sources of the project.
const SKIPPED: [&str; 3] = ["target", ".git", "data"];

fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("the crate lies in its workspace")
}

/// Collects the absolute paths of all Rust sources in a directory and below.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for entry in entries {
        let entry = entry.expect("a directory can be listed");
        let path = entry.path();
        let is_dir = entry.file_type().expect("an entry has a type").is_dir();
        let skipped = SKIPPED.iter().any(|name| entry.file_name() == **name);
        if is_dir && !skipped {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the requirement ids in a line. An id consists of RFC, section and sequence number, such
/// as `5044-7.1.2-03` and `5041-5.4-i01`.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'))
        .map(|word| word.trim_end_matches(['.', '-']))
        .filter(|word| is_id(word))
}

fn is_id(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let [rfc, section, number] = parts[..] else {
        return false;
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.strip_prefix('i').unwrap_or(number);
    // A date also begins with four digits, but its year is smaller.
    (rfc.len() == 4 && digits(rfc) && rfc >= "5000")
        && section.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase())
        && (number.len() == 2 && digits(number))
}

/// Adds the citations in a file. `file` is its path relative to the workspace.
fn collect(file: &Path, text: &str, citations: &mut Citations) {
    let all_test = file.components().any(|part| part.as_os_str() == "tests")
        || file.file_name().is_some_and(|name| name == "tests.rs");
    let mut in_test = all_test;
    let mut before = "";
    for (at, line) in text.lines().enumerate() {
        // Unit tests are the last item of a file.
        in_test |= before == "#[cfg(test)]" && line.starts_with("mod ") && line.ends_with('{');
        before = line;
        for id in ids(line) {
            let citation = Citation {
                file: file.to_owned(),
                line: at + 1,
                in_test,
            };
            citations.entry(id.to_owned()).or_default().push(citation);
        }
    }
}

fn citations() -> Citations {
    let root = workspace();
    let mut files = Vec::new();
    sources(root, &mut files);
    let mut citations = Citations::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let file = path.strip_prefix(root).expect("it was found in there");
        collect(file, &text, &mut citations);
    }
    citations
}

impl Citation {
    /// Returns the directory of the crate that contains the citation, without `tools` or `dev`.
    fn krate(&self) -> &str {
        let names = self.file.components().filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let mut names = names.skip_while(|name| matches!(*name, "tools" | "dev"));
        names.next().unwrap_or_default()
    }

    /// Returns true if the citation is sufficient for a requirement with this `observable`.
    fn covers(&self, observable: &str) -> bool {
        match observable {
            "api" => self.in_test && matches!(self.krate(), "engine" | "verbs" | "agent"),
            // The suite checks other endpoints, so it cannot contain the code that fulfils a
            // requirement.
            _ => self.krate() != "conformance",
        }
    }
}

/// Returns the requirements that have to be cited.
fn rows() -> impl Iterator<Item = Requirement> {
    requirements().into_values().filter(|row| {
        matches!(row.observable.as_str(), "api" | "internal") && (row.is_must() || row.is_should())
    })
}

fn is_cited(row: &Requirement, citations: &Citations) -> bool {
    citations
        .get(&row.id)
        .is_some_and(|all| all.iter().any(|citation| citation.covers(&row.observable)))
}

/// Formats the coverage of the project by RFC and section: the number of requirements that a case,
/// a test or the code covers, and the number of all requirements.
fn table(citations: &Citations) -> String {
    let coverage = coverage();
    let mut sections: BTreeMap<String, [[usize; 2]; 3]> = BTreeMap::new();
    let mut excepted: BTreeMap<String, usize> = BTreeMap::new();
    for row in requirements().into_values() {
        let (kind, covered) = match row.observable.as_str() {
            _ if !(row.is_must() || row.is_should()) => continue,
            "wire" => (0, coverage.cases.contains_key(&row.id)),
            "api" => (1, is_cited(&row, citations)),
            "internal" => (2, is_cited(&row, citations)),
            _ => continue,
        };
        let section = row.section().to_owned();
        *excepted.entry(section.clone()).or_default() +=
            usize::from(coverage.exceptions.contains_key(&row.id));
        let counts = &mut sections.entry(section).or_default()[kind];
        counts[0] += usize::from(covered);
        counts[1] += 1;
    }
    let mut text = format!(
        "{:<14} {:>9} {:>9} {:>9} {:>10}\n",
        "section", "wire", "api", "internal", "exceptions"
    );
    let mut line = |name: &str, kinds: [[usize; 2]; 3], excepted: usize| {
        let [wire, api, internal] = kinds.map(|[covered, of]| format!("{covered}/{of}"));
        let _ = writeln!(
            text,
            "{name:<14} {wire:>9} {api:>9} {internal:>9} {excepted:>10}"
        );
    };
    let mut sum = [[0; 2]; 3];
    for (section, kinds) in &sections {
        line(section, *kinds, excepted[section]);
        for (all, one) in sum.iter_mut().flatten().zip(kinds.iter().flatten()) {
            *all += one;
        }
    }
    line("all", sum, excepted.values().sum());
    text
}

#[test]
#[expect(clippy::print_stdout, reason = "--nocapture shows the table")]
fn every_requirement_of_the_api_and_of_the_inside_is_cited_or_has_a_reason() {
    let citations = citations();
    let exceptions = coverage().exceptions;
    println!("{}", table(&citations));
    let missing: Vec<String> = rows()
        .filter(|row| !is_cited(row, &citations) && !exceptions.contains_key(&row.id))
        .map(|row| {
            let mut said = format!(
                "{} {} ({}): {}",
                row.id, row.level, row.observable, row.text
            );
            for citation in citations.get(&row.id).into_iter().flatten() {
                let (file, line) = (citation.file.display(), citation.line);
                let _ = write!(said, "\n    cited at {file}:{line}, which does not count");
            }
            said
        })
        .collect();
    assert!(
        missing.is_empty(),
        "cite the id of an api row at the test of engine, verbs or agent that would fail without it, that of an internal \
         row at the code that keeps it, or write a reason into conformance/exceptions.toml:\n{}",
        missing.join("\n")
    );
}

#[test]
fn every_id_in_the_sources_is_in_the_catalogue() {
    let catalogue = requirements();
    let mut unknown = String::new();
    for (id, places) in citations() {
        if !catalogue.contains_key(&id) {
            for Citation { file, line, .. } in places {
                let _ = writeln!(unknown, "{id} at {}:{line}", file.display());
            }
        }
    }
    assert!(unknown.is_empty(), "no such requirement:\n{unknown}");
}

#[test]
fn what_is_excepted_is_not_cited() {
    let citations = citations();
    let exceptions = coverage().exceptions;
    let both: BTreeSet<String> = rows()
        .filter(|row| exceptions.contains_key(&row.id) && is_cited(row, &citations))
        .map(|row| row.id)
        .collect();
    assert!(both.is_empty(), "excepted, and cited as kept: {both:?}");
}

#[test]
fn ids_are_found_where_they_stand() {
    let one = ["5044", "7.1.2", "15"].join("-");
    let two = ["5041", "5.4", "i01"].join("-");
    for (line, found) in [
        (format!("/// {one}, {two}: both."), vec![&one, &two]),
        (format!("// ({one})."), vec![&one]),
        (format!("\"{two}/\"; x{one}"), vec![&two]),
        (
            "1970-01-01 mpa/5044-7.1.2/3 5044-7.1.2-1".to_owned(),
            vec![],
        ),
        ("5044--12 5044-x-12 5044-7.1.2-123".to_owned(), vec![]),
    ] {
        assert_eq!(ids(&line).collect::<Vec<_>>(), found, "{line}");
    }
    assert!(requirements().keys().all(|id| is_id(id)));
}

#[test]
fn tests_are_told_from_code() {
    let id = ["5044", "3", "02"].join("-");
    let text = format!("// {id}\n#[cfg(test)]\nmod tests {{\n    // {id}\n}}\n");
    let mut citations = Citations::new();
    for file in [
        "verbs/src/pd.rs",
        "verbs/src/cm/tests.rs",
        "mpa/tests/all.rs",
    ] {
        collect(Path::new(file), &text, &mut citations);
    }
    let covers: Vec<_> = citations[&id]
        .iter()
        .map(|citation| (citation.line, citation.covers("api")))
        .collect();
    assert_eq!(
        covers,
        [
            (1, false),
            (4, true),
            (1, true),
            (4, true),
            (1, false),
            (4, false)
        ]
    );
}
