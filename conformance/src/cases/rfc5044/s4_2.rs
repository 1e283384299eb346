//! RFC 5044 section 4.2: the format of a Marker.

use super::{reads, small_ones, source, steps};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Condition, Data, Region, Setup, Stag, To, must, write};
use crate::wire::fpdu::MarkerForm;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-4.2/1",
            &["5044-4.2-01"],
            "A Marker consists of 16 reserved bits and FPDUPTR.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::MarkerReserved, Rule::MarkerPointer]),
                Establish(Setup::default().markers(true)),
                source(),
            ],
            reads([3000, 700, 5000]),
        ])),
        must(
            "mpa/5044-4.2/2",
            &["5044-4.2-02"],
            "The reserved bits of a Marker are sent as zero.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::MarkerReserved]),
                Establish(Setup::default().markers(true)),
                source(),
            ],
            small_ones(),
            reads([3000, 700, 5000]),
        ])),
        must(
            "mpa/5044-4.2/3",
            &["5044-4.2-03"],
            "The reserved bits of a Marker are not checked, except as part of the CRC.",
        )
        .steps(received_with(MarkerForm {
            reserved: 0xffff,
            off: 0,
        })),
        must(
            "mpa/5044-4.2/4",
            &["5044-4.2-04"],
            "The two low bits of FPDUPTR are sent as zero.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::MarkerLowBits]),
                Establish(Setup::default().markers(true)),
                source(),
            ],
            small_ones(),
            reads([3000, 701, 5002, 1403]),
        ])),
        must(
            "mpa/5044-4.2/5",
            &["5044-4.2-05"],
            "A receiver treats the two low bits of FPDUPTR as zero.",
        )
        .steps(received_with(MarkerForm {
            reserved: 0,
            off: 3,
        })),
    ]
}

/// Sends small FPDUs and a large one that contains several Markers. All Markers have this form.
fn received_with(marker: MarkerForm) -> Vec<crate::script::Action> {
    let small = write(Stag::Is(0), To::Is(0), 0).marker(marker);
    let large = write(Stag::Of("r"), To::In("r", 0), 3000).marker(marker);
    vec![
        Establish(Setup::default()),
        Require(Condition::TargetReceivesMarkers),
        Region(Region::writable("r", 4096)),
        Send(vec![small; 140]),
        Send(vec![large]),
        Ping,
        Holds {
            region: "r",
            offset: 0,
            data: Data::len(3000),
        },
    ]
}
