//! Every error that a segment can cause, and the Terminate Message for it.

use super::*;
use crate::atomic::AtomicRequestHeader;
use crate::code::TerminateCode;
use crate::error::{Blame, ReadResponseFault};
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write as _;
use uwarp_ddp::DdpError;

/// Builds an untagged ULPDU.
fn untagged(control: u8, ulp: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![control, ulp];
    for field in [0, qn, msn, mo] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Builds a tagged ULPDU.
fn tagged(control: u8, ulp: u8, stag: STag, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![control, ulp];
    bytes.extend(stag.0.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Builds a Read Request for the given source.
fn request(msn: u32, source_stag: STag, source_to: u64, len: u32) -> Vec<u8> {
    let source_to = TaggedOffset(source_to);
    let header = ReadRequestHeader {
        source_stag,
        source_to,
        ..read_request(len)
    };
    untagged(0x41, 0x41, 1, msn, 0, &header.emit())
}

/// Builds a Send with Invalidate.
fn invalidate(stag: STag) -> Vec<u8> {
    let mut bytes = untagged(0x41, 0x44, 0, 1, 0, &[1]);
    bytes[2..6].copy_from_slice(&stag.0.to_be_bytes());
    bytes
}

/// Segments from the peer. The last segment is wrong. `reads`: number of outstanding Reads of 100
/// bytes.
struct Case {
    name: &'static str,
    ulpdus: Vec<Vec<u8>>,
    receive: Option<u32>,
    reads: usize,
    /// Number of outstanding Atomic Operations, begun after the Reads.
    atomics: usize,
}

fn case(name: &'static str, ulpdus: Vec<Vec<u8>>) -> Case {
    Case {
        name,
        ulpdus,
        receive: Some(2000),
        reads: 0,
        atomics: 0,
    }
}

fn ddp_cases() -> Vec<Case> {
    let none = |name, ulpdus| Case {
        receive: None,
        ..case(name, ulpdus)
    };
    let byte = [1u8];
    vec![
        case("empty ULPDU", vec![vec![]]),
        case(
            "tagged header cut short",
            vec![tagged(0xC1, 0x40, WRITABLE, 0, &[])[..13].to_vec()],
        ),
        case(
            "untagged header cut short",
            vec![untagged(0x41, 0x43, 0, 1, 0, &[])[..17].to_vec()],
        ),
        case(
            "tagged, DDP version 2",
            vec![tagged(0xC2, 0x40, WRITABLE, 5000, &byte)],
        ),
        case(
            "untagged, DDP version 0",
            vec![untagged(0x40, 0x43, 0, 1, 0, &byte)],
        ),
        case("Queue Number 4", vec![untagged(0x41, 0x43, 4, 1, 0, &byte)]),
        case("MSN ahead", vec![untagged(0x41, 0x43, 0, 2, 0, &byte)]),
        case(
            "same MSN again",
            vec![untagged(0x41, 0x43, 0, 1, 0, &byte); 2],
        ),
        none("no receive", vec![untagged(0x41, 0x43, 0, 1, 0, &byte)]),
        none(
            "no receive, no bytes",
            vec![untagged(0x41, 0x43, 0, 1, 0, &[])],
        ),
        case(
            "MO not 0 at the start",
            vec![untagged(0x41, 0x43, 0, 1, 4, &byte)],
        ),
        case(
            "Send too long",
            vec![untagged(0x41, 0x43, 0, 1, 0, &[0; 2001])],
        ),
        case(
            "Write, STag unknown",
            vec![tagged(0xC1, 0x40, STag(0xBAD), 5000, &byte)],
        ),
        case(
            "Write, STag of another",
            vec![tagged(0xC1, 0x40, FOREIGN, 5000, &byte)],
        ),
        case(
            "Write, no right",
            vec![tagged(0xC1, 0x40, READABLE, 5000, &byte)],
        ),
        case(
            "Write, TO wraps",
            vec![tagged(0xC1, 0x40, WRITABLE, u64::MAX, &byte)],
        ),
        case(
            "Write, one byte too far",
            vec![tagged(0xC1, 0x40, WRITABLE, 5000, &[0; 1001])],
        ),
        case(
            "Read Request of 29 bytes",
            vec![untagged(0x41, 0x41, 1, 1, 0, &[0; 29])],
        ),
        case("Read Request, MSN 2", vec![request(2, READABLE, 5000, 9)]),
        case(
            "Terminate, MSN 2",
            vec![untagged(0x41, 0x47, 2, 2, 0, &[0; 4])],
        ),
        case(
            "Terminate, MO 4",
            vec![untagged(0x41, 0x47, 2, 1, 4, &[0; 4])],
        ),
    ]
}

fn rdmap_cases() -> Vec<Case> {
    let byte = [1u8];
    let mut cases = vec![
        case(
            "RDMAP version 0",
            vec![untagged(0x41, 0x03, 0, 1, 0, &byte)],
        ),
        case(
            "Send in a tagged segment",
            vec![tagged(0xC1, 0x43, WRITABLE, 5000, &byte)],
        ),
        case(
            "Write in an untagged segment",
            vec![untagged(0x41, 0x40, 0, 1, 0, &byte)],
        ),
        case(
            "Send on Queue Number 1",
            vec![untagged(0x41, 0x43, 1, 1, 0, &byte)],
        ),
        case(
            "Terminate on Queue Number 0",
            vec![untagged(0x41, 0x47, 0, 1, 0, &[0; 4])],
        ),
        case(
            "opcode changes",
            vec![
                untagged(0x01, 0x43, 0, 1, 0, &byte),
                untagged(0x41, 0x45, 0, 1, 1, &byte),
            ],
        ),
        case(
            "Read of one byte, STag unknown",
            vec![request(1, STag(0xBAD), 5000, 1)],
        ),
        case("Read, STag of another", vec![request(1, FOREIGN, 5000, 9)]),
        case("Read, no right", vec![request(1, WRITABLE, 5000, 9)]),
        case("Read, TO wraps", vec![request(1, READABLE, u64::MAX, 9)]),
        case(
            "Read, one byte too far",
            vec![request(1, READABLE, 5000, 1001)],
        ),
        case("Invalidate, STag unknown", vec![invalidate(STag(0xBAD))]),
        case("Invalidate, STag of another", vec![invalidate(FOREIGN)]),
        case(
            "third Read, IRD 2",
            (1..4).map(|msn| request(msn, READABLE, 5000, 9)).collect(),
        ),
        case(
            "Read Request of 27 bytes",
            vec![untagged(0x41, 0x41, 1, 1, 0, &[0; 27])],
        ),
        case(
            "Read Request without L",
            vec![untagged(0x01, 0x41, 1, 1, 0, &[0; 28])],
        ),
        case(
            "Terminate of 3 bytes",
            vec![untagged(0x41, 0x47, 2, 1, 0, &[0; 3])],
        ),
        case(
            "Terminate, header missing",
            vec![untagged(
                0x41,
                0x47,
                2,
                1,
                0,
                &[0x11, 1, 0xC0, 0, 0, 99, 0xC1, 0x40],
            )],
        ),
        case(
            "Terminate without L",
            vec![untagged(0x01, 0x47, 2, 1, 0, &[0; 4])],
        ),
        case(
            "Response, none asked for",
            vec![tagged(0xC1, 0x42, WRITABLE, 5000, &byte)],
        ),
    ];
    for raw in 0x4C..=0x4F {
        cases.push(case(
            "opcode unknown",
            vec![untagged(0x41, raw, 0, 1, 0, &byte)],
        ));
    }
    let response = |name, control, stag, to, len| Case {
        reads: 1,
        ..case(
            name,
            vec![tagged(control, 0x42, STag(stag), to, &vec![0; len])],
        )
    };
    cases.extend([
        response("Response, other STag", 0xC1, 0x78, 900, 100),
        response("Response, other TO", 0xC1, 0x77, 901, 100),
        response("Response, too long", 0xC1, 0x77, 900, 101),
        response("Response, too short", 0xC1, 0x77, 900, 99),
        response("Response, empty", 0xC1, 0x77, 900, 0),
    ]);
    cases
}

/// Builds an Atomic Request for a FetchAdd.
fn atomic(msn: u32, stag: STag, to: u64) -> Vec<u8> {
    let header = AtomicRequestHeader::new(7, stag, TaggedOffset(to), ADD_ONE);
    untagged(0x41, 0x4A, 1, msn, 0, &header.emit())
}

fn immediate_cases() -> Vec<Case> {
    let eight = [7u8; 8];
    let none = Case {
        receive: None,
        ..case(
            "Immediate, no receive",
            vec![untagged(0x41, 0x48, 0, 1, 0, &eight)],
        )
    };
    vec![
        none,
        case(
            "Immediate of 7 bytes",
            vec![untagged(0x41, 0x48, 0, 1, 0, &eight[..7])],
        ),
        case(
            "Immediate with SE of 9 bytes",
            vec![untagged(0x41, 0x49, 0, 1, 0, &[7; 9])],
        ),
        case(
            "Immediate of no bytes",
            vec![untagged(0x41, 0x48, 0, 1, 0, &[])],
        ),
        case(
            "Immediate without L",
            vec![untagged(0x01, 0x48, 0, 1, 0, &eight)],
        ),
        case(
            "Immediate, MSN 2",
            vec![untagged(0x41, 0x48, 0, 2, 0, &eight)],
        ),
        case(
            "Immediate, MO 8",
            vec![untagged(0x41, 0x48, 0, 1, 8, &eight)],
        ),
        case(
            "Immediate within a Send",
            vec![
                untagged(0x01, 0x43, 0, 1, 0, &eight),
                untagged(0x41, 0x48, 0, 1, 8, &eight),
            ],
        ),
        case(
            "Immediate on Queue Number 3",
            vec![untagged(0x41, 0x48, 3, 1, 0, &eight)],
        ),
        case(
            "Immediate in a tagged segment",
            vec![tagged(0xC1, 0x48, WRITABLE, 5000, &eight)],
        ),
        case(
            "Send on Queue Number 3",
            vec![untagged(0x41, 0x43, 3, 1, 0, &eight)],
        ),
    ]
}

fn atomic_cases() -> Vec<Case> {
    let whole = atomic(1, ATOMIC, 5000);
    let changed = |at: usize, byte| {
        let mut ulpdu = whole.clone();
        ulpdu[at] = byte;
        vec![ulpdu]
    };
    let mut long = whole.clone();
    long.push(0);
    let response = |name, outstanding, msn, bytes: &[u8]| Case {
        atomics: outstanding,
        ..case(name, vec![untagged(0x41, 0x4B, 3, msn, 0, bytes)])
    };
    // The correct Response: Request Identifier 1, the first one, and the value 5.
    let right = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5];
    vec![
        case("Atomic, short by one byte", vec![whole[..69].to_vec()]),
        case("Atomic, long by one byte", vec![long]),
        case("Atomic without L", changed(0, 0x01)),
        case("Atomic on Queue Number 0", changed(9, 0)),
        case("Atomic on Queue Number 3", changed(9, 3)),
        case("Atomic, MSN 2", changed(13, 2)),
        case("Atomic, MO 1", changed(17, 1)),
        case("Atomic, AOpCode 1", changed(21, 1)),
        case("Atomic, AOpCode 3", changed(21, 3)),
        case("Atomic, AOpCode 15", changed(21, 15)),
        case("Atomic, misaligned", vec![atomic(1, ATOMIC, 5004)]),
        case("Atomic, STag unknown", vec![atomic(1, STag(0xBAD), 5000)]),
        case("Atomic, STag of another", vec![atomic(1, FOREIGN, 5000)]),
        case("Atomic, no right", vec![atomic(1, WRITABLE, 5000)]),
        case("Atomic, TO wraps", vec![atomic(1, ATOMIC, u64::MAX - 3)]),
        case("Atomic, past the end", vec![atomic(1, ATOMIC, 6000)]),
        case(
            "third request, IRD 2",
            vec![
                atomic(1, ATOMIC, 5000),
                request(2, READABLE, 5000, 9),
                atomic(3, ATOMIC, 5000),
            ],
        ),
        response("Atomic Response, none asked for", 0, 1, &right),
        Case {
            reads: 1,
            ..response("Atomic Response, a Read is older", 1, 1, &right)
        },
        Case {
            atomics: 1,
            ..case(
                "Response, an Atomic is older",
                vec![tagged(0xC1, 0x42, STag(0x77), 900, &[0; 100])],
            )
        },
        response(
            "Atomic Response, identifier 2",
            1,
            1,
            &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5],
        ),
        response("Atomic Response, MSN 2", 1, 2, &right),
        response("Atomic Response of 11 bytes", 1, 1, &right[..11]),
        response("Atomic Response of 13 bytes", 1, 1, &[0; 13]),
        Case {
            atomics: 1,
            ..case(
                "Atomic Response without L",
                vec![untagged(0x01, 0x4B, 3, 1, 0, &right)],
            )
        },
        Case {
            atomics: 1,
            ..case(
                "Atomic Response on Queue Number 1",
                vec![untagged(0x41, 0x4B, 1, 1, 0, &right)],
            )
        },
    ]
}

/// Runs a case. Returns the error and its Terminate Message.
fn run(case: &Case) -> (StreamError, Terminate) {
    let mut stream = stream();
    let memory = ModelMemory {
        receive: case.receive,
        ..memory()
    };
    for _ in 0..case.reads {
        let _request = stream.begin_read(read_request(100)).unwrap();
    }
    for _ in 0..case.atomics {
        let to = TaggedOffset(5000);
        let _request = stream.begin_atomic(ATOMIC, to, ADD_ONE).unwrap();
    }
    let (wrong, fine) = case.ulpdus.split_last().unwrap();
    for ulpdu in fine {
        receive(&mut stream, &memory, ulpdu).unwrap();
    }
    let error = receive(&mut stream, &memory, wrong).expect_err(case.name);
    // 5041-7.1-18: every later segment gets the same error.
    let good = untagged(0x41, 0x43, 0, 1, 0, &[]);
    assert_eq!(
        receive(&mut stream, &memory, &good),
        Err(error),
        "{}",
        case.name
    );
    assert_eq!(stream.error(), Some(error));
    assert_eq!(stream.state(), StreamState::Failed);
    assert!(stream.begin_send(SendKind::default(), 0).is_done());

    let head = &wrong[..wrong.len().min(HEAD_LEN)];
    let terminate = Stream::terminate_for(&error, Some((head, wrong.len()))).unwrap();
    assert_eq!(Some(terminate.reason()), error.terminate_code());
    // 5041-7.1-19: the error is reported to the peer, which can read the message.
    let ulpdu = single(stream.begin_terminate(&terminate).unwrap());
    let told = receive(&mut super::stream(), &memory, &ulpdu);
    assert_eq!(told, Ok(Inbound::Terminate(terminate)));
    (error, terminate)
}

#[test]
#[cfg_attr(miri, ignore = "minutes, most of them for the text of the table")]
fn every_wrong_segment_has_its_terminate() {
    let mut table = String::from("M D R  L/T/CC  case                              error\n");
    let cases = [
        ddp_cases(),
        rdmap_cases(),
        immediate_cases(),
        atomic_cases(),
    ];
    for case in cases.iter().flatten() {
        let (error, terminate) = run(case);
        let bit = |present: bool, letter| if present { letter } else { '-' };
        let (m, d, r) = (
            bit(terminate.segment_len().is_some(), 'M'),
            bit(terminate.ddp_bytes().is_some(), 'D'),
            bit(terminate.rdma_header().is_some(), 'R'),
        );
        let reason = terminate.reason().to_string();
        let _ = writeln!(table, "{m} {d} {r}  {reason}  {:32}  {error}", case.name);
        assert_eq!(error.blame(), Blame::Peer);
        // The message carries the header as it was received.
        let wrong = case.ulpdus.last().unwrap();
        if let Some(bytes) = terminate.ddp_bytes() {
            assert_eq!(bytes, &wrong[..bytes.len()]);
            assert_eq!(terminate.segment_len().map(usize::from), Some(wrong.len()));
        }
        if let Some(header) = terminate.rdma_header() {
            assert_eq!(header.emit()[..], wrong[18..46]);
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn errors_that_no_segment_causes_have_their_numbers_and_blame() {
    let code = |error: StreamError| error.terminate_code().map(|code| format!("{code}"));
    let local = StreamError::LocalCatastrophic;
    assert_eq!(code(local).as_deref(), Some("0/0/00"));
    assert_eq!(
        code(DdpError::LocalCatastrophic.into()).as_deref(),
        Some("1/0/00")
    );
    assert_eq!(code(StreamError::Mpa(6)).as_deref(), Some("2/0/06"));
    assert_eq!(code(StreamError::Ended), None);
    assert_eq!(local.blame(), Blame::Local);
    assert_eq!(StreamError::Mpa(2).blame(), Blame::Lower);
    assert_eq!(
        StreamError::Mpa(2).to_string(),
        "the LLP reports: CRC error"
    );
}

#[test]
fn local_and_llp_errors_carry_no_headers_even_if_a_segment_is_given() {
    let ulpdu = request(1, READABLE, 5000, 9);
    let errors = [
        StreamError::LocalCatastrophic,
        StreamError::Ddp(DdpError::LocalCatastrophic),
        StreamError::Mpa(3),
    ];
    for error in errors {
        let terminate = Stream::terminate_for(&error, Some((&ulpdu, ulpdu.len()))).unwrap();
        assert_eq!(
            (terminate.segment_len(), terminate.ddp_bytes()),
            (None, None)
        );
        assert_eq!(terminate.rdma_header(), None); // 5040-4.8-i01, 5040-4.8-i04
    }
}

#[test]
fn a_head_shorter_than_promised_is_a_local_error_and_no_panic() {
    let mut stream = stream();
    let result = stream.receive(&memory(), &[0x41; 20], 100);
    assert_eq!(result, Err(StreamError::LocalCatastrophic));
}

#[test]
fn an_stag_is_looked_at_only_with_the_last_segment_of_a_send_with_invalidate() {
    let (mut stream, memory) = (stream(), memory());
    let mut first = invalidate(STag(0xBAD));
    first[0] = 0x01;
    assert!(receive(&mut stream, &memory, &first).is_ok());
    let mut last = untagged(0x41, 0x44, 0, 1, 1, &[]);
    last[2..6].copy_from_slice(&0xBADu32.to_be_bytes());
    let error = StreamError::Access(AccessError {
        opcode: Opcode::SendInvalidate,
        fault: TaggedFault::InvalidSTag,
        stag: STag(0xBAD),
        to: TaggedOffset(0),
        len: 0,
    });
    assert_eq!(receive(&mut stream, &memory, &last), Err(error));
}

#[test]
fn a_response_that_ends_with_an_empty_segment_is_complete_with_it() {
    let (mut stream, memory) = (stream(), memory());
    let _request = stream.begin_read(read_request(5)).unwrap();
    let all = tagged(0x81, 0x42, STag(0x77), 900, &[0; 5]);
    assert!(receive(&mut stream, &memory, &all).is_ok());
    assert_eq!(stream.requests_outstanding(), 1);
    let end = tagged(0xC1, 0x42, STag(0), 0, &[]);
    let complete = Inbound::ReadResponse {
        payload_at: 14,
        offset: 5,
        len: 0,
        complete: true,
    };
    assert_eq!(receive(&mut stream, &memory, &end), Ok(complete));
    assert_eq!(
        receive(&mut stream, &memory, &end),
        Err(StreamError::ReadResponseUnexpected)
    );
}

#[test]
fn responses_belong_to_the_oldest_read() {
    let (mut stream, memory) = (stream(), memory());
    let second = ReadRequestHeader {
        sink_stag: STag(0x79),
        ..read_request(5)
    };
    let _requests = (
        stream.begin_read(read_request(5)),
        stream.begin_read(second),
    );
    let early = tagged(0xC1, 0x42, STag(0x79), 900, &[0; 5]);
    let fault = ReadResponseFault::WrongSTag {
        expected: STag(0x77),
        got: STag(0x79),
    };
    let error = StreamError::ReadResponseMismatch(fault);
    assert_eq!(receive(&mut stream, &memory, &early), Err(error)); // 5040-5.2.2-04
}

/// Checks that no opcode and no kind of segment makes the stream read a header past the end of its
/// ULPDU.
#[test]
fn a_segment_shorter_than_its_headers_is_refused_whatever_its_opcode() {
    let mut wrong = Vec::new();
    for opcode in 0x40..0x50 {
        let qn = Opcode::from_raw(opcode & 15).and_then(Opcode::queue);
        let qn = qn.map_or(0, |qn| qn.0);
        wrong.push(tagged(0xC1, opcode, STag(0), 0, &[]));
        wrong.push(untagged(0x41, opcode, qn, 1, 0, &[]));
    }
    for (opcode, qn, header) in [(0x41, 1, 28), (0x47, 2, 4), (0x4A, 1, 52)] {
        wrong.push(untagged(0x41, opcode, qn, 1, 0, &vec![0; header]));
    }
    let memory = memory();
    for whole in wrong {
        let ddp_header = if whole[0] & 0x80 != 0 { 14 } else { 18 };
        // A message without an RDMAP header may end after the DDP header.
        let is_short = |len: &usize| *len < ddp_header || whole.len() > ddp_header;
        // Miri would take minutes for all lengths, so it tests only lengths that are one byte too
        // short.
        let is_played = |len: &usize| !cfg!(miri) || [ddp_header, whole.len()].contains(&(len + 1));
        for len in (0..whole.len()).filter(is_short).filter(is_played) {
            let refused = stream().receive(&memory, &whole[..len], len);
            let error = refused.expect_err("it is too short");
            let code = error.terminate_code();
            assert_eq!(
                code,
                Some(TerminateCode::new(2, 0, 3)),
                "{whole:02x?} to {len}"
            );
        }
    }
}
