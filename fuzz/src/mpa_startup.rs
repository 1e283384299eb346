//! MPA startup in both roles. First, the peer's frame consists of arbitrary bytes. The outcome must
//! be the model's, however the input cuts the frame into pieces. Then two sides with arbitrary
//! configurations follow the RFCs and connect. They must agree, or the startup must fail with the
//! expected error.

mod pair;

use uwarp_mpa::{
    FrameKind, Initiator, InitiatorConfig, Model, Outcome, Parsed, Responder, ResponderConfig,
    Revision, Rtr, RtrKinds, StartupError, StartupFrame,
};

use crate::input::{Cuts, Input};
use crate::model::startup::{Frame, NO_AUTO, Side, Trouble, Verdict, judge, needed};

/// Runs one input: the configurations of both roles, the lengths of the pieces, the peer's bytes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let initiator = initiator_config(&mut input);
    let responder = responder_config(&mut input);
    let (ird, ord) = (input.u16() & NO_AUTO, input.u16() & NO_AUTO);
    let lengths = input.slice(64);
    let peer = input.take_rest();

    frame(peer);
    if let Ok(initiator) = Initiator::new(initiator.clone()) {
        let whole = as_initiator(initiator.clone(), peer, Cuts::new(&[]));
        for lengths in [lengths, &[1]] {
            assert_eq!(
                as_initiator(initiator.clone(), peer, Cuts::new(lengths)),
                whole
            );
        }
    }
    if let Ok(responder) = Responder::new(responder) {
        let whole = as_responder(&responder, peer, Cuts::new(&[]));
        for lengths in [lengths, &[1]] {
            assert_eq!(as_responder(&responder, peer, Cuts::new(lengths)), whole);
        }
    }
    against_the_model(&initiator, responder, peer);
    if let (Ok(ours), Ok(theirs)) = (Initiator::new(initiator.clone()), Responder::new(responder)) {
        pair::together(&initiator, responder, ours, theirs, (ird, ord));
    }
}

fn kinds(flags: impl Fn(u8) -> bool) -> RtrKinds {
    RtrKinds {
        send: flags(3),
        write: flags(4),
        read: flags(5),
    }
}

fn initiator_config(input: &mut Input<'_>) -> InitiatorConfig {
    let flags = input.flags();
    let config = InitiatorConfig {
        revision: if flags(0) {
            Revision::Two
        } else {
            Revision::One
        },
        crc: flags(1),
        markers: flags(2),
        ird: input.u16(),
        ord: input.u16(),
        max_ird: input.u16(),
        model: if flags(6) {
            Model::PeerToPeer(kinds(&flags))
        } else {
            Model::ClientServer
        },
        private_data: vec![0x11; usize::from(input.u16() % 600)],
    };
    if flags(7) {
        return config;
    }
    // Most inputs get a configuration within the limits.
    let max_ird = config.max_ird & 0x3FFE;
    InitiatorConfig {
        ird: if flags(5) {
            NO_AUTO
        } else {
            config.ird.min(max_ird)
        },
        ord: config.ord & NO_AUTO,
        max_ird,
        private_data: vec![0x11; config.private_data.len().min(508)],
        ..config
    }
}

fn responder_config(input: &mut Input<'_>) -> ResponderConfig {
    let flags = input.flags();
    let max_ird = input.u16();
    ResponderConfig {
        crc: flags(1),
        markers: flags(2),
        max_revision: if flags(0) {
            Revision::Two
        } else {
            Revision::One
        },
        max_ird: if flags(7) { max_ird } else { max_ird & 0x3FFE },
        rtr: kinds(&flags),
    }
}

/// Formats a result for comparison: the number of consumed bytes and the outcome. Of `NotMpa` only
/// the field `peer` is kept, because the other fields depend on how many bytes had arrived.
fn said<T: std::fmt::Debug>(
    taken: usize,
    said: Result<Option<T>, StartupError>,
) -> (usize, String) {
    match said {
        Ok(outcome) => (taken, format!("{outcome:?}")),
        Err(error @ StartupError::NotMpa { peer, .. }) => {
            assert!(!error.to_string().is_empty());
            (0, format!("not MPA from {peer:?}"))
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            (0, format!("{error:?}"))
        }
    }
}

fn as_initiator(mut initiator: Initiator, peer: &[u8], cuts: Cuts<'_>) -> (usize, String) {
    let mut taken = 0;
    for piece in cuts.pieces(peer) {
        match initiator.receive(piece) {
            Ok((bytes, None)) => {
                assert_eq!(
                    bytes,
                    piece.len(),
                    "without an outcome all bytes belong to the frame"
                );
                taken += bytes;
            }
            Ok((bytes, outcome)) => {
                assert!(bytes <= piece.len());
                assert_eq!(
                    initiator.receive(piece),
                    Ok((0, None)),
                    "it takes nothing more"
                );
                return said(taken + bytes, Ok(outcome));
            }
            Err(error) => {
                assert_eq!(initiator.receive(&[1]), Err(error), "an error stays");
                assert_eq!(
                    (initiator.closed(true), initiator.timed_out()),
                    (error, error)
                );
                return said::<Outcome>(0, Err(error));
            }
        }
    }
    let error = initiator.clone().closed(false);
    assert!(!error.to_string().is_empty());
    assert!(matches!(error, StartupError::Closed { received, .. } if received == taken));
    assert!(
        matches!(initiator.timed_out(), StartupError::TimedOut { received, .. } if received == taken)
    );
    said::<Outcome>(taken, Ok(None))
}

fn as_responder(responder: &Responder, peer: &[u8], cuts: Cuts<'_>) -> (usize, String) {
    let mut responder = responder.clone();
    let mut taken = 0;
    for piece in cuts.pieces(peer) {
        match responder.receive(piece) {
            Ok((bytes, None)) => {
                assert_eq!(
                    bytes,
                    piece.len(),
                    "without a Request all bytes belong to the frame"
                );
                taken += bytes;
            }
            Ok((bytes, request)) => {
                assert!(bytes <= piece.len());
                assert_eq!(
                    responder.receive(piece),
                    Ok((0, None)),
                    "it takes nothing more"
                );
                return said(taken + bytes, Ok(request));
            }
            Err(error) => {
                assert_eq!(responder.receive(&[1]), Err(error), "an error stays");
                assert_eq!(
                    (responder.closed(true), responder.timed_out()),
                    (error, error)
                );
                assert!(responder.reject(&[], None).is_err());
                return said::<()>(0, Err(error));
            }
        }
    }
    let error = responder.clone().closed(false);
    assert!(!error.to_string().is_empty());
    assert!(matches!(error, StartupError::Closed { received, .. } if received == taken));
    assert!(
        matches!(responder.timed_out(), StartupError::TimedOut { received, .. } if received == taken)
    );
    said::<()>(taken, Ok(None))
}

/// Checks that parsing and emitting a frame returns the same bytes, except for reserved bits.
fn frame(bytes: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        match StartupFrame::parse(kind, bytes) {
            Ok(Parsed::Frame(frame, len)) => {
                let mut wanted = bytes[..len].to_vec();
                wanted[16] &= if frame.revision >= 2 { 0xF0 } else { 0xE0 };
                // In the client-server model flags B to D have no meaning (6581-9.2-14).
                if let Some(data) = frame.enhanced
                    && data.model == Model::ClientServer
                {
                    wanted[20] &= 0x3F;
                    wanted[22] &= 0x3F;
                }
                assert_eq!(frame.emit().expect("it was a frame"), wanted);
            }
            Ok(Parsed::Need(need)) => assert!(need > bytes.len() && need <= 532),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn side(config: &InitiatorConfig) -> Side {
    Side {
        initiator: true,
        highest: 2,
        enhanced: config.revision == Revision::Two,
        crc: config.crc,
        markers: config.markers,
        ird: config.ird,
        ord: config.ord,
        max_ird: config.max_ird,
        rtr: match config.model {
            Model::ClientServer => None,
            Model::PeerToPeer(kinds) => Some([kinds.send, kinds.write, kinds.read]),
        },
    }
}

/// Checks that the stack and the model agree about the peer's frame.
fn against_the_model(initiator: &InitiatorConfig, responder: ResponderConfig, peer: &[u8]) {
    if let Ok(mut subject) = Initiator::new(initiator.clone()) {
        let got = match subject.receive(peer) {
            Err(error) => Verdict::Wrong(trouble(error)),
            Ok((_, None)) => Verdict::Incomplete,
            Ok((taken, Some(outcome))) => {
                let (wanted, _) = needed(peer).expect("there is a frame");
                assert_eq!(taken, wanted);
                match outcome {
                    Outcome::Rejected(rejection) => Verdict::Rejected {
                        ord_needed: rejection.ord_needed,
                        private_data: rejection.private_data,
                    },
                    Outcome::Impossible(_, code) => Verdict::Impossible(code.code()),
                    Outcome::Accepted(agreed) => Verdict::Accepted {
                        crc: agreed.crc,
                        tx_markers: agreed.tx_markers,
                        rx_markers: agreed.rx_markers,
                        ird: agreed.ird,
                        ord: agreed.ord,
                        rtr: agreed.rtr.map(number),
                        private_data: agreed.private_data,
                    },
                }
            }
        };
        assert_eq!(got, judge(&side(initiator), peer));
    }
    if let Ok(mut subject) = Responder::new(responder) {
        let ours = Side {
            initiator: false,
            highest: responder.max_revision.code(),
            ..side(initiator)
        };
        let got = match subject.receive(peer) {
            Err(error) => Verdict::Wrong(trouble(error)),
            Ok((_, None)) => Verdict::Incomplete,
            Ok((_, Some(request))) => Verdict::Asked(Frame {
                markers: request.markers,
                crc: request.crc,
                revision: request.revision.code(),
                enhanced: request.enhanced.map(|data| {
                    let rtr = match data.model {
                        Model::ClientServer => None,
                        Model::PeerToPeer(kinds) => Some([kinds.send, kinds.write, kinds.read]),
                    };
                    (data.ird, data.ord, rtr)
                }),
                private_data: request.private_data,
            }),
        };
        assert_eq!(got, judge(&ours, peer));
    }
}

const fn number(rtr: Rtr) -> usize {
    match rtr {
        Rtr::Send => 0,
        Rtr::Write => 1,
        Rtr::Read => 2,
    }
}

fn trouble(error: StartupError) -> Trouble {
    match error {
        StartupError::NotMpa { .. } => Trouble::NotMpa,
        StartupError::RequestInsteadOfReply | StartupError::ReplyInsteadOfRequest => {
            Trouble::OtherFrame
        }
        StartupError::UnsupportedRevision { .. } => Trouble::Revision,
        StartupError::PrivateDataTooLong { .. } => Trouble::TooLong,
        StartupError::EnhancedDataMissing { .. } => Trouble::NoRoomForEnhanced,
        StartupError::EnhancedMismatch { .. } => Trouble::EnhancedMismatch,
        other => panic!("bytes cannot lead to {other:?}"),
    }
}
