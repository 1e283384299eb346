//! RFC 5044 section 4.3: positions and contents of Markers.

use super::{reads, small_ones, small_writes, source, steps};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Condition, Data, Region, Setup, Stag, To, must, send, write};

pub(super) fn cases() -> Vec<Case> {
    let marked = || Establish(Setup::default().markers(true));
    let pointers = |parts: Vec<crate::script::Action>| {
        steps([
            vec![Watch(&[Rule::MarkerPointer]), marked(), source()],
            parts,
        ])
    };
    vec![
        must(
            "mpa/5044-4.3/1",
            &["5044-4.3-01", "5044-4.3-02"],
            "A sender whose peer asks for Markers inserts one at every 512th byte.",
        )
        .steps(steps([vec![marked(), source()], reads([3000, 700, 5000])])),
        must(
            "mpa/5044-4.3/2",
            &["5044-4.3-02", "5044-4.3-i02"],
            "Markers stay at every 512th byte for a megabyte, in small and large FPDUs.",
        )
        .steps(steps([
            vec![marked(), source()],
            small_ones(),
            reads([60_000; 18]),
            small_ones(),
        ])),
        must(
            "mpa/5044-4.3/3",
            &["5044-4.3-03"],
            "FPDUPTR is the distance from ULPDU_Length to the Marker.",
        )
        .steps(pointers(reads([400, 400, 400, 400]))),
        must(
            "mpa/5044-4.3/4",
            &["5044-4.3-05"],
            "A sender covers a Marker between two FPDUs by the CRC of the second one.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::Crc]),
                Establish(Setup::default().markers(true).crc(true)),
            ],
            small_ones(),
        ])),
        must(
            "mpa/5044-4.3/5",
            &["5044-4.3-05"],
            "A receiver expects a Marker between two FPDUs to be covered by the CRC of the second one.",
        )
        .steps([
            Establish(Setup::default().crc(true)),
            Require(Condition::TargetReceivesMarkers),
            small_writes(),
            Ping,
        ]),
        must(
            "mpa/5044-4.3/6",
            &["5044-4.3-06"],
            "The first Marker is directly before the first FPDU.",
        )
        .steps([Watch(&[Rule::MarkerPointer]), marked(), Ping]),
        must(
            "mpa/5044-4.3/7",
            &["5044-4.3-07"],
            "All Markers in an FPDU point to its ULPDU_Length.",
        )
        .steps(pointers(reads([1400, 3000, 9000]))),
        must(
            "mpa/5044-4.3/8",
            &["5044-4.3-08", "5044-4.3-i01"],
            "Among small FPDUs, a Marker points to the FPDU that contains it, and is zero between two FPDUs.",
        )
        .steps(pointers(small_ones())),
        must(
            "mpa/5044-4.3/9",
            &["5044-4.3-09"],
            "ULPDUs keep their boundaries, many in one TCP segment and one in several segments.",
        )
        .steps(steps([
            vec![
                Establish(Setup::default().receives(32, 1024)),
                Send((0..=9).map(|len| send(len * 100)).collect()),
            ],
            (0..=9).map(|len| Received(len * 100)).collect(),
            vec![SendAcross(
                (0..=9).map(|len| send(len * 70)).collect(),
                (1..=40).map(|piece| piece * 83).collect(),
            )],
            (0..=9).map(|len| Received(len * 70)).collect(),
        ])),
        must(
            "mpa/5044-4.3/10",
            &["5044-4.3-10"],
            "Only the ULPDU reaches DDP: no Marker, header, PAD or CRC is placed.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 8192)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 3001),
                write(Stag::Of("r"), To::In("r", 4096), 1025),
            ]),
            Ping,
            Holds {
                region: "r",
                offset: 0,
                data: Data::len(3001),
            },
            Holds {
                region: "r",
                offset: 3001,
                data: Data::Bytes(vec![0; 1095]),
            },
            Holds {
                region: "r",
                offset: 4096,
                data: Data::len(1025),
            },
            Holds {
                region: "r",
                offset: 5121,
                data: Data::Bytes(vec![0; 100]),
            },
        ]),
    ]
}
