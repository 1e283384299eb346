//! RFC 7306 section 5.1.2: CmpSwap.

use super::s5_1_1::misaligned;
use super::{add, answered, masked_swap, swap, with_region};
use crate::script::Action::*;
use crate::script::{Action, Case, Ends, must};

/// Initial value of a word, Compare Data and Mask, Swap Data and Mask, and expected value
/// afterwards.
type Exchange = (u64, (u64, u64), (u64, u64), u64);

const ALL: u64 = u64::MAX;

/// Tries each CmpSwap on its own word.
fn exchanges(exchanges: &[Exchange]) -> Vec<Action> {
    let mut steps = with_region();
    for (number, (before, compare, swap, after)) in exchanges.iter().enumerate() {
        let (at, id) = (8 * number as i64, 16 * number as u32);
        steps.extend([
            Send(vec![
                add(id, at, *before),
                masked_swap(id + 1, at, *compare, *swap),
                add(id + 2, at, 0),
            ]),
            answered(id, 0),
            answered(id + 1, *before),
            answered(id + 2, *after),
        ]);
    }
    steps.push(Ping);
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.1.2/1",
            &["7306-5.1.2-01", "7306-5.1.2-i02"],
            "A CmpSwap that matches stores Swap Data and returns the previous value.",
        )
        .steps(exchanges(&[
            (0, (0, ALL), (7, ALL), 7),
            (7, (7, ALL), (0, ALL), 0),
            (
                0x0123_4567_89ab_cdef,
                (0x0123_4567_89ab_cdef, ALL),
                (0xfedc_ba98_7654_3210, ALL),
                0xfedc_ba98_7654_3210,
            ),
        ])),
        must(
            "ext/7306-5.1.2/2",
            &["7306-5.1.2-01", "7306-5.1.2-i02"],
            "A CmpSwap that does not match stores nothing and returns the previous value.",
        )
        .steps(exchanges(&[
            (5, (4, ALL), (7, ALL), 5),
            (
                0x0123_4567_89ab_cdef,
                (0x8123_4567_89ab_cdef, ALL),
                (9, ALL),
                0x0123_4567_89ab_cdef,
            ),
            (1, (0, ALL), (0, ALL), 1),
        ])),
        must(
            "ext/7306-5.1.2/3",
            &["7306-5.1.2-i01"],
            "Only the bits of Compare Mask are compared.",
        )
        .steps(exchanges(&[
            (
                0xaaaa_bbbb_cccc_dddd,
                (0x1111_2222_3333_dddd, 0xffff),
                (1, ALL),
                1,
            ),
            (
                0xaaaa_bbbb_cccc_dddd,
                (0xaaaa_bbbb_cccc_dddc, 0xffff),
                (1, ALL),
                0xaaaa_bbbb_cccc_dddd,
            ),
            (
                0xaaaa_bbbb_cccc_dddd,
                (0xaaaa_bbbb_cccc_dddc, !1),
                (2, ALL),
                2,
            ),
            (0xaaaa_bbbb_cccc_dddd, (0, 0), (3, ALL), 3),
        ])),
        must(
            "ext/7306-5.1.2/4",
            &["7306-5.1.2-i01"],
            "Only the bits of Swap Mask are stored.",
        )
        .steps(exchanges(&[
            (
                0xaaaa_bbbb_cccc_dddd,
                (0xaaaa_bbbb_cccc_dddd, ALL),
                (0x1234_5678_9abc_def0, 0xff00_0000_0000_0000),
                0x12aa_bbbb_cccc_dddd,
            ),
            (
                0xaaaa_bbbb_cccc_dddd,
                (0xaaaa_bbbb_cccc_dddd, ALL),
                (0x1234_5678_9abc_def0, 0x0000_ffff_0f0f_0001),
                0xaaaa_5678_cacc_dddc,
            ),
            (6, (6, ALL), (ALL, 0), 6),
            (6, (0, 0), (ALL, 1), 7),
        ])),
        must(
            "ext/7306-5.1.2/5",
            &["7306-5.1.2-03"],
            "A CmpSwap at an address that is not 64-bit aligned is not carried out.",
        )
        .steps(misaligned(2, &Ends::any_term().or_close())),
        must(
            "ext/7306-5.1.2/6",
            &["7306-5.1.2-05", "7306-8.2-04"],
            "A CmpSwap at an address that is not 64-bit aligned causes a Terminate.",
        )
        .steps(misaligned(2, &Ends::any_term())),
        must(
            "ext/7306-5.1.2/7",
            &["7306-5.1.2-01"],
            "A lock made of CmpSwaps is taken once and freed once.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                swap(1, 0, 0, 11),
                swap(2, 0, 0, 22),
                swap(3, 0, 22, 0),
                swap(4, 0, 11, 0),
                swap(5, 0, 0, 33),
            ]),
            answered(1, 0),
            answered(2, 11),
            answered(3, 11),
            answered(4, 11),
            answered(5, 0),
            Ping,
        ]),
    ]
}
