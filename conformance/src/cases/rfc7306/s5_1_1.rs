//! RFC 7306 section 5.1.1: FetchAdd.

use super::{add, answered, masked_add, masked_swap, request, swap, untouched, with_region};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, Ends, Fill, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want,
    must, read_request,
};

/// Initial value of a word, addend, mask, and expected value afterwards.
type Sum = (u64, u64, u64, u64);

/// Tries each sum on its own word with three FetchAdds. The first stores the initial value in the
/// zero word, the second adds with the mask, and the third fetches the result.
fn sums(sums: &[Sum]) -> Vec<Action> {
    let mut steps = with_region();
    for (number, (before, addend, mask, after)) in sums.iter().enumerate() {
        let (at, id) = (8 * number as i64, 16 * number as u32);
        steps.extend([
            Send(vec![
                add(id, at, *before),
                masked_add(id + 1, at, *addend, *mask),
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

/// Sends an atomic to each misaligned address, each on its own connection. Each connection must end
/// this way, and memory must not change.
pub(super) fn misaligned(opcode: u32, ends: &Ends) -> Vec<Action> {
    let mut steps = vec![
        Require(Condition::Rfc7306),
        Region(Region::atomic("a", 4096)),
    ];
    for offset in 1..8 {
        steps.extend([
            Establish(Setup::default()),
            Send(vec![request(opcode, 1, 16 + offset)]),
            End(ends.clone()),
            untouched(),
        ]);
    }
    steps
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.1.1/1",
            &["7306-5.1.1-i01"],
            "With Add Mask 0, FetchAdd adds 64 bits and returns the previous value.",
        )
        .steps(sums(&[
            (0, 1, 0, 1),
            (0xff, 1, 0, 0x100),
            (0xffff_ffff, 1, 0, 0x1_0000_0000),
            (u64::MAX, 1, 0, 0),
            (
                0x0123_4567_89ab_cdef,
                0x1111_1111_1111_1111,
                0,
                0x1234_5678_9abc_df00,
            ),
            (u64::MAX, u64::MAX, 0, u64::MAX - 1),
        ])),
        must(
            "ext/7306-5.1.1/2",
            &["7306-5.1.1-i01"],
            "A bit of Add Mask is the top of a field, and the carry out of it is dropped.",
        )
        .steps(sums(&[
            // Two fields of 32 bits each.
            (
                0x0000_0001_ffff_ffff,
                0x0000_0000_0000_0001,
                0x8000_0000_8000_0000,
                0x0000_0001_0000_0000,
            ),
            (
                0xffff_ffff_ffff_ffff,
                0x0000_0001_0000_0001,
                0x8000_0000_8000_0000,
                0,
            ),
            // Eight fields of 8 bits each.
            (
                0xff01_ff01_7f7f_f0f0,
                0x01ff_01ff_0101_1020,
                0x8080_8080_8080_8080,
                0x0000_0000_8080_0010,
            ),
            // A mask with only the top bit has no effect.
            (u64::MAX, 2, 1 << 63, 1),
        ])),
        must(
            "ext/7306-5.1.1/3",
            &["7306-5.1.1-i01"],
            "The fields of Add Mask may have any length, even 1 bit, and the topmost one need not be closed.",
        )
        .steps(sums(&[
            // Three fields: bit 0, bits 1 and 2, and the rest.
            (0b111, 0b001, 0b101, 0b110),
            (0b111, 0b010, 0b101, 0b001),
            (u64::MAX - 7, 8, 0b101, 0),
            // 64 fields of one bit each.
            (0x0123_4567_89ab_cdef, u64::MAX, u64::MAX, !0x0123_4567_89ab_cdef),
            // A field of 5 bits and a field of 59 bits.
            (0x1f, 0x1f, 0x10, 0x1e),
        ])),
        must(
            "ext/7306-5.1.1/4",
            &["7306-5.1.1-03"],
            "A FetchAdd at an address that is not 64-bit aligned does not change memory.",
        )
        .steps(misaligned(0, &Ends::any_term().or_close())),
        must(
            "ext/7306-5.1.1/5",
            &["7306-5.1.1-04", "7306-8.2-04"],
            "A FetchAdd at an address that is not 64-bit aligned causes a Terminate.",
        )
        .steps(misaligned(0, &Ends::any_term())),
        must(
            "ext/7306-5.1.1/6",
            &["7306-5.1.1-i02"],
            "Operands and results are big-endian on the wire. The operation uses the byte order of the target's memory.",
        )
        .steps(with_region())
        .steps([
            Region(Region::atomic("p", 64).filled(Fill::Pattern(1))),
            LearnByteOrder("p"),
            // The carries cross byte boundaries, so that a wrong byte order gives another sum.
            Send(vec![
                add(1, 0, 0x0102_0304_0506_ffff),
                add(2, 0, 1),
                swap(3, 8, 0, 0x1122_3344_5566_7788),
                add(4, 16, 0x0000_0001_8000_ffff),
                masked_add(5, 16, 0x0000_0001_8000_0001, 0x8000_0000_8000_0000),
                add(6, 24, 0x8877_6655_4433_2211),
                masked_swap(
                    7,
                    24,
                    (0x0000_0000_0000_2211, 0xffff),
                    (u64::MAX, 0x00ff_0000_0000_0000),
                ),
            ]),
            answered(1, 0),
            answered(2, 0x0102_0304_0506_ffff),
            answered(3, 0),
            answered(4, 0),
            answered(5, 0x0000_0001_8000_ffff),
            answered(6, 0),
            answered(7, 0x8877_6655_4433_2211),
            in_memory(0, 0x0102_0304_0507_0000),
            in_memory(8, 0x1122_3344_5566_7788),
            in_memory(16, 0x0000_0002_0001_0000),
            in_memory(24, 0x88ff_6655_4433_2211),
            Send(vec![read_request(Stag::Of("a"), To::In("a", 8), 8)]),
            Expect(Want::ReadResponse {
                stag: Stag::Is(SINK_STAG),
                to: SINK_TO,
                data: Data::Word(0x1122_3344_5566_7788),
            }),
        ]),
        must(
            "ext/7306-5.1.1/7",
            &["7306-5.1.1-i01", "7306-5.2.1-09"],
            "A FetchAdd of 0, which a peer may use to probe for atomics, is answered and changes nothing.",
        )
        .steps(with_region())
        .steps([
            Send(vec![add(1, 8, 0)]),
            answered(1, 0),
            untouched(),
            Ping,
        ]),
    ]
}

fn in_memory(offset: usize, value: u64) -> Action {
    Holds {
        region: "a",
        offset,
        data: Data::Word(value),
    }
}
