//! RFC 5044 section 5: FPDUs and TCP segments.

use super::reads;
use super::s4_5::sized;
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Data, Region, Setup, Stag, To, may, must, should, write};

pub(super) fn cases() -> Vec<Case> {
    let whole = |offset: usize, len: usize| Holds {
        region: "r",
        offset,
        data: Data::len(len),
    };
    vec![
        should(
            "mpa/5044-5.1/1",
            &["5044-5.1-01"],
            "A sender over standard TCP computes MULPDU by the formula of section 4.5.",
        )
        .steps(sized(
            &[Rule::Mulpdu, Rule::FewSegments],
            Setup::default().mss(1220),
            reads([1100, 1200, 1220, 50_000]),
        )),
        may(
            "mpa/5044-5.1/2",
            &["5044-5.1-04"],
            "Several FPDUs may be in one TCP segment.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(
                (0..40)
                    .map(|n| write(Stag::Of("r"), To::In("r", n), 1 + n as usize % 4))
                    .chain([write(Stag::Of("r"), To::In("r", 100), 11)])
                    .collect(),
            ),
            Ping,
            whole(100, 11),
        ]),
        must(
            "mpa/5044-5.1/3",
            &["5044-5.1-05"],
            "FPDUs may begin and end anywhere in TCP segments, and are received.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 8192)),
            SendAcross(
                (0..8)
                    .map(|n| write(Stag::Of("r"), To::In("r", n * 1024), 250 * n as usize % 1000))
                    .collect(),
                (1..=30).map(|piece| piece * 137).collect(),
            ),
            Ping,
            whole(3 * 1024, 750),
            whole(7 * 1024, 750),
        ]),
        must(
            "mpa/5044-5.1/4",
            &["5044-5.1-05", "5044-5.2-01"],
            "An FPDU whose bytes come one by one is received, even with ULPDU_Length in two TCP segments.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            SendInPieces(write(Stag::Of("r"), To::In("r", 0), 9), (1..32).collect()),
            Ping,
            whole(0, 9),
        ]),
        must(
            "mpa/5044-5.2/1",
            &["5044-5.2-01"],
            "ULPDU_Length decides where the next FPDU begins, even if a TCP segment begins elsewhere.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            // The second TCP segment begins with payload bytes that look like an FPDU.
            SendInPieces(
                write(Stag::Of("r"), To::In("r", 0), looks_like_fpdus()),
                vec![16 + 4, 16 + 4 + 24],
            ),
            Send(vec![write(Stag::Of("r"), To::In("r", 1000), 33)]),
            Ping,
            whole(1000, 33),
        ]),
    ]
}

/// Payload that looks like FPDUs: zero-length Writes with an invalid STag and a wrong CRC.
fn looks_like_fpdus() -> &'static [u8; 96] {
    const FPDU: [u8; 24] = [
        0x00, 0x12, 0xc1, 0x40, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6,
        7, 8,
    ];
    const FOUR: [u8; 96] = {
        let mut four = [0; 96];
        let mut at = 0;
        while at < 96 {
            four[at] = FPDU[at % 24];
            at += 1;
        }
        four
    };
    &FOUR
}
