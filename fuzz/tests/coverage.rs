//! The table of docs/fuzzing.md, out of what llvm-cov measured. Run by `./ci.sh fuzz-coverage`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

const BEGIN: &str = "<!-- coverage: begin -->\n";
const END: &str = "<!-- coverage: end -->\n";

/// Covered and all.
type Count = (u64, u64);

fn add(sum: &mut Count, summary: &Value, what: &str) {
    sum.0 += summary[what]["covered"].as_u64().unwrap();
    sum.1 += summary[what]["count"].as_u64().unwrap();
}

fn percent((covered, all): Count) -> String {
    format!("{:.1} % of {all}", 100.0 * covered as f64 / all as f64)
}

/// One row for each crate, from the summaries of its files.
fn table(measured: &Value) -> String {
    let mut crates: BTreeMap<&str, (Count, Count)> = BTreeMap::new();
    for file in measured["data"][0]["files"].as_array().unwrap() {
        let name = file["filename"].as_str().unwrap();
        let core = ["mpa", "ddp", "rdmap"]
            .into_iter()
            .find(|core| name.contains(&format!("/{core}/src/")));
        let (lines, regions) = crates
            .entry(core.expect("only these were asked for"))
            .or_default();
        add(lines, &file["summary"], "lines");
        add(regions, &file["summary"], "regions");
    }
    let mut table = String::from("| crate | lines | regions |\n|---|---|---|\n");
    for (name, (lines, regions)) in crates {
        table.push_str(&format!(
            "| `{name}` | {} | {} |\n",
            percent(lines),
            percent(regions)
        ));
    }
    table
}

#[test]
fn the_table_of_the_documentation_is_written() {
    let Ok(path) = std::env::var("UWARP_FUZZ_COVERAGE") else {
        return;
    };
    let measured: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let table = table(&measured);
    eprintln!("{table}");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fuzzing.md");
    let text = fs::read_to_string(&document).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    fs::write(&document, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
}
