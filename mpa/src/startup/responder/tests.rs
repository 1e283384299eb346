use alloc::string::String;
use alloc::vec;
use core::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::startup::{Initiator, InitiatorConfig, Outcome, Parsed};
use crate::testing::chunked;

fn config() -> ResponderConfig {
    ResponderConfig {
        crc: true,
        markers: false,
        max_revision: Revision::Two,
        max_ird: 16,
        rtr: RtrKinds::ALL,
    }
}

fn request(revision: u8, enhanced: Option<Enhanced>) -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        rejected: false,
        revision,
        enhanced,
        private_data: b"question".to_vec(),
    }
}

fn client_server(ird: u16, ord: u16) -> Option<Enhanced> {
    Some(Enhanced {
        model: Model::ClientServer,
        ird,
        ord,
    })
}

fn peer_to_peer(kinds: RtrKinds, ird: u16, ord: u16) -> Option<Enhanced> {
    Some(Enhanced {
        model: Model::PeerToPeer(kinds),
        ird,
        ord,
    })
}

fn asked(config: ResponderConfig, request: &StartupFrame) -> Responder {
    let mut responder = Responder::new(config).unwrap();
    let bytes = request.emit().unwrap();
    let (taken, got) = responder.receive(&bytes).unwrap();
    assert_eq!(taken, bytes.len());
    assert!(got.is_some());
    responder
}

fn parsed(bytes: &[u8]) -> StartupFrame {
    match StartupFrame::parse(FrameKind::Reply, bytes) {
        Ok(Parsed::Frame(frame, len)) if len == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

/// Returns the Reply's enhanced data, and the IRD and ORD of this side.
fn settled(
    config: ResponderConfig,
    enhanced: Option<Enhanced>,
    ird: u16,
    ord: u16,
) -> (Enhanced, u16, u16) {
    let mut responder = asked(config, &request(2, enhanced));
    let (reply, negotiated) = responder
        .accept(Accept {
            ird,
            ord,
            private_data: b"",
        })
        .unwrap();
    (
        parsed(&reply).enhanced.unwrap(),
        negotiated.ird,
        negotiated.ord,
    )
}

#[test]
fn state_table() {
    let states = [
        State::AwaitRequest,
        State::AwaitAnswer,
        State::Accepted,
        State::Rejected,
        State::Failed,
    ];
    let events = [
        Event::PartOfRequest,
        Event::Request,
        Event::RequestInvalid,
        Event::Accept,
        Event::Reject,
        Event::Closed,
        Event::TimedOut,
    ];
    let mut table = String::new();
    for state in states {
        for event in events {
            let to = next(state, event).map_or(String::from("-"), |to| std::format!("{to:?}"));
            writeln!(
                table,
                "{:<13} {:<15} {to}",
                std::format!("{state:?}"),
                std::format!("{event:?}")
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_request_is_shown_to_the_ulp() {
    let mut responder = Responder::new(config()).unwrap();
    let mut frame = request(2, peer_to_peer(RtrKinds::ALL, 4, 5));
    (frame.markers, frame.rejected) = (true, true); // R is ignored
    let mut bytes = frame.emit().unwrap();
    bytes.push(b'?');
    let shown = Request {
        revision: Revision::Two,
        enhanced: frame.enhanced,
        crc: false,
        markers: true,
        private_data: b"question".to_vec(),
    };
    assert_eq!(
        responder.receive(&bytes),
        Ok((bytes.len() - 1, Some(shown)))
    );
    assert_eq!(responder.receive(b"?"), Ok((0, None)));
}

#[test]
fn the_reply_repeats_revision_and_form_of_the_request() {
    for (revision, enhanced) in [(1, None), (2, None), (2, client_server(1, 1))] {
        let accept = Accept {
            ird: 1,
            ord: 1,
            private_data: b"answer",
        };
        let mut responder = asked(config(), &request(revision, enhanced));
        let (reply, negotiated) = responder.accept(accept).unwrap();
        let reply = parsed(&reply);
        assert_eq!((reply.revision, reply.rejected), (revision, false));
        assert_eq!(reply.enhanced.is_some(), enhanced.is_some());
        assert_eq!(reply.private_data, b"answer");
        assert_eq!(negotiated.private_data, b"question");
        assert_eq!(negotiated.enhanced, enhanced.is_some());
        let mut responder = asked(config(), &request(revision, enhanced));
        let reply = parsed(&responder.reject(b"no", None).unwrap());
        assert_eq!((reply.revision, reply.rejected), (revision, true));
        assert_eq!(reply.enhanced.is_some(), enhanced.is_some());
        assert_eq!(reply.private_data, b"no");
    }
}

#[test]
fn our_ord_stays_within_the_initiators_ird() {
    assert_eq!(
        settled(config(), client_server(3, 0), 0, 8),
        (client_server(0, 3).unwrap(), 0, 3)
    );
    assert_eq!(
        settled(config(), client_server(9, 0), 0, 8),
        (client_server(0, 8).unwrap(), 0, 8)
    );
}

#[test]
fn our_ird_goes_up_to_the_initiators_ord_as_far_as_the_limit() {
    assert_eq!(settled(config(), client_server(0, 9), 4, 0).1, 9);
    assert_eq!(settled(config(), client_server(0, 99), 4, 0).1, 16);
    assert_eq!(settled(config(), client_server(0, 2), 4, 0).1, 4);
    assert_eq!(settled(config(), client_server(0, 2), 99, 0).1, 16);
}

/// 6581-9.1-i02: the IRD is limited by the resources, and the initiator lowers its ORD.
#[test]
fn a_connection_with_a_lower_limit_of_its_own_is_granted_less() {
    for (limit, granted) in [(0, 0), (3, 3), (16, 9), (99, 9)] {
        let mut responder = asked(config(), &request(2, client_server(0, 9)));
        responder.limit_ird(limit);
        let accept = Accept {
            ird: 4,
            ord: 0,
            private_data: b"",
        };
        let (reply, negotiated) = responder.accept(accept).unwrap();
        let told = parsed(&reply).enhanced.unwrap().ird;
        assert_eq!((told, negotiated.ird), (granted, granted));
    }
}

#[test]
fn depths_that_the_initiator_does_not_negotiate_are_answered_in_kind() {
    let (reply, ird, ord) = settled(config(), client_server(NO_AUTO, NO_AUTO), 4, 5);
    assert_eq!((reply.ird, reply.ord), (NO_AUTO, NO_AUTO));
    assert_eq!((ird, ord), (4, 5));
}

#[test]
fn rtr_kinds_in_common_are_named_or_else_all_of_ours() {
    let send = RtrKinds::from(Rtr::Send);
    let (write, read) = (RtrKinds::from(Rtr::Write), RtrKinds::from(Rtr::Read));
    let send_read = RtrKinds {
        send: true,
        read: true,
        write: false,
    };
    for (ours, offered, named) in [
        (RtrKinds::ALL, RtrKinds::ALL, RtrKinds::ALL),
        (RtrKinds::ALL, send, send),
        (send_read, RtrKinds::ALL, send_read),
        (send_read, write, send_read),
        (write, read, write),
        (write, RtrKinds::NONE, write),
    ] {
        let config = ResponderConfig {
            rtr: ours,
            ..config()
        };
        let mut responder = asked(config, &request(2, peer_to_peer(offered, 4, 4)));
        let accept = Accept {
            ird: 4,
            ord: 4,
            private_data: b"",
        };
        let (reply, negotiated) = responder.accept(accept).unwrap();
        assert_eq!(
            parsed(&reply).enhanced.unwrap().model,
            Model::PeerToPeer(named)
        );
        assert_eq!(
            (negotiated.rtr_offered, negotiated.rtr),
            (named, named.only())
        );
    }
}

#[test]
fn an_rtr_read_always_finds_a_place() {
    let read = RtrKinds::from(Rtr::Read);
    assert_eq!(settled(config(), peer_to_peer(read, 0, 0), 0, 0).1, 1);
    assert_eq!(
        settled(config(), peer_to_peer(RtrKinds::ALL, 0, 0), 0, 0).1,
        1
    );
    assert_eq!(settled(config(), client_server(0, 0), 0, 0).1, 0);
    // If the IRD is 0, the Reply does not name Read together with other kinds.
    let none = ResponderConfig {
        max_ird: 0,
        ..config()
    };
    let (reply, ird, _) = settled(none, peer_to_peer(RtrKinds::ALL, 0, 0), 0, 0);
    let without = RtrKinds {
        read: false,
        ..RtrKinds::ALL
    };
    assert_eq!((reply.model, ird), (Model::PeerToPeer(without), 0));
}

#[test]
fn a_rejection_may_name_the_ord_it_needs() {
    let mut responder = asked(config(), &request(2, client_server(2, 6)));
    let reply = parsed(&responder.reject(b"", Some(12)).unwrap());
    assert_eq!(reply.enhanced, client_server(6, 12));
    let mut responder = asked(config(), &request(2, client_server(NO_AUTO, 6)));
    let reply = parsed(&responder.reject(b"", Some(12)).unwrap());
    assert_eq!(reply.enhanced, client_server(6, NO_AUTO));
    // An unenhanced Reply has no room for the ORD.
    let mut responder = asked(config(), &request(1, None));
    assert_eq!(
        parsed(&responder.reject(b"", Some(12)).unwrap()).enhanced,
        None
    );
}

#[test]
fn an_answer_that_cannot_be_written_may_be_tried_again() {
    let mut responder = asked(config(), &request(2, client_server(1, 1)));
    let long = vec![0; 509];
    let accept = Accept {
        ird: 1,
        ord: 1,
        private_data: &long,
    };
    let too_long = ConfigError::PrivateDataTooLong { len: 509, max: 508 };
    assert_eq!(responder.accept(accept).unwrap_err(), too_long);
    assert_eq!(responder.reject(&long, None).unwrap_err(), too_long);
    let deep = ConfigError::DepthTooLarge {
        value: 0x4000,
        max: NO_AUTO,
    };
    assert_eq!(
        responder
            .accept(Accept {
                ird: 0x4000,
                ..accept
            })
            .unwrap_err(),
        deep
    );
    assert_eq!(responder.reject(b"", Some(0x4000)).unwrap_err(), deep);
    assert!(
        responder
            .accept(Accept {
                private_data: &long[1..],
                ..accept
            })
            .is_ok()
    );
}

#[test]
fn there_is_one_answer_to_one_request() {
    let accept = Accept {
        ird: 1,
        ord: 1,
        private_data: b"",
    };
    let mut responder = Responder::new(config()).unwrap();
    assert_eq!(
        responder.accept(accept).unwrap_err(),
        ConfigError::NothingToAnswer
    );
    assert_eq!(
        responder.reject(b"", None).unwrap_err(),
        ConfigError::NothingToAnswer
    );
    let mut responder = asked(config(), &request(1, None));
    responder.reject(b"", None).unwrap();
    assert_eq!(
        responder.accept(accept).unwrap_err(),
        ConfigError::NothingToAnswer
    );
    let mut responder = asked(config(), &request(1, None));
    let error = responder.closed(true);
    assert_eq!(
        responder.accept(accept).unwrap_err(),
        ConfigError::NothingToAnswer
    );
    assert_eq!(responder.receive(b""), Err(error));
}

#[test]
fn nothing_is_sent_before_the_first_fpdu_came() {
    let mut responder = asked(config(), &request(1, None));
    let accept = Accept {
        ird: 1,
        ord: 1,
        private_data: b"",
    };
    let mut gate = responder.accept(accept).unwrap().1.send_gate();
    assert!(!gate.may_send());
    assert!(gate.fpdu_validated());
    assert!(gate.may_send());
    assert!(!gate.fpdu_validated());
}

#[test]
fn a_responder_of_revision_1_refuses_revision_2() {
    let old = ResponderConfig {
        max_revision: Revision::One,
        rtr: RtrKinds::NONE,
        ..config()
    };
    let mut responder = Responder::new(old).unwrap();
    let bytes = request(2, client_server(1, 1)).emit().unwrap();
    let error = StartupError::UnsupportedRevision {
        revision: 2,
        highest: 1,
    };
    assert_eq!(responder.receive(&bytes), Err(error));
    assert!(asked(old, &request(1, None)).reject(b"", None).is_ok());
}

#[test]
fn configurations_that_cannot_be_said_are_refused() {
    let refused = |config| Responder::new(config).map(|_| ()).unwrap_err();
    let no_kind = ResponderConfig {
        rtr: RtrKinds::NONE,
        ..config()
    };
    assert_eq!(refused(no_kind), ConfigError::NoRtrKind);
    assert_eq!(
        refused(ResponderConfig {
            max_ird: NO_AUTO,
            ..config()
        }),
        ConfigError::DepthTooLarge {
            value: NO_AUTO,
            max: NO_AUTO - 1
        }
    );
}

#[test]
fn bad_requests_close_and_name_what_came() {
    let cases: [(&[u8], StartupError); 4] = [
        (b"MPA ID Rep Frame", StartupError::ReplyInsteadOfRequest),
        (
            b"MPA ID Req Frame\x40\x00\x00\x00",
            StartupError::UnsupportedRevision {
                revision: 0,
                highest: 2,
            },
        ),
        (
            b"MPA ID Req Frame\x40\x01\x02\x01",
            StartupError::PrivateDataTooLong { len: 513 },
        ),
        (
            b"MPA ID Req Frame\x50\x02\x00\x03abc",
            StartupError::EnhancedDataMissing { len: 3 },
        ),
    ];
    for (bytes, error) in cases {
        let mut responder = Responder::new(config()).unwrap();
        assert_eq!(responder.receive(bytes), Err(error));
        assert_eq!(responder.receive(b""), Err(error));
    }
    let mut responder = Responder::new(config()).unwrap();
    let error = responder.receive(b"GET / HTTP/1.1\r\nHost: x").unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "the peer sent 'GET / HTTP/1.1', not an MPA Request"
    );
}

#[test]
fn silence_and_endings_say_how_far_it_came() {
    let mut responder = Responder::new(config()).unwrap();
    responder.receive(b"MPA ID").unwrap();
    let error = StartupError::TimedOut {
        received: 6,
        peer: Role::Initiator,
    };
    assert_eq!(responder.timed_out(), error);
    assert_eq!(responder.closed(false), error);
    let mut responder = Responder::new(config()).unwrap();
    assert!(!responder.closed(false).may_retry_with_revision_1());
}

fn depth() -> impl Strategy<Value = u16> {
    prop_oneof![0..5u16, 0..NO_AUTO, Just(NO_AUTO)]
}

prop_compose! {
    fn kinds()(send: bool, write: bool, read: bool) -> RtrKinds {
        RtrKinds { send, write, read }
    }
}

prop_compose! {
    fn initiators()(
        two: bool, crc: bool, markers: bool, ird in depth(), ord in depth(), more in 0..9u16,
        p2p: bool, kinds in kinds(), private in 0..=if cfg!(miri) { 60 } else { 508usize },
    ) -> InitiatorConfig {
        let p2p = p2p && two && !kinds.is_empty();
        let floor = if ird == NO_AUTO { 0 } else { ird };
        InitiatorConfig {
            revision: if two { Revision::Two } else { Revision::One },
            crc, markers, ird, ord,
            max_ird: (floor + more).min(NO_AUTO - 1),
            model: if p2p { Model::PeerToPeer(kinds) } else { Model::ClientServer },
            private_data: vec![0x11; private],
        }
    }
}

prop_compose! {
    fn responders()(
        crc: bool, markers: bool, max_ird in 0..NO_AUTO,
        rtr in kinds().prop_filter("at least one", |kinds| !kinds.is_empty()),
    ) -> ResponderConfig {
        ResponderConfig { crc, markers, max_revision: Revision::Two, max_ird, rtr }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn both_sides_come_to_the_same_whatever_the_chunking(
        initiator in initiators(), responder in responders(), ird in depth(), ord in depth(),
        sizes in proptest::collection::vec(1..40usize, 1..5),
    ) {
        let asks = initiator.clone();
        let mut initiator = Initiator::new(initiator).unwrap();
        let mut responder = Responder::new(responder).unwrap();
        let mut shown = None;
        for piece in chunked(initiator.request(), &sizes) {
            prop_assert!(shown.is_none());
            let (taken, request) = responder.receive(piece).unwrap();
            prop_assert_eq!(taken, piece.len());
            shown = request;
        }
        prop_assert_eq!(&shown.unwrap().private_data, &asks.private_data);
        let accept = Accept { ird, ord, private_data: b"answer" };
        let (reply, theirs) = responder.accept(accept).unwrap();
        let mut outcome = None;
        for piece in chunked(&reply, &sizes) {
            prop_assert!(outcome.is_none());
            let (taken, got) = initiator.receive(piece).unwrap();
            prop_assert_eq!(taken, piece.len());
            outcome = got;
        }
        let (ours, possible) = match outcome.unwrap() {
            Outcome::Accepted(ours) => (ours, true),
            Outcome::Impossible(ours, _) => (ours, false),
            Outcome::Rejected(_) => unreachable!(),
        };
        prop_assert_eq!((ours.crc, ours.enhanced), (theirs.crc, theirs.enhanced));
        prop_assert_eq!((ours.tx_markers, ours.rx_markers), (theirs.rx_markers, theirs.tx_markers));
        if !ours.enhanced {
            return Ok(());
        }
        // 6581-9.1-i01, if the values are negotiated at all.
        if asks.ord != NO_AUTO {
            prop_assert!(ours.ord <= theirs.ird);
        }
        if asks.ird != NO_AUTO {
            prop_assert!(theirs.ord <= asks.ird && theirs.ord <= ours.ird);
        }
        prop_assert_eq!((theirs.peer_ird, theirs.peer_ord), (Some(asks.ird), Some(asks.ord)));
        if let Some(rtr) = ours.rtr {
            prop_assert!(possible && theirs.rtr_offered.contains(rtr));
            prop_assert!(theirs.rtr.is_none_or(|only| only == rtr));
            prop_assert!(rtr != Rtr::Read || ours.ord > 0);
        }
        prop_assert_eq!(possible && asks.model != Model::ClientServer, ours.rtr.is_some());
    }

    #[test]
    fn a_changed_byte_in_a_frame_never_panics(
        initiator in initiators(), at: prop::sample::Index, to: u8,
        sizes in proptest::collection::vec(1..40usize, 1..5),
    ) {
        let initiator = Initiator::new(initiator).unwrap();
        let mut bytes = initiator.request().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let mut responder = Responder::new(config()).unwrap();
        for piece in chunked(&bytes, &sizes) {
            if responder.receive(piece).is_err() {
                break;
            }
        }
    }
}
