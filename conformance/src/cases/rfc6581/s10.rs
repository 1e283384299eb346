//! RFC 6581 section 10: interoperability of enhanced and unenhanced peers.

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
            "A Responder answers an enhanced Request by an enhanced Reply or, without enhanced setup, ends the TCP connection.",
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
            "A Responder with enhanced setup answers a Request of revision 2 without S by a Reply without S.",
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
            "A Reply that rejects an enhanced Request is also enhanced.",
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
            "An Initiator that does not want enhanced setup sends a Request without it.",
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
            "An Initiator whose enhanced Request ends the connection closes its side. It may retry without enhanced setup.",
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
