//! RFC 6581 section 10: enhanced and unenhanced peers.

use super::asked;
use crate::script::Action::*;
use crate::script::{Case, Condition, Ends, Setup, StartupCheck, may, must};
use crate::wire::startup::{Enhanced, request};

pub(super) fn cases() -> Vec<Case> {
    let client_server = Enhanced::client_server(4, 4);
    vec![
        must(
            "mpa/6581-10/1",
            &["6581-10-01", "6581-10-04"],
            "An enhanced Request gets an enhanced Reply, or, from a Responder without enhanced setup, the end of the TCP connection.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(request().enhanced(client_server)),
            ExpectEnhancedOrClose,
        ]),
        must(
            "mpa/6581-10/2",
            &["6581-10-02"],
            "A Request of revision 1 gets a Reply without enhanced connection data.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(request()),
            ExpectStartup,
            CheckStartup(StartupCheck::Enhanced(false)),
            CheckStartup(StartupCheck::Rejected(false)),
        ]),
        must(
            "mpa/6581-10/3",
            &["6581-10-02"],
            "A Request of revision 2 without S gets a Reply without S from a Responder that has enhanced setup.",
        )
        .target_responds()
        .steps(asked(Setup::default(), client_server))
        .steps([
            Begin(Setup::default()),
            SendStartup(request().rev(2)),
            ExpectStartup,
            CheckStartup(StartupCheck::Enhanced(false)),
            CheckStartup(StartupCheck::Rejected(false)),
        ]),
        must(
            "mpa/6581-10/4",
            &["6581-10-01"],
            "A Reply that rejects is an enhanced one, too, where the Request is.",
        )
        .target_responds()
        .steps(asked(Setup::default(), client_server))
        .steps([
            Begin(Setup::default().reject(b"no")),
            SendStartup(request().enhanced(client_server)),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(true)),
            CheckStartup(StartupCheck::Enhanced(true)),
            CheckStartup(StartupCheck::PrivateData(b"no")),
        ]),
        must(
            "mpa/6581-10/5",
            &["6581-10-03"],
            "An Initiator that wants no enhanced setup sends a Request without it.",
        )
        .target_initiates()
        .steps([
            Require(Condition::TargetIsUnenhanced),
            Begin(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Enhanced(false)),
        ]),
        may(
            "mpa/6581-10/6",
            &["6581-10-05"],
            "An Initiator whose enhanced Request ends the connection closes its side; it may try again without.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectEnhanced,
            Fin,
            End(Ends::close()),
        ]),
    ]
}
