//! RFC 7306 section 5.2.2: Atomic Responses that the target receives.

use super::{LATER, STAG, asked_add, asked_swap, begin, done, flipped, wrong_msn};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, OutSegment, Post, Setup, answer_atomic, immediate, must,
};

/// The application posts a FetchAdd and waits for the response.
fn waiting() -> Vec<Action> {
    let mut steps = begin(Setup::default());
    steps.extend([Post(Post::fetch_add(STAG, 0x1000, 1)), asked_add(1)]);
    steps
}

/// Sends an invalid response, which must not complete the FetchAdd.
fn invalid(answer: OutSegment) -> Vec<Action> {
    let mut steps = waiting();
    steps.extend([
        Send(vec![answer]),
        End(Ends::any_term()),
        Completion {
            op: "fadd",
            success: false,
        },
    ]);
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.2.2/20",
            &["7306-5.2.2-02"],
            "QN 3 has room for the Responses to all outstanding Atomic Requests.",
        )
        .steps(begin(Setup::default()))
        .steps((0..16).map(|number| Post(Post::fetch_add(STAG, 0x1000 + 8 * number, 1))))
        .steps([AnswerAtomics {
            values: (0..16).collect(),
            most: 16,
        }])
        .steps((0..16).map(|_| done("fadd"))),
        must(
            "ext/7306-5.2.2/21",
            &["7306-5.2.2-i01"],
            "The MSN of an Atomic Response identifies the Atomic Request that it answers.",
        )
        .steps(begin(Setup::default()))
        .steps([
            // These values are the same in both byte orders.
            Post(Post::fetch_add(STAG, 0x1000, 1).memory("first")),
            Post(Post::compare_swap(STAG, 0x1008, 1, 2).memory("second")),
            Post(Post::fetch_add(STAG, 0x1010, 1).memory("third")),
            AnswerAtomics {
                values: vec![
                    0x1111_1111_1111_1111,
                    0x2233_4455_5544_3322,
                    0x3333_3333_3333_3333,
                ],
                most: 3,
            },
            done("fadd"),
            done("cas"),
            done("fadd"),
            result("first", (&[0x11; 8]).into()),
            result("second", (&[0x22, 0x33, 0x44, 0x55, 0x55, 0x44, 0x33, 0x22]).into()),
            result("third", (&[0x33; 8]).into()),
        ]),
        must(
            "ext/7306-5.2.2/22",
            &["7306-5.2.2-i01", "7306-8.2-01"],
            "An Atomic Response with a wrong MSN answers nothing and is an error.",
        )
        .steps(waiting())
        .steps([
            Send(vec![answer_atomic(0, 1).msn(LATER)]),
            End(wrong_msn()),
            Completion {
                op: "fadd",
                success: false,
            },
        ]),
        must(
            "ext/7306-5.2.2/23",
            &["7306-5.2.2-i02"],
            "An Atomic Response with another Request Identifier is an error.",
        )
        .steps(invalid(flipped(1))),
        must(
            "ext/7306-5.2.2/24",
            &["7306-5.2.2-i02"],
            "An Atomic Response with another Request Identifier is an error, whichever bit differs.",
        )
        .steps(invalid(flipped(0x8000_0000))),
        must(
            "ext/7306-5.2.2/25",
            &["7306-5.2.2-i02"],
            "An Atomic Response that is too short is an error.",
        )
        .steps(invalid(answer_atomic(0, 1).cut(18 + 11))),
        must(
            "ext/7306-5.2.2/26",
            &["7306-5.2.2-i02"],
            "An Atomic Response that is too long is an error.",
        )
        .steps(invalid(answer_atomic(0, 1).extra(1))),
        must(
            "ext/7306-5.2.2/27",
            &["7306-5.2.2-i02"],
            "An Atomic Response without an Atomic Request is an error.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Send(vec![immediate(&[0; 12]).qn(3).opcode(11)]),
            End(Ends::any_term()),
        ]),
        must(
            "ext/7306-5.2.2/28",
            &["7306-5.2.2-i02"],
            "A second Atomic Response to one Atomic Request is an error.",
        )
        .steps(waiting())
        .steps([
            Send(vec![answer_atomic(0, 1), answer_atomic(0, 1)]),
            done("fadd"),
            End(Ends::any_term()),
        ]),
        must(
            "ext/7306-5.2.2/29",
            &["7306-5.2.2-03", "7306-5.4-04"],
            "An Atomic Operation does not complete before its Response.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 1).memory("result")),
            asked_add(1),
            Quiet,
            result("result", Data::len(8)),
            Send(vec![answer_atomic(0, 0x4444_4444_4444_4444)]),
            done("fadd"),
            result("result", (&[0x44; 8]).into()),
            Post(Post::compare_swap(STAG, 0x1000, 1, 2)),
            asked_swap(1, 2),
            Send(vec![answer_atomic(1, 0)]),
            done("cas"),
        ]),
    ]
}

fn result(region: &'static str, data: Data) -> Action {
    Holds {
        region,
        offset: 0,
        data,
    }
}
