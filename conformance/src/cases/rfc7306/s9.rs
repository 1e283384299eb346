//! RFC 7306 section 9: the security requirements of RFC 5042 apply to atomics.

use super::{add, begin, untouched};
use crate::script::Action::*;
use crate::script::{Action, Case, Ends, Region, Setup, Stag, To, fetch_add, must};

/// Establishes a connection and registers region "a" with these access rights.
fn region(access: &'static str) -> Vec<Action> {
    let mut steps = begin(Setup::default());
    steps.push(Region(Region::atomic("a", 4096).access(access)));
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "sec/5042-6.1.1/20",
            &["5042-6.1.1-i01"],
            "An atomic with an STag that does not exist is a protection error.",
        )
        .steps(region("lw,rw,rr,ra"))
        .steps([
            Send(vec![fetch_add(
                1,
                Stag::Near("a", 0x0100_0000),
                To::In("a", 0),
                1,
                0,
            )]),
            End(Ends::any_term()),
            untouched(),
        ]),
        must(
            "sec/5042-6.1.1/21",
            &["5042-6.1.1-i01"],
            "An atomic outside the region is a protection error.",
        )
        .steps(region("lw,rw,rr,ra"))
        .steps([Send(vec![add(1, 4096, 1)]), End(Ends::any_term())]),
        must(
            "sec/5042-6.1.1/22",
            &["5042-6.1.1-i01"],
            "An atomic on memory that peers may only read and write is a protection error.",
        )
        .steps(region("lw,rw,rr"))
        .steps([Send(vec![add(1, 0, 1)]), End(Ends::any_term()), untouched()]),
    ]
}
