//! Cases for RFC 5040, RDMAP.

mod s4_1;
mod s4_4;
mod s4_8;
mod s5_1;
mod s5_2;
mod s5_3;
mod s5_4;
mod s5_5;
mod s6;
mod s7_1;
mod s7_2;
mod s8_1;

use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, Post, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want, answer_read,
    read_request, send, write,
};
use crate::wire::segment::opcode;

pub(super) use s6::too_many_reads;

pub(super) fn all() -> Vec<Case> {
    [
        s4_1::cases(),
        s4_4::cases(),
        s4_8::cases(),
        s5_1::cases(),
        s5_2::cases(),
        s5_3::cases(),
        s5_4::cases(),
        s5_5::cases(),
        s6::cases(),
        s7_1::cases(),
        s7_2::cases(),
        s8_1::cases(),
    ]
    .concat()
}

/// STag in requests of the application. The suite never registered it, but the application does not
/// know that.
const STAG: u32 = 0x0102_0300;
/// TO in requests of the application.
const TO: u64 = 0x1000;

/// The application posts a Read of `len` bytes, and the suite expects its Read Request.
fn posts_read(len: u32) -> [Action; 2] {
    [
        Post(Post::read(STAG, TO, len as usize)),
        wants_read(TO, len),
    ]
}

/// Expects a Read Request from the application.
fn wants_read(to: u64, size: u32) -> Action {
    let stag = STAG;
    Expect(Want::ReadRequest { size, stag, to })
}

fn wants_write(to: u64, data: Data) -> Action {
    let stag = STAG;
    Expect(Want::Write { stag, to, data })
}

/// Expects a Send of one of the four kinds, with `len` bytes of the pattern. The Invalidate STag
/// field is not checked here; other cases check it.
fn wants_send(opcode: u8, len: usize) -> Action {
    let invalidate = match opcode {
        opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE => None,
        _ => Some(0),
    };
    Expect(Want::Send {
        opcode,
        invalidate,
        data: Data::len(len),
    })
}

/// Sends a Read Request for `size` bytes at an offset of a region of the target.
fn read(region: &'static str, offset: i64, size: u32) -> Action {
    Send(vec![read_request(
        Stag::Of(region),
        To::In(region, offset),
        size,
    )])
}

/// Expects the response to a Read of the suite.
fn response(data: impl Into<Data>) -> Action {
    Expect(Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: data.into(),
    })
}

/// Expects that a work request of the application succeeds.
fn completes(op: &'static str) -> Action {
    Completion { op, success: true }
}

/// Makes the target send a message of each kind except Terminate, while the case watches these
/// rules.
fn every_kind(rules: &'static [Rule]) -> Vec<Action> {
    vec![
        Establish(Setup::default()),
        Watch(rules),
        Post(Post::send(5)),
        Post(Post::send(3000).solicited()),
        Post(Post::send_invalidate(7, STAG)),
        Post(Post::send_invalidate(0, STAG).solicited()),
        Post(Post::write(STAG, TO, 3001)),
        Post(Post::write(STAG, TO, 0)),
        wants_send(opcode::SEND, 5),
        wants_send(opcode::SEND_SE, 3000),
        wants_send(opcode::SEND_INVALIDATE, 7),
        wants_send(opcode::SEND_SE_INVALIDATE, 0),
        wants_write(TO, Data::len(3001)),
        wants_write(TO, Data::none()),
        Post(Post::read(STAG, TO, 100)),
        wants_read(TO, 100),
        Send(vec![answer_read(0, 100)]),
        completes("read"),
        Region(Region::readable("source", 4096)),
        read("source", 0, 1001),
        response(1001),
        Ping,
    ]
}

/// Provokes four Terminates, each on its own connection, while the case watches these rules. The
/// errors are in an untagged message, a tagged message, a Read Request and an RDMAP Control Field.
fn every_terminate(rules: &'static [Rule]) -> Vec<Action> {
    let errors = [
        send(16).qn(9),
        write(Stag::Is(STAG), To::Is(TO), 16),
        read_request(Stag::Is(STAG), To::Is(TO), 16),
        send(16).opcode(opcode::UNASSIGNED),
    ];
    let mut steps = vec![Watch(rules)];
    for error in errors {
        steps.extend([
            Establish(Setup::default()),
            Send(vec![error]),
            End(Ends::some_terminate()),
        ]);
    }
    steps
}
