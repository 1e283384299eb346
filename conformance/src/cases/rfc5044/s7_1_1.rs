//! RFC 5044 section 7.1.1: the format of the Request and Reply Frames.

use super::s4_4::crc_error;
use super::{reads, source, steps};
use crate::check::Rule;
use crate::script::Action::{self, *};
use crate::script::{
    Case, Condition, Ends, FrameChanges, Setup, Stag, StartupCheck, To, must, private_data, write,
};
use crate::wire::fpdu::CrcField;
use crate::wire::startup::R;

/// Private Data of an application, of the maximum length that fits into every frame.
const LONGEST: &[u8] = &[0x5a; 508];
/// Private Data of an application, of a length that is no multiple of four.
const SHORT: &[u8] = b"seventeen octets.";

pub(super) fn cases() -> Vec<Case> {
    [keys(), modes(), fields(), lengths()].concat()
}

/// Accepted ends of the connection after an invalid Reply. The Initiator may send a Terminate
/// before it closes.
pub(super) fn bad_reply() -> Ends {
    Ends::close().or(2, 0, 4)
}

/// Completes a case in which a Responder closes the connection because of an invalid Request Frame.
pub(super) fn closed(case: Case, frame_changes: FrameChanges) -> Case {
    case.target_responds().steps([
        Propose(
            Setup::default()
                .never_answers()
                .frame_changes(frame_changes),
        ),
        End(Ends::close()),
    ])
}

/// Completes a case in which an Initiator closes the connection because of an invalid Reply Frame.
pub(super) fn given_up(case: Case, frame_changes: FrameChanges) -> Case {
    case.target_initiates().steps([
        Propose(Setup::default().frame_changes(frame_changes)),
        End(bad_reply()),
    ])
}

fn keys() -> Vec<Case> {
    let request_key = must(
        "mpa/5044-7.1.1/2",
        &["5044-7.1.1-02", "5044-7.1.2-04", "5044-8-04", "5044-8-09"],
        "A Request Frame with another Key ends the TCP connection.",
    );
    let reply_key = must(
        "mpa/5044-7.1.1/4",
        &["5044-7.1.1-04", "5044-7.1.2-12", "5044-8-04", "5044-8-09"],
        "A Reply Frame with another Key ends the TCP connection.",
    );
    vec![
        must(
            "mpa/5044-7.1.1/1",
            &["5044-7.1.1-01"],
            "The Initiator's frame has the Key \"MPA ID Req Frame\".",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Key),
        ]),
        closed(request_key, FrameChanges::key(b"MPA ID Req Fram3")),
        must(
            "mpa/5044-7.1.1/3",
            &["5044-7.1.1-03"],
            "The Responder's frame has the Key \"MPA ID Rep Frame\".",
        )
        .target_responds()
        .steps([
            Propose(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Key),
        ]),
        given_up(reply_key, FrameChanges::key(b"MPA ID Rep Fram3")),
        must(
            "mpa/5044-7.1.1/5",
            &["5044-7.1.1-i02"],
            "R is not checked in a Request Frame.",
        )
        .target_responds()
        .steps([
            Establish(Setup::default().frame_changes(FrameChanges::flags(R))),
            CheckStartup(StartupCheck::Rejected(false)),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.1/6",
            &["5044-7.1.1-i01"],
            "R is zero in a Request Frame.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(false)),
        ]),
        must(
            "mpa/5044-7.1.1/7",
            &["5044-7.1.1-i03"],
            "R is zero in a Reply Frame that accepts.",
        )
        .target_responds()
        .steps([
            Establish(Setup::default()),
            CheckStartup(StartupCheck::Rejected(false)),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.1/8",
            &["5044-7.1.1-i03"],
            "R is one in a Reply Frame that rejects.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().reject(b"no")),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(true)),
        ]),
    ]
}

/// Makes the target send enough bytes for several Markers.
fn some() -> Vec<Action> {
    steps([vec![source()], reads([100, 500, 3000, 0])])
}

fn modes() -> Vec<Case> {
    let marked = |setup: Setup| steps([vec![Establish(setup)], some()]);
    vec![
        must(
            "mpa/5044-7.1.1/10",
            &["5044-7.1.1-05"],
            "A Responder whose peer set M sends Markers.",
        )
        .target_responds()
        .steps(marked(Setup::default().markers(true))),
        must(
            "mpa/5044-7.1.1/11",
            &["5044-7.1.1-06"],
            "An Initiator whose peer set M sends Markers.",
        )
        .target_initiates()
        .steps(marked(Setup::default().markers(true))),
        must(
            "mpa/5044-7.1.1/12",
            &["5044-7.1.1-07"],
            "An endpoint whose peer cleared M sends no Markers.",
        )
        .steps(marked(Setup::default().markers(false))),
        must(
            "mpa/5044-7.1.1/13",
            &["5044-7.1.1-08"],
            "With C=0 in both frames, no CRC is checked.",
        )
        .steps([
            Establish(Setup::default().crc(false)),
            Require(Condition::CrcNotInUse),
            Send(vec![
                write(Stag::Is(0), To::Is(0), 0)
                    .crc(CrcField::Bytes([0x12, 0x34, 0x56, 0x78]));
                3
            ]),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.1/14",
            &["5044-7.1.1-09"],
            "If the suite sets C, the target generates and checks CRCs.",
        )
        .steps(checked(Setup::default().crc(true))),
        must(
            "mpa/5044-7.1.1/15",
            &["5044-7.1.1-09"],
            "If only the target sets C, it generates and checks CRCs.",
        )
        .steps(checked(Setup::default().crc(false))),
    ]
}

/// Checks that the target generates CRCs and verifies the CRCs that it receives.
fn checked(setup: Setup) -> Vec<Action> {
    steps([
        vec![
            Watch(&[Rule::Crc]),
            Establish(setup),
            Require(Condition::CrcInUse),
        ],
        some(),
        vec![
            Send(vec![write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Xor(4))]),
            End(crc_error()),
        ],
    ])
}

fn fields() -> Vec<Case> {
    let request_rev = must(
        "mpa/5044-7.1.1/24",
        &["5044-7.1.1-13", "5044-7.1.1-14"],
        "A Request Frame of an unknown revision ends the TCP connection.",
    );
    let reply_rev = must(
        "mpa/5044-7.1.1/25",
        &["5044-7.1.1-13", "5044-7.1.1-14"],
        "A Reply Frame of an unknown revision ends the TCP connection.",
    );
    vec![
        must(
            "mpa/5044-7.1.1/20",
            &["5044-7.1.1-10"],
            "The Res bits are sent as zero, whatever their value in the peer's frame is.",
        )
        .steps([
            Establish(Setup::default().frame_changes(FrameChanges::flags(0x0f))),
            CheckStartup(StartupCheck::ReservedZero),
        ]),
        must(
            "mpa/5044-7.1.1/21",
            &["5044-7.1.1-11"],
            "The Res bits of a frame are not checked.",
        )
        .steps([
            Establish(Setup::default().frame_changes(FrameChanges::flags(0x0f))),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.1/22",
            &["5044-7.1.1-12"],
            "An Initiator sends Rev 1, or 2 or higher if its frame is enhanced.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::RevFitsS),
        ]),
        must(
            "mpa/5044-7.1.1/23",
            &["5044-7.1.1-12"],
            "A Request of Rev 1 is answered with Rev 1.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(crate::wire::startup::request()),
            ExpectStartup,
            CheckStartup(StartupCheck::Rev(1)),
        ]),
        closed(request_rev, FrameChanges::rev(0xff)),
        given_up(reply_rev, FrameChanges::rev(0xff)),
    ]
}

fn lengths() -> Vec<Case> {
    let (request, reply) = (
        must(
            "mpa/5044-7.1.1/32",
            &["5044-7.1.1-16", "5044-7.1.2-21", "5044-8-04", "5044-8-09"],
            "A Request Frame with more than 512 bytes of Private Data ends the TCP connection.",
        ),
        must(
            "mpa/5044-7.1.1/33",
            &["5044-7.1.1-16", "5044-7.1.2-21", "5044-8-04", "5044-8-09"],
            "A Reply Frame with more than 512 bytes of Private Data ends the TCP connection.",
        ),
    );
    vec![
        must(
            "mpa/5044-7.1.1/30",
            &["5044-7.1.1-15"],
            "PD_Length is the length of the Private Data.",
        )
        .steps([
            Establish(Setup::default().private_data(SHORT)),
            CheckStartup(StartupCheck::PrivateData(SHORT)),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.1/31",
            &["5044-7.1.1-17"],
            "A frame has at most 512 bytes of Private Data, exactly those of the application.",
        )
        .steps([
            Require(Condition::PrivateDataOf(LONGEST.len())),
            Establish(Setup::default().private_data(LONGEST)),
            CheckStartup(StartupCheck::PrivateDataWithin512),
            CheckStartup(StartupCheck::PrivateData(LONGEST)),
            Ping,
        ]),
        closed(request, FrameChanges::private_data(600)),
        // A Linux guest with siw hangs in this case.
        given_up(reply, FrameChanges::private_data(600)).dangerous(),
        must(
            "mpa/5044-7.1.1/34",
            &["5044-7.1.1-16", "5044-7.1.2-21"],
            "Bytes after the Private Data that PD_Length does not count end the connection: they belong neither to the frame nor to an FPDU.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().auto().frame_changes(FrameChanges::trailing(64))),
            ExpectStartupOrEnd,
            End(Ends::any_term().or_close()),
        ]),
        must(
            "mpa/5044-7.1.1/35",
            &["5044-7.1.1-16", "5044-7.1.2-21"],
            "Bytes after the Private Data of a Reply Frame that PD_Length does not count end the connection.",
        )
        .target_initiates()
        .steps([
            Propose(Setup::default().frame_changes(FrameChanges::trailing(64))),
            End(Ends::any_term().or_close()),
        ]),
        must(
            "mpa/5044-7.1.1/36",
            &["5044-7.1.1-16", "5044-7.1.2-20"],
            "The application gets exactly the Private Data that PD_Length counts.",
        )
        .steps([
            Establish(Setup::default().frame_changes(FrameChanges::private_data(37))),
            ReceivesPrivateData(private_data(37)),
            Ping,
        ]),
    ]
}
