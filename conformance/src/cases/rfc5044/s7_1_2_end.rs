//! RFC 5044 section 7.1.2: time limits of startup.

use super::s7_1_1::bad_reply;
use crate::script::Action::*;
use crate::script::{Case, Ends, FrameChanges, Setup, should};

/// A reasonable time limit for startup, in seconds.
const REASONABLE: u64 = 60;

pub(super) fn cases() -> Vec<Case> {
    vec![
        should(
            "mpa/5044-7.1.2/50",
            &["5044-7.1.2-18"],
            "A Responder does not wait forever for a Request Frame: its peer may be a Responder, too.",
        )
        .target_responds()
        .slow()
        .steps([
            Begin(Setup::default().never_answers()),
            EndWithin(Ends::close(), REASONABLE),
        ]),
        should(
            "mpa/5044-7.1.2/51",
            &["5044-7.1.2-22"],
            "A Responder does not wait forever for the rest of a Request Frame.",
        )
        .target_responds()
        .slow()
        .steps([
            Propose(Setup::default().never_answers().frame_changes(FrameChanges::only(19))),
            EndWithin(Ends::close(), REASONABLE),
        ]),
        should(
            "mpa/5044-7.1.2/52",
            &["5044-7.1.2-22"],
            "An Initiator does not wait forever for a Reply Frame.",
        )
        .target_initiates()
        .slow()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            EndWithin(bad_reply(), REASONABLE),
        ]),
        should(
            "mpa/5044-7.1.2/53",
            &["5044-7.1.2-22"],
            "An Initiator does not wait forever for the rest of a Reply Frame.",
        )
        .target_initiates()
        .slow()
        .steps([
            Propose(Setup::default().frame_changes(FrameChanges::only(19))),
            EndWithin(bad_reply(), REASONABLE),
        ]),
        should(
            "mpa/5044-7.1.2/54",
            &["5044-7.1.2-08"],
            "A Responder accepts a Request even after connections that ended without one.",
        )
        .target_responds()
        .dangerous()
        .steps([Establish(Setup::default().aborted(20)), Ping]),
        should(
            "mpa/5044-7.1.2/55",
            &["5044-7.1.2-08"],
            "A Responder accepts a Request while it waits for the rest of other Requests.",
        )
        .target_responds()
        .dangerous()
        .steps((0..4).map(|_| {
            let part = FrameChanges::in_pieces(1..12).and_only(12);
            Propose(Setup::default().never_answers().frame_changes(part))
        }))
        .steps([Establish(Setup::default()), Ping]),
    ]
}
