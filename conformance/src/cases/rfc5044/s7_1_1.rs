//! RFC 5044 section 7.1.1: the format of the Request and Reply Frames.

use crate::script::Action::*;
use crate::script::{Case, Ends, Setup, StartupCheck, must};
use crate::wire::startup::{C, R, reply, request};

pub(super) fn cases() -> Vec<Case> {
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
        must(
            "mpa/5044-7.1.1/2",
            &["5044-7.1.1-02", "5044-7.1.2-04", "5044-8-04", "5044-8-09"],
            "A Request Frame with another Key ends the TCP connection.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default().never_answers()),
            SendStartup(request().key(b"MPA ID Req Fram3")),
            End(Ends::close()),
        ]),
        must(
            "mpa/5044-7.1.1/3",
            &["5044-7.1.1-03"],
            "The Responder's frame has the Key \"MPA ID Rep Frame\".",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(request()),
            ExpectStartup,
            CheckStartup(StartupCheck::Key),
        ]),
        must(
            "mpa/5044-7.1.1/4",
            &["5044-7.1.1-04", "5044-7.1.2-12", "5044-8-04", "5044-8-09"],
            "A Reply Frame with another Key ends the TCP connection.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectStartup,
            SendStartup(reply().key(b"MPA ID Rep Fram3")),
            End(Ends::close().or(2, 0, 4)),
        ]),
        must(
            "mpa/5044-7.1.1/5",
            &["5044-7.1.1-i02"],
            "R is not checked in a Request Frame.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(request().flags(C | R)),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(false)),
        ]),
    ]
}
