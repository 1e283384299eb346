//! Cases for RFC 5044, MPA.

mod s1_2;
mod s3;
mod s4_1;
mod s4_2;
mod s4_3;
mod s4_4;
mod s4_5;
mod s5;
mod s6;
mod s7_1_1;
mod s7_1_2;
mod s7_1_2_data;
mod s7_1_2_end;
mod s7_1_5;
mod s8;

use crate::script::Action::{self, Expect, Ping, Region, Send};
use crate::script::{Case, Data, SINK_STAG, SINK_TO, Stag, To, Want, read_request, write};

pub(super) fn all() -> Vec<Case> {
    let mut all = Vec::new();
    for section in [
        s1_2::cases,
        s3::cases,
        s4_1::cases,
        s4_2::cases,
        s4_3::cases,
        s4_4::cases,
        s4_5::cases,
        s5::cases,
        s6::cases,
        s7_1_1::cases,
        s7_1_2::cases,
        s7_1_2_data::cases,
        s7_1_2_end::cases,
        s7_1_5::cases,
        s8::cases,
    ] {
        all.extend(section());
    }
    all
}

/// Concatenates several lists of steps.
fn steps(parts: impl IntoIterator<Item = Vec<Action>>) -> Vec<Action> {
    parts.into_iter().flatten().collect()
}

/// Registers the region from which `reads` reads.
fn source() -> Action {
    Region(crate::script::Region::readable("source", 1 << 17))
}

/// Makes the target send FPDUs: one Read Response of each of these lengths, one after the other.
fn reads(lens: impl IntoIterator<Item = usize>) -> Vec<Action> {
    let read = |len: usize| {
        let size = u32::try_from(len).unwrap_or_default();
        [
            Send(vec![read_request(
                Stag::Of("source"),
                To::In("source", 0),
                size,
            )]),
            answer(len),
        ]
    };
    lens.into_iter().flat_map(read).collect()
}

/// Expects the response to a Read of the first `len` bytes of `source`.
fn answer(len: usize) -> Action {
    Expect(Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: Data::len(len),
    })
}

/// Makes the target send many FPDUs of 20 bytes. Markers then fall before each word of such an
/// FPDU: before ULPDU_Length, in the header, and between PAD and CRC.
fn small_ones() -> Vec<Action> {
    vec![Ping; 140]
}

/// Makes the suite send small FPDUs, as many as the target sends in `small_ones`.
fn small_writes() -> Action {
    Send(vec![write(Stag::Is(0), To::Is(0), 0); 140])
}

/// Payload lengths that together require every length of PAD.
fn every_pad() -> std::ops::RangeInclusive<usize> {
    0..=9
}

/// Expects a Send from the application.
fn sent(len: usize) -> Action {
    Expect(Want::Send {
        opcode: crate::wire::segment::opcode::SEND,
        invalidate: Some(0),
        data: Data::len(len),
    })
}
