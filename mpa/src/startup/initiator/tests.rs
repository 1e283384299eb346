use alloc::string::String;
use alloc::vec;
use core::fmt::Write;

use super::*;
use crate::startup::error::FirstBytes;

fn config() -> InitiatorConfig {
    InitiatorConfig {
        revision: Revision::Two,
        crc: true,
        markers: false,
        ird: 8,
        ord: 8,
        max_ird: 16,
        model: Model::ClientServer,
        private_data: b"question".to_vec(),
    }
}

fn reply(revision: u8, enhanced: Option<Enhanced>) -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Reply,
        markers: false,
        crc: false,
        rejected: false,
        revision,
        enhanced,
        private_data: b"answer".to_vec(),
    }
}

fn client_server(ird: u16, ord: u16) -> Option<Enhanced> {
    Some(Enhanced {
        model: Model::ClientServer,
        ird,
        ord,
    })
}

fn outcome_of(config: InitiatorConfig, reply: &StartupFrame) -> Outcome {
    let mut initiator = Initiator::new(config).unwrap();
    let bytes = reply.emit().unwrap();
    match initiator.receive(&bytes) {
        Ok((taken, Some(outcome))) if taken == bytes.len() => outcome,
        other => panic!("{other:?}"),
    }
}

fn accepted(config: InitiatorConfig, reply: &StartupFrame) -> Negotiated {
    match outcome_of(config, reply) {
        Outcome::Accepted(negotiated) => negotiated,
        other => panic!("{other:?}"),
    }
}

fn impossible(config: InitiatorConfig, reply: &StartupFrame) -> u8 {
    match outcome_of(config, reply) {
        Outcome::Impossible(negotiated, code) => {
            assert_eq!(negotiated.rtr, None);
            code.code()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn state_table() {
    let states = [
        State::AwaitReply,
        State::FullOperation,
        State::Rejected,
        State::TerminateOnly,
        State::Failed,
    ];
    let events = [
        Event::PartOfReply,
        Event::ReplyAccepted,
        Event::ReplyRejected,
        Event::ReplyImpossible,
        Event::ReplyInvalid,
        Event::Closed,
        Event::TimedOut,
    ];
    let mut table = String::new();
    for state in states {
        for event in events {
            let to = next(state, event).map_or(String::from("-"), |to| std::format!("{to:?}"));
            writeln!(
                table,
                "{:<15} {:<16} {to}",
                std::format!("{state:?}"),
                std::format!("{event:?}")
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn the_request_says_what_was_configured() {
    let initiator = Initiator::new(config()).unwrap();
    assert_eq!(
        initiator.request(),
        b"MPA ID Req Frame\x50\x02\x00\x0C\x00\x08\x00\x08question"
    );
    let old = InitiatorConfig {
        revision: Revision::One,
        markers: true,
        crc: false,
        ..config()
    };
    let initiator = Initiator::new(old).unwrap();
    assert_eq!(
        initiator.request(),
        b"MPA ID Req Frame\x80\x01\x00\x08question"
    );
}

#[test]
fn configurations_that_cannot_be_said_are_refused() {
    let refused = |config| Initiator::new(config).map(|_| ()).unwrap_err();
    let peer_to_peer = Model::PeerToPeer(RtrKinds::ALL);
    assert_eq!(
        refused(InitiatorConfig {
            revision: Revision::One,
            model: peer_to_peer,
            ..config()
        }),
        ConfigError::PeerToPeerNeedsRevisionTwo
    );
    assert_eq!(
        refused(InitiatorConfig {
            model: Model::PeerToPeer(RtrKinds::NONE),
            ..config()
        }),
        ConfigError::NoRtrKind
    );
    assert_eq!(
        refused(InitiatorConfig {
            ird: 17,
            ..config()
        }),
        ConfigError::LimitBelowIrd {
            ird: 17,
            max_ird: 16
        }
    );
    assert_eq!(
        refused(InitiatorConfig {
            max_ird: NO_AUTO,
            ..config()
        }),
        ConfigError::DepthTooLarge {
            value: NO_AUTO,
            max: NO_AUTO - 1
        }
    );
    assert_eq!(
        refused(InitiatorConfig {
            ord: NO_AUTO + 1,
            ..config()
        }),
        ConfigError::DepthTooLarge {
            value: NO_AUTO + 1,
            max: NO_AUTO
        }
    );
    assert_eq!(
        refused(InitiatorConfig {
            private_data: vec![0; 509],
            ..config()
        }),
        ConfigError::PrivateDataTooLong { len: 509, max: 508 }
    );
}

#[test]
fn our_ord_comes_down_to_the_responders_ird() {
    let negotiated = accepted(config(), &reply(2, client_server(5, 3)));
    assert_eq!((negotiated.ird, negotiated.ord), (8, 5));
    assert_eq!(
        (negotiated.peer_ird, negotiated.peer_ord),
        (Some(5), Some(3))
    );
    assert_eq!(negotiated.private_data, b"answer");
    assert_eq!(accepted(config(), &reply(2, client_server(100, 3))).ord, 8);
}

#[test]
fn our_ird_goes_up_to_the_responders_ord_while_there_is_room() {
    assert_eq!(accepted(config(), &reply(2, client_server(8, 16))).ird, 16);
    assert_eq!(impossible(config(), &reply(2, client_server(8, 17))), 6);
}

#[test]
fn depths_of_the_responder_that_are_not_negotiated_leave_ours_alone() {
    let negotiated = accepted(config(), &reply(2, client_server(NO_AUTO, NO_AUTO)));
    assert_eq!((negotiated.ird, negotiated.ord), (8, 8));
    let open = InitiatorConfig {
        ird: NO_AUTO,
        ord: NO_AUTO,
        ..config()
    };
    let negotiated = accepted(open, &reply(2, client_server(NO_AUTO, NO_AUTO)));
    assert_eq!((negotiated.ird, negotiated.ord), (16, NO_AUTO));
}

#[test]
fn the_rtr_is_a_write_then_a_read_then_a_send() {
    use Rtr::{Read, Send, Write};
    let kinds = |kinds: &[Rtr]| RtrKinds {
        send: kinds.contains(&Send),
        write: kinds.contains(&Write),
        read: kinds.contains(&Read),
    };
    /// RTR kinds that this side can generate, RTR kinds that the Reply names, IRD of the Reply,
    /// expected RTR kind.
    type Case = (&'static [Rtr], &'static [Rtr], u16, Option<Rtr>);
    let cases: [Case; 9] = [
        (&[Send, Write, Read], &[Send, Write, Read], 1, Some(Write)),
        (&[Send, Write, Read], &[Send, Read], 1, Some(Read)),
        (&[Send, Write, Read], &[Send, Read], 0, Some(Send)),
        (&[Send, Write, Read], &[Read], 0, None),
        (&[Send, Read], &[Write, Read], 1, Some(Read)),
        (&[Read], &[Read], NO_AUTO, Some(Read)),
        (&[Send], &[Write, Send], 0, Some(Send)),
        (&[Write], &[Read, Send], 9, None),
        (&[Write], &[], 9, None),
    ];
    for (ours, theirs, ird, expected) in cases {
        let config = InitiatorConfig {
            ord: 0,
            model: Model::PeerToPeer(kinds(ours)),
            ..config()
        };
        let model = Model::PeerToPeer(kinds(theirs));
        let reply = reply(2, Some(Enhanced { model, ird, ord: 0 }));
        if expected.is_none() {
            assert_eq!(impossible(config, &reply), 7, "{ours:?} {theirs:?}");
            continue;
        }
        let negotiated = accepted(config, &reply);
        assert_eq!(negotiated.rtr, expected, "{ours:?} {theirs:?}");
        assert_eq!(negotiated.rtr_offered, kinds(theirs));
        // An RTR Read raises the ORD to 1, although this side requested 0.
        assert_eq!(negotiated.ord, u16::from(expected == Some(Read)));
    }
}

#[test]
fn a_reply_that_changes_the_model_cannot_be_kept() {
    let peer_to_peer = Model::PeerToPeer(RtrKinds::ALL);
    let asked = InitiatorConfig {
        model: peer_to_peer,
        ..config()
    };
    assert_eq!(impossible(asked, &reply(2, client_server(8, 8))), 7);
    let changed = Some(Enhanced {
        model: peer_to_peer,
        ird: 8,
        ord: 8,
    });
    assert_eq!(impossible(config(), &reply(2, changed)), 7);
}

#[test]
fn crc_is_used_if_either_side_asks_and_markers_each_way_on_their_own() {
    for ours in [false, true] {
        for theirs in [false, true] {
            let config = InitiatorConfig {
                crc: ours,
                markers: ours,
                ..config()
            };
            let mut reply = reply(2, client_server(8, 8));
            (reply.crc, reply.markers) = (theirs, theirs);
            let negotiated = accepted(config, &reply);
            assert_eq!(negotiated.crc, ours || theirs);
            assert_eq!(
                (negotiated.rx_markers, negotiated.tx_markers),
                (ours, theirs)
            );
            assert!(negotiated.send_gate().may_send());
        }
    }
}

#[test]
fn a_rejection_hands_everything_to_the_ulp() {
    let mut no = reply(2, client_server(4, 20));
    no.rejected = true;
    let rejection = Rejection {
        private_data: b"answer".to_vec(),
        peer_ird: Some(4),
        peer_ord: Some(20),
        ord_needed: (config().ird < 20).then_some(20),
    };
    assert_eq!(outcome_of(config(), &no), Outcome::Rejected(rejection));
    // 6581-9.1-05: only an ORD beyond this side's IRD is a reason for the rejection.
    for (ird, ord, ord_needed) in [
        (8, 0, None),
        (8, 8, None),
        (8, 9, Some(9)),
        (8, NO_AUTO, None),
        (NO_AUTO, 20, None),
    ] {
        let mut no = reply(2, client_server(4, ord));
        no.rejected = true;
        let ours = InitiatorConfig { ird, ..config() };
        let Outcome::Rejected(told) = outcome_of(ours, &no) else {
            panic!("it was rejected")
        };
        assert_eq!((told.peer_ord, told.ord_needed), (Some(ord), ord_needed));
    }
    // A peer that did not understand the enhanced data can still reject.
    let mut no = reply(1, None);
    no.rejected = true;
    assert!(matches!(outcome_of(config(), &no), Outcome::Rejected(r) if r.peer_ord.is_none()));
}

#[test]
fn revision_1_leaves_the_depths_as_they_are() {
    let old = InitiatorConfig {
        revision: Revision::One,
        ird: 3,
        ord: 4,
        ..config()
    };
    for revision in [1, 2] {
        let negotiated = accepted(old.clone(), &reply(revision, None));
        assert_eq!(
            (negotiated.ird, negotiated.ord, negotiated.peer_ird),
            (3, 4, None)
        );
        assert!(!negotiated.enhanced);
    }
}

#[test]
fn an_accepting_reply_is_enhanced_exactly_if_the_request_was() {
    let old = InitiatorConfig {
        revision: Revision::One,
        ..config()
    };
    for (config, reply, reply_enhanced) in [
        (config(), reply(2, None), false),
        (config(), reply(1, None), false),
        (old, reply(2, client_server(1, 1)), true),
    ] {
        let mut initiator = Initiator::new(config).unwrap();
        let error = StartupError::EnhancedMismatch { reply_enhanced };
        assert_eq!(initiator.receive(&reply.emit().unwrap()), Err(error));
        // The first error stays, whatever happens after it.
        assert_eq!(initiator.receive(b""), Err(error));
        assert_eq!(initiator.closed(true), error);
        assert_eq!(initiator.timed_out(), error);
    }
}

#[test]
fn the_first_fpdu_behind_the_reply_stays_with_the_caller() {
    let bytes = reply(2, client_server(8, 8)).emit().unwrap();
    let mut initiator = Initiator::new(config()).unwrap();
    for byte in &bytes[..bytes.len() - 1] {
        assert_eq!(
            initiator.receive(core::slice::from_ref(byte)),
            Ok((1, None))
        );
    }
    let (taken, outcome) = initiator.receive(&[bytes[bytes.len() - 1], 0, 42]).unwrap();
    assert_eq!(taken, 1);
    assert!(matches!(outcome, Some(Outcome::Accepted(_))));
    assert_eq!(initiator.receive(&[0, 42]), Ok((0, None)));
}

#[test]
fn another_protocol_is_quoted() {
    let mut initiator = Initiator::new(config()).unwrap();
    let answer = b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n";
    let first = FirstBytes::of(&answer[..24], &[]);
    let error = StartupError::NotMpa {
        first,
        peer: Role::Responder,
    };
    assert_eq!(initiator.receive(answer), Err(error));
    assert_eq!(
        std::format!("{error}"),
        "the peer answered 'HTTP/1.1 400 Bad Request', not an MPA Reply"
    );
    // The first wrong byte causes the error, which also shows the bytes before it.
    let mut initiator = Initiator::new(config()).unwrap();
    assert_eq!(initiator.receive(b"MPA"), Ok((3, None)));
    let error = initiator.receive(b"CT").unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "the peer answered 'MPACT', not an MPA Reply"
    );
}

#[test]
fn two_initiators_find_out() {
    let other = Initiator::new(config()).unwrap();
    let mut initiator = Initiator::new(config()).unwrap();
    let error = initiator.receive(other.request());
    assert_eq!(error, Err(StartupError::RequestInsteadOfReply));
}

#[test]
fn unknown_revisions_are_refused_before_anything_else_in_the_frame() {
    for revision in [0, 3, 255] {
        let mut bytes = b"MPA ID Rep Frame\x00".to_vec();
        bytes.extend_from_slice(&[revision, 0xFF, 0xFF]);
        let mut initiator = Initiator::new(config()).unwrap();
        let error = StartupError::UnsupportedRevision {
            revision,
            highest: 2,
        };
        assert_eq!(initiator.receive(&bytes), Err(error));
        let mut initiator = Initiator::new(config()).unwrap();
        assert_eq!(initiator.receive(&bytes[..18]), Err(error));
    }
}

#[test]
fn only_a_wordless_close_on_an_enhanced_request_invites_a_retry() {
    let closed = |revision, before: &[u8], reset| {
        let mut initiator = Initiator::new(InitiatorConfig {
            revision,
            ..config()
        })
        .unwrap();
        initiator.receive(before).unwrap();
        let error = initiator.closed(reset);
        assert_eq!(initiator.receive(b"MPA"), Err(error));
        error.may_retry_with_revision_1()
    };
    assert!(closed(Revision::Two, b"", false));
    assert!(closed(Revision::Two, b"", true));
    assert!(!closed(Revision::Two, b"M", true));
    assert!(!closed(Revision::One, b"", true));
    assert!(
        !Initiator::new(config())
            .unwrap()
            .timed_out()
            .may_retry_with_revision_1()
    );
}

#[test]
fn a_close_after_the_reply_is_not_a_failed_startup() {
    let mut initiator = Initiator::new(config()).unwrap();
    let bytes = reply(2, client_server(8, 8)).emit().unwrap();
    let _ = initiator.receive(&bytes).unwrap();
    let received = bytes.len();
    let peer = Role::Responder;
    let error = StartupError::Closed {
        reset: false,
        received,
        enhanced: true,
        peer,
    };
    assert_eq!(initiator.closed(false), error);
    assert_eq!(initiator.receive(b"x"), Ok((0, None)));
}
