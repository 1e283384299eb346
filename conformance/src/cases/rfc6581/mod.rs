//! RFC 6581, enhanced connection setup. A target without it is left alone: its cases are skipped.

mod s10;
mod s5;
mod s6;
mod s9_1;
mod s9_2;

use crate::script::Action::*;
use crate::script::{Action, Case, Condition, Data, Setup, Stag, To, Want, write};
use crate::wire::segment::opcode;
use crate::wire::startup::{Enhanced, reply, request};

pub(super) fn all() -> Vec<Case> {
    [
        s5::cases(),
        s6::cases(),
        s9_1::cases(),
        s9_2::cases(),
        s10::cases(),
    ]
    .concat()
}

/// A Responder is asked with this enhanced data, and has answered with its own.
fn asked(setup: Setup, data: Enhanced) -> Vec<Action> {
    vec![
        Begin(setup),
        SendStartup(request().enhanced(data)),
        ExpectEnhanced,
    ]
}

/// It has accepted; the first FPDU is a Write of no bytes, and it may send.
fn accepted() -> Vec<Action> {
    vec![
        Require(Condition::TargetAccepts),
        Operate,
        Send(vec![write(Stag::Is(0), To::Is(0), 0)]),
        Event("established"),
    ]
}

/// An Initiator has asked with enhanced data, and gets this Reply.
fn answered(setup: Setup, data: Enhanced) -> Vec<Action> {
    vec![
        Begin(setup),
        ExpectEnhanced,
        SendStartup(reply().enhanced(data)),
        Operate,
    ]
}

/// A Send of the application with `len` bytes of the pattern.
fn sends(len: usize) -> Action {
    Expect(Want::Send {
        opcode: opcode::SEND,
        invalidate: Some(0),
        data: Data::len(len),
    })
}

/// The peer-to-peer model with RTR indications B, C, D.
fn peer_to_peer(b: bool, c: bool, d: bool) -> Enhanced {
    Enhanced {
        a: true,
        b,
        c,
        d,
        ird: 4,
        ord: 4,
    }
}
