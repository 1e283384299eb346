//! Cases for RFC 7306, the extensions of RDMAP: Atomic Operations and Immediate Data.

mod s1_1;
mod s4_1;
mod s5;
mod s5_1_1;
mod s5_1_2;
mod s5_2;
mod s5_2_1;
mod s5_2_1_requester;
mod s5_2_2;
mod s5_2_2_requester;
mod s5_4;
mod s6_3;
mod s8_1;
mod s8_2;
mod s9;

use crate::script::Action::{Establish, Expect, Region as Register, Require};
use crate::script::{
    Action, Case, Condition, Data, Ends, Msn, OutSegment, Region, Setup, Stag, To, Want,
    answer_atomic, atomic, compare_swap, fetch_add,
};

pub(super) fn all() -> Vec<Case> {
    [
        s1_1::cases(),
        s4_1::cases(),
        s5::cases(),
        s5_1_1::cases(),
        s5_1_2::cases(),
        s5_2::cases(),
        s5_2_1::cases(),
        s5_2_1_requester::cases(),
        s5_2_2::cases(),
        s5_2_2_requester::cases(),
        s5_4::cases(),
        s6_3::cases(),
        s8_1::cases(),
        s8_2::cases(),
        s9::cases(),
    ]
    .concat()
}

/// STag in requests of the application. The suite has never registered it.
const STAG: u32 = 0x0102_0300;

/// Connects to the target. Skips the case if the target does not support RFC 7306.
fn begin(setup: Setup) -> Vec<Action> {
    vec![Require(Condition::Rfc7306), Establish(setup)]
}

/// Connects like `begin`, and registers region "a" with 4096 zero bytes for atomics.
fn with_region() -> Vec<Action> {
    let mut steps = begin(Setup::default());
    steps.push(Register(Region::atomic("a", 4096)));
    steps
}

/// Builds a FetchAdd at an offset of region "a".
fn add(id: u32, offset: i64, add: u64) -> OutSegment {
    masked_add(id, offset, add, 0)
}

/// Builds a FetchAdd with an Add Mask.
fn masked_add(id: u32, offset: i64, add: u64, mask: u64) -> OutSegment {
    fetch_add(id, Stag::Of("a"), To::In("a", offset), add, mask)
}

/// Builds a CmpSwap at an offset of region "a".
fn swap(id: u32, offset: i64, compare: u64, swap: u64) -> OutSegment {
    compare_swap(id, Stag::Of("a"), To::In("a", offset), compare, swap)
}

/// Builds a CmpSwap with masks. `compare` and `swap` each hold a value and its mask.
fn masked_swap(id: u32, offset: i64, compare: (u64, u64), swap: (u64, u64)) -> OutSegment {
    atomic(Data::Atomic {
        opcode: 2,
        id,
        stag: Stag::Of("a"),
        to: To::In("a", offset),
        data: swap.0,
        mask: swap.1,
        compare: compare.0,
        compare_mask: compare.1,
    })
}

/// Builds any Atomic Request at an offset of region "a". `opcode` is the first word of its header.
fn request(opcode: u32, id: u32, offset: i64) -> OutSegment {
    atomic(Data::Atomic {
        opcode,
        id,
        stag: Stag::Of("a"),
        to: To::In("a", offset),
        data: 1,
        mask: if opcode & 15 == 0 { 0 } else { u64::MAX },
        compare: 0,
        compare_mask: u64::MAX,
    })
}

/// Expects the Atomic Response with this Request Identifier and value.
fn answered(id: u32, value: u64) -> Action {
    Expect(Want::AtomicResponse { id, value })
}

/// Expects a FetchAdd from the application, at TO 0x1000.
fn asked_add(add: u64) -> Action {
    Expect(Want::Atomic {
        opcode: 0,
        stag: STAG,
        to: 0x1000,
        data: add,
        compare: 0,
    })
}

/// Expects a CmpSwap from the application, at TO 0x1000.
fn asked_swap(compare: u64, swap: u64) -> Action {
    Expect(Want::Atomic {
        opcode: 2,
        stag: STAG,
        to: 0x1000,
        data: swap,
        compare,
    })
}

/// Expects that region "a" still contains zeros.
fn untouched() -> Action {
    Action::Holds {
        region: "a",
        offset: 0,
        data: Data::Bytes(vec![0; 64]),
    }
}

/// Expects that a work request of the application succeeds.
fn done(op: &'static str) -> Action {
    Action::Completion { op, success: true }
}

/// Accepted ends of the connection after an invalid MSN.
fn wrong_msn() -> Ends {
    Ends::term(1, 2, 3).or(1, 2, 2)
}

/// MSN that is one higher than the expected one.
const LATER: Msn = Msn::Off(1);

/// Builds a response to the first request of the target, with these bits of the Request Identifier
/// inverted.
fn flipped(flip: u32) -> OutSegment {
    let mut answer = answer_atomic(0, 1);
    answer.data = Data::AtomicResponse {
        request: 0,
        flip,
        value: 1,
    };
    answer
}
