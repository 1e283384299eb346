//! RFC 5040 section 8.1: protection of memory from peers.

use super::*;
use crate::script::{Condition, must, send_invalidate};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-8.1.1/1",
            &["5040-8.1.1-01"],
            "A stream of another protection domain cannot read an STag, and a stream of its own domain can.",
        )
        .steps([
            Establish(Setup::default().pd(1)),
            Region(Region::readable("r", 64).pd(1)),
            Establish(Setup::default()),
            read("r", 0, 16),
            End(Ends::term(0, 1, 3).or(0, 1, 0)),
            Use(0),
            read("r", 0, 64),
            response(64),
        ]),
        must(
            "rdmap/5040-8.1.1/2",
            &["5040-8.1.1-02"],
            "An STag restricted to one stream cannot be read on another one of the same protection domain.",
        )
        .steps([
            Require(Condition::ScopedRegions),
            Establish(Setup::default()),
            Region(Region::readable("r", 64).scoped()),
            read("r", 0, 64),
            response(64),
            Establish(Setup::default()),
            read("r", 0, 16),
            End(Ends::term(0, 1, 3).or(0, 1, 0)),
            Use(0),
            read("r", 0, 64),
            response(64),
        ]),
        must(
            "rdmap/5040-8.1.1/3",
            &["5040-8.1.1-03"],
            "A peer can read a whole region, but not one byte more.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 100)),
            read("r", 0, 100),
            response(100),
            read("r", 0, 101),
            End(Ends::term(0, 1, 1)),
        ]),
        must(
            "rdmap/5040-8.1.1/4",
            &["5040-8.1.1-04"],
            "A peer cannot invalidate an STag that is shared by several streams: it stays valid.",
        )
        .steps([
            Establish(Setup::default()),
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            Use(0),
            read("r", 0, 64),
            response(64),
            Use(1),
            read("r", 0, 64),
            response(64),
            Send(vec![send_invalidate(Stag::Of("r"), 16)]),
            End(Ends::term(0, 1, 9).or(0, 2, 9)),
            Use(0),
            read("r", 0, 64),
            response(64),
        ]),
    ]
}
