//! RFC 5041 sections 4.1 and 4.4: the DDP Control Field, which is part of each segment.

use super::{piece, tagged_traffic, untagged_traffic, untouched};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, OutSegment, Region, Setup, Stag, To, must, read_request, send, write,
};

pub(super) fn cases() -> Vec<Case> {
    [placement(), control(), versions()].concat()
}

fn placement() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-4.1/1",
            &["5041-4.1-01"],
            "A segment with T=1 is placed exactly in the Tagged Buffer that it names.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![write(Stag::Of("r"), To::In("r", 51), 101)]),
            Ping,
            Holds {
                region: "r",
                offset: 0,
                data: untouched(51),
            },
            Holds {
                region: "r",
                offset: 51,
                data: Data::len(101),
            },
            Holds {
                region: "r",
                offset: 152,
                data: untouched(1000),
            },
        ]),
        must(
            "ddp/5041-4.1/2",
            &["5041-4.1-02"],
            "Segments with T=0 are placed in Untagged Buffers in their order.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(101), send(piece(500, 33)), send(0), send(1)]),
            Delivered(Data::len(101)),
            Delivered(piece(500, 33)),
            Delivered(Data::none()),
            Delivered(Data::len(1)),
        ]),
        must(
            "ddp/5041-4.1/3",
            &["5041-4.1-03", "5041-4.1-04", "5041-4.1-05", "5041-4.1-06"],
            "L is 1 only in the last segment of an untagged message, the one with the highest MO.",
        )
        .steps(untagged_traffic(&[Rule::Mo])),
        must(
            "ddp/5041-4.1/4",
            &["5041-4.1-03", "5041-4.1-04", "5041-4.1-05"],
            "L is 1 only in the last segment of a tagged message.",
        )
        .steps(tagged_traffic(&[Rule::To])),
        must(
            "ddp/5041-4.4/1",
            &["5041-4.4-01"],
            "Each segment has a DDP Header.",
        )
        .steps(untagged_traffic(&[Rule::DdpHeader]))
        .steps(tagged_traffic(&[Rule::DdpHeader])),
    ]
}

fn control() -> Vec<Case> {
    let reserved = |bits: u8| -> Vec<Action> {
        vec![
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 64).ddp_reserved(bits),
                send(9).ddp_reserved(bits),
                read_request(Stag::Is(0), To::Is(0), 0).ddp_reserved(bits),
            ]),
            super::responds(0),
            Delivered(Data::len(9)),
        ]
    };
    vec![
        must(
            "ddp/5041-4.1/8",
            &["5041-4.1-08"],
            "The reserved bits of DDP Control are sent as zero.",
        )
        .steps(untagged_traffic(&[Rule::DdpReserved]))
        .steps(tagged_traffic(&[Rule::DdpReserved])),
        must(
            "ddp/5041-4.1/9",
            &["5041-4.1-09"],
            "The reserved bits of DDP Control are not checked.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
        ])
        .steps([1, 2, 4, 8, 15].into_iter().flat_map(reserved))
        .steps([Holds {
            region: "r",
            offset: 0,
            data: Data::len(64),
        }]),
        must(
            "ddp/5041-4.1/10",
            &["5041-4.1-10", "5041-4.1-11"],
            "DV is 1 in all segments.",
        )
        .steps(untagged_traffic(&[Rule::DdpVersion]))
        .steps(tagged_traffic(&[Rule::DdpVersion])),
    ]
}

/// Sends a segment with each invalid DV, each on its own connection.
fn wrong_versions(before: &[OutSegment], segment: &OutSegment, ends: &Ends) -> Vec<Action> {
    let mut steps = vec![];
    for version in [0, 2, 3] {
        steps.extend([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(before.to_vec()),
            Send(vec![segment.clone().ddp_version(version)]),
            End(ends.clone()),
        ]);
    }
    steps
}

fn versions() -> Vec<Case> {
    let tagged = write(Stag::Of("r"), To::In("r", 0), 16);
    let untagged = send(16);
    vec![
        must(
            "ddp/5041-4.1/12",
            &["5041-4.1-12"],
            "A tagged segment whose DV differs from that of earlier segments is an error: invalid DDP version.",
        )
        .steps(wrong_versions(
            std::slice::from_ref(&tagged),
            &tagged,
            &Ends::term(1, 1, 4),
        )),
        must(
            "ddp/5041-4.1/13",
            &["5041-4.1-13"],
            "An untagged segment whose DV differs from that of earlier segments is an error: invalid DDP version.",
        )
        .steps(wrong_versions(
            std::slice::from_ref(&untagged),
            &untagged,
            &Ends::term(1, 2, 6),
        )),
        must(
            "ddp/5041-7.2/1",
            &["5041-7.2-i01", "5041-7.2-01"],
            "A tagged segment whose DV is not 1 is not placed: invalid DDP version.",
        )
        .steps(wrong_versions(&[], &tagged, &Ends::term(1, 1, 4)))
        .steps([
            End(Ends::close()),
            Holds {
                region: "r",
                offset: 0,
                data: untouched(16),
            },
        ]),
        must(
            "ddp/5041-7.2/2",
            &["5041-7.2-i02", "5041-7.2-01"],
            "An untagged segment whose DV is not 1 is an error: invalid DDP version.",
        )
        .steps(wrong_versions(&[], &untagged, &Ends::term(1, 2, 6))),
    ]
}
