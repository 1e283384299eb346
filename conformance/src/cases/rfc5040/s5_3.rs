//! RFC 5040 section 5.3: the four kinds of Send.

use super::*;
use crate::script::{Condition, may, must, send_invalidate, send_se, send_se_invalidate};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = senders();
    cases.extend(receivers());
    cases.extend(invalidation());
    cases
}

/// Sends for the application to post, with the expected opcode and length of each.
fn sends() -> [(Post, u8, usize); 7] {
    [
        (Post::send(3000), opcode::SEND, 3000),
        (Post::send(1).solicited(), opcode::SEND_SE, 1),
        (Post::send(0), opcode::SEND, 0),
        (Post::send_invalidate(8, STAG), opcode::SEND_INVALIDATE, 8),
        (Post::send(511), opcode::SEND, 511),
        (
            Post::send_invalidate(2, STAG).solicited(),
            opcode::SEND_SE_INVALIDATE,
            2,
        ),
        (Post::send(5), opcode::SEND, 5),
    ]
}

fn senders() -> Vec<Case> {
    let all_sends = |id: &str, rows: &[&'static str], rule: &str, rules: &'static [Rule]| {
        must(id, rows, rule)
            .steps([Establish(Setup::default().mss(1460)), Watch(rules)])
            .steps(sends().map(|(post, ..)| Post(post)))
            .steps(sends().map(|(_, opcode, len)| wants_send(opcode, len)))
    };
    vec![
        all_sends(
            "rdmap/5040-5.3/1",
            &["5040-5.3-01"],
            "A Send of any kind is an untagged message.",
            &[Rule::TaggedFlag],
        ),
        all_sends(
            "rdmap/5040-5.3/5",
            &["5040-5.3-05"],
            "A Send of any kind uses QN 0.",
            &[Rule::QueueNumber],
        ),
        all_sends(
            "rdmap/5040-5.3/6",
            &["5040-5.3-06"],
            "Sends are sent in the order in which the application posted them.",
            &[Rule::Msn],
        ),
    ]
}

fn receivers() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.3/2",
            &["5040-5.3-02"],
            "A Send of any kind uses up one receive: with two receives, the third Send finds none.",
        )
        .steps([
            Establish(Setup::default().receives(2, 4096)),
            Send(vec![send(4096), send_se(1)]),
            completes("recv"),
            completes("recv"),
            Send(vec![send(1)]),
            End(Ends::term(1, 2, 2).naming_last()),
        ]),
        may(
            "rdmap/5040-5.3/3",
            &["5040-5.3-03", "5040-5.3-07"],
            "A Send may be as long as the receive, shorter, or empty.",
        )
        .steps([
            Establish(Setup::default().receives(4, 100)),
            Send(vec![send(100), send(99), send(1), send(0)]),
            completes("recv"),
            completes("recv"),
            completes("recv"),
            completes("recv"),
            Ping,
        ]),
        must(
            "rdmap/5040-5.3/4",
            &["5040-5.3-i01"],
            "A Send one byte longer than the receive is an error.",
        )
        .steps([
            Establish(Setup::default().receives(4, 100)),
            Send(vec![send(100), send(101)]),
            completes("recv"),
            End(Ends::term(1, 2, 5).naming_last()),
        ]),
        must(
            "rdmap/5040-5.3/8",
            &["5040-5.3-08"],
            "A Send of zero length uses up a receive.",
        )
        .steps([
            Establish(Setup::default().receives(1, 64)),
            Send(vec![send(0)]),
            completes("recv"),
            Send(vec![send(1)]),
            End(Ends::term(1, 2, 2).naming_last()),
        ]),
    ]
}

/// Accepts the error "STag cannot be invalidated", which is registered under two error types.
fn cannot_be_invalidated() -> Ends {
    Ends::term(0, 1, 9).or(0, 2, 9)
}

fn invalidation() -> Vec<Case> {
    let scoped = || {
        [
            Require(Condition::ScopedRegions),
            Establish(Setup::default()),
            Region(Region::atomic("r", 4096).scoped()),
            Send(vec![write(Stag::Of("r"), To::In("r", 0), 64)]),
            read("r", 0, 64),
            response(64),
        ]
    };
    vec![
        must(
            "rdmap/5040-5.3/10",
            &["5040-5.3-10"],
            "A Send with Invalidate of another stream's STag is an error, and the STag stays valid.",
        )
        .steps(scoped())
        .steps([
            Establish(Setup::default()),
            Send(vec![send_invalidate(Stag::Of("r"), 16)]),
            End(cannot_be_invalidated()),
            Use(0),
            read("r", 0, 64),
            response(64),
        ]),
        must(
            "rdmap/5040-5.3/11",
            &["5040-5.3-11"],
            "After a Send with Invalidate, a Write to the STag is an error.",
        )
        .steps(scoped())
        .steps([
            Send(vec![
                send_invalidate(Stag::Of("r"), 16),
                write(Stag::Of("r"), To::In("r", 64), 64),
            ]),
            End(Ends::term(1, 1, 0).naming_last()),
            Holds {
                region: "r",
                offset: 64,
                data: Data::Bytes(vec![0; 64]),
            },
        ]),
        must(
            "rdmap/5040-5.3/12",
            &["5040-5.3-11"],
            "After a Send with SE and Invalidate, a Read of the STag is an error.",
        )
        .steps(scoped())
        .steps([
            Send(vec![send_se_invalidate(Stag::Of("r"), 0)]),
            read("r", 0, 64),
            End(Ends::term(0, 1, 0).naming_last()),
        ]),
        must(
            "rdmap/5040-5.3/13",
            &["5040-5.3-12"],
            "A Send with SE and Invalidate of an STag that is not associated with the stream is an error: \"STag cannot be Invalidated\".",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::atomic("foreign", 64).pd(1)),
            Send(vec![send_se_invalidate(Stag::Of("foreign"), 16)]),
            End(cannot_be_invalidated()),
        ]),
        must(
            "rdmap/5040-5.3/14",
            &["5040-5.3-11"],
            "A valid Send with Invalidate ends only the use of the STag.",
        )
        .steps(scoped())
        .steps([
            Region(Region::readable("other", 64)),
            Send(vec![send_invalidate(Stag::Of("r"), 16)]),
            completes("recv"),
            read("other", 0, 64),
            response(64),
        ]),
    ]
}
