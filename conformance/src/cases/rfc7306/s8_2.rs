//! RFC 7306 section 8.2: validation of incoming messages.

use super::{LATER, STAG, add, answered, asked_add, begin, request, swap, untouched, wrong_msn};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Ends, OutSegment, Post, Region, Setup, Stag, To, answer_atomic,
    immediate, immediate_se, must, write,
};

/// Sends each message on its own connection. Each connection must end this way, and no message may
/// have an effect.
fn each(messages: impl IntoIterator<Item = OutSegment>, ends: &Ends) -> Vec<Action> {
    let mut steps = vec![
        Require(Condition::Rfc7306),
        Region(Region::atomic("a", 4096)),
    ];
    for message in messages {
        steps.extend([
            Establish(Setup::default()),
            Send(vec![message]),
            End(ends.clone()),
        ]);
    }
    steps.push(untouched());
    steps
}

/// Messages that do not answer any request.
fn unasked() -> [OutSegment; 4] {
    [
        immediate(b"12345678"),
        immediate_se(b"abcdefgh"),
        add(1, 0, 1),
        swap(1, 0, 0, 1),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = segment_fields();
    all.extend(rdmap_fields());
    all.extend(atomic_addresses());
    all
}

fn segment_fields() -> Vec<Case> {
    vec![
        must(
            "ext/7306-8.2/1",
            &["7306-8.2-01"],
            "A wrong DDP version in a message of RFC 7306 is an error.",
        )
        .steps(each(
            unasked().map(|message| message.ddp_version(2)),
            &Ends::term(1, 2, 6).naming_last(),
        )),
        must(
            "ext/7306-8.2/2",
            &["7306-8.2-01"],
            "A QN that does not exist in a message of RFC 7306 is an error.",
        )
        .steps(each(
            unasked().map(|message| message.qn(7)),
            &Ends::term(1, 2, 1).naming_last(),
        )),
        must(
            "ext/7306-8.2/3",
            &["7306-8.2-01"],
            "A wrong MSN in a message of RFC 7306 is an error.",
        )
        .steps(each(
            unasked().map(|message| message.msn(LATER)),
            &wrong_msn().naming_last(),
        )),
        must(
            "ext/7306-8.2/4",
            &["7306-8.2-01"],
            "An MO other than 0 at the beginning of a message of RFC 7306 is an error.",
        )
        .steps(each(
            unasked().map(|message| message.mo(4)),
            &Ends::term(1, 2, 4).or(1, 2, 5).naming_last(),
        )),
        must(
            "ext/7306-8.2/5",
            &["7306-8.2-01"],
            "An incomplete Atomic Request is an error, and is not executed.",
        )
        .steps(each(
            [
                add(1, 0, 1).cut(18 + 51),
                add(1, 0, 1).cut(18 + 28),
                swap(1, 0, 0, 1).cut(18),
            ],
            &Ends::any_term(),
        )),
        // No RFC names the code. It may be the code of a message that is longer than its buffer
        // (1/2/05), or a code of RDMAP.
        must(
            "ext/7306-8.2/6",
            &["7306-8.2-01"],
            "An Atomic Request with bytes after its header is an error, and is not executed.",
        )
        .steps(each(
            [add(1, 0, 1).extra(1), swap(1, 0, 0, 1).extra(64)],
            &Ends::any_term(),
        )),
        must(
            "ext/7306-8.2/7",
            &["7306-8.2-01"],
            "A wrong DDP version, QN or MO in an Atomic Response is an error.",
        )
        .steps([Require(Condition::Rfc7306)])
        .steps(answers([
            (answer_atomic(0, 1).ddp_version(0), Ends::term(1, 2, 6)),
            (answer_atomic(0, 1).qn(4), Ends::term(1, 2, 1)),
            (answer_atomic(0, 1).mo(4), Ends::term(1, 2, 4).or(1, 2, 5)),
        ])),
    ]
}

/// Sends each response, on its own connection, to a FetchAdd of the application. Each connection
/// must end in the given way.
fn answers(answers: impl IntoIterator<Item = (OutSegment, Ends)>) -> Vec<Action> {
    let mut steps = Vec::new();
    for (answer, ends) in answers {
        steps.extend([
            Establish(Setup::default()),
            Post(Post::fetch_add(STAG, 0x1000, 1)),
            asked_add(1),
            Send(vec![answer]),
            End(ends.naming_last()),
            Completion {
                op: "fadd",
                success: false,
            },
        ]);
    }
    steps
}

fn rdmap_fields() -> Vec<Case> {
    vec![
        must(
            "ext/7306-8.2/10",
            &["7306-8.2-02", "5040-4.1-i01"],
            "Opcodes 12 to 15 are unexpected even for an endpoint that supports RFC 7306.",
        )
        .steps(each(
            (12..16).flat_map(|code| {
                [
                    immediate(b"12345678").opcode(code),
                    add(1, 0, 1).opcode(code),
                ]
            }),
            &Ends::term(0, 2, 6),
        )),
        must(
            "ext/7306-8.2/11",
            &["7306-8.2-02"],
            "A message of RFC 7306 on the queue of another one is an error.",
        )
        .steps(each(
            [
                immediate(b"12345678").qn(1),
                immediate_se(b"12345678").qn(3),
                add(1, 0, 1).qn(0),
                swap(1, 0, 0, 1).qn(3),
                immediate(b"12345678").qn(2),
                immediate(b"123456789abc").opcode(11),
            ],
            &Ends::any_term(),
        )),
        must(
            "ext/7306-8.2/12",
            &["7306-8.2-02"],
            "A tagged message with an opcode of RFC 7306 is an error.",
        )
        .steps(each(
            (8..12).map(|code| write(Stag::Of("a"), To::In("a", 1024), 52).opcode(code)),
            &Ends::any_term(),
        )),
        must(
            "ext/7306-8.2/13",
            &["7306-8.2-03"],
            "A wrong RDMAP version in a message of RFC 7306 is an error.",
        )
        .steps(each(
            (2..4).flat_map(|version| unasked().map(|message| message.rdmap_version(version))),
            &Ends::term(0, 2, 5),
        )),
        must(
            "ext/7306-8.2/14",
            &["7306-8.2-03"],
            "A wrong RDMAP version in an Atomic Response is an error.",
        )
        .steps([Require(Condition::Rfc7306)])
        .steps(answers([(
            answer_atomic(0, 1).rdmap_version(3),
            Ends::term(0, 2, 5),
        )])),
    ]
}

fn atomic_addresses() -> Vec<Case> {
    vec![
        must(
            "ext/7306-8.2/20",
            &["7306-8.2-04", "7306-8.2-05"],
            "A misaligned address of an atomic is reported as a catastrophic error, localized to RDMAP Stream.",
        )
        .steps(each(
            [request(0, 1, 4), request(2, 1, 1), request(0, 1, 4084)],
            &Ends::term(0, 2, 7),
        )),
        must(
            "ext/7306-8.2/21",
            &["7306-8.2-04"],
            "The address in memory has to be aligned, not the TO.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Require(Condition::ScopedRegions),
            Region(Region::atomic("a", 4096).zero_based().skew(4)),
            Send(vec![add(1, 4, 1)]),
            answered(1, 0),
            Send(vec![add(2, 8, 1)]),
            End(Ends::term(0, 2, 7)),
        ]),
    ]
}
