//! RFC 7306 section 8.1: reporting errors.

use super::{STAG, asked_add, begin, flipped, request, with_region};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Ends, Post, Setup, immediate, must};
use crate::wire::terminate::{D, M, R};

pub(super) fn cases() -> Vec<Case> {
    // The RFC requires that the RDMA Header is "set to zero". This may mean 28 zero bytes, or no
    // bytes.
    let described = |ends: Ends| ends.headers_within(D, M | R).naming_last();
    vec![
        must(
            "ext/7306-8.1/1",
            &["7306-8.1-02"],
            "A Terminate about an Atomic Request has its DDP Header.",
        )
        .steps([Watch(&[Rule::SilentAfterTerminate])])
        .steps(with_region())
        .steps([
            Send(vec![request(0, 1, 4)]),
            End(described(Ends::term(0, 2, 7))),
        ]),
        must(
            "ext/7306-8.1/2",
            &["7306-8.1-02"],
            "A Terminate about an Atomic Request with an unknown AOpCode has its DDP Header.",
        )
        .steps(with_region())
        .steps([
            Send(vec![request(3, 1, 0)]),
            End(described(Ends::etype(0, 2))),
        ]),
        must(
            "ext/7306-8.1/3",
            &["7306-8.1-02"],
            "A Terminate about Immediate Data has its DDP Header.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Send(vec![immediate(b"1234567")]),
            End(described(Ends::any_term())),
        ]),
        must(
            "ext/7306-8.1/4",
            &["7306-8.1-02"],
            "A Terminate about an Atomic Response has its DDP Header.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 1)),
            asked_add(1),
            Send(vec![flipped(1)]),
            End(described(Ends::any_term())),
        ]),
    ]
}
