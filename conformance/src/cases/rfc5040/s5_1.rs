//! RFC 5040 section 5.1: RDMA Write.

use super::*;
use crate::script::{may, must};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.1/1",
            &["5040-5.1-01"],
            "An RDMA Write is sent as a tagged message, with all its bytes in order.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::TaggedFlag]),
            Post(Post::write(STAG, TO, 10_000)),
            wants_write(TO, Data::len(10_000)),
        ]),
        may(
            "rdmap/5040-5.1/3",
            &["5040-5.1-03"],
            "A peer may write a whole region or any part of it.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 5000)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 5000),
                write(Stag::Of("r"), To::End("r", -1), Data::Pattern(2, 0, 1)),
                write(Stag::Of("r"), To::In("r", 0), Data::Pattern(3, 0, 1)),
                write(Stag::Of("r"), To::In("r", 4095), Data::Pattern(4, 0, 2)),
            ]),
            Ping,
            holds(0, Data::Pattern(3, 0, 1)),
            holds(1, Data::Pattern(1, 1, 4094)),
            holds(4095, Data::Pattern(4, 0, 2)),
            holds(4097, Data::Pattern(1, 4097, 902)),
            holds(4999, Data::Pattern(2, 0, 1)),
        ]),
        must(
            "rdmap/5040-5.1/4",
            &["5040-5.1-04"],
            "RDMA Writes are sent in the order in which the application posted them.",
        )
        .steps([Establish(Setup::default().mss(1460))])
        .steps(LENGTHS.map(|len| Post(Post::write(STAG, TO + len as u64, len))))
        .steps(LENGTHS.map(|len| wants_write(TO + len as u64, Data::len(len)))),
        must(
            "rdmap/5040-5.1/5",
            &["5040-5.1-05"],
            "An RDMA Write writes to consecutive bytes of one region.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::SameStag, Rule::To]),
            Post(Post::write(STAG, TO, 5000)),
            Post(Post::write(STAG + 0x100, TO + 5000, 5000)),
            wants_write(TO, Data::len(5000)),
            Expect(Want::Write {
                stag: STAG + 0x100,
                to: TO + 5000,
                data: Data::len(5000),
            }),
        ]),
        may(
            "rdmap/5040-5.1/6",
            &["5040-5.1-06"],
            "A peer may send an RDMA Write of zero length with any STag and TO.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            Send(vec![
                write(Stag::Is(0), To::Is(u64::MAX), 0),
                write(Stag::Of("r"), To::In("r", 0), 0),
                write(Stag::Of("r"), To::End("r", 4096), 0),
            ]),
            Ping,
        ]),
    ]
}

/// Message lengths in mixed order: zero, near an alignment boundary, near the length of one
/// segment, and several segments.
const LENGTHS: [usize; 8] = [4, 3000, 0, 1, 1424, 513, 9, 20_000];

fn holds(offset: usize, data: Data) -> Action {
    let region = "r";
    Holds {
        region,
        offset,
        data,
    }
}
