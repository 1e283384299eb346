//! RFC 5041 section 4.3: the header of untagged segments.

use super::{STAG, TO, asks_for, piece, sends, untagged_traffic};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, Post, SINK_STAG, SINK_TO, Setup, Stag, To, Want, may, must,
    read_request, send, send_se,
};
use crate::wire::segment::opcode;

/// Makes the target send messages of one segment each on QN 0 and QN 1.
fn short_traffic() -> Vec<Action> {
    let mut steps = vec![Establish(Setup::default()), Watch(&[Rule::Msn])];
    for len in [5, 6, 7] {
        steps.extend([
            Post(Post::send(len as usize)),
            Post(Post::read(STAG, TO, len as usize)),
            Post(Post::send(0)),
            sends(len as usize),
            asks_for(len),
            sends(0),
        ]);
    }
    steps
}

/// The response to a Read of zero length.
fn answered() -> Want {
    Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: Data::none(),
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-4.3/1",
            &["5041-4.3-01"],
            "An untagged segment has DDP Control, five bytes of RsvdULP, QN, MSN, MO, and the payload.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[
                Rule::TaggedFlag,
                Rule::QueueNumber,
                Rule::Msn,
                Rule::Mo,
            ]),
            Post(Post::send(100)),
            sends(100),
            Post(Post::read(STAG, TO, 100)),
            asks_for(100),
        ]),
        must(
            "ddp/5041-4.3/2",
            &["5041-4.3-02"],
            "RsvdULP is the RDMAP Control byte and the STag of a Send with Invalidate, or zero.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::InvalidateZero, Rule::RdmapVersion, Rule::Opcode]),
            Post(Post::send_invalidate(20, 0x8142_4381)),
            Expect(Want::Send {
                opcode: opcode::SEND_INVALIDATE,
                invalidate: Some(0x8142_4381),
                data: Data::len(20),
            }),
            Post(Post::send(20)),
            sends(20),
            Post(Post::read(STAG, TO, 20)),
            asks_for(20),
        ]),
        must(
            "ddp/5041-4.3/4",
            &["5041-4.3-04"],
            "All segments of an untagged message have the same RsvdULP.",
        )
        .steps(untagged_traffic(&[Rule::SameRsvdUlp])),
        may(
            "ddp/5041-4.3/5",
            &["5041-4.3-05"],
            "A message whose segments differ in RsvdULP is accepted with any of them, or ends the stream. It blocks nothing.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![
                send(40).more(),
                send_se(piece(40, 24)).mo(40),
                read_request(Stag::Is(0), To::Is(0), 0),
            ]),
            EndOr(Ends::any_term(), answered()),
        ]),
        must(
            "ddp/5041-4.3/6",
            &["5041-4.3-06"],
            "All segments of an untagged message have the QN chosen by RDMAP.",
        )
        .steps(untagged_traffic(&[Rule::QueueNumber])),
        must(
            "ddp/5041-4.3/7",
            &["5041-4.3-07"],
            "The MSN rises by one with each message of a queue, and each queue counts separately.",
        )
        .steps(short_traffic()),
        must(
            "ddp/5041-4.3/8",
            &["5041-4.3-08"],
            "The first message of each queue has MSN 1: Send, Read Request, Terminate.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::Msn]),
            Post(Post::send(5)),
            sends(5),
            Post(Post::read(STAG, TO, 5)),
            asks_for(5),
            Send(vec![send(5).qn(7)]),
            End(Ends::any_end()),
        ]),
        must(
            "ddp/5041-4.3/10",
            &["5041-4.3-10"],
            "All segments of an untagged message have the same MSN.",
        )
        .steps(untagged_traffic(&[Rule::Msn])),
        must(
            "ddp/5041-4.3/11",
            &["5041-4.3-11"],
            "The first byte of a message has MO 0, whatever the message before it was.",
        )
        .steps(untagged_traffic(&[Rule::Mo])),
    ]
}
