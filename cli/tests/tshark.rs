//! Checks captures with Wireshark's dissectors, which are independent of this project. They must
//! dissect every FPDU with the opcodes and lengths that were sent and a correct CRC. No frame may
//! be malformed.
//!
//! Needs `tshark` (4.0 or later). Without it the tests print a notice and pass, unless the
//! environment has `UWARP_REQUIRE_TSHARK=1`.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::{TempFile, Uwarp, uwarp};
use uwarp_testkit::tshark;

const CHECKSUMS: [&str; 4] = [
    "-o",
    "ip.check_checksum:TRUE",
    "-o",
    "tcp.check_checksum:TRUE",
];

const FIELDS: [&str; 11] = [
    "tcp.srcport",
    "tcp.dstport",
    "iwarp_mpa.ulpdulength",
    "iwarp_rdma.opcode",
    "iwarp_ddp.last_flag",
    "iwarp_mpa.rev",
    "_ws.malformed",
    "_ws.expert.message",
    "_ws.expert.severity",
    "ip.checksum.status",
    "tcp.checksum.status",
];

/// Severity of a warning in Wireshark's expert information.
const WARNING: u32 = 0x60_0000;

/// FPDU as Wireshark shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fpdu {
    from_server: bool,
    opcode: u8,
    last: bool,
    /// Number of bytes after the DDP and RDMAP headers.
    payload: usize,
}

impl Fpdu {
    /// Returns true for the empty Write that a client sends if the first answer takes longer than
    /// 200 ms (`Settings::wake_up`), as it does on a busy machine. `rping` sends no other empty
    /// Write.
    fn is_wake_up(&self) -> bool {
        !self.from_server && self.opcode == WRITE && self.payload == 0
    }
}

/// Wireshark's view of a capture.
#[derive(Default, Debug)]
struct Dissected {
    fpdus: Vec<Fpdu>,
    revisions: Vec<String>,
    warnings: BTreeSet<String>,
    good_crcs: usize,
}

impl Dissected {
    /// Dissects a capture. Asserts that no frame is malformed and that no checksum or CRC is wrong.
    fn new(file: &Path, server_port: u16) -> Dissected {
        let mut arguments = vec!["-T", "fields", "-E", "aggregator=|"];
        arguments.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
        arguments.extend(CHECKSUMS);
        let mut seen = Dissected::default();
        for line in tshark::read(file, &arguments).lines() {
            seen.add(line, server_port);
        }
        let details = tshark::read(file, &["-V", "-O", "iwarp_mpa"]);
        seen.good_crcs = details.matches("Good CRC32").count();
        assert_eq!(details.matches("Bad CRC32").count(), 0);
        seen
    }

    fn add(&mut self, line: &str, server_port: u16) {
        let columns: Vec<Vec<&str>> = line
            .split('\t')
            .map(|values| {
                values
                    .split('|')
                    .filter(|value| !value.is_empty())
                    .collect()
            })
            .collect();
        let [
            from,
            to,
            lens,
            opcodes,
            lasts,
            revisions,
            malformed,
            messages,
            severities,
            ip,
            tcp,
        ] = columns.as_slice()
        else {
            panic!("wrong number of fields: {line}");
        };
        let server = server_port.to_string();
        assert!(from[0] == server || to[0] == server, "{line}");
        assert!(malformed.is_empty(), "{line}");
        assert_eq!(
            (ip.as_slice(), tcp.as_slice()),
            (&["1"][..], &["1"][..]),
            "checksums of {line}"
        );
        assert!(
            lens.len() == opcodes.len() && lens.len() == lasts.len(),
            "{line}"
        );
        for ((len, opcode), last) in lens.iter().zip(opcodes).zip(lasts) {
            let opcode = u8::from_str_radix(opcode.strip_prefix("0x").unwrap(), 16).unwrap();
            let header = if matches!(opcode, 0 | 2) { 14 } else { 18 };
            self.fpdus.push(Fpdu {
                from_server: from[0] == server,
                opcode,
                last: *last == "1",
                payload: len.parse::<usize>().unwrap() - header,
            });
        }
        self.revisions
            .extend(revisions.iter().map(ToString::to_string));
        for (message, severity) in messages.iter().zip(severities) {
            if severity.parse::<u32>().unwrap() >= WARNING {
                self.warnings.insert(message.to_string());
            }
        }
    }

    /// Returns the number of messages and of their bytes for each opcode.
    fn messages(&self) -> BTreeMap<u8, (usize, usize)> {
        let mut messages = BTreeMap::<u8, (usize, usize)>::new();
        for fpdu in &self.fpdus {
            let (count, payload) = messages.entry(fpdu.opcode).or_default();
            *count += usize::from(fpdu.last);
            *payload += fpdu.payload;
        }
        messages
    }
}

const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const SEND: u8 = 3;
const TERMINATE: u8 = 7;
const IMMEDIATE: u8 = 8;
const ATOMIC_REQUEST: u8 = 10;
const ATOMIC_RESPONSE: u8 = 11;

/// Returns the FPDUs that one side sends for `count` pings of `size` bytes.
fn pings(from_server: bool, count: usize, size: usize) -> Vec<Fpdu> {
    let one = |opcode, payload| Fpdu {
        from_server,
        opcode,
        last: true,
        payload,
    };
    let ping = if from_server {
        vec![
            one(READ_REQUEST, 28),
            one(SEND, 16),
            one(WRITE, size),
            one(SEND, 16),
        ]
    } else {
        vec![one(SEND, 16), one(READ_RESPONSE, size), one(SEND, 16)]
    };
    ping.repeat(count)
}

/// Runs rping with a capture on both sides, and checks both captures.
fn rping(mpa: &str, crc: &str, markers: &str, size: usize) {
    const COUNT: usize = 10;
    let name = format!("rping-{mpa}-{crc}-{markers}-{size}");
    let files = ["server", "client"].map(|side| TempFile::new(&format!("{name}-{side}.pcapng")));
    let wire = ["--mpa", mpa, "--crc", crc, "--markers", markers, "--pcap"];
    let (server, addr) = Uwarp::server(&[&wire[..], &[files[0].name()]].concat());
    let (port, count, bytes) = (addr.port().to_string(), COUNT.to_string(), size.to_string());
    let ping = [
        "rping",
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &port,
        "-C",
        &count,
        "-S",
        &bytes,
        "-V",
    ];
    uwarp(&[&ping[..], &wire, &[files[1].name()]].concat()).expect(0);
    server.end().expect(0);

    for file in &files {
        let seen = Dissected::new(file.path(), addr.port());
        for from_server in [true, false] {
            let fpdus: Vec<_> = seen
                .fpdus
                .iter()
                .filter(|fpdu| fpdu.from_server == from_server && !fpdu.is_wake_up())
                .copied()
                .collect();
            assert_eq!(fpdus, pings(from_server, COUNT, size), "{name}");
        }
        assert_eq!(seen.revisions, [mpa, mpa], "{name}");
        let fpdus = if crc == "on" { seen.fpdus.len() } else { 0 };
        assert_eq!(seen.good_crcs, fpdus, "{name}");
        // The dissector knows revision 1 only. It warns about revision 2, and about the flag that
        // revision 2 adds for IRD and ORD.
        let known = [
            "Rev field is NOT set to one",
            "Res field is NOT set to zero",
        ];
        assert!(
            seen.warnings
                .iter()
                .all(|text| mpa == "2" && known.iter().any(|known| text.starts_with(known))),
            "{name}: {:?}",
            seen.warnings
        );
    }
}

/// Runs rping over this MPA revision, with and without CRC and Markers. With Markers, Wireshark
/// miscounts if an FPDU that contains a Marker ends where the next Marker is due. Size 777 avoids
/// that.
fn all_wires_of(mpa: &str) {
    if !tshark::is_here() {
        return;
    }
    for crc in ["on", "off"] {
        for size in [4096, 777] {
            rping(mpa, crc, "off", size);
        }
        rping(mpa, crc, "on", 777);
    }
}

#[test]
fn rping_by_mpa_revision_1_is_dissected_with_and_without_crc_and_markers() {
    all_wires_of("1");
}

#[test]
fn rping_by_mpa_revision_2_is_dissected_with_and_without_crc_and_markers() {
    all_wires_of("2");
}

/// Number of the demo's atomics: 100 additions, two attempts to take the lock, and a swap.
const ATOMICS: usize = 103;

/// Checks the fields of Atomic Requests and Responses by their names in Wireshark.
fn atomics_are_dissected(file: &Path) {
    let fields = [
        "iwarp_rdma.atomic.opcode",
        "iwarp_rdma.atomic.request_identifier",
        "iwarp_rdma.atomic.add_data",
        "iwarp_rdma.atomic.compare_mask",
        "iwarp_rdma.atomic.original_request_identifier",
        "iwarp_rdma.atomic.original_remote_data_value",
    ];
    let mut arguments = vec!["-T", "fields", "-E", "aggregator=|", "-E", "separator=;"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let text = tshark::read(file, &arguments);
    let mut columns: [Vec<u64>; 6] = Default::default();
    for line in text.lines() {
        for (column, values) in columns.iter_mut().zip(line.split(';')) {
            let values = values.split('|').filter(|value| !value.is_empty());
            column.extend(values.map(|value| match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => value.parse().unwrap(),
            }));
        }
    }
    let [codes, ids, adds, compare_masks, answered, originals] = columns;
    let adding = ATOMICS - 3;
    assert_eq!(codes, [vec![0; adding], vec![2; 3]].concat());
    assert_eq!(ids.len(), ATOMICS);
    assert_eq!(ids, answered);
    assert_eq!(adds, vec![7; adding]);
    // The last request is the swap, which compares nothing.
    assert_eq!(compare_masks.last(), Some(&0));
    let counts = (0..adding as u64).map(|nth| nth * 7);
    assert_eq!(originals, counts.chain([0, 0xA, 0xA]).collect::<Vec<_>>());
}

#[test]
fn the_demo_is_dissected_to_its_last_byte() {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new("demo.pcapng");
    let ended = uwarp(&["demo", "--pcap", file.name()]).expect(0);
    // These are the numbers of the demo's table: 22 messages with 22,442,878 bytes for each
    // operation.
    assert_eq!(
        ended.stdout.matches("22  22,442,878  ok").count(),
        4,
        "{}",
        ended.stdout
    );
    let (count, total) = (22, 22_442_878);
    let seen = Dissected::new(file.path(), 7174);
    let expected = [
        // This count includes one Write with Immediate Data, and the Write that fails.
        (WRITE, (count + 2, total + 16 + 64)),
        (READ_REQUEST, (count, count * 28)),
        (READ_RESPONSE, (count, total)),
        // This count includes both directions and three Sends without content.
        (SEND, (2 * count + 3, 2 * total)),
        (IMMEDIATE, (1, 8)),
        // RFC 7306 sections 5.2.1 and 5.2.2.
        (ATOMIC_REQUEST, (ATOMICS, ATOMICS * 52)),
        (ATOMIC_RESPONSE, (ATOMICS, ATOMICS * 12)),
        // The payload has the control field, the length of the segment, and its DDP header (RFC
        // 5040 section 4.8).
        (TERMINATE, (1, 4 + 2 + 14)),
    ];
    assert_eq!(seen.messages(), BTreeMap::from(expected));
    atomics_are_dissected(file.path());
    assert_eq!(seen.good_crcs, seen.fpdus.len());
    assert_eq!(seen.revisions, ["2", "2"]);
    let known = [
        "Rev field is NOT set to one",
        "Res field is NOT set to zero",
    ];
    assert!(
        seen.warnings
            .iter()
            .all(|text| known.iter().any(|known| text.starts_with(known))),
        "{:?}",
        seen.warnings
    );
}
