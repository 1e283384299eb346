//! Startup between two sides that follow the RFCs.

use uwarp_mpa::{
    Accept, Initiator, InitiatorConfig, Model, Negotiated, Outcome, Responder, ResponderConfig,
    Revision, RtrKinds, StartupError,
};

use crate::model::startup::NO_AUTO;

/// Connects the two sides and checks that they agree. If they cannot agree, checks the error.
pub(super) fn together(
    wishes: &InitiatorConfig,
    limits: ResponderConfig,
    mut initiator: Initiator,
    mut responder: Responder,
    (ird, ord): (u16, u16),
) {
    let request = initiator.request().to_vec();
    let old = wishes.revision > limits.max_revision;
    let (taken, asked) = match responder.receive(&request) {
        Err(error) => {
            assert!(old && matches!(error, StartupError::UnsupportedRevision { .. }));
            return;
        }
        Ok(answer) => answer,
    };
    let asked = asked.expect("a Request is whole");
    assert!(!old && taken == request.len() && asked.private_data == wishes.private_data);

    let reject = responder
        .clone()
        .reject(b"no", Some(ord))
        .expect("it can be rejected");
    let Ok((_, Some(Outcome::Rejected(rejection)))) = initiator.clone().receive(&reject) else {
        panic!("a rejection is understood");
    };
    assert_eq!(rejection.private_data, b"no");

    let answer = Accept {
        ird,
        ord,
        private_data: b"yes",
    };
    let (reply, theirs) = responder.accept(answer).expect("it can be accepted");
    if wishes.revision == Revision::Two {
        answered(&reply, wishes, limits, (ird, ord));
    }
    let (taken, outcome) = initiator.receive(&reply).expect("a Reply is understood");
    assert_eq!(taken, reply.len());
    match outcome.expect("a Reply is whole") {
        Outcome::Accepted(ours) => agree(&ours, &theirs, wishes, limits),
        Outcome::Impossible(_, code) => assert!(matches!(code.code(), 6 | 7), "{code:?}"),
        Outcome::Rejected(_) => panic!("it was accepted"),
    }
}

/// Checks the enhanced connection data of a Reply (RFC 6581 section 9).
fn answered(
    reply: &[u8],
    wishes: &InitiatorConfig,
    limits: ResponderConfig,
    (ird, ord): (u16, u16),
) {
    let first = u16::from_be_bytes([reply[20], reply[21]]);
    let second = u16::from_be_bytes([reply[22], reply[23]]);
    let kinds = [first & 0x4000, second & 0x8000, second & 0x4000].map(|bit| bit != 0);
    let wanted = if wishes.ird == NO_AUTO {
        NO_AUTO
    } else {
        ord.min(wishes.ird)
    };
    assert_eq!(second & NO_AUTO, wanted, "at most the initiator's IRD");
    let mut wanted = ird.min(limits.max_ird);
    if wishes.ord == NO_AUTO {
        wanted = NO_AUTO;
    } else {
        wanted = wanted.max(wishes.ord.min(limits.max_ird));
        if kinds[2] {
            wanted = wanted.max(limits.max_ird.min(1));
        }
    }
    assert_eq!(
        first & NO_AUTO,
        wanted,
        "the initiator's wish, up to the limit"
    );
    let takes = [limits.rtr.send, limits.rtr.write, limits.rtr.read];
    match wishes.model {
        Model::ClientServer => assert_eq!((first & 0x8000, kinds), (0, [false; 3])),
        Model::PeerToPeer(makes) => {
            assert_eq!(first & 0x8000, 0x8000);
            assert!((0..3).all(|kind| !kinds[kind] || takes[kind]));
            let makes = [makes.send, makes.write, makes.read];
            let common = (0..3).any(|kind| makes[kind] && takes[kind]);
            assert!(!common || (0..3).all(|kind| !kinds[kind] || makes[kind]));
        }
    }
}

fn agree(
    ours: &Negotiated,
    theirs: &Negotiated,
    wishes: &InitiatorConfig,
    limits: ResponderConfig,
) {
    assert_eq!((ours.crc, ours.revision), (theirs.crc, theirs.revision));
    assert_eq!(ours.crc, wishes.crc || limits.crc); // RFC 5044 section 7.1.1
    assert_eq!(ours.tx_markers, limits.markers);
    assert_eq!(theirs.tx_markers, wishes.markers);
    assert_eq!(
        (ours.rx_markers, theirs.rx_markers),
        (theirs.tx_markers, ours.tx_markers)
    );
    assert_eq!(ours.private_data, b"yes");
    assert!(ours.send_gate().may_send() && !theirs.send_gate().may_send());
    let mut gate = theirs.send_gate();
    assert!(gate.fpdu_validated() && !gate.fpdu_validated() && gate.may_send());
    assert!(theirs.ird <= limits.max_ird);
    if ours.enhanced {
        // No side may have more requests outstanding than the other accepts (RFC 6581 section 9.1).
        // This does not apply if a side has left the depth to the ULPs.
        if wishes.ord != NO_AUTO {
            assert!(ours.ord <= theirs.ird, "{ours:?} {theirs:?}");
        }
        if wishes.ird != NO_AUTO {
            assert!(
                theirs.ord == NO_AUTO || theirs.ord <= ours.ird,
                "{ours:?} {theirs:?}"
            );
        }
        assert!(ours.ird <= wishes.max_ird);
        assert_eq!(
            matches!(wishes.model, Model::PeerToPeer(_)),
            ours.rtr.is_some()
        );
        assert!(ours.rtr.is_none_or(|kind| limits.rtr.contains(kind)));
        assert!(
            ours.rtr
                .is_none_or(|kind| RtrKinds::from(kind).contains(kind))
        );
    }
}
