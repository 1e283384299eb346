//! Writes the report of `./ci.sh fuzz-coverage` from the figures of llvm-cov.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

/// Number of covered items, and of all items.
type Count = (u64, u64);

fn add(sum: &mut Count, summary: &Value, what: &str) {
    sum.0 += summary[what]["covered"].as_u64().unwrap();
    sum.1 += summary[what]["count"].as_u64().unwrap();
}

fn percent((covered, all): Count) -> String {
    format!("{:.1} % of {all}", 100.0 * covered as f64 / all as f64)
}

/// Formats a table with a row for each crate, from the summaries of its files.
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

/// Does nothing unless `UWARP_FUZZ_COVERAGE` names the file with the figures. `UWARP_FUZZ_REPORT`
/// names the report.
#[test]
fn the_report_of_the_coverage_is_written() {
    let Ok(figures) = std::env::var("UWARP_FUZZ_COVERAGE") else {
        return;
    };
    let measured: Value = serde_json::from_slice(&fs::read(figures).unwrap()).unwrap();
    let table = table(&measured);
    let report = std::env::var("UWARP_FUZZ_REPORT").unwrap();
    let text = format!(
        "# Coverage of the protocol cores by the fuzz targets\n\n\
         Written by `./ci.sh fuzz-coverage`: the committed seeds, the past crashers and the local \
         corpora (`fuzz/corpus`) of all targets.\n\n{table}"
    );
    fs::write(&report, text).unwrap();
    eprintln!("{table}\nfuzz: wrote {report}");
}
