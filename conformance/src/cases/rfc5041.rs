//! Cases for RFC 5041, DDP.

mod s3;
mod s4_1;
mod s4_2;
mod s4_3;
mod s5_2;
mod s5_3;
mod s6_2;
mod s7_1;
mod s7_1_tagged;
mod s8;
mod short_headers;

use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Post, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want, read_request,
};
use crate::wire::segment::opcode;

pub(super) fn all() -> Vec<Case> {
    [
        s3::cases(),
        s4_1::cases(),
        s4_2::cases(),
        s4_3::cases(),
        s5_2::cases(),
        s5_3::cases(),
        s6_2::cases(),
        s7_1::cases(),
        s7_1_tagged::cases(),
        s8::cases(),
        short_headers::cases(),
    ]
    .concat()
}

/// STag in requests of the application. The suite never registered it, but the application does not
/// know that.
const STAG: u32 = 0x0102_0300;
/// TO in requests of the application. It is not aligned.
const TO: u64 = 0x1_0000_1003;
/// MSS so small that a message of 3000 bytes has many segments.
const SMALL_MSS: u16 = 536;

fn sends(len: usize) -> Action {
    Expect(Want::Send {
        opcode: opcode::SEND,
        invalidate: Some(0),
        data: Data::len(len),
    })
}

fn writes(len: usize) -> Action {
    Expect(Want::Write {
        stag: STAG,
        to: TO,
        data: Data::len(len),
    })
}

fn asks_for(len: u32) -> Action {
    Expect(Want::ReadRequest {
        size: len,
        stag: STAG,
        to: TO,
    })
}

fn responds(len: usize) -> Action {
    Expect(Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: Data::len(len),
    })
}

/// Makes the target send untagged messages of one segment and of many, while the case watches these
/// rules.
fn untagged_traffic(rules: &'static [Rule]) -> Vec<Action> {
    let mut steps = vec![Establish(Setup::default().mss(SMALL_MSS)), Watch(rules)];
    for len in [0, 1, 3, 512, 3000, 4, 5001] {
        steps.extend([Post(Post::send(len)), sends(len)]);
    }
    steps.extend([
        Post(Post::send_invalidate(2000, STAG)),
        Expect(Want::Send {
            opcode: opcode::SEND_INVALIDATE,
            invalidate: None,
            data: Data::len(2000),
        }),
        Post(Post::read(STAG, TO, 77)),
        asks_for(77),
        Ping,
    ]);
    steps
}

/// Makes the target send tagged messages of one segment and of many, while the case watches these
/// rules.
fn tagged_traffic(rules: &'static [Rule]) -> Vec<Action> {
    let mut steps = vec![
        Establish(Setup::default().mss(SMALL_MSS)),
        Watch(rules),
        Region(Region::readable("r", 8192)),
    ];
    for len in [1, 3, 512, 3000, 5001] {
        steps.extend([
            Post(Post::write(STAG, TO, len)),
            writes(len),
            Send(vec![read_request(
                Stag::Of("r"),
                To::In("r", 0),
                len as u32,
            )]),
            responds(len),
        ]);
    }
    steps.push(Ping);
    steps
}

/// Returns `len` bytes of the pattern from offset `at`, as one segment of a longer message.
fn piece(at: u64, len: usize) -> Data {
    Data::Pattern(1, at, len)
}

/// Returns the content of `len` bytes of a region that were never written.
fn untouched(len: usize) -> Data {
    Data::Bytes(vec![0; len])
}
