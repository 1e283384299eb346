//! RFC 6581 sections 9 and 9.1: the format and the negotiation of IRD and ORD.

use super::{accepted, answered, asked};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, Ends, Post, Region, Rtr, SINK_STAG, SINK_TO, Setup, Stag,
    StartupCheck, To, Want, answer_read, may, must, read_request, should,
};
use crate::wire::startup::{Enhanced, R, reply};

const STAG: u32 = 0x0102_0300;
/// Value of IRD or ORD that requests no automatic negotiation.
const NO_AUTO: u16 = 0x3fff;

pub(super) fn cases() -> Vec<Case> {
    [format(), responder(), initiator(), without_negotiation()].concat()
}

fn data(ird: u16, ord: u16) -> Enhanced {
    Enhanced::client_server(ird, ord)
}

/// The application posts two Reads, although only one may be outstanding. The second Read Request
/// may be sent only after the response to the first.
fn one_read_at_a_time() -> Vec<Action> {
    let read = Expect(Want::ReadRequest {
        size: 16,
        stag: STAG,
        to: 0x1000,
    });
    let done = Completion {
        op: "read",
        success: true,
    };
    vec![
        Post(Post::read(STAG, 0x1000, 16)),
        Post(Post::read(STAG, 0x1000, 16)),
        read.clone(),
        Quiet,
        Send(vec![answer_read(0, 16)]),
        done.clone(),
        read,
        Send(vec![answer_read(1, 16)]),
        done,
    ]
}

/// Sends this many Reads together, and expects all responses.
fn reads_at_once(count: usize) -> Vec<Action> {
    let reads = vec![read_request(Stag::Of("r"), To::In("r", 0), 3000); count];
    let mut steps = vec![Region(Region::readable("r", 4096)), Send(reads)];
    for _ in 0..count {
        steps.push(Expect(Want::ReadResponse {
            stag: Stag::Is(SINK_STAG),
            to: SINK_TO,
            data: Data::len(3000),
        }));
    }
    steps.push(Ping);
    steps
}

fn format() -> Vec<Case> {
    vec![
        must(
            "mpa/6581-9/1",
            &["6581-9-01"],
            "IRD and ORD of a Reply are 14-bit numbers in network byte order.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(4, 2), data(2, 4)))
        .steps([
            Require(Condition::TargetAccepts),
            CheckStartup(StartupCheck::OrdAtMost(2)),
            CheckStartup(StartupCheck::IrdAtLeast(4)),
            CheckStartup(StartupCheck::IrdAtMost(255)),
        ]),
        must(
            "mpa/6581-9/2",
            &["6581-9-01"],
            "IRD and ORD of a Request are 14-bit numbers in network byte order.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().depths(4, 2)),
            ExpectEnhanced,
            CheckStartup(StartupCheck::OrdAtMost(2)),
            CheckStartup(StartupCheck::IrdAtLeast(4)),
            CheckStartup(StartupCheck::IrdAtMost(255)),
        ]),
    ]
}

fn responder() -> Vec<Case> {
    vec![
        should(
            "mpa/6581-9.1/1",
            &["6581-9.1-02"],
            "The ORD of a Reply does not exceed the Initiator's IRD, even if the application asks for more.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(16, 16), data(2, 4)))
        .steps([CheckStartup(StartupCheck::OrdAtMost(2))]),
        must(
            "mpa/6581-9.1/2",
            &["6581-9.1-04", "6581-9.1-i01"],
            "A Responder has no more Reads outstanding than the Initiator's IRD.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(16, 16), data(1, 4)))
        .steps([Require(Condition::TargetOrdIsAtLeast(1))])
        .steps(accepted())
        .steps(one_read_at_a_time()),
        must(
            "mpa/6581-9.1/3",
            &["6581-9.1-04", "6581-9.1-i01"],
            "The ORD of a Reply that accepts is 0 if the Initiator's IRD is 0.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(16, 16), data(0, 4)))
        .steps([CheckStartup(StartupCheck::OrdAtMost(0))]),
        must(
            "mpa/6581-9.1/4",
            &["6581-9.1-i02", "6581-9.1-i01"],
            "The IRD of a Reply that accepts is at least the Initiator's ORD, and the Responder accepts that many Reads at once.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(16, 4), data(4, 4)))
        .steps([
            Require(Condition::TargetAccepts),
            CheckStartup(StartupCheck::IrdAtLeast(4)),
        ])
        .steps(accepted())
        .steps(reads_at_once(4)),
        may(
            "mpa/6581-9.1/5",
            &["6581-9.1-03"],
            "An Initiator without Reads of its own copes with an IRD that the Responder raised for the RTR indication.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().depths(4, 0).peer_to_peer()),
            ExpectEnhanced,
            Require(Condition::TargetOffersRtr(Rtr::Read)),
            SendStartup(reply().enhanced(Enhanced {
                a: true,
                d: true,
                ..data(1, 4)
            })),
            Operate,
            Expect(Want::Rtr(Rtr::Read)),
            Send(vec![answer_read(0, 0)]),
            Event("established"),
            Ping,
        ]),
        may(
            "mpa/6581-9.1/6",
            &["6581-9.1-05"],
            "An Initiator copes with a Reply that rejects and names the needed ORD: the application gets an event, and no FPDU is sent.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().depths(1, 4)),
            ExpectEnhanced,
            SendStartup(reply().enhanced(data(4, 64)).and_flags(R)),
            Event("rejected"),
        ]),
    ]
}

fn initiator() -> Vec<Case> {
    vec![
        must(
            "mpa/6581-9.1/7",
            &["6581-9.1-07", "6581-9.1-i01"],
            "An Initiator has no more Reads outstanding than the Responder's IRD.",
        )
        .target_initiates()
        .steps(answered(Setup::default().depths(4, 16), data(1, 4)))
        .steps([Event("established")])
        .steps(one_read_at_a_time()),
        must(
            "mpa/6581-9.1/8",
            &["6581-9.1-07", "6581-9.1-i01"],
            "An Initiator accepts as many Reads at once as the Responder's ORD says.",
        )
        .target_initiates()
        .steps(answered(Setup::default().depths(4, 4), data(4, 4)))
        .steps([Event("established")])
        .steps(reads_at_once(4)),
        must(
            "mpa/6581-9.1/9",
            &["6581-9.1-08"],
            "An Initiator that cannot support the IRD needed for the Responder's ORD sends a Terminate.",
        )
        .target_initiates()
        .steps([Require(Condition::TargetLacksIrd(0x3ffe))])
        .steps(answered(Setup::default().depths(4, 4), data(4, 0x3ffe)))
        .steps([
            End(Ends::term(2, 0, 6)),
            End(Ends::close()),
        ]),
    ]
}

fn without_negotiation() -> Vec<Case> {
    vec![
        must(
            "mpa/6581-9.1/10",
            &["6581-9.1-10"],
            "The Responder answers an ORD of 0x3FFF by an IRD of 0x3FFF, and keeps the IRD that the application chose.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(8, 4), data(4, NO_AUTO)))
        .steps([
            Require(Condition::TargetAccepts),
            CheckStartup(StartupCheck::Depths {
                ird: Some(NO_AUTO),
                ord: None,
            }),
        ])
        .steps(accepted())
        .steps(reads_at_once(8)),
        must(
            "mpa/6581-9.1/11",
            &["6581-9.1-12"],
            "The Responder answers an IRD of 0x3FFF by an ORD of 0x3FFF, and keeps the ORD that the application chose.",
        )
        .target_responds()
        .steps(asked(Setup::default().depths(8, 1), data(NO_AUTO, 4)))
        .steps([
            Require(Condition::TargetAccepts),
            CheckStartup(StartupCheck::Depths {
                ird: None,
                ord: Some(NO_AUTO),
            }),
        ])
        .steps(accepted())
        .steps(one_read_at_a_time()),
        must(
            "mpa/6581-9.1/12",
            &["6581-9.1-11"],
            "A Responder's IRD of 0x3FFF leaves the Initiator's ORD unchanged.",
        )
        .target_initiates()
        .steps(answered(Setup::default().depths(4, 1), data(NO_AUTO, 4)))
        .steps([Event("established")])
        .steps(one_read_at_a_time()),
        must(
            "mpa/6581-9.1/13",
            &["6581-9.1-13"],
            "A Responder's ORD of 0x3FFF leaves the Initiator's IRD unchanged.",
        )
        .target_initiates()
        .steps(answered(Setup::default().depths(4, 4), data(4, NO_AUTO)))
        .steps([Event("established")])
        .steps(reads_at_once(4)),
    ]
}
