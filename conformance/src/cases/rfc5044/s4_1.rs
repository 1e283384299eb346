//! RFC 5044 section 4.1: the format of an FPDU.

use super::{every_pad, reads, source, steps};
use crate::check::Rule;
use crate::script::Action::{self, *};
use crate::script::{Case, Condition, Data, Region, Setup, Stag, To, must, read_request, write};
use crate::wire::fpdu::CrcField;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-4.1/1",
            &["5044-4.1-01"],
            "An FPDU consists of ULPDU_Length, ULPDU, PAD and CRC, in both directions.",
        )
        .steps(steps([
            vec![
                Establish(Setup::default()),
                Region(Region::writable("r", 4096).access("lw,rw,rr")),
            ],
            every_pad()
                .chain([600, 1401])
                .flat_map(there_and_back)
                .collect(),
        ])),
        must("mpa/5044-4.1/2", &["5044-4.1-02"], "PAD bytes are zero.")
            .steps(padded(Setup::default().markers(false))),
        must(
            "mpa/5044-4.1/7",
            &["5044-4.1-02"],
            "PAD bytes are also zero in a stream with Markers.",
        )
        .steps(padded(Setup::default().markers(true))),
        must(
            "mpa/5044-4.1/3",
            &["5044-4.1-03"],
            "The content of PAD does not matter, except for the CRC over it.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 1).pad(0xff),
                write(Stag::Of("r"), To::In("r", 16), 2).pad(0x80),
                write(Stag::Of("r"), To::In("r", 32), 3).pad(0x01),
            ]),
            Ping,
            Holds {
                region: "r",
                offset: 32,
                data: Data::len(3),
            },
            // No byte after the ULPDU was placed.
            Holds {
                region: "r",
                offset: 1,
                data: Data::Bytes(vec![0; 15]),
            },
        ]),
        must(
            "mpa/5044-4.1/4",
            &["5044-4.1-04"],
            "If CRCs are not used, the CRC field may have any value.",
        )
        .steps([
            Establish(Setup::default().crc(false)),
            Require(Condition::CrcNotInUse),
            Send(vec![
                write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Bytes([0xde, 0xad, 0xbe, 0xef])),
                write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Bytes([0xff; 4])),
                write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Bytes([0; 4])),
            ]),
            Ping,
        ]),
        must(
            "mpa/5044-4.1/5",
            &["5044-4.1-i01"],
            "ULPDU_Length counts only the ULPDU, and neither itself nor PAD, CRC and Markers.",
        )
        .steps(steps([
            vec![Establish(Setup::default().markers(true)), source()],
            reads(every_pad().chain([507, 508, 509, 1100, 3001])),
        ])),
        must(
            "mpa/5044-4.1/6",
            &["5044-4.1-i02"],
            "PAD makes the FPDU a multiple of 4 bytes, whatever the length of the ULPDU is.",
        )
        .steps(steps([
            vec![Establish(Setup::default()), source()],
            reads(every_pad()),
            reads(every_pad()),
        ])),
    ]
}

/// Makes the target send FPDUs with every length of PAD, and checks that the PAD bytes are zero.
fn padded(setup: Setup) -> Vec<Action> {
    steps([
        vec![Watch(&[Rule::PadZero]), Establish(setup), source()],
        reads(every_pad()),
        reads([1401, 3002, 5003]),
    ])
}

/// Writes `len` bytes to the target and reads them back.
fn there_and_back(len: usize) -> Vec<Action> {
    let (stag, to) = (Stag::Of("r"), To::In("r", 0));
    let size = u32::try_from(len).unwrap_or_default();
    vec![
        Send(vec![write(stag, to, len), read_request(stag, to, size)]),
        super::answer(len),
    ]
}
