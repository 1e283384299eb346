//! Writes the part of `dropin/MATRIX.md` about siw, and compares it with the results.

use uwarp_interop::Report;

use crate::programs::SUITE;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dropin/MATRIX.md");
/// Line before the part about siw, which the tests of the drop-in library keep unchanged.
const BEGIN: &str = "<!-- siw: ./ci.sh interop writes this part -->\n";
/// Line after that part.
const END: &str = "<!-- siw: here it ends -->\n";
/// Start of the line with versions, which is not compared.
const VERSIONS: &str = "With ";

/// Compares the part with the results. With `UWARP_DROPIN_MATRIX=write`, writes it instead. Does
/// nothing unless all programs have run.
///
/// # Errors
/// The part differs from the results, or the file lacks the markers.
pub(crate) fn settle(report: &Report, versions: &[String]) -> Result<(), String> {
    let Some(table) = report.suite(SUITE) else {
        return Ok(());
    };
    let text = std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let lines = part(&table, versions);
    let (before, rest) = text
        .split_once(BEGIN)
        .ok_or("MATRIX.md has no part of siw")?;
    let (old, after) = rest.split_once(END).ok_or("the part of siw has no end")?;
    if std::env::var_os("UWARP_DROPIN_MATRIX").is_some_and(|value| value == "write") {
        let text = format!("{before}{BEGIN}{lines}{END}{after}");
        return std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"));
    }
    if same(old, &lines) {
        return Ok(());
    }
    Err("dropin/MATRIX.md is not what has run: 'UWARP_DROPIN_MATRIX=write ./ci.sh interop programs' writes it".to_owned())
}

fn part(table: &str, versions: &[String]) -> String {
    format!(
        "## Against siw\n\nThe same program on both sides: on this library with CRC and `--peer siw`, and in a virtual machine on rdma-core and the siw driver of Linux.\n\
         Each cell is a test. `textbook` also runs on siw alone, with the same output. Do not edit: `UWARP_DROPIN_MATRIX=write ./ci.sh interop programs`\n\
         writes this part, and `./ci.sh interop` compares it.\n\n\
         {VERSIONS}{}.\n\n{table}\n",
        versions.join(", ")
    )
}

fn same(old: &str, new: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with(VERSIONS));
        lines.map(str::to_owned).collect()
    };
    lines(old) == lines(new)
}
