//! RFC 7306 section 5.2.2: Atomic Responses that the target sends.

use super::{add, answered, with_region};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, OutSegment, SINK_STAG, SINK_TO, Stag, To, Want, must,
    read_request,
};

/// Number of outstanding requests in these cases.
const DEPTH: u16 = 16;

/// Returns requests and the expected responses. Every `nth` request is a Read of `size` bytes. The
/// others, or all if `nth` is 0, are FetchAdds of 1.
fn mix(count: u32, nth: u32, size: usize) -> (Vec<OutSegment>, Vec<Action>) {
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    let mut value = 0;
    for id in 0..count {
        if nth != 0 && id % nth == 0 {
            let source = To::In("a", 8);
            requests.push(read_request(Stag::Of("a"), source, size as u32));
            answers.push(Expect(Want::ReadResponse {
                stag: Stag::Is(SINK_STAG),
                to: SINK_TO,
                data: Data::Bytes(vec![0; size]),
            }));
        } else {
            // Request Identifiers decrease. Responses in the expected order then prove that the
            // target follows the order of the requests, and not of the identifiers.
            requests.push(add(count - id, 0, 1));
            answers.push(answered(count - id, value));
            value += 1;
        }
    }
    (requests, answers)
}

/// Sends all requests at once, and expects the responses.
fn burst(nth: u32, size: usize) -> Vec<Action> {
    let (requests, answers) = mix(u32::from(DEPTH), nth, size);
    let mut steps = vec![Send(requests)];
    steps.extend(answers);
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.2.2/1",
            &["7306-5.2.2-01"],
            "QN 1 has room for as many Atomic Requests at once as agreed.",
        )
        .steps(with_region())
        .steps([Require(Condition::TargetIrdIsAtLeast(DEPTH))])
        .steps(burst(0, 0))
        .steps([Ping]),
        must(
            "ext/7306-5.2.2/2",
            &["7306-5.2.2-01"],
            "QN 1 has room for as many Read Requests and Atomic Requests together as agreed.",
        )
        .steps(with_region())
        .steps([Require(Condition::TargetIrdIsAtLeast(DEPTH))])
        .steps(burst(2, 2000))
        .steps([Ping]),
        must(
            "ext/7306-5.2.2/3",
            &["7306-5.2.2-04"],
            "Atomic Responses come in the order of the Atomic Requests, even after a long Read.",
        )
        .steps(with_region())
        .steps([Require(Condition::TargetIrdIsAtLeast(DEPTH))])
        .steps(burst(5, 4000))
        .steps([Ping]),
    ]
}
