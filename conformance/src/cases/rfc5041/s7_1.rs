//! RFC 5041 section 7.1: what a receiver validates.

use crate::script::Action::*;
use crate::script::{Case, Data, Ends, Msn, Region, Setup, Stag, To, must, send, write};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-7.1/1",
            &["5041-7.1-01", "5041-7.2-01"],
            "A segment on a queue that does not exist is an error: invalid QN.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).qn(7)]),
            End(Ends::term(1, 2, 1).naming_last()),
        ]),
        must(
            "ddp/5041-7.1/2",
            &["5041-7.1-02"],
            "A message for which no buffer is there is an error: no buffer available.",
        )
        .steps([
            Establish(Setup::default().receives(1, 64)),
            Send(vec![send(16), send(16)]),
            End(Ends::term(1, 2, 2).naming_last()),
        ]),
        must(
            "ddp/5041-7.1/3",
            &["5041-7.1-03"],
            "An MO that is not where the last segment ended is an error: invalid MO.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).more(), send(16).mo(5000)]),
            End(Ends::term(1, 2, 4).or(1, 2, 5).naming_last()),
        ]),
        must(
            "ddp/5041-7.1/4",
            &["5041-7.1-04"],
            "A message that is longer than its buffer is an error: message too long.",
        )
        .steps([
            Establish(Setup::default().receives(4, 64)),
            Send(vec![send(65)]),
            End(Ends::term(1, 2, 5).naming_last()),
        ]),
        must(
            "ddp/5041-7.1/5",
            &["5041-7.1-05"],
            "An MSN that is not the one due is an error: MSN range not valid.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).msn(Msn::Off(3))]),
            End(Ends::term(1, 2, 3).or(1, 2, 2).naming_last()),
        ]),
        must(
            "ddp/5041-7.1/10",
            &["5041-7.1-10"],
            "A Write to an STag that nobody has is an error: invalid STag.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![write(
                Stag::Near("r", 0x0100_0000),
                To::In("r", 0),
                16,
            )]),
            End(Ends::term(1, 1, 0).naming_last()),
            Holds {
                region: "r",
                offset: 0,
                data: Data::Octets(vec![0; 16]),
            },
        ]),
        must(
            "ddp/5041-7.1/12",
            &["5041-7.1-12"],
            "A Write to a TO outside the region is an error: base or bounds violation.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![write(Stag::Of("r"), To::End("r", 0), 16)]),
            End(Ends::term(1, 1, 1).naming_last()),
        ]),
    ]
}
