//! RFC 5041 section 4.2: the header of tagged segments.

use super::{STAG, TO, tagged_traffic, writes};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Data, Ends, Post, Region, Setup, Stag, To, may, must, write};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-4.2/1",
            &["5041-4.2-01", "5041-4.2-02", "5041-4.2-06"],
            "A tagged segment has DDP Control, RDMAP Control, the consumer's STag and TO, and the payload.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::TaggedFlag, Rule::RdmapVersion, Rule::Opcode]),
            Post(Post::write(STAG, TO, 100)),
            writes(100),
            Post(Post::write(0xffff_ffff, u64::MAX - 9, 10)),
            Expect(crate::script::Want::Write {
                stag: 0xffff_ffff,
                to: u64::MAX - 9,
                data: Data::len(10),
            }),
        ]),
        must(
            "ddp/5041-4.2/4",
            &["5041-4.2-04"],
            "All segments of a tagged message have the same RsvdULP.",
        )
        .steps(tagged_traffic(&[Rule::SameRsvdUlp])),
        must(
            "ddp/5041-4.2/5",
            &["5041-4.2-05"],
            "An STag with a wrong key is not valid on the stream.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![write(Stag::Near("r", 1), To::In("r", 0), 16)]),
            End(Ends::term(1, 1, 0).or(1, 1, 2)),
        ]),
        must(
            "ddp/5041-4.2/8",
            &["5041-4.2-08"],
            "All segments of a tagged message have the consumer's STag.",
        )
        .steps(tagged_traffic(&[Rule::SameStag])),
        may(
            "ddp/5041-4.2/9",
            &["5041-4.2-09"],
            "A tagged message may start at any TO in the buffer, including its last byte.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 100)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 1),
                write(Stag::Of("r"), To::In("r", 33), 7),
                write(Stag::Of("r"), To::In("r", 99), 1),
            ]),
            Ping,
            Holds {
                region: "r",
                offset: 0,
                data: Data::len(1),
            },
            Holds {
                region: "r",
                offset: 33,
                data: Data::len(7),
            },
            Holds {
                region: "r",
                offset: 99,
                data: Data::len(1),
            },
        ]),
    ]
}
