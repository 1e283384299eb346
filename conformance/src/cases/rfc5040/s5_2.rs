//! RFC 5040 section 5.2: RDMA Read.

use super::*;
use crate::script::{Condition, Msn, may, must, read_response};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = requests();
    cases.extend(responder());
    cases.extend(responses());
    cases.extend(invalid_responses());
    cases
}

fn requests() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.2/1",
            &["5040-5.2-01"],
            "An RDMA Read consists of one Read Request and one Read Response.",
        )
        .steps([Establish(Setup::default())])
        .steps(posts_read(3000))
        .steps([
            Send(vec![answer_read(0, 3000)]),
            completes("read"),
            Region(Region::readable("r", 4096)),
            read("r", 0, 3000),
            response(3000),
            Ping,
        ]),
        must(
            "rdmap/5040-5.2.1/1",
            &["5040-5.2.1-01", "5040-5.2.1-05"],
            "A Read Request is an untagged message on QN 1.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::TaggedFlag, Rule::QueueNumber]),
        ])
        .steps(posts_read(100)),
        must(
            "rdmap/5040-5.2.1/6",
            &["5040-5.2.1-06"],
            "Read Requests are sent in the order in which the application posted the Reads, each with its own MSN.",
        )
        .steps([Establish(Setup::default()), Watch(&[Rule::Msn])])
        .steps((1..=6).map(|n| Post(Post::read(STAG, TO * n, n as usize))))
        .steps((1..=6).map(|n| wants_read(TO * n, n as u32))),
        must(
            "rdmap/5040-5.2.1/8",
            &["5040-5.2.1-08"],
            "A Read Request names one region: Reads of two regions are two Read Requests.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::HeaderLength]),
            Post(Post::read(STAG, TO, 100)),
            Post(Post::read(STAG + 0x100, TO, 200)),
            wants_read(TO, 100),
            Expect(Want::ReadRequest {
                size: 200,
                stag: STAG + 0x100,
                to: TO,
            }),
            Send(vec![answer_read(0, 100), answer_read(1, 200)]),
            completes("read"),
            completes("read"),
        ]),
    ]
}

fn responder() -> Vec<Case> {
    let named = |number: u32, rows: &[&'static str], rule: &str| {
        must(&format!("rdmap/5040-5.2.1/{number}"), rows, rule)
    };
    vec![
        named(
            2,
            &["5040-5.2.1-02"],
            "A Read Request uses up one buffer of QN 1 and one MSN: the next one has the next MSN.",
        )
        .steps([
            Establish(Setup::default()),
            Ping,
            Ping,
            Send(vec![
                read_request(Stag::Is(0), To::Is(0), 0).msn(Msn::Is(2)),
            ]),
            End(Ends::term(1, 2, 3).or(1, 2, 2)),
        ]),
        named(
            3,
            &["5040-5.2.1-03"],
            "A Read is answered without the application, which has posted no receive.",
        )
        .steps([
            Establish(Setup::default().receives(0, 0)),
            Region(Region::readable("r", 4096)),
            read("r", 0, 4096),
            response(4096),
        ]),
        named(
            7,
            &["5040-5.2.1-07", "5040-5.2.2-04"],
            "Reads are answered in the order of their Read Requests.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Region(Region::readable("r", 1 << 20)),
            Send(
                READS
                    .map(|(at, size)| read_request(Stag::Of("r"), To::In("r", at), size))
                    .to_vec(),
            ),
        ])
        .steps(READS.map(|(at, size)| response(Data::Pattern(1, at as u64, size as usize)))),
        named(
            10,
            &["5040-5.2.1-10"],
            "A valid Read Request is answered with the content of the region.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 70_000)),
            read("r", 0, 70_000),
            response(70_000),
            read("r", 69_999, 1),
            response(Data::Pattern(1, 69_999, 1)),
        ]),
        may(
            "rdmap/5040-5.2.1/11",
            &["5040-5.2.1-11"],
            "A peer may send a Read Request for zero bytes.",
        )
        .steps([Establish(Setup::default()), Ping, Ping]),
        named(
            12,
            &["5040-5.2.1-12"],
            "SrcSTag is validated for a Read of a single byte.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            Send(vec![read_request(
                Stag::Near("r", 0x0100_0000),
                To::In("r", 0),
                1,
            )]),
            End(Ends::term(0, 1, 0)),
        ]),
        named(
            13,
            &["5040-5.2.1-12"],
            "SrcTO is validated for a Read of a single byte.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            Send(vec![read_request(Stag::Of("r"), To::End("r", 0), 1)]),
            End(Ends::term(0, 1, 1)),
        ]),
        named(
            14,
            &["5040-5.2.1-13", "5040-5.2.1-14"],
            "A Read of zero bytes is answered by an empty Read Response, and SrcSTag and SrcTO are not validated.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Region(Region::readable("foreign", 64).pd(1)),
        ])
        .steps(
            [
                (Stag::Is(u32::MAX), To::Is(u64::MAX)),
                (Stag::Near("r", 0x0100_0000), To::In("r", 0)),
                (Stag::Of("r"), To::In("r", 0)),
                (Stag::Of("r"), To::End("r", 1)),
                (Stag::Of("r"), To::In("r", -1)),
                (Stag::Of("foreign"), To::In("foreign", 0)),
            ]
            .into_iter()
            .flat_map(|(stag, to)| {
                [
                    Send(vec![read_request(stag, to, 0)]),
                    response(Data::none()),
                ]
            }),
        ),
        must(
            "rdmap/5040-3.2/1",
            &["5040-3.2-i01"],
            "A Read of a region without the right of remote read is an error.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            read("r", 0, 16),
            End(Ends::term(0, 1, 2)),
        ]),
    ]
}

/// Reads (offset and size) of very different lengths in one region.
const READS: [(i64, u32); 7] = [
    (0, 500_000),
    (9, 1),
    (77, 0),
    (1000, 3000),
    (4096, 4),
    (5, 100_000),
    (12, 7),
];

fn responses() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.2.2/1",
            &["5040-5.2.2-01"],
            "A Read Response is a tagged message.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::TaggedFlag]),
            Region(Region::readable("r", 10_000)),
            read("r", 0, 10_000),
            response(10_000),
            Ping,
        ]),
        must(
            "rdmap/5040-5.2.2/2",
            &["5040-5.2.2-02"],
            "As many Reads at once as agreed are answered.",
        )
        .steps([
            Establish(Setup::default().depths(8, 8)),
            Require(Condition::TargetIrdIsAtLeast(8)),
            Region(Region::writable("r", 1 << 20).access("rr")),
            Send(vec![
                read_request(Stag::Of("r"), To::In("r", 0), 1 << 20);
                8
            ]),
        ])
        .steps((0..8).map(|_| response(vec![0; 1 << 20].as_slice())))
        .steps([Ping]),
        must(
            "rdmap/5040-5.2.2/6",
            &["5040-5.2.2-06"],
            "A Read Response writes to consecutive bytes of one region.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::SameStag, Rule::To]),
            Region(Region::readable("r", 20_000)),
            read("r", 0, 20_000),
            response(20_000),
        ]),
    ]
}

fn invalid_responses() -> Vec<Case> {
    let invalid = |number: u32, rule: &str, segments: Vec<crate::script::OutSegment>| {
        let id = format!("rdmap/5040-5.2.2/{number}");
        must(&id, &["5040-5.2.2-i01"], rule)
            .steps([Establish(Setup::default())])
            .steps(posts_read(100))
            .steps([
                Send(segments),
                End(Ends::any_term()),
                Completion {
                    op: "read",
                    success: false,
                },
            ])
    };
    vec![
        invalid(
            10,
            "A Read Response to an STag that does not exist is an error.",
            vec![read_response(Stag::Is(0x7654_3200), To::Sink(0, 0), 100)],
        ),
        invalid(
            11,
            "A Read Response to a TO outside the sink is an error.",
            vec![read_response(Stag::Sink(0), To::Sink(0, 1 << 32), 100)],
        ),
        invalid(
            12,
            "A Read Response longer than the sink is an error.",
            vec![answer_read(0, 5000)],
        ),
        invalid(
            13,
            "A segment of a Read Response whose STag differs from that of the first is an error.",
            vec![
                answer_read(0, 60).more(),
                read_response(
                    Stag::Is(0x7654_3200),
                    To::Sink(0, 60),
                    Data::Pattern(1, 60, 40),
                ),
            ],
        ),
        may(
            "rdmap/5040-5.2.2/5",
            &["5040-5.2.2-05"],
            "A Read Response shorter than requested is an error or is accepted. It blocks nothing.",
        )
        .steps([Establish(Setup::default())])
        .steps(posts_read(100))
        .steps([
            Send(vec![
                answer_read(0, 60),
                read_request(Stag::Is(0), To::Is(0), 0),
            ]),
            EndOr(
                Ends::any_term(),
                Want::ReadResponse {
                    stag: Stag::Is(SINK_STAG),
                    to: SINK_TO,
                    data: Data::none(),
                },
            ),
        ]),
        must(
            "rdmap/5040-5.2.2/14",
            &["5040-5.2.2-i01"],
            "A Read Response without a Read Request is an error.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![read_response(Stag::Is(STAG), To::Is(TO), 16)]),
            End(Ends::any_term()),
        ]),
    ]
}
