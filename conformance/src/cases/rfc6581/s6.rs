//! RFC 6581 section 6: the format of the enhanced Request and Reply Frames.

use super::asked;
use crate::script::Action::*;
use crate::script::{Case, Condition, Ends, Setup, StartupCheck, must};
use crate::wire::startup::{Enhanced, S, reply, request};

/// Private Data of an application.
const HELLO: &[u8] = b"hello, enhanced peer";
/// Private Data of the maximum length that an application can pass to librdmacm.
const LONG: &[u8] = &[0x5a; 255];

pub(super) fn cases() -> Vec<Case> {
    let client_server = Enhanced::client_server(4, 4);
    vec![
        must(
            "mpa/6581-6/1",
            &["6581-6-01"],
            "An enhanced Request has revision 2 or higher.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectEnhanced,
            CheckStartup(StartupCheck::RevFitsS),
        ]),
        must(
            "mpa/6581-6/2",
            &["6581-6-01"],
            "An enhanced Reply has revision 2 or higher.",
        )
        .target_responds()
        .steps(asked(Setup::default(), client_server))
        .steps([CheckStartup(StartupCheck::RevFitsS)]),
        must(
            "mpa/6581-6/3",
            &["6581-6-02", "6581-6-03"],
            "A Responder accepts Requests of revision 1, whatever else it supports.",
        )
        .target_responds()
        .steps([Establish(Setup::default().frame(request())), Ping]),
        must(
            "mpa/6581-6/4",
            &["6581-6-04", "6581-6-i01", "6581-6-i02"],
            "The Private Data of an enhanced Request is four bytes of connection data and the application's data. PD_Length counts both.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().private_data(HELLO)),
            ExpectEnhanced,
            CheckStartup(StartupCheck::PrivateData(HELLO)),
        ]),
        must(
            "mpa/6581-6/5",
            &["6581-6-04", "6581-6-i01", "6581-6-i02"],
            "The Private Data of an enhanced Reply is four bytes of connection data and the application's data. PD_Length counts both.",
        )
        .target_responds()
        .steps(asked(
            Setup::default().private_data(HELLO),
            client_server,
        ))
        .steps([CheckStartup(StartupCheck::PrivateData(HELLO))]),
        must(
            "mpa/6581-6/6",
            &["6581-6-i02"],
            "In a Request, 255 bytes of the application and the enhanced data are 259 bytes of Private Data.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().private_data(LONG)),
            ExpectEnhanced,
            CheckStartup(StartupCheck::PrivateData(LONG)),
        ]),
        must(
            "mpa/6581-6/7",
            &["6581-6-i02"],
            "In a Reply, 255 bytes of the application and the enhanced data are 259 bytes of Private Data.",
        )
        .target_responds()
        .steps([Require(Condition::PrivateDataOf(LONG.len()))])
        .steps(asked(Setup::default().private_data(LONG), client_server))
        .steps([CheckStartup(StartupCheck::PrivateData(LONG))]),
        must(
            "mpa/6581-6/9",
            &["6581-6-i01"],
            "A Reply with S but without the four bytes of connection data is not accepted.",
        )
        .target_initiates()
        .dangerous()
        .steps([
            Begin(Setup::default()),
            ExpectEnhanced,
            SendStartup(reply().flags(S).rev(2)),
            End(Ends::any_term().or_close()),
            Establish(Setup::default()),
            Ping,
        ]),
        must(
            "mpa/6581-6/8",
            &["6581-6-i01"],
            "Without S, the Private Data of a Reply is exactly the application's.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default().private_data(HELLO)),
            SendStartup(request()),
            ExpectStartup,
            CheckStartup(StartupCheck::Enhanced(false)),
            CheckStartup(StartupCheck::PrivateData(HELLO)),
        ]),
    ]
}
