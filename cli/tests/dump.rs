//! `uwarp dump`: captures of uwarp's own connections have no finding, captures of siw have known
//! findings, and each kind of file has its documented exit code.

mod common;

use std::fs::{self, File};
use std::process::{Command, Stdio};

use common::{Ended, TempFile, Uwarp, client, uwarp};

/// Captures of siw, which have findings.
const ERRORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tools/capture/tests/data/siw-fpdu-errors.pcap"
);
const STARTUP: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tools/capture/tests/data/siw-mpa-startup.pcap"
);

fn dump(args: &[&str]) -> Ended {
    uwarp(&[&["dump"], args].concat())
}

/// Dumps connection 6 of the file. It is the last one, and it has findings, a Read Request and a
/// Terminate Message.
fn one_connection() -> Ended {
    dump(&[ERRORS, "--conn", "6", "-x"]).expect(1)
}

#[test]
fn a_connection_is_shown_frame_by_frame_and_field_by_field() {
    insta::assert_snapshot!(one_connection().stdout);
}

#[test]
fn the_summary_has_every_connection_and_what_breaks_the_rfcs() {
    let ended = dump(&[ERRORS]).expect(1);
    assert_eq!(ended.stderr, "");
    let at = ended.stdout.find("\n\n").unwrap();
    insta::assert_snapshot!(&ended.stdout[at..]);
}

#[test]
fn json_has_a_line_for_each_frame_and_one_for_all() {
    let ended = dump(&[ERRORS, "--json"]).expect(1);
    let lines: Vec<serde_json::Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, frames) = lines.split_last().unwrap();
    assert_eq!(last["summary"]["findings"], 8);
    assert_eq!(last["summary"]["by_requirement"]["5044-4.4-11"], 2);
    let send = &frames[8];
    assert_eq!(send["what"], "Send");
    assert_eq!(send["findings"][0]["requirement"], "5040-4.1-06");
    assert_eq!(send["findings"][0]["section"], "4.1");
    let fields = send["fields"].as_array().unwrap();
    let queue = fields.iter().find(|field| field["name"] == "QN").unwrap();
    assert_eq!((&queue["value"], &queue["at"]), (&1.into(), &8.into()));
    assert!(send.get("bytes").is_none());
    let with = dump(&[ERRORS, "--json", "-x", "-c", "1"]).expect(0).stdout;
    assert!(with.contains("\"bytes\":\"4d504120"), "{with}");
}

#[test]
fn frames_can_be_chosen_by_count_by_connection_and_by_findings() {
    let frames = |args: &[&str]| -> Vec<String> {
        let ended = dump(&[&[STARTUP], args].concat());
        let frames = ended.stdout.lines().take_while(|line| !line.is_empty());
        frames.map(str::to_owned).collect()
    };
    assert_eq!(frames(&["-c", "3"]).len(), 3);
    let third = frames(&["--conn", "3"]);
    assert!(third.len() == 4 && third.iter().all(|line| line.contains(" #3 ")));
    let found = frames(&["--findings"]);
    assert!(found.len() == 13 && found.iter().all(|line| line.contains(" ** ")));
    dump(&[STARTUP, "--conn", "3"]).expect(0);
}

#[test]
fn a_terminate_of_siw_that_can_be_read_both_ways_is_read_as_told() {
    let line = |peer: &str| {
        let ended = dump(&[ERRORS, "--peer", peer, "--conn", "1", "-c", "4"]);
        ended.stdout.lines().nth(3).unwrap().to_owned()
    };
    assert!(line("rfc").contains("2/0/06") && !line("rfc").contains("**"));
    assert!(line("siw").contains("0/2/06") && line("siw").contains("5040-4.8-02"));
}

#[test]
fn stdin_is_a_file_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["dump", "-"]);
    // `uwarp()` starts commands without stdin, so this test starts its own.
    let output = command.stdin(File::open(ERRORS).unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let from_file = dump(&[ERRORS]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), from_file.stdout);
}

#[test]
fn a_file_that_is_no_capture_or_not_there_exits_with_2() {
    let nowhere = TempFile::new("nowhere").below("x.pcapng");
    dump(&[&nowhere])
        .expect(2)
        .says("the capture cannot be read");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    dump(&[own])
        .expect(2)
        .says("expected: a pcapng or pcap file");
    dump(&[]).expect(2);
    // This command has no stdin to read.
    dump(&["-"]).expect(2).says("uwarp dump: stdin: ");
}

#[test]
fn a_file_that_is_compressed_is_no_capture_and_the_way_to_read_it_is_said() {
    let file = TempFile::new("small.pcapng.gz");
    fs::write(file.path(), [0x1F, 0x8B, 8, 0]).unwrap();
    dump(&[file.name()])
        .expect(2)
        .says(&format!("try: zcat {} | uwarp dump -", file.name()));
}

#[test]
fn a_capture_without_mpa_is_not_said_to_be_right() {
    let file = TempFile::new("empty.pcap");
    // Only the file header: version 2.4, Ethernet.
    let words = [0xA1B2_C3D4, 0x0004_0002, 0, 0, 65_535, 1_u32];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(file.path(), bytes).unwrap();
    let said = dump(&[file.name()]).expect(0).stdout;
    assert!(said.contains("no connection with MPA was found: nothing was checked"));
    assert!(!said.contains("nothing breaks the RFCs"));
    dump(&[file.name(), "--conn", "1"])
        .expect(2)
        .says("this one has none");
}

#[test]
fn a_connection_that_is_not_there_exits_with_2() {
    dump(&[ERRORS, "--conn", "99"])
        .expect(2)
        .says("no connection has the number 99\n  expected: 1 to 6, the number of MPA connections");
}

#[test]
fn a_file_that_was_cut_is_shown_to_its_last_whole_packet_and_exits_with_2() {
    let file = TempFile::new("cut.pcap");
    let cut = |bytes: &[u8]| {
        fs::write(file.path(), bytes).unwrap();
        let ended = dump(&[file.name()]).expect(2);
        ended.says("the file ends in the middle of a packet");
        ended.stdout
    };
    let bytes = fs::read(ERRORS).unwrap();
    let shown = cut(&bytes[..bytes.len() - 5]);
    assert!(shown.contains("77 packets"), "{shown}");
    // The exit code is also 2 if nothing before the cut breaks the RFCs. This cut is in the header
    // of the first packet.
    let shown = cut(&bytes[..24 + 7]);
    assert!(shown.contains("nothing was checked"), "{shown}");
    // The selected frame is complete, so the cut does not matter.
    fs::write(file.path(), &bytes[..bytes.len() - 5]).unwrap();
    dump(&[file.name(), "-c", "1"]).expect(0);
}

/// Writes the capture again, with each packet that has a TCP payload cut into two IP fragments.
/// Returns the number of fragments.
fn fragmented(file: &TempFile) -> usize {
    let bytes = fs::read(ERRORS).unwrap();
    let mut out = bytes[..24].to_vec();
    let (mut at, mut fragments) = (24, 0);
    while at < bytes.len() {
        let header = &bytes[at..at + 16];
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let packet = &bytes[at + 16..at + 16 + len];
        at += 16 + len;
        // The first fragment has the Ethernet and IPv4 headers and the first 32 bytes of TCP.
        let (head, rest) = packet.split_at((14 + 20 + 32).min(len));
        let is_whole = rest.is_empty();
        for (part, flags) in [(head, 0x20_u8), (rest, 0)] {
            if part.is_empty() {
                continue;
            }
            let mut packet = if flags == 0 {
                head[..34].to_vec()
            } else {
                Vec::new()
            };
            packet.extend_from_slice(part);
            if !is_whole {
                let offset = if flags == 0 { 32 / 8 } else { 0 };
                (packet[20], packet[21]) = (flags, offset);
                let total = (packet.len() as u16 - 14).to_be_bytes();
                packet[16..18].copy_from_slice(&total);
                fragments += 1;
            }
            out.extend_from_slice(&header[..8]);
            out.extend_from_slice(&(packet.len() as u32).to_le_bytes());
            out.extend_from_slice(&(packet.len() as u32).to_le_bytes());
            out.extend_from_slice(&packet);
        }
    }
    fs::write(file.path(), out).unwrap();
    fragments
}

#[test]
fn ip_fragments_are_counted_and_named() {
    let file = TempFile::new("fragments.pcap");
    let fragments = fragmented(&file);
    assert!(fragments > 20);
    let shown = dump(&[file.name()]).stdout;
    let says = format!("{fragments} IP fragments not reassembled");
    assert!(shown.contains(&says), "{shown}");
    let json = dump(&[file.name(), "--json"]).stdout;
    assert!(
        json.contains(&format!("\"ip_fragments\":{fragments}")),
        "{json}"
    );
}

/// Runs an rping with these settings, which captures itself to a pcapng file.
fn rping(file: &TempFile, settings: &[&str]) {
    let (server, addr) = Uwarp::server(&[&["-C", "4"], settings].concat());
    let own = ["-C", "4", "-S", "3000", "--pcap", file.name()];
    client(addr, &[&own, settings].concat()).expect(0);
    server.end().expect(0);
}

#[test]
fn a_file_that_is_damaged_is_shown_to_there_and_exits_with_2() {
    let file = TempFile::new("damaged.pcapng");
    rping(&file, &[]);
    let whole = dump(&[file.name()]).expect(0).stdout;
    let mut bytes = fs::read(file.path()).unwrap();
    // Damages the length at the end of the last block.
    *bytes.last_mut().unwrap() ^= 0xFF;
    fs::write(file.path(), bytes).unwrap();
    let ended = dump(&[file.name()]).expect(2);
    ended.says("the capture is damaged");
    assert!(ended.stdout.lines().count() + 1 >= whole.lines().count());
}

#[test]
fn what_our_own_connections_record_has_no_finding() {
    let file = TempFile::new("own.pcapng");
    for settings in [
        &["--mpa", "2"][..],
        &["--mpa", "1"],
        &["--markers", "on"],
        &["--crc", "off"],
        &["--crc", "off", "--markers", "on", "--mpa", "1"],
    ] {
        rping(&file, settings);
        let ended = dump(&[file.name()]).expect(0);
        for text in [
            "RDMA Read Response",
            "RDMA Write",
            "nothing breaks the RFCs",
        ] {
            assert!(
                ended.stdout.contains(text),
                "{settings:?}: {}",
                ended.stdout
            );
        }
    }
    uwarp(&["demo", "--pcap", file.name()]).expect(0);
    let ended = dump(&[file.name(), "--findings"]).expect(0);
    assert!(ended.stdout.contains("nothing breaks the RFCs"));
}

#[test]
fn output_that_cannot_be_written_exits_with_2() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["dump", STARTUP]);
    let full = File::create("/dev/full").unwrap();
    let output = command
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the output cannot be written"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}
