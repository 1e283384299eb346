//! RFC 7306 section 4.1: RDMAP Control and Invalidate STag in the messages of the extensions.

use super::{STAG, add, answered, asked_add, asked_swap, begin, done, swap, with_region};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Post, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want, answer_atomic,
    compare_swap, fetch_add, immediate, immediate_se, must, read_request,
};

/// Makes the target send each message of the extensions.
fn all_messages() -> Vec<Action> {
    let mut steps = with_region();
    steps.extend([
        Send(vec![add(1, 0, 1), swap(2, 0, 1, 7)]),
        answered(1, 0),
        answered(2, 1),
        Post(Post::immediate(*b"12345678")),
        Expect(Want::Immediate {
            solicited: false,
            bytes: *b"12345678",
        }),
        Post(Post::immediate(*b"abcdefgh").solicited()),
        Expect(Want::Immediate {
            solicited: true,
            bytes: *b"abcdefgh",
        }),
        Post(Post::fetch_add(STAG, 0x1000, 5)),
        asked_add(5),
        Send(vec![answer_atomic(0, 1)]),
        done("fadd"),
        Post(Post::compare_swap(STAG, 0x1000, 5, 6)),
        asked_swap(5, 6),
        Send(vec![answer_atomic(1, 1)]),
        done("cas"),
    ]);
    steps
}

/// Registers a region that a Send with Invalidate could invalidate, because only one connection can
/// access it.
fn invalidatable() -> Vec<Action> {
    let mut steps = begin(Setup::default());
    steps.extend([
        Require(crate::script::Condition::ScopedRegions),
        Region(Region::atomic("s", 4096).scoped()),
    ]);
    steps
}

/// Expects that the region is still valid: the suite can read it.
fn readable() -> [Action; 2] {
    [
        Send(vec![read_request(Stag::Of("s"), To::In("s", 64), 16)]),
        Expect(Want::ReadResponse {
            stag: Stag::Is(SINK_STAG),
            to: SINK_TO,
            data: (&[0; 16]).into(),
        }),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-4.1/1",
            &["7306-4.1-01"],
            "The opcode is 8 for Immediate Data, 9 with SE, 10 for an Atomic Request, 11 for an Atomic Response. RV is 01b in all of them.",
        )
        .steps([Watch(&[Rule::RdmapVersion, Rule::Opcode, Rule::RdmapReserved])])
        .steps(all_messages()),
        must(
            "ext/7306-4.1/2",
            &["7306-4.1-02"],
            "Invalidate STag is sent as zero in the messages of RFC 7306.",
        )
        .steps([Watch(&[Rule::InvalidateZero])])
        .steps(all_messages()),
        must(
            "ext/7306-4.1/3",
            &["7306-4.1-03"],
            "Invalidate STag is ignored in Immediate Data.",
        )
        .steps(invalidatable())
        .steps([
            Send(vec![
                immediate(b"12345678").invalidate(Stag::Of("s")),
                immediate_se(b"abcdefgh").invalidate(Stag::Is(0xffff_ffff)),
            ]),
            ReceivesImmediate(*b"12345678"),
            ReceivesImmediate(*b"abcdefgh"),
        ])
        .steps(readable()),
        must(
            "ext/7306-4.1/4",
            &["7306-4.1-03"],
            "Invalidate STag is ignored in an Atomic Request.",
        )
        .steps(invalidatable())
        .steps([
            Send(vec![
                fetch_add(1, Stag::Of("s"), To::In("s", 0), 3, 0).invalidate(Stag::Of("s")),
                compare_swap(2, Stag::Of("s"), To::In("s", 0), 3, 0)
                    .invalidate(Stag::Is(0xffff_ffff)),
            ]),
            answered(1, 0),
            answered(2, 3),
        ])
        .steps(readable()),
        must(
            "ext/7306-4.1/5",
            &["7306-4.1-03"],
            "Invalidate STag is ignored in an Atomic Response.",
        )
        .steps(invalidatable())
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 5)),
            asked_add(5),
            Send(vec![answer_atomic(0, 9).invalidate(Stag::Of("s"))]),
            done("fadd"),
        ])
        .steps(readable()),
    ]
}
