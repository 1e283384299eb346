//! RFC 7306 section 5.2.1: Atomic Requests that the target sends.

use super::{STAG, asked_add, asked_swap, begin, done};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Action, Case, Post, Setup, Want, answer_atomic, answer_read, must};

/// The application posts a FetchAdd and a CmpSwap.
fn one_of_each() -> Vec<Action> {
    let mut steps = begin(Setup::default());
    steps.extend([
        Post(Post::fetch_add(STAG, 0x1000, 0x0102_0304_0506_0708)),
        asked_add(0x0102_0304_0506_0708),
        Send(vec![answer_atomic(0, 1)]),
        done("fadd"),
        Post(Post::compare_swap(STAG, 0x1000, 0x1122_3344_5566_7788, 3)),
        asked_swap(0x1122_3344_5566_7788, 3),
        Send(vec![answer_atomic(1, 1)]),
        done("cas"),
    ]);
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.2.1/20",
            &["7306-5.2.1-02"],
            "An Atomic Request is sent as one untagged message of 52 bytes.",
        )
        .steps([Watch(&[Rule::TaggedFlag, Rule::HeaderLength, Rule::Mo])])
        .steps(one_of_each()),
        must(
            "ext/7306-5.2.1/21",
            &["7306-5.2.1-i01"],
            "The 28 reserved bits before AOpCode are sent as zero.",
        )
        .steps([Watch(&[Rule::AtomicReserved])])
        .steps(one_of_each()),
        must(
            "ext/7306-5.2.1/22",
            &["7306-5.2.1-i04"],
            "A FetchAdd is sent with Compare Data zero and Compare Mask all ones.",
        )
        .steps([Watch(&[Rule::FetchAddCompare])])
        .steps(one_of_each()),
        must(
            "ext/7306-5.2.1/23",
            &["7306-5.2.1-07"],
            "Atomic Requests are sent in the order in which the application submitted them together with its Reads.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 1)),
            Post(Post::compare_swap(STAG, 0x1000, 2, 3)),
            Post(Post::read(STAG, 0x2000, 32)),
            Post(Post::fetch_add(STAG, 0x1000, 4)),
            asked_add(1),
            Send(vec![answer_atomic(0, 1)]),
            asked_swap(2, 3),
            Send(vec![answer_atomic(1, 1)]),
            Expect(Want::ReadRequest {
                size: 32,
                stag: STAG,
                to: 0x2000,
            }),
            Send(vec![answer_read(0, 32)]),
            asked_add(4),
            Send(vec![answer_atomic(2, 1)]),
            done("fadd"),
            done("cas"),
            done("read"),
            done("fadd"),
        ]),
    ]
}
