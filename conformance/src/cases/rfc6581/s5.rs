//! RFC 6581 section 5: the order of the first FPDUs.

use super::{answered, peer_to_peer, sends};
use crate::script::Action::*;
use crate::script::{Case, Condition, Post, Rtr, Setup, Want, must};
use crate::wire::startup::reply;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/6581-5/1",
            &["6581-5-01"],
            "No FPDU is sent before the RTR indication, a zero-length Write.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().peer_to_peer()),
            ExpectEnhanced,
            Require(Condition::TargetOffersRtr(Rtr::Write)),
            SendStartup(reply().enhanced(peer_to_peer(false, true, false))),
            Operate,
            Event("established"),
            Post(Post::send(5)),
            Expect(Want::Rtr(Rtr::Write)),
            sends(5),
        ]),
        must(
            "mpa/6581-5/2",
            &["6581-5-01"],
            "No FPDU is sent before the RTR indication, a zero-length Send.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().peer_to_peer()),
            ExpectEnhanced,
            Require(Condition::TargetOffersRtr(Rtr::Send)),
            SendStartup(reply().enhanced(peer_to_peer(true, false, false))),
            Operate,
            Event("established"),
            Post(Post::send(5)),
            Expect(Want::Rtr(Rtr::Send)),
            sends(5),
        ]),
        must(
            "mpa/6581-5/3",
            &["6581-5-01"],
            "If all indications are agreed on, one of them is the first FPDU, with zero length.",
        )
        .target_initiates()
        .steps(answered(
            Setup::default().peer_to_peer(),
            peer_to_peer(true, true, true),
        ))
        .steps([
            ExpectRtr,
            Event("established"),
            Post(Post::send(5)),
            sends(5),
        ]),
    ]
}
