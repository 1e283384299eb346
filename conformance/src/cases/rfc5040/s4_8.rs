//! RFC 5040 section 4.8: the Terminate Header. The cases of the other sections check the code of
//! each error.

use super::*;
use crate::script::{Condition, must, send_invalidate, should, terminate};
use crate::wire::fpdu::CrcField;
use crate::wire::terminate::{D, M, R};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = format();
    cases.extend(header_bits());
    cases.extend(headers());
    cases.push(short());
    cases
}

/// Sends a Write to an STag that does not exist.
fn bad_write() -> Action {
    Send(vec![write(Stag::Is(STAG), To::Is(TO), 16)])
}

/// Sends a Send on a queue that does not exist.
fn bad_send() -> Action {
    Send(vec![send(17).qn(9)])
}

/// Sends a Read of an STag that does not exist.
fn bad_read() -> Action {
    Send(vec![read_request(Stag::Is(STAG), To::Is(TO), 16)])
}

fn format() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-4.8/1",
            &["5040-4.8-01"],
            "A Terminate has the Terminate Header of Figure 7 with the fields that M, D and R announce.",
        )
        .steps(every_terminate(&[Rule::TerminateHeaders])),
        must(
            "rdmap/5040-4.8/2",
            &["5040-4.8-02"],
            "Terminate Control is Layer (4 bits), EType (4), Error Code (8) and M, D, R.",
        )
        .steps([
            Establish(Setup::default()),
            bad_send(),
            End(Ends::term(1, 2, 1).headers_within(0, M | D)),
            Establish(Setup::default()),
            bad_read(),
            End(Ends::term(0, 1, 0).headers(M | D | R)),
        ]),
        must(
            "rdmap/5040-4.8/3",
            &["5040-4.8-03"],
            "Layer, EType and Error Code are registered ones.",
        )
        .steps(every_terminate(&[Rule::TerminateCode])),
        must(
            "rdmap/5040-4.8/7",
            &["5040-4.8-07"],
            "The 13 reserved bits of the Terminate Header are sent as zero.",
        )
        .steps(every_terminate(&[Rule::TerminateReserved])),
        must(
            "rdmap/5040-4.8/8",
            &["5040-4.8-08"],
            "The 13 reserved bits of the Terminate Header are ignored on receive: such a Terminate is no error, and ends the connection.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![terminate(&[0, 0, 0x1f, 0xff])]),
            Fin,
            End(Ends::close()),
        ]),
    ]
}

fn header_bits() -> Vec<Case> {
    vec![
        should(
            "rdmap/5040-4.8/4",
            &["5040-4.8-04", "5040-4.8-05", "5040-4.8-06"],
            "M and D are set for an error of DDP, and R is not (Figure 10).",
        )
        .steps([
            Establish(Setup::default()),
            bad_write(),
            End(Ends::term(1, 1, 0).headers(M | D)),
            Establish(Setup::default()),
            bad_send(),
            End(Ends::term(1, 2, 1).headers(M | D)),
        ]),
        should(
            "rdmap/5040-4.8/5",
            &["5040-4.8-04", "5040-4.8-05", "5040-4.8-06"],
            "M, D and R are set for a Remote Protection Error of a Read Request (Figure 10).",
        )
        .steps([
            Establish(Setup::default()),
            bad_read(),
            End(Ends::term(0, 1, 0).headers(M | D | R)),
        ]),
        should(
            "rdmap/5040-4.8/6",
            &["5040-4.8-04", "5040-4.8-05", "5040-4.8-06"],
            "M and D are set for a Remote Operation Error if possible, and R is not (Figure 10).",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).opcode(opcode::UNASSIGNED)]),
            End(Ends::term(0, 2, 6).headers(M | D)),
        ]),
        must(
            "rdmap/5040-4.8/13",
            &["5040-4.8-i01"],
            "A Terminate for a local error has neither DDP Header nor RDMA Header.",
        )
        .steps(local_error(Ends::any_term().headers(0))),
        must(
            "rdmap/5040-4.8/14",
            &["5040-4.8-i02"],
            "A Terminate contains an RDMA Header only for Read Requests.",
        )
        .steps([
            Establish(Setup::default()),
            bad_write(),
            End(Ends::any_term().headers_within(0, M | D)),
            Establish(Setup::default()),
            bad_send(),
            End(Ends::any_term().headers_within(0, M | D)),
            Establish(Setup::default()),
            Send(vec![send_invalidate(Stag::Is(STAG), 16)]),
            End(Ends::any_term().headers_within(0, M | D)),
        ]),
        must(
            "rdmap/5040-4.8/16",
            &["5040-4.8-i04"],
            "A Terminate for an error of MPA has neither DDP Header nor RDMA Header.",
        )
        .steps([
            Establish(Setup::default().crc(true)),
            Send(vec![send(16).crc(CrcField::Xor(1 << 7))]),
            End(Ends::term(2, 0, 2).headers(0)),
        ]),
    ]
}

/// Terminates in ULPDUs that are too short to contain the Terminate Control, the segment length, or
/// the headers that M, D and R announce.
fn short() -> Case {
    let announced = [0x00, 0x02, 0xe0, 0x00, 0x00, 46, 0x41, 0x41];
    let cut = [
        &announced[..1],
        &announced[..3],
        &announced[..4],
        &announced[..5],
        &announced[..6],
        &announced[..8],
    ];
    must(
        "rdmap/5040-4.8/20",
        &["5040-4.8-01", "5040-7.2-01"],
        "A Terminate in a ULPDU shorter than its headers ends the stream, and the target continues to serve.",
    )
    .steps(cut.into_iter().flat_map(|header| {
        [
            Establish(Setup::default()),
            Send(vec![terminate(header)]),
            End(Ends::any_term().or_close()),
        ]
    }))
    .steps([Establish(Setup::default()), Ping])
    .dangerous()
}

/// Provokes a local error at the application. Its Send waits for an earlier Read, and the buffer of
/// the Send is deregistered meanwhile.
pub(super) fn local_error(ends: Ends) -> Vec<Action> {
    let [post, wants] = posts_read(8);
    vec![
        Establish(Setup::default()),
        Region(Region::writable("gone", 64).access("lw")),
        post,
        Post(Post::send(64).fence().from("gone")),
        wants,
        Deregister("gone"),
        Send(vec![answer_read(0, 8)]),
        End(ends),
        completes("read"),
        Completion {
            op: "send",
            success: false,
        },
    ]
}

/// Restricts the accepted Terminates after an error of DDP. Setting M and D is only a SHOULD, here
/// and in RFC 5041 section 7.1. If they are set, the quoted headers must be correct.
fn named(ends: Ends) -> Ends {
    ends.headers_within(0, M | D).naming_last()
}

fn headers() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-4.8/9",
            &["5040-4.8-09", "5040-4.8-10"],
            "DDP Segment Length, present with M or D, is the length of the wrong segment.",
        )
        .steps([
            Establish(Setup::default()),
            bad_write(),
            End(named(Ends::term(1, 1, 0)).measuring()),
            Establish(Setup::default()),
            bad_send(),
            End(named(Ends::term(1, 2, 1)).measuring()),
        ]),
        must(
            "rdmap/5040-4.8/11",
            &["5040-4.8-11"],
            "The Terminated DDP Header, present with D, is that of the wrong segment: 14 bytes if tagged, 18 if untagged.",
        )
        .steps([
            Watch(&[Rule::TerminateHeaders]),
            Establish(Setup::default()),
            Send(vec![send(16), write(Stag::Is(STAG), To::Is(TO), 16)]),
            End(named(Ends::term(1, 1, 0))),
            Establish(Setup::default()),
            Send(vec![send(16), send(17).qn(9)]),
            End(named(Ends::term(1, 2, 1))),
        ]),
        must(
            "rdmap/5040-4.8/12",
            &["5040-4.8-12"],
            "The Terminated RDMA Header consists of the 28 bytes of the wrong Read Request.",
        )
        .steps([
            Watch(&[Rule::TerminateHeaders]),
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            read("r", 0, 64),
            response(64),
            read("r", 60, 5),
            End(Ends::term(0, 1, 1).headers(M | D | R).naming_last()),
        ]),
        must(
            "rdmap/5040-4.8/15",
            &["5040-4.8-i03"],
            "If a Read was in progress, the Terminated RDMA Header says how far it came.",
        )
        .steps([
            Require(Condition::ScopedRegions),
            Establish(Setup::default()),
            Region(
                Region::writable("r", INTERRUPTED as usize)
                    .access("rr")
                    .scoped(),
            ),
            read("r", 0, INTERRUPTED),
            ReadOrTerminate {
                size: INTERRUPTED,
                src_to: To::In("r", 0),
                meanwhile: vec![send_invalidate(Stag::Of("r"), 0)],
            },
        ]),
    ]
}

/// Size of a response that exceeds what a TCP connection can buffer while the receiver reads
/// nothing.
const INTERRUPTED: u32 = 24 << 20;
