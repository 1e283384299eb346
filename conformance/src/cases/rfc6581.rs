//! Cases for RFC 6581, enhanced connection setup. They are skipped for a target that does not
//! support it.

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

/// Sends a Request with this enhanced data to a Responder, and expects its enhanced Reply.
fn asked(setup: Setup, data: Enhanced) -> Vec<Action> {
    vec![
        Begin(setup),
        SendStartup(request().enhanced(data)),
        ExpectEnhanced,
    ]
}

/// Continues after the Responder has accepted: sends a zero-length Write as the first FPDU, so that
/// the Responder may send.
fn accepted() -> Vec<Action> {
    vec![
        Require(Condition::TargetAccepts),
        Operate,
        Send(vec![write(Stag::Is(0), To::Is(0), 0)]),
        Event("established"),
    ]
}

/// Expects an enhanced Request from an Initiator, and sends this enhanced data in the Reply.
fn answered(setup: Setup, data: Enhanced) -> Vec<Action> {
    vec![
        Begin(setup),
        ExpectEnhanced,
        SendStartup(reply().enhanced(data)),
        Operate,
    ]
}

/// Expects a Send from the application with `len` bytes of the pattern.
fn sends(len: usize) -> Action {
    Expect(Want::Send {
        opcode: opcode::SEND,
        invalidate: Some(0),
        data: Data::len(len),
    })
}

/// Returns enhanced data for the peer-to-peer model with these RTR indications.
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
