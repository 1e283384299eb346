//! RFC 5044 section 4.5: MULPDU.

use super::{answer, reads, source, steps};
use crate::check::Rule;
use crate::script::Action::{self, *};
use crate::script::{Case, Condition, Setup, Stag, To, may, read_request, should, write};

/// Runs `traffic` on a connection whose EMSS the suite knows, while the case watches these rules.
pub(super) fn sized(rules: &'static [Rule], setup: Setup, traffic: Vec<Action>) -> Vec<Action> {
    steps([
        vec![
            Watch(rules),
            Establish(setup),
            Require(Condition::EmssKnown),
            source(),
        ],
        traffic,
    ])
}

pub(super) fn cases() -> Vec<Case> {
    let lens = [500, 1400, 1440, 1450, 1460, 1480, 5000, 20_000];
    let size = |setup| sized(&[Rule::Mulpdu], setup, reads(lens));
    // RFC 5044 requires MPA to compute MULPDU this way. A peer observes only the lengths of ULPDUs.
    // DDP should not exceed MULPDU (section 3) and may use shorter ULPDUs. Therefore the case
    // checks the MUST as a SHOULD.
    vec![
        should(
            "mpa/5044-4.5/1",
            &["5044-4.5-01"],
            "With Markers, a ULPDU leaves room for them: EMSS - (6 + 4 * ceil(EMSS / 512) + EMSS mod 4).",
        )
        .steps(size(Setup::default().mss(1460).markers(true))),
        should(
            "mpa/5044-4.5/2",
            &["5044-4.5-01"],
            "With Markers and an MSS that is not a multiple of 4, a ULPDU leaves room for Markers.",
        )
        .steps(size(Setup::default().mss(537).markers(true))),
        should(
            "mpa/5044-4.5/3",
            &["5044-4.5-02"],
            "Without Markers, a ULPDU has at most EMSS - (6 + EMSS mod 4) bytes.",
        )
        .steps(size(Setup::default().mss(1460).markers(false))),
        should(
            "mpa/5044-4.5/4",
            &["5044-4.5-02"],
            "Without Markers and with an MSS that is not a multiple of 4, a ULPDU has at most EMSS - (6 + EMSS mod 4) bytes.",
        )
        .steps(size(Setup::default().mss(1003).markers(false))),
        may(
            "mpa/5044-4.5/5",
            &["5044-4.5-03", "5044-4.5-04"],
            "A peer may send segments of any length, even short ones in the middle of a message.",
        )
        .steps([
            Establish(Setup::default()),
            Region(crate::script::Region::writable("r", 4096)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 700).more(),
                write(Stag::Of("r"), To::In("r", 700), 1).more(),
                write(Stag::Of("r"), To::In("r", 701), 130).more(),
                write(Stag::Of("r"), To::In("r", 831), 0).more(),
                write(Stag::Of("r"), To::In("r", 831), 9),
            ]),
            Ping,
        ]),
        should(
            "mpa/5044-4.5/6",
            &["5044-4.5-05"],
            "Segments are as large as MULPDU allows, so a message has few of them.",
        )
        .steps(sized(
            &[Rule::FewSegments, Rule::Mulpdu],
            Setup::default().mss(1460),
            reads([3000, 20_000, 100_000]),
        )),
        should(
            "mpa/5044-4.5/7",
            &["5044-4.5-06", "5044-4.5-05"],
            "MULPDU is 128 bytes if the EMSS is smaller.",
        )
        .steps(sized(
            &[Rule::FewSegments],
            Setup::default().mss(90),
            reads([4560, 9120]),
        )),
        should(
            "mpa/5044-4.5/8",
            &["5044-4.5-07", "5044-4.5-05"],
            "MULPDU does not drop below 128 bytes when the current TCP segment is nearly full.",
        )
        .steps(sized(
            &[Rule::FewSegments],
            Setup::default().mss(256),
            steps([
                vec![Send(
                    packed()
                        .map(|size| read_request(Stag::Of("source"), To::In("source", 0), size))
                        .collect(),
                )],
                packed().map(|size| answer(size as usize)).collect(),
            ]),
        )),
    ]
}

/// Message sizes that need one FPDU or several, in mixed order.
fn packed() -> impl Iterator<Item = u32> {
    [0, 100, 2000, 50, 3000, 1, 20, 4560, 190, 2000].into_iter()
}
