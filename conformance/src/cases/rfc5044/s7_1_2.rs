//! RFC 5044 section 7.1.2: the rules of startup, and the order in which the sides may send.

use super::s7_1_1::{closed, given_up};
use crate::script::Action::*;
use crate::script::{
    Case, Data, FrameChanges, Post, Setup, Stag, StartupCheck, To, Want, must, should, write,
};
use crate::wire::segment::opcode;
use crate::wire::startup::{REPLY_KEY, REQUEST_KEY, request};

pub(super) fn cases() -> Vec<Case> {
    [order(), first_bytes(), wrong_sides()].concat()
}

fn order() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-7.1.2/1",
            &["5044-7.1.2-01"],
            "An Initiator begins with a valid Request Frame.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Key),
            CheckStartup(StartupCheck::Rejected(false)),
            CheckStartup(StartupCheck::ReservedZero),
            CheckStartup(StartupCheck::RevFitsS),
            CheckStartup(StartupCheck::PrivateDataWithin512),
        ]),
        must(
            "mpa/5044-7.1.2/2",
            &["5044-7.1.2-03", "5044-7.1.2-i02"],
            "A Responder sends nothing before it received a valid Request Frame.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            Quiet,
            SendStartup(request()),
            ExpectStartup,
        ]),
        must(
            "mpa/5044-7.1.2/3",
            &["5044-7.1.2-11", "5044-7.1.2-i02"],
            "An Initiator sends no FPDU before it received a valid Reply Frame.",
        )
        .target_initiates()
        .steps([Begin(Setup::default()), ExpectStartup, Quiet]),
        patient(
            4,
            "A Responder sends no FPDU before it received one, even if it has data to send.",
            Setup::default(),
        ),
        patient(
            7,
            "A Responder that has to send Markers sends no FPDU and no Marker before it received an FPDU.",
            Setup::default().markers(true),
        ),
        should(
            "mpa/5044-7.1.2/5",
            &["5044-7.1.2-10"],
            "A Responder that accepted interprets the following bytes as FPDUs.",
        )
        .target_responds()
        .steps([Establish(Setup::default()), Ping]),
        should(
            "mpa/5044-7.1.2/6",
            &["5044-7.1.2-14"],
            "An accepted Initiator sends FPDUs, and interprets the following bytes as FPDUs.",
        )
        .target_initiates()
        .steps([
            Establish(Setup::default()),
            Post(Post::send(16)),
            Expect(Want::Send {
                opcode: opcode::SEND,
                invalidate: Some(0),
                data: Data::len(16),
            }),
            Ping,
        ]),
    ]
}

/// Builds a case in which the application of a Responder posts a Send before the suite has sent an
/// FPDU.
fn patient(number: u8, rule: &str, setup: Setup) -> Case {
    let id = format!("mpa/5044-7.1.2/{number}");
    must(&id, &["5044-7.1.2-15"], rule)
        .target_responds()
        .steps([
            Establish(setup.no_nudge()),
            Post(Post::send(16)),
            Quiet,
            Send(vec![write(Stag::Is(0), To::Is(0), 0)]),
            Expect(Want::Send {
                opcode: opcode::SEND,
                invalidate: Some(0),
                data: Data::len(16),
            }),
            Ping,
        ])
}

fn first_bytes() -> Vec<Case> {
    let marked = |number: u8, rule: &str, markers: bool| {
        must(
            &format!("mpa/5044-7.1.2/{number}"),
            &["5044-7.1.2-i01"],
            rule,
        )
        .steps([
            Watch(&[
                crate::check::Rule::MarkerPointer,
                crate::check::Rule::MarkerReserved,
                crate::check::Rule::MarkerLowBits,
            ]),
            Establish(Setup::default().markers(markers)),
            Ping,
        ])
    };
    vec![
        marked(
            10,
            "With Markers, Full Operation begins with the Marker 0x00000000 and then ULPDU_Length.",
            true,
        ),
        marked(
            11,
            "Without Markers, Full Operation begins with ULPDU_Length.",
            false,
        ),
    ]
}

fn wrong_sides() -> Vec<Case> {
    let request = must(
        "mpa/5044-7.1.2/20",
        &["5044-7.1.2-04", "5044-8-04", "5044-8-09"],
        "A Reply Frame instead of the Request Frame ends the TCP connection.",
    );
    let reply = must(
        "mpa/5044-7.1.2/21",
        &["5044-7.1.2-17", "5044-7.1.2-12", "5044-8-04", "5044-8-09"],
        "A Request Frame instead of the Reply Frame ends the TCP connection: both sides are Initiators.",
    );
    vec![
        closed(request, FrameChanges::key(&REPLY_KEY)),
        given_up(reply, FrameChanges::key(&REQUEST_KEY)),
    ]
}
