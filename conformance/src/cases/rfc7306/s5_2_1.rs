//! RFC 7306 section 5.2.1: Atomic Requests that the target receives.

use super::{add, answered, begin, request, swap, untouched, with_region};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, Ends, Region, Setup, Stag, To, atomic, fetch_add, may, must,
    send,
};

/// Sends an Atomic Request with each undefined AOpCode.
fn unknown_operations() -> Vec<Action> {
    let mut steps = vec![
        Require(Condition::Rfc7306),
        Region(Region::atomic("a", 4096)),
    ];
    for code in (1..16).filter(|code| *code != 2) {
        steps.extend([
            Establish(Setup::default()),
            Send(vec![request(code, 1, 8)]),
            End(Ends::etype(0, 2)),
        ]);
    }
    steps.push(untouched());
    steps
}

/// Builds a FetchAdd with these values in the compare fields, which a FetchAdd does not use.
fn with_compare(id: u32, compare: u64, compare_mask: u64) -> crate::script::OutSegment {
    atomic(Data::Atomic {
        opcode: 0,
        id,
        stag: Stag::Of("a"),
        to: To::In("a", 0),
        data: 1,
        mask: 0,
        compare,
        compare_mask,
    })
}

pub(super) fn cases() -> Vec<Case> {
    let ids = [0, u32::MAX, 0x8000_0001, 7, 7, 0x0102_0304];
    vec![
        may(
            "ext/7306-5.2.1/1",
            &["7306-5.2.1-01"],
            "The Remote TO may be any number that refers to a 64-bit aligned address.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Require(Condition::ScopedRegions),
            Region(Region::atomic("a", 4096).zero_based().skew(4)),
            Send(vec![add(1, 4, 5), add(2, 4, 0), add(3, 4084, 1)]),
            answered(1, 0),
            answered(2, 5),
            answered(3, 0),
            Ping,
        ]),
        must(
            "ext/7306-5.2.1/2",
            &["7306-5.2.1-04", "7306-5.2.1-05"],
            "An Atomic Request is processed by RDMAP alone: it needs no receive, and the application gets no completion.",
        )
        .steps(begin(Setup::default().receives(1, 64)))
        .steps([
            Region(Region::atomic("a", 4096)),
            Send(vec![add(1, 0, 1), swap(2, 0, 1, 2), add(3, 0, 1), send(16)]),
            answered(1, 0),
            answered(2, 1),
            answered(3, 2),
            Completion {
                op: "recv",
                success: true,
            },
            Ping,
        ]),
        must(
            "ext/7306-5.2.1/3",
            &["7306-5.2.1-03"],
            "One Atomic Request uses up one MSN of QN 1: the same MSN again is an error.",
        )
        .steps(with_region())
        .steps([
            Send(vec![add(1, 0, 1)]),
            answered(1, 0),
            Send(vec![add(2, 0, 1).msn(crate::script::Msn::Is(1))]),
            End(super::wrong_msn()),
        ]),
        must(
            "ext/7306-5.2.1/4",
            &["7306-5.2.1-06"],
            "An AOpCode that the target does not support is an error, and changes nothing.",
        )
        .steps(unknown_operations()),
        must(
            "ext/7306-5.2.1/5",
            &["7306-5.2.1-08"],
            "Atomic Requests are processed in the order in which they were sent.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                add(1, 0, 1),
                swap(2, 0, 1, 100),
                add(3, 0, 20),
                swap(4, 0, 100, 5),
                swap(5, 0, 120, 7),
                add(6, 8, 3),
                add(7, 0, 1),
                swap(8, 8, 3, 8),
            ]),
            answered(1, 0),
            answered(2, 1),
            answered(3, 100),
            answered(4, 120),
            answered(5, 120),
            answered(6, 0),
            answered(7, 7),
            answered(8, 3),
            Ping,
        ]),
        must(
            "ext/7306-5.2.1/6",
            &["7306-5.2.1-09"],
            "Each valid Atomic Request is answered once, at the first and last word of a region, with and without effect.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                add(1, 0, 0),
                add(2, 4096 - 8, 1),
                swap(3, 4096 - 8, 1, 1),
                swap(4, 0, 1, 2),
            ]),
            answered(1, 0),
            answered(2, 0),
            answered(3, 1),
            answered(4, 0),
            Ping,
        ]),
        must(
            "ext/7306-5.2.1/7",
            &["7306-5.2.1-i02"],
            "The 28 reserved bits before AOpCode are ignored.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                request(0xffff_fff0, 1, 0),
                request(0x8000_0010, 2, 0),
                request(0xffff_fff2, 3, 8),
                add(4, 8, 0),
            ]),
            answered(1, 0),
            answered(2, 1),
            answered(3, 0),
            answered(4, 1),
            Ping,
        ]),
        must(
            "ext/7306-5.2.1/8",
            &["7306-5.2.1-i03"],
            "The Request Identifier is returned unchanged, even if it is used twice.",
        )
        .steps(with_region())
        .steps([Send(ids.iter().map(|id| add(*id, 0, 1)).collect())])
        .steps(ids.iter().zip(0..).map(|(id, value)| answered(*id, value)))
        .steps([Ping]),
        must(
            "ext/7306-5.2.1/9",
            &["7306-5.2.1-i04"],
            "Compare Data and Compare Mask are ignored in a FetchAdd.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                with_compare(1, 0x1111, u64::MAX),
                with_compare(2, 0, 0),
                with_compare(3, u64::MAX, 0xff),
                fetch_add(4, Stag::Of("a"), To::In("a", 0), 0, 0),
            ]),
            answered(1, 0),
            answered(2, 1),
            answered(3, 2),
            answered(4, 3),
            Ping,
        ]),
    ]
}
