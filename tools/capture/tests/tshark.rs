//! The dissectors of Wireshark read every FPDU of every synthesized flow, however the application
//! divided the bytes.
//!
//! These tests need `tshark` 4.0 or later. Without it they print a notice and pass, unless
//! `UWARP_REQUIRE_TSHARK=1` is set in the environment.

use std::path::{Path, PathBuf};

use uwarp_capture::{Capture, Direction, Flow, Interface, LinkType};
use uwarp_oracle::{CRC, Fpdus, MARKERS};
use uwarp_testkit::frames::{reply, request, tagged, untagged, upsets_wireshark};
use uwarp_testkit::{filler, tshark};

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        let name = format!("uwarp-capture-{}-{name}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns one row for each packet that passes `filter`, with one column for each field. Several
/// values of a field are separated by commas.
fn fields(file: &Path, filter: &str, names: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["-T", "fields", "-Y", filter];
    for name in names {
        arguments.extend(["-e", name]);
    }
    tshark::read(file, &arguments)
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// Returns all values of one field, in the order of the packets that pass `filter`.
fn values(file: &Path, filter: &str, name: &str) -> Vec<String> {
    fields(file, filter, &[name])
        .iter()
        .flat_map(|line| split(&line[0]))
        .collect()
}

/// Splits the values of a field at the commas of tshark.
fn split(values: &str) -> impl Iterator<Item = String> + '_ {
    let values = values.split(',').filter(|value| !value.is_empty());
    values.map(str::to_owned)
}

/// Sizes of the pieces in which the bytes are passed to the flow.
#[derive(Debug, Clone, Copy)]
enum Pieces {
    Whole,
    Of(usize),
    /// Pseudorandom sizes. The value is the seed.
    Mixed(u32),
}

fn hand_over(pieces: Pieces, bytes: &[u8], mut give: impl FnMut(&[u8])) {
    match pieces {
        Pieces::Whole => give(bytes),
        Pieces::Of(len) => bytes.chunks(len).for_each(give),
        Pieces::Mixed(mut seed) => {
            let mut rest = bytes;
            while !rest.is_empty() {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let len = 1 + (seed >> 16) as usize % [9, 60, 700, 5000][seed as usize >> 30];
                let (piece, behind) = rest.split_at(len.min(rest.len()));
                give(piece);
                rest = behind;
            }
        }
    }
}

/// Negotiation of a connection, and the way it is recorded.
#[derive(Debug, Clone, Copy)]
struct Case {
    request_flags: u8,
    reply_flags: u8,
    revision: u8,
    private_data: usize,
    pieces: Pieces,
    mss: usize,
    ipv6: bool,
    link: LinkType,
}

const PLAIN: Case = Case {
    request_flags: CRC,
    reply_flags: CRC,
    revision: 1,
    private_data: 0,
    pieces: Pieces::Whole,
    mss: 1460,
    ipv6: false,
    link: LinkType::RawIp,
};

/// Payload lengths: small ones that share a segment, around one MSS, several MSS, and the longest
/// ULPDU.
const LENGTHS: [usize; 14] = [
    0,
    1,
    2,
    3,
    24,
    100,
    513,
    1400,
    1440,
    1442,
    3000,
    17,
    20_000,
    64_768 - 18,
];

/// Records a connection. The initiator sends every kind of message, and the responder sends Sends
/// and Read Responses. Returns the ULPDU lengths and opcodes of both directions, as tshark should
/// print them.
fn record(case: &Case, interface: &Interface, port: u16) -> [Vec<(String, String)>; 2] {
    let (local, peer) = if case.ipv6 {
        (
            format!("[2001:db8::1]:{port}"),
            "[2001:db8::2]:7174".to_owned(),
        )
    } else {
        (format!("192.0.2.1:{port}"), "192.0.2.2:7174".to_owned())
    };
    let mut flow = Flow::new(
        interface.clone(),
        local.parse().unwrap(),
        peer.parse().unwrap(),
        case.mss,
    );
    let private_data = filler(0, case.private_data);
    flow.opened(true);
    let frame = request(case.request_flags, case.revision, &private_data);
    hand_over(case.pieces, &frame, |piece| flow.sent(piece));
    let frame = reply(case.reply_flags, case.revision, &private_data);
    hand_over(case.pieces, &frame, |piece| flow.received(piece));

    let crc = (case.request_flags | case.reply_flags) & CRC != 0;
    let mut encoder = Fpdus::new(crc, case.reply_flags & MARKERS != 0);
    let mut seen = Vec::new();
    let stream = initiator_stream(&mut encoder, &mut seen);
    hand_over(case.pieces, &stream, |piece| flow.sent(piece));

    let mut encoder = Fpdus::new(crc, case.request_flags & MARKERS != 0);
    let mut answered = Vec::new();
    let mut stream = Vec::new();
    for len in LENGTHS {
        add(
            &mut encoder,
            &mut stream,
            &mut answered,
            2,
            &tagged(2, &filler(0, len)),
        );
    }
    let terminate = [&[0x11, 0x01, 0xC0, 0, 0, 32][..], &[0xC1, 0x40], &[0; 12]].concat();
    add(
        &mut encoder,
        &mut stream,
        &mut answered,
        7,
        &untagged(7, 2, 1, &terminate),
    );
    hand_over(case.pieces, &stream, |piece| flow.received(piece));
    flow.local_fin();
    flow.peer_fin();
    [seen, answered]
}

fn initiator_stream(encoder: &mut Fpdus, seen: &mut Vec<(String, String)>) -> Vec<u8> {
    let mut stream = Vec::new();
    for (msn, len) in (1..).zip(LENGTHS) {
        add(
            encoder,
            &mut stream,
            seen,
            3,
            &untagged(3, 0, msn, &filler(0, len)),
        );
        add(encoder, &mut stream, seen, 0, &tagged(0, &filler(0, len)));
    }
    for (opcode, queue, len) in [
        (1, 1, 28),
        (4, 0, 40),
        (5, 0, 40),
        (6, 0, 40),
        (8, 0, 8),
        (9, 0, 8),
        (10, 1, 52),
    ] {
        add(
            encoder,
            &mut stream,
            seen,
            opcode,
            &untagged(opcode, queue, 99, &filler(0, len)),
        );
    }
    stream
}

fn add(
    encoder: &mut Fpdus,
    stream: &mut Vec<u8>,
    seen: &mut Vec<(String, String)>,
    opcode: u8,
    ulpdu: &[u8],
) {
    // Wireshark has a bug with these FPDUs; see the crate documentation.
    if upsets_wireshark(encoder, ulpdu.len()) {
        return;
    }
    stream.extend(encoder.seal(ulpdu));
    seen.push((ulpdu.len().to_string(), format!("0x{opcode:02x}")));
}

/// Records all cases into one file and checks that Wireshark dissects every FPDU.
fn check(name: &str, cases: &[Case]) {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new(name);
    let capture = Capture::create(&file.0).unwrap();
    let expected: Vec<_> = (40_000..)
        .zip(cases)
        .map(|(port, case)| {
            let interface = capture.interface("tcp", case.link);
            (port, case, record(case, &interface, port))
        })
        .collect();
    assert_eq!(capture.error(), None);

    let names = [
        "tcp.srcport",
        "tcp.dstport",
        "iwarp_mpa.ulpdulength",
        "iwarp_rdma.opcode",
    ];
    let packets = fields(&file.0, "iwarp_mpa", &names);
    let mut with_crc = 0;
    for (port, case, [sent, received]) in &expected {
        for (field, fpdus) in [(0, sent), (1, received)] {
            let dissected: Vec<_> = packets
                .iter()
                .filter(|packet| packet[field] == port.to_string())
                .flat_map(|packet| split(&packet[2]).zip(split(&packet[3])))
                .collect();
            assert_eq!(&dissected, fpdus, "{} of {case:?}", names[field]);
        }
        if (case.request_flags | case.reply_flags) & CRC != 0 {
            with_crc += sent.len() + received.len();
        }
    }
    // In two passes, tshark dissects like graphical Wireshark when the user selects a packet.
    let details = tshark::read(&file.0, &["-2", "-V", "-O", "iwarp_mpa"]);
    assert_eq!(details.matches("Good CRC32").count(), with_crc);
    assert_eq!(details.matches("Bad CRC32").count(), 0);
    assert_eq!(details.matches("Request frame header").count(), cases.len());
    assert_eq!(details.matches("Reply frame header").count(), cases.len());
    nothing_is_wrong(&file.0);
}

/// Asserts that Wireshark reports no malformed packet, wrong checksum, or problem with sequence
/// numbers or windows.
fn nothing_is_wrong(file: &Path) {
    let checksums = [
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "tcp.check_checksum:TRUE",
        "-Y",
        "_ws.malformed || tcp.analysis.flags || ip.checksum.status == 0 || tcp.checksum.status == 0",
    ];
    assert_eq!(tshark::read(file, &checksums), "");
    let good = [
        &checksums[..4],
        &["-Y", "tcp && !(tcp.checksum.status == 1)"],
    ]
    .concat();
    assert_eq!(tshark::read(file, &good), "");
}

#[test]
fn every_fpdu_is_dissected_whatever_pieces_it_came_in() {
    let pieces = [
        Pieces::Whole,
        Pieces::Of(1460),
        Pieces::Of(999),
        Pieces::Of(65_536),
        Pieces::Mixed(1),
        Pieces::Mixed(2),
    ];
    let mut cases: Vec<_> = pieces.map(|pieces| Case { pieces, ..PLAIN }).into();
    cases.push(Case {
        mss: 65_483,
        ..PLAIN
    });
    cases.push(Case {
        mss: 536,
        pieces: Pieces::Mixed(3),
        ..PLAIN
    });
    cases.push(Case {
        ipv6: true,
        private_data: 512,
        pieces: Pieces::Of(100),
        ..PLAIN
    });
    cases.push(Case {
        link: LinkType::Ethernet,
        ..PLAIN
    });
    cases.push(Case {
        request_flags: 0,
        reply_flags: 0,
        ..PLAIN
    });
    check("plain", &cases);
}

#[test]
fn every_fpdu_is_dissected_with_markers_in_both_directions() {
    let marked = Case {
        request_flags: CRC | MARKERS,
        reply_flags: CRC | MARKERS,
        ..PLAIN
    };
    let pieces = [
        Pieces::Whole,
        Pieces::Of(1460),
        Pieces::Of(997),
        Pieces::Mixed(4),
        Pieces::Mixed(5),
    ];
    let mut cases: Vec<_> = pieces.map(|pieces| Case { pieces, ..marked }).into();
    cases.push(Case {
        mss: 65_483,
        ..marked
    });
    cases.push(Case {
        mss: 536,
        pieces: Pieces::Mixed(6),
        ..marked
    });
    cases.push(Case {
        ipv6: true,
        private_data: 33,
        ..marked
    });
    check("markers", &cases);
}

#[test]
fn revision_2_with_enhanced_data_is_dissected() {
    let enhanced = Case {
        request_flags: CRC | 0x10,
        reply_flags: CRC | 0x10,
        revision: 2,
        private_data: 4,
        ..PLAIN
    };
    check(
        "revision2",
        &[
            enhanced,
            Case {
                private_data: 60,
                pieces: Pieces::Of(7),
                ..enhanced
            },
        ],
    );
}

#[test]
fn bytes_that_come_one_by_one_are_dissected() {
    if !tshark::is_here() {
        return;
    }
    for markers in [0, MARKERS] {
        let file = TempFile::new(&format!("dribble{markers}"));
        let capture = Capture::create(&file.0).unwrap();
        let interface = capture.interface("tcp", LinkType::RawIp);
        let (local, peer) = ("192.0.2.1:40000", "192.0.2.2:7174");
        let mut flow = Flow::new(
            interface,
            local.parse().unwrap(),
            peer.parse().unwrap(),
            1460,
        );
        flow.opened(false);
        let frame = request(CRC | markers, 1, b"hello");
        hand_over(Pieces::Of(1), &frame, |piece| flow.received(piece));
        let frame = reply(CRC | markers, 1, b"welcome");
        hand_over(Pieces::Of(1), &frame, |piece| flow.sent(piece));
        let mut encoder = Fpdus::new(true, markers != 0);
        let lengths = [24, 100, 600, 30];
        for len in lengths {
            let fpdu = encoder.seal(&untagged(3, 0, 1, &filler(0, len)));
            hand_over(Pieces::Of(1), &fpdu, |piece| flow.received(piece));
        }
        drop(flow);
        let expected = lengths.map(|len| (len + 18).to_string());
        assert_eq!(
            values(&file.0, "iwarp_mpa", "iwarp_mpa.ulpdulength"),
            expected
        );
        nothing_is_wrong(&file.0);
    }
}

/// Starts a capture with a connection on which an MPA Request was sent.
fn requested(file: &TempFile) -> Flow {
    let capture = Capture::create(&file.0).unwrap();
    let interface = capture.interface("tcp", LinkType::RawIp);
    let (local, peer) = ("192.0.2.1:40000", "192.0.2.2:7174");
    let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
    let mut flow = Flow::new(interface, local, peer, 1460);
    flow.opened(true);
    flow.sent(&request(CRC, 1, b""));
    flow
}

#[test]
fn a_reply_and_the_responders_first_fpdu_in_one_piece_are_both_dissected() {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new("reply");
    let mut flow = requested(&file);
    let mut encoder = Fpdus::new(true, false);
    let fpdu = encoder.seal(&untagged(3, 0, 1, &filler(0, 40)));
    flow.received(&[reply(CRC, 1, b"ok"), fpdu].concat());
    assert_eq!(
        values(&file.0, "iwarp_mpa", "iwarp_mpa.ulpdulength"),
        ["58"]
    );
}

#[test]
fn markers_asked_for_by_one_side_only_leave_the_marked_direction_readable() {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new("one-sided");
    let capture = Capture::create(&file.0).unwrap();
    let interface = capture.interface("tcp", LinkType::RawIp);
    // The initiator asks for Markers, so the responder sends them.
    let case = Case {
        request_flags: CRC | MARKERS,
        ..PLAIN
    };
    let [_, received] = record(&case, &interface, 40_000);
    let lengths = values(&file.0, "tcp.dstport == 40000", "iwarp_mpa.ulpdulength");
    let expected: Vec<_> = received.into_iter().map(|(len, _)| len).collect();
    assert_eq!(lengths, expected);
}

#[test]
fn a_wrong_crc_is_flagged_on_its_fpdu_alone() {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new("crc");
    let mut flow = requested(&file);
    flow.received(&reply(CRC, 1, b""));
    let mut encoder = Fpdus::new(true, false);
    let mut stream = encoder.seal(&untagged(3, 0, 1, &filler(0, 40)));
    *stream.last_mut().unwrap() ^= 1;
    stream.extend(encoder.seal(&untagged(3, 0, 2, &filler(0, 41))));
    flow.sent(&stream);
    let details = tshark::read(&file.0, &["-V"]);
    assert_eq!(details.matches("Bad CRC32").count(), 1);
    assert_eq!(details.matches("Good CRC32").count(), 1);
}

#[test]
fn interfaces_directions_comments_and_nanoseconds_are_shown() {
    if !tshark::is_here() {
        return;
    }
    let file = TempFile::new("meta");
    let capture = Capture::create(&file.0).unwrap();
    let raw = capture.interface("tcp:127.0.0.1", LinkType::RawIp);
    let ethernet = capture.interface("tap:uwarp0", LinkType::Ethernet);
    raw.packet(Direction::Outbound, &[&[0x45; 20]]);
    ethernet.packet_with_comment(
        Direction::Inbound,
        "dropped by the fault layer",
        &[&[2; 60]],
    );
    let names = [
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.comment",
        "frame.time_epoch",
    ];
    let lines = fields(&file.0, "frame", &names);
    assert_eq!(lines[0][..2], ["tcp:127.0.0.1", "0x00000002"]);
    assert_eq!(
        lines[1][..3],
        ["tap:uwarp0", "0x00000001", "dropped by the fault layer"]
    );
    let decimals = lines[0][3].split('.').nth(1).unwrap();
    assert_eq!(decimals.len(), 9);
}
