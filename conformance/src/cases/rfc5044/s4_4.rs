//! RFC 5044 section 4.4: CRCs.

use super::{every_pad, reads, small_ones, small_writes, source, steps};
use crate::check::Rule;
use crate::script::Action::{self, *};
use crate::script::{
    Case, Condition, Data, Ends, OutSegment, Region, Setup, Stag, StartupCheck, To, may, must,
    write,
};
use crate::wire::fpdu::CrcField;

pub(super) fn cases() -> Vec<Case> {
    [senders(), receivers(), choices()].concat()
}

/// Accepted ends of the connection after a wrong CRC.
pub(super) fn crc_error() -> Ends {
    Ends::term(2, 0, 2).or_dropped()
}

/// A Write with this CRC. If the target accepted it, the region would change.
pub(super) fn spoiled(crc: CrcField) -> OutSegment {
    write(Stag::Of("r"), To::In("r", 0), 64).crc(crc)
}

/// Establishes a connection with CRCs and registers a region for Writes.
pub(super) fn ready() -> Vec<Action> {
    vec![
        Establish(Setup::default().crc(true)),
        Region(Region::writable("r", 4096)),
    ]
}

/// Checks that the region is unchanged.
pub(super) fn untouched() -> Action {
    Holds {
        region: "r",
        offset: 0,
        data: Data::Bytes(vec![0; 4096]),
    }
}

fn with_crc(setup: Setup, traffic: Vec<Action>) -> Vec<Action> {
    steps([
        vec![Watch(&[Rule::Crc]), Establish(setup.crc(true)), source()],
        traffic,
    ])
}

fn senders() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-4.4/1",
            &["5044-4.4-10"],
            "Every FPDU has a CRC field, whether CRCs are used or not.",
        )
        .steps(steps([
            vec![Establish(Setup::default().crc(false)), source()],
            reads(every_pad().chain([1000, 5000])),
        ])),
        must(
            "mpa/5044-4.4/2",
            &["5044-4.4-11"],
            "The CRC field holds the CRC32C of the FPDU in the byte order of iSCSI.",
        )
        .steps(with_crc(
            Setup::default().markers(false),
            reads(every_pad().chain([1000, 5000])),
        )),
        must(
            "mpa/5044-4.4/3",
            &["5044-4.4-12", "5044-4.4-14"],
            "The CRC covers the Markers in the FPDU. It follows a Marker that is due between PAD and CRC.",
        )
        .steps(with_crc(
            Setup::default().markers(true),
            steps([small_ones(), reads([1, 2, 3, 1000, 5000])]),
        )),
        must(
            "mpa/5044-4.4/4",
            &["5044-4.4-13"],
            "The CRC begins with the Marker directly before ULPDU_Length.",
        )
        .steps(with_crc(Setup::default().markers(true), vec![Ping])),
        must(
            "mpa/5044-4.4/5",
            &["5044-4.4-07"],
            "CRCs are generated and checked for as long as the connection lasts.",
        )
        .steps(steps([
            with_crc(Setup::default(), reads([3000; 50])),
            vec![
                Region(Region::writable("r", 4096)),
                Send(vec![spoiled(CrcField::Xor(0x100))]),
                End(crc_error()),
                untouched(),
            ],
        ])),
    ]
}

fn receivers() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-4.4/10",
            &["5044-4.4-01"],
            "Every implementation supports CRC32C: if the peer requires it, CRCs are generated and checked.",
        )
        .steps(steps([
            with_crc(Setup::default(), reads([100])),
            vec![
                Send(vec![write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Xor(1))]),
                End(crc_error()),
            ],
        ])),
        must(
            "mpa/5044-4.4/11",
            &["5044-4.4-12", "5044-4.4-13", "5044-4.4-14"],
            "CRCs over Markers are checked as they are generated, at any position of a Marker in an FPDU.",
        )
        .steps(steps([
            ready(),
            vec![
                Require(Condition::TargetReceivesMarkers),
                small_writes(),
                Send(
                    (0..140)
                        .map(|n| write(Stag::Of("r"), To::In("r", n), n as usize % 7))
                        .collect(),
                ),
                Ping,
            ],
        ])),
        must(
            "mpa/5044-4.4/12",
            &["5044-4.4-15", "5044-4.4-16"],
            "The CRC is compared before the FPDU is used: nothing of a wrong one is placed.",
        )
        .steps(steps([
            ready(),
            vec![
                Send(vec![spoiled(CrcField::Xor(0x8000_0000))]),
                End(crc_error()),
                untouched(),
            ],
        ])),
        must(
            "mpa/5044-4.4/13",
            &["5044-4.4-15"],
            "A wrong CRC takes precedence over every other error of an FPDU.",
        )
        .steps([
            Establish(Setup::default().crc(true)),
            Send(vec![
                crate::script::send(16)
                    .qn(7)
                    .ddp_version(3)
                    .crc(CrcField::Xor(1)),
            ]),
            End(crc_error()),
        ]),
        must(
            "mpa/5044-4.4/14",
            &["5044-4.4-16"],
            "A CRC with its most significant byte first is wrong.",
        )
        .steps(steps([
            ready(),
            vec![
                Send(vec![spoiled(CrcField::Swapped)]),
                End(crc_error()),
                untouched(),
            ],
        ])),
    ]
}

fn choices() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-4.4/20",
            &["5044-4.4-04"],
            "By default, an endpoint asks for CRCs even if its peer does not.",
        )
        .steps([
            Require(Condition::DefaultCrc),
            Establish(Setup::default().crc(false)),
            CheckStartup(StartupCheck::Crc),
        ]),
        must(
            "mpa/5044-4.4/21",
            &["5044-4.4-08"],
            "If neither side asks for CRCs, even the first FPDU is not checked.",
        )
        .steps([
            Establish(Setup::default().crc(false).no_nudge()),
            Require(Condition::CrcNotInUse),
            Send(vec![
                write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Bytes([1, 2, 3, 4])),
            ]),
            Ping,
        ]),
        may(
            "mpa/5044-4.4/22",
            &["5044-4.4-09"],
            "A peer may generate CRCs even if they are not checked.",
        )
        .steps([
            Establish(Setup::default().crc(false)),
            Require(Condition::CrcNotInUse),
            Send(vec![write(Stag::Is(0), To::Is(0), 0); 4]),
            Ping,
        ]),
        may(
            "mpa/5044-4.4/23",
            &["5044-4.4-03"],
            "A peer may always use CRCs, whatever its administrator configured.",
        )
        .steps([Establish(Setup::default().crc(true)), Ping, Ping]),
    ]
}
