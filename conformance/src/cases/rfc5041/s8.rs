//! RFC 5041 section 8: which streams may access an STag.

use super::untouched;
use crate::script::Action::*;
use crate::script::{Action, Case, Condition, Data, Ends, Region, Setup, Stag, To, must, write};

fn writes() -> Action {
    Send(vec![write(Stag::Of("r"), To::In("r", 0), 64)])
}

fn holds(data: Data) -> Action {
    Holds {
        region: "r",
        offset: 0,
        data,
    }
}

/// Sends a Write to `r`, which the target must refuse without placing anything.
fn refused() -> [Action; 4] {
    [
        writes(),
        End(Ends::term(1, 1, 2).or(1, 1, 0)),
        End(Ends::close()),
        holds(untouched(64)),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-8.2/1",
            &["5041-8.2-01"],
            "A Write to an STag of another Protection Domain is refused: it is not associated with the stream, or invalid.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64).pd(1)),
        ])
        .steps(refused()),
        must(
            "ddp/5041-8.2/2",
            &["5041-8.2-01"],
            "A stream in the Protection Domain of an STag can write to it, and a stream of another one cannot.",
        )
        .steps([
            Establish(Setup::default()),
            Establish(Setup::default().pd(1)),
            Region(Region::writable("r", 64).pd(1)),
            Use(0),
        ])
        .steps(refused())
        .steps([Use(1), writes(), Ping, holds(Data::len(64))]),
        must(
            "ddp/5041-8.2/3",
            &["5041-8.2-01"],
            "All streams of a Protection Domain can write to its STags.",
        )
        .steps([
            Establish(Setup::default().pd(1)),
            Establish(Setup::default().pd(1)),
            Region(Region::writable("r", 64).pd(1)),
            Use(0),
            writes(),
            Ping,
            holds(Data::len(64)),
            Use(1),
            Send(vec![write(Stag::Of("r"), To::In("r", 0), untouched(64))]),
            Ping,
            holds(untouched(64)),
        ]),
        must(
            "ddp/5041-8.2/4",
            &["5041-8.2-02"],
            "An STag restricted to one stream cannot be written to by another one of the same Protection Domain.",
        )
        .steps([
            Require(Condition::ScopedRegions),
            Establish(Setup::default()),
            Establish(Setup::default()),
            Region(Region::writable("r", 64).scoped()),
            Use(0),
        ])
        .steps(refused())
        .steps([Use(1), writes(), Ping, holds(Data::len(64))]),
        must(
            "ddp/5041-8.3.1/3",
            &["5041-8.3.1-03", "5041-7.1-10"],
            "A Write to an STag that the application has revoked is refused: invalid STag.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            writes(),
            Ping,
            Deregister("r"),
            writes(),
            End(Ends::term(1, 1, 0).or(1, 1, 2)),
        ]),
    ]
}
