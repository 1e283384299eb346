//! RFC 5041 section 7.1: validation of tagged segments.

use super::untouched;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Ends, OutSegment, Region, Setup, Stag, To, must, write,
};

/// Sends each of these Writes on its own connection, with a region of its own. Each connection must
/// end in this way, and nothing is placed.
fn each(region: &Region, wrong: impl IntoIterator<Item = OutSegment>, ends: &Ends) -> Vec<Action> {
    wrong
        .into_iter()
        .flat_map(|segment| {
            [
                Establish(Setup::default()),
                Region(region.clone()),
                Send(vec![segment]),
                End(ends.clone()),
                End(Ends::close()),
                Holds {
                    region: region.name,
                    offset: 0,
                    data: untouched(region.len),
                },
            ]
        })
        .collect()
}

fn at(to: To, len: usize) -> OutSegment {
    write(Stag::Of("r"), to, len)
}

pub(super) fn cases() -> Vec<Case> {
    let region = Region::writable("r", 4096);
    let odd = Region::writable("r", 101);
    let bounds = Ends::term(1, 1, 1);
    let wraps = Ends::term(1, 1, 3).or(1, 1, 1);
    vec![
        must(
            "ddp/5041-7.1/20",
            &["5041-7.1-10", "5041-7.2-01"],
            "A Write to an STag that does not exist is an error: invalid STag.",
        )
        .steps(each(
            &region,
            [
                Stag::Near("r", 1),
                Stag::Near("r", 0x80),
                Stag::Near("r", 0x8000_0000),
            ]
            .map(|stag| write(stag, To::In("r", 0), 16)),
            &Ends::term(1, 1, 0).or(1, 1, 2),
        )),
        must(
            "ddp/5041-7.1/29",
            &["5041-7.1-10"],
            "An empty first segment of a Write does not exempt the STag of the second one from validation.",
        )
        .dangerous()
        .steps([
            Establish(Setup::default().no_nudge()),
            Send(vec![
                write(Stag::Is(0), To::Is(0), 0).more(),
                write(Stag::Is(0), To::Is(0), 16),
            ]),
            End(Ends::any_term()),
            Establish(Setup::default()),
            Ping,
        ]),
        must(
            "ddp/5041-7.1/21",
            &["5041-7.1-11"],
            "A Write to memory without the right of remote write is an error: invalid STag, because DDP has no code for rights, or RDMAP's access rights violation.",
        )
        .steps(["rr", "lw,rr", "lw"].into_iter().flat_map(|access| {
            each(
                &Region::writable("r", 4096).access(access),
                [at(To::In("r", 0), 16)],
                &Ends::term(1, 1, 0).or(0, 1, 2),
            )
        })),
        must(
            "ddp/5041-7.1/22",
            &["5041-7.1-12"],
            "A Write to a TO outside the region is an error: base or bounds violation.",
        )
        .steps(each(
            &region,
            [
                at(To::End("r", 0), 16),
                at(To::End("r", 100_000), 16),
                at(To::In("r", -4096), 16),
                at(To::In("r", -1), 1),
            ],
            &bounds,
        )),
        must(
            "ddp/5041-7.1/23",
            &["5041-7.1-13"],
            "A Write that ends outside the region is an error: base or bounds violation.",
        )
        .steps(each(
            &region,
            [
                at(To::End("r", -15), 16),
                at(To::End("r", -1), 2),
                at(To::In("r", 0), 4097),
                at(To::In("r", 1), 4096),
                at(To::In("r", -8), 16),
            ],
            &bounds,
        )),
        must(
            "ddp/5041-7.1/24",
            &["5041-7.1-13", "5041-8.3.1-01"],
            "The bounds of a region are exact to the byte.",
        )
        .steps(each(
            &odd,
            [at(To::End("r", 0), 1), at(To::End("r", -100), 101)],
            &bounds,
        )),
        must(
            "ddp/5041-7.1/25",
            &["5041-7.1-14"],
            "A Write that goes beyond the highest possible TO is an error: TO wrap, or base or bounds violation.",
        )
        .steps(each(
            &region,
            [at(To::Is(u64::MAX), 2), at(To::Is(u64::MAX - 7), 64)],
            &wraps,
        )),
        must(
            "ddp/5041-7.1/26",
            &["5041-7.1-14"],
            "A Write that wraps into a region that begins at TO 0 is an error: TO wrap, or base or bounds violation.",
        )
        .steps([Require(Condition::ScopedRegions)])
        .steps(each(
            &region.zero_based(),
            [at(To::Is(u64::MAX), 2), at(To::Is(u64::MAX - 7), 64)],
            &wraps,
        )),
    ]
}
