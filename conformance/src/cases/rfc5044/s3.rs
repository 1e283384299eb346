//! RFC 5044 section 3: the interface between MPA and DDP.

use super::{answer, reads, sent, source, steps};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Case, Condition, Data, Ends, Post, Region, Setup, Stag, To, Want, may, must, read_request,
    send, should, write,
};
use crate::wire::terminate::M;

/// Payload length of the longest tagged ULPDU.
const LONGEST: usize = 64768 - 14;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-3/1",
            &["5044-3-01"],
            "Each FPDU has exactly one ULPDU: small messages do not share an FPDU.",
        )
        .steps(steps([
            vec![Establish(Setup::default()), source()],
            vec![Send(
                (1..=8)
                    .map(|len| read_request(Stag::Of("source"), To::In("source", 0), len))
                    .collect(),
            )],
            (1..=8).map(answer).collect(),
            vec![
                Post(Post::send(1)),
                Post(Post::send(2)),
                Post(Post::send(3)),
            ],
            (1..=3).map(sent).collect(),
        ])),
        should(
            "mpa/5044-3/2",
            &["5044-3-03"],
            "No ULPDU of a Send, Write or Read Response is longer than MULPDU.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::Mulpdu]),
                Establish(Setup::default().mss(1460)),
                Require(Condition::EmssKnown),
                source(),
            ],
            reads([5000]),
            vec![
                Post(Post::send(5000)),
                sent(5000),
                Post(Post::write(0x0102_0300, 0, 20_000)),
                Expect(Want::Write {
                    stag: 0x0102_0300,
                    to: 0,
                    data: Data::len(20_000),
                }),
            ],
        ])),
        // DDP may use ULPDUs shorter than MULPDU, but should not. A peer cannot observe MULPDU in
        // any other way.
        should(
            "mpa/5044-3/3",
            &["5044-3-04", "5044-4.5-05"],
            "MULPDU is never below 128 bytes: even an MSS of 100 does not make segments smaller.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::FewSegments]),
                Establish(Setup::default().mss(100)),
                Require(Condition::EmssKnown),
                source(),
            ],
            reads([4560]),
        ])),
        must(
            "mpa/5044-3/4",
            &["5044-3-04", "5044-3-05"],
            "No ULPDU is longer than 64768 bytes, however long the message is.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::UlpduLength]),
                Establish(Setup::default()),
                source(),
            ],
            reads([64_754, 64_755, 65_500, 131_072]),
            vec![
                Post(Post::write(0x0102_0300, 0, 200_000)),
                Expect(Want::Write {
                    stag: 0x0102_0300,
                    to: 0,
                    data: Data::len(200_000),
                }),
            ],
        ])),
        may(
            "mpa/5044-3/5",
            &["5044-3-06"],
            "A ULPDU may have up to 64768 bytes, whatever the MSS is, and is received.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 1 << 16)),
            Send(vec![write(Stag::Of("r"), To::In("r", 0), LONGEST)]),
            Ping,
            Holds {
                region: "r",
                offset: 0,
                data: Data::len(LONGEST),
            },
        ]),
        must(
            "mpa/5044-3/6",
            &["5044-3-07"],
            "Every validated ULPDU reaches DDP with its length.",
        )
        .steps(steps([
            vec![
                Establish(Setup::default().receives(16, 4096)),
                Send((0..=9).map(send).collect()),
            ],
            (0..=9).map(Received).collect(),
            vec![
                Send(vec![send(511), send(4096)]),
                Received(511),
                Received(4096),
            ],
        ])),
        // A ULPDU has at least one byte (5044-3-06). An empty ULPDU has no DDP Header.
        must(
            "mpa/5044-3/7",
            &["5044-3-07", "5040-7.2-01"],
            "An FPDU with an empty ULPDU is an error: the stream ends, and the target continues to serve.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(0).cut(0), write(Stag::Is(0), To::Is(0), 0)]),
            End(Ends::any_term().or_close().headers_within(0, M)),
            Establish(Setup::default()),
            Ping,
        ])
        .dangerous(),
    ]
}
