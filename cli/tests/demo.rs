//! `uwarp demo` ends with a table of verified operations and exit code 0.

mod common;

use common::uwarp;

const OPERATIONS: [&str; 8] = [
    "Private data A <-> B",
    "Send A -> B",
    "Send B -> A",
    "RDMA Write A -> B",
    "RDMA Read A <- B",
    "Write with Immediate A -> B",
    "Atomics A -> B",
    "Write beyond the region",
];

/// Returns the row of each operation in the final table.
fn rows(stdout: &str) -> Vec<String> {
    let table = stdout.split("operation ").nth(1).unwrap();
    OPERATIONS
        .map(|operation| {
            let row = table
                .lines()
                .find(|line| line.trim_start().starts_with(operation));
            row.unwrap_or_else(|| panic!("no row for {operation}:\n{stdout}"))
                .to_owned()
        })
        .into()
}

#[track_caller]
fn all_is_well(args: &[&str]) -> String {
    let ended = uwarp(args).expect(0);
    for row in rows(&ended.stdout) {
        let result = if row.contains("beyond") {
            "ok, refused as it must be"
        } else {
            "ok, every byte verified"
        };
        assert!(row.ends_with(result), "{row}");
    }
    assert!(
        ended.stdout.contains("All results are correct"),
        "{}",
        ended.stdout
    );
    assert_eq!(ended.stderr, "");
    ended.stdout
}

#[test]
fn the_demo_ends_with_a_table_and_exit_code_0() {
    let stdout = all_is_well(&["demo"]);
    let rows = rows(&stdout);
    // Each operation moves 22 messages of up to 16 MiB: Sends each way, Writes and Reads.
    assert!(
        rows[1..5]
            .iter()
            .all(|row| row.contains(" 22  22,442,878  ")),
        "{rows:?}"
    );
    assert!(
        stdout.contains("Agreed: MPA revision 2, CRC on, Markers off"),
        "{stdout}"
    );
    // Both sides report the Write that exceeds the region.
    for words in [
        "A, event of the connection:",
        "B, event of the connection:",
        "1/1/01",
        "B, memory:                    unchanged",
    ] {
        assert!(stdout.contains(words), "no '{words}' in {stdout}");
    }
}

#[test]
fn the_options_of_the_wire_are_what_is_agreed() {
    let stdout = all_is_well(&["demo", "--mpa", "1", "--crc", "off", "--markers", "on"]);
    assert!(
        stdout.contains("Agreed: MPA revision 1, CRC off, Markers on"),
        "{stdout}"
    );
}

#[test]
fn the_demo_plays_over_small_and_large_packets_and_over_the_kernel() {
    assert!(all_is_well(&["demo", "--mtu", "576"]).contains("MTU 576"));
    assert!(all_is_well(&["demo", "--mtu", "65535"]).contains("MTU 65535"));
    assert!(all_is_well(&["demo", "--device", "tcp"]).contains("127.0.0.1:"));
}
