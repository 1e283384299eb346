//! RFC 7306 sections 5 and 5.3: Atomic Operations in general, and atomicity.

use super::{add, answered, begin, swap, with_region};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Action, Case, Region, Setup, Want, must};

/// Number of requests that are outstanding on each of the two connections.
const BURST: u32 = 8;
/// Number of repetitions.
const ROUNDS: u32 = 16;

/// Sends FetchAdds on both connections so that they are outstanding at the same time, repeatedly.
fn two_at_once() -> Vec<Action> {
    let mut steps = Vec::new();
    for round in 0..ROUNDS {
        let ids = round * BURST..(round + 1) * BURST;
        for connection in 0..2 {
            steps.push(Use(connection));
            steps.push(Send(ids.clone().map(|id| add(id, 8, 1)).collect()));
        }
        for connection in 0..2 {
            steps.push(Use(connection));
            steps.extend(ids.clone().map(|id| Expect(Want::AnyAtomicResponse { id })));
        }
    }
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5/1",
            &["7306-5-02"],
            "An endpoint that supports atomics implements FetchAdd and CmpSwap.",
        )
        .steps(with_region())
        .steps([
            Send(vec![add(1, 0, 5)]),
            answered(1, 0),
            Send(vec![swap(2, 0, 5, 9)]),
            answered(2, 5),
            Send(vec![add(3, 0, 1)]),
            answered(3, 9),
            Ping,
        ]),
        must(
            "ext/7306-5/2",
            &["7306-5-04"],
            "Atomic Responses are untagged messages on QN 3, with MSNs from 1.",
        )
        .steps([Watch(&[
            Rule::TaggedFlag,
            Rule::QueueNumber,
            Rule::Msn,
            Rule::Mo,
        ])])
        .steps(with_region())
        .steps([
            Send(vec![add(1, 0, 5), swap(2, 0, 5, 9), add(3, 0, 1)]),
            answered(1, 0),
            answered(2, 5),
            answered(3, 9),
        ]),
        must(
            "ext/7306-5.3/1",
            &["7306-5.3-01"],
            "Simultaneous atomics of two connections on one word lose no update.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Establish(Setup::default()),
            Region(Region::atomic("a", 4096)),
        ])
        .steps(two_at_once())
        .steps([
            Send(vec![add(BURST * ROUNDS, 8, 0)]),
            answered(BURST * ROUNDS, u64::from(2 * BURST * ROUNDS)),
        ]),
    ]
}
