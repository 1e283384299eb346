//! RFC 7306 section 1.1: discovery of the extensions.

use super::add;
use crate::script::Action::*;
use crate::script::{Case, Condition, Data, Ends, Region, Setup, immediate, immediate_se, must};

pub(super) fn cases() -> Vec<Case> {
    let without = || {
        [
            Require(Condition::NotRfc7306),
            Establish(Setup::default()),
            Region(Region::writable("a", 4096)),
        ]
    };
    // A target that supports only Read Requests on QN 1 may have buffers of exactly their size. It
    // then reports that the message is too long for its buffer.
    let unknown = || Ends::etype(0, 2).or(1, 2, 5);
    vec![
        must(
            "ext/7306-1.1/1",
            &["7306-1.1-i01"],
            "Immediate Data is reported as an unexpected opcode by an endpoint that does not support it.",
        )
        .steps(without())
        .steps([
            Send(vec![immediate(b"12345678")]),
            End(Ends::etype(0, 2)),
        ]),
        must(
            "ext/7306-1.1/2",
            &["7306-1.1-i01"],
            "Immediate Data with SE is reported as an unexpected opcode by an endpoint that does not support it.",
        )
        .steps(without())
        .steps([
            Send(vec![immediate_se(b"12345678")]),
            End(Ends::etype(0, 2)),
        ]),
        must(
            "ext/7306-1.1/3",
            &["7306-1.1-i01"],
            "An Atomic Request is reported by an endpoint that does not support it, and changes nothing.",
        )
        .steps(without())
        .steps([
            Send(vec![add(1, 0, 1)]),
            End(unknown()),
            Holds {
                region: "a",
                offset: 0,
                data: Data::Bytes(vec![0; 8]),
            },
        ]),
    ]
}
