//! RFC 5041 section 3: services that DDP requires from the layer below, as far as a peer can
//! observe them.

use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Ends, Region, Setup, Stag, To, must, read_request, write};

pub(super) fn cases() -> Vec<Case> {
    let long = || read_request(Stag::Of("long"), To::In("long", 0), 1 << 20);
    vec![
        must(
            "ddp/5041-3/1",
            &["5041-3-06"],
            "After the Terminate of an erroneous stream, no more data is sent, neither the message in progress nor those waiting.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::SilentAfterTerminate]),
            Region(Region::readable("long", 1 << 20)),
            Region(Region::writable("r", 64)),
            Send(vec![
                long(),
                long(),
                write(Stag::Of("r"), To::End("r", 0), 16),
            ]),
            End(Ends::any_end()),
            End(Ends::close()),
        ]),
        must(
            "ddp/5041-3/2",
            &["5041-3-09"],
            "The TCP connection of an erroneous stream is torn down, even if the peer does nothing for it.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![write(Stag::Of("r"), To::End("r", 0), 16)]),
            End(Ends::any_end().unanswered()),
            EndWithin(Ends::close(), 30),
        ]),
        must(
            "ddp/5041-3/3",
            &["5041-3-09"],
            "After a graceful teardown of its stream, the TCP connection is torn down.",
        )
        .steps([Establish(Setup::default()), Disconnect, End(Ends::close())]),
    ]
}
