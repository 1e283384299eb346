//! Wireshark's dissectors, by the program `tshark`.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Options that make Wireshark dissect everything; the documentation of `uwarp-capture` explains
/// them.
const OPTIONS: [&str; 4] = [
    "-o",
    "tcp.try_heuristic_first:TRUE",
    "--disable-protocol",
    "rpcordma",
];

/// Returns true if tshark can be run. Otherwise prints that a test is skipped.
///
/// # Panics
/// If tshark cannot be run and `UWARP_REQUIRE_TSHARK=1` is set.
pub fn is_here() -> bool {
    if Command::new("tshark").arg("--version").output().is_ok() {
        return true;
    }
    let required = std::env::var("UWARP_REQUIRE_TSHARK").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "UWARP_REQUIRE_TSHARK=1 is set and tshark cannot be run"
    );
    // `eprintln!` is not used, because cargo shows its output only for failing tests.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: tshark cannot be run here, nothing was checked by Wireshark's dissectors"
    );
    false
}

/// Reads a capture file with these arguments, and returns the output.
///
/// # Panics
/// If tshark fails.
#[track_caller]
pub fn read(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(OPTIONS)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "tshark: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
