//! RFC 7306 section 6.3: Immediate Data.

use super::begin;
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, Ends, OutSegment, Post, Region, Setup, Stag, To, Want,
    immediate, immediate_se, must, send, write,
};
use crate::wire::segment::opcode;

/// Makes the application send Immediate Data: with SE, after Sends, and after a Write.
fn sent() -> Vec<Action> {
    let mut steps = begin(Setup::default());
    let came = |solicited, bytes: &[u8; 8]| {
        Expect(Want::Immediate {
            solicited,
            bytes: *bytes,
        })
    };
    steps.extend([
        Post(Post::immediate(*b"12345678")),
        Post(Post::immediate(*b"abcdefgh").solicited()),
        Post(Post::send(700)),
        Post(Post::write_immediate(
            super::STAG,
            0x1000,
            100,
            *b"behindit",
        )),
        Post(Post::immediate([0; 8])),
        came(false, b"12345678"),
        came(true, b"abcdefgh"),
        Expect(Want::Send {
            opcode: opcode::SEND,
            invalidate: Some(0),
            data: Data::len(700),
        }),
        Expect(Want::Write {
            stag: super::STAG,
            to: 0x1000,
            data: Data::len(100),
        }),
        came(false, b"behindit"),
        came(false, &[0; 8]),
    ]);
    steps
}

/// Sends Immediate Data of invalid lengths, each on its own connection. Each must end the
/// connection, and no receive may succeed.
fn wrong_lengths(message: impl Fn(Data) -> OutSegment) -> Vec<Action> {
    let mut steps = vec![Require(Condition::Rfc7306)];
    for len in [0, 1, 4, 7, 9, 12, 16, 64] {
        steps.extend([
            Establish(Setup::default()),
            Send(vec![message(Data::Bytes(vec![0x5a; len]))]),
            End(Ends::any_term()),
            Completion {
                op: "recv",
                success: false,
            },
        ]);
    }
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-6.3/1",
            &["7306-6.3-01"],
            "Immediate Data is sent untagged.",
        )
        .steps([Watch(&[Rule::TaggedFlag, Rule::Mo])])
        .steps(sent()),
        must(
            "ext/7306-6.3/2",
            &["7306-6.3-04"],
            "Immediate Data is sent on QN 0, numbered with the Sends.",
        )
        .steps([Watch(&[Rule::QueueNumber, Rule::Msn])])
        .steps(sent()),
        must(
            "ext/7306-6.3/3",
            &["7306-6.3-05"],
            "Immediate Data has exactly the 8 bytes of the application.",
        )
        .steps([Watch(&[Rule::HeaderLength])])
        .steps(sent()),
        must(
            "ext/7306-6.3/4",
            &["7306-6.3-06"],
            "Immediate Data is sent in the order in which the application submitted it together with Sends and Writes.",
        )
        .steps(sent()),
        must(
            "ext/7306-6.3/5",
            &["7306-6.3-02", "7306-6.3-03"],
            "Each Immediate Data message uses up one receive, in the order of all messages on QN 0.",
        )
        .steps(begin(Setup::default().receives(4, 64)))
        .steps([
            Send(vec![
                immediate(b"12345678"),
                send(16),
                immediate_se(b"abcdefgh"),
                immediate(&[0; 8]),
            ]),
            ReceivesImmediate(*b"12345678"),
            super::done("recv"),
            ReceivesImmediate(*b"abcdefgh"),
            ReceivesImmediate([0; 8]),
            Receives(1, 64),
            Send(vec![send(64)]),
            super::done("recv"),
            Ping,
        ]),
        must(
            "ext/7306-6.3/6",
            &["7306-6.3-02", "7306-8.2-01"],
            "Immediate Data without a receive is an error: no buffer available.",
        )
        .steps(begin(Setup::default().receives(2, 64)))
        .steps([
            Send(vec![
                immediate(b"12345678"),
                immediate_se(b"abcdefgh"),
                immediate(b"too many"),
            ]),
            ReceivesImmediate(*b"12345678"),
            ReceivesImmediate(*b"abcdefgh"),
            End(Ends::term(1, 2, 2).naming_last()),
        ]),
        must(
            "ext/7306-6.3/7",
            &["7306-6.3-07"],
            "Immediate Data of a length other than 8 bytes is an error.",
        )
        .steps(wrong_lengths(immediate)),
        must(
            "ext/7306-6.3/8",
            &["7306-6.3-07"],
            "Immediate Data with SE of a length other than 8 bytes is an error.",
        )
        .steps(wrong_lengths(immediate_se)),
        must(
            "ext/7306-6.3/9",
            &["7306-6.3-02"],
            "When Immediate Data completes, the Write before it has been placed.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Region(Region::writable("r", 65536)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 5), 60_000),
                immediate(b"it is in"),
            ]),
            ReceivesImmediate(*b"it is in"),
            Holds {
                region: "r",
                offset: 5,
                data: Data::len(60_000),
            },
            Ping,
        ]),
        must(
            "ext/7306-6.3/10",
            &["7306-6.3-07"],
            "Immediate Data of 8 bytes is accepted, whatever its value is, even in a receive of 8 bytes.",
        )
        .steps(begin(Setup::default().receives(3, 8)))
        .steps([
            Send(vec![
                immediate(&[0; 8]),
                immediate(&[0xff; 8]),
                immediate_se(&[1, 2, 3, 4, 5, 6, 7, 8]),
            ]),
            ReceivesImmediate([0; 8]),
            ReceivesImmediate([0xff; 8]),
            ReceivesImmediate([1, 2, 3, 4, 5, 6, 7, 8]),
            Ping,
        ]),
    ]
}
