//! RFC 5041 section 3: what DDP relies on, where a peer sees it.

use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Ends, Region, Setup, Stag, To, must, read_request, write};

pub(super) fn cases() -> Vec<Case> {
    let long = || read_request(Stag::Of("long"), To::In("long", 0), 1 << 20);
    vec![
        must(
            "ddp/5041-3/1",
            &["5041-3-06"],
            "Once a stream is erroneous and its Terminate was sent, no more data is: neither what was under way nor what waited.",
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
            End(Ends::anyhow()),
            End(Ends::close()),
        ]),
        must(
            "ddp/5041-3/2",
            &["5041-3-09"],
            "When its stream is erroneous, the TCP connection is torn down, also where the peer does nothing for it.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![write(Stag::Of("r"), To::End("r", 0), 16)]),
            End(Ends::anyhow().unanswered()),
            EndWithin(Ends::close(), 30),
        ]),
        must(
            "ddp/5041-3/3",
            &["5041-3-09"],
            "When its stream is torn down in peace, the TCP connection is torn down.",
        )
        .steps([Establish(Setup::default()), Disconnect, End(Ends::close())]),
    ]
}
