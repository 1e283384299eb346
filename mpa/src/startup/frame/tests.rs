use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::startup::options::Rtr;

fn plain_request() -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        rejected: false,
        revision: 1,
        enhanced: None,
        private_data: b"hi".to_vec(),
    }
}

#[test]
fn a_request_of_revision_1_is_laid_out_as_figure_8_of_rfc_5044() {
    let bytes = plain_request().emit().unwrap();
    assert_eq!(bytes, b"MPA ID Req Frame\x40\x01\x00\x02hi");
}

#[test]
fn enhanced_data_is_laid_out_as_rfc_6581_section_9() {
    let cases = [
        (Model::ClientServer, [0x00, 0x10, 0x00, 0x20]),
        (
            Model::PeerToPeer(Rtr::Send.into()),
            [0xC0, 0x10, 0x00, 0x20],
        ),
        (
            Model::PeerToPeer(Rtr::Write.into()),
            [0x80, 0x10, 0x80, 0x20],
        ),
        (
            Model::PeerToPeer(Rtr::Read.into()),
            [0x80, 0x10, 0x40, 0x20],
        ),
        (Model::PeerToPeer(RtrKinds::ALL), [0xC0, 0x10, 0xC0, 0x20]),
    ];
    for (model, words) in cases {
        let frame = StartupFrame {
            kind: FrameKind::Reply,
            markers: true,
            rejected: true,
            revision: 2,
            enhanced: Some(Enhanced {
                model,
                ird: 16,
                ord: 32,
            }),
            ..plain_request()
        };
        let mut expected = b"MPA ID Rep Frame\xF0\x02\x00\x06".to_vec();
        expected.extend_from_slice(&words);
        expected.extend_from_slice(b"hi");
        assert_eq!(frame.emit().unwrap(), expected);
        assert_eq!(
            StartupFrame::parse(FrameKind::Reply, &expected),
            Ok(Parsed::Frame(frame, 26))
        );
    }
}

#[test]
fn flags_b_c_and_d_mean_nothing_without_a() {
    let bytes = b"MPA ID Req Frame\x10\x02\x00\x04\x40\x01\xC0\x02";
    let Ok(Parsed::Frame(frame, 24)) = StartupFrame::parse(FrameKind::Request, bytes) else {
        panic!("not a frame");
    };
    let expected = Enhanced {
        model: Model::ClientServer,
        ird: 1,
        ord: 2,
    };
    assert_eq!(frame.enhanced, Some(expected));
}

#[test]
fn reserved_bits_are_ignored_and_s_is_one_of_them_in_revision_1() {
    let bytes = b"MPA ID Req Frame\x5F\x01\x00\x02hi";
    assert_eq!(
        StartupFrame::parse(FrameKind::Request, bytes),
        Ok(Parsed::Frame(plain_request(), 22))
    );
}

#[test]
fn need_counts_from_the_first_byte() {
    let bytes = plain_request().emit().unwrap();
    for len in 0..bytes.len() {
        let need = if len < 20 { 20 } else { 22 };
        let parsed = StartupFrame::parse(FrameKind::Request, &bytes[..len]);
        assert_eq!(parsed, Ok(Parsed::Need(need)));
    }
}

#[test]
fn private_data_ends_at_512_bytes() {
    let head = |len: u16, flags: u8| {
        let mut bytes = b"MPA ID Req Frame".to_vec();
        bytes.extend_from_slice(&[flags, 2]);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes
    };
    let parse = |bytes: &[u8]| StartupFrame::parse(FrameKind::Request, bytes);
    assert_eq!(parse(&head(512, 0)), Ok(Parsed::Need(532)));
    assert_eq!(
        parse(&head(513, 0)),
        Err(StartupError::PrivateDataTooLong { len: 513 })
    );
    assert_eq!(
        parse(&head(u16::MAX, 0)),
        Err(StartupError::PrivateDataTooLong { len: u16::MAX })
    );
    for len in 0..4 {
        assert_eq!(
            parse(&head(len, 0x10)),
            Err(StartupError::EnhancedDataMissing { len })
        );
    }
    assert_eq!(parse(&head(4, 0x10)), Ok(Parsed::Need(24)));
}

#[test]
fn a_wrong_key_shows_with_its_first_wrong_byte() {
    let key = b"MPA ID Req Frame";
    for at in 0..16 {
        let mut bytes = *key;
        bytes[at] = b'#';
        assert!(StartupFrame::parse(FrameKind::Request, &bytes[..at]).is_ok());
        let error = StartupFrame::parse(FrameKind::Request, &bytes[..=at]);
        let first = FirstBytes::of(&bytes[..=at], &[]);
        assert_eq!(
            error,
            Err(StartupError::NotMpa {
                first,
                peer: Role::Initiator
            })
        );
    }
}

#[test]
fn the_other_frame_is_recognised_at_the_letter_that_differs() {
    for (expected, sent, error) in [
        (
            FrameKind::Reply,
            REQUEST_KEY,
            StartupError::RequestInsteadOfReply,
        ),
        (
            FrameKind::Request,
            REPLY_KEY,
            StartupError::ReplyInsteadOfRequest,
        ),
    ] {
        assert_eq!(
            StartupFrame::parse(expected, &sent[..9]),
            Ok(Parsed::Need(20))
        );
        for len in 10..=16 {
            assert_eq!(StartupFrame::parse(expected, &sent[..len]), Err(error));
        }
    }
}

#[test]
fn frames_that_cannot_be_written_are_refused() {
    let too_long = StartupFrame {
        private_data: vec![0; 513],
        ..plain_request()
    };
    assert_eq!(
        too_long.emit(),
        Err(ConfigError::PrivateDataTooLong { len: 513, max: 512 })
    );

    let enhanced = Enhanced {
        model: Model::ClientServer,
        ird: 1,
        ord: 1,
    };
    let frame = StartupFrame {
        revision: 2,
        enhanced: Some(enhanced),
        ..plain_request()
    };
    let too_long = StartupFrame {
        private_data: vec![0; 509],
        ..frame.clone()
    };
    assert_eq!(
        too_long.emit(),
        Err(ConfigError::PrivateDataTooLong { len: 509, max: 508 })
    );
    let far_too_long = StartupFrame {
        private_data: vec![0; 70_000],
        ..frame.clone()
    };
    assert!(far_too_long.emit().is_err());

    let old = StartupFrame {
        revision: 1,
        ..frame.clone()
    };
    assert_eq!(
        old.emit(),
        Err(ConfigError::EnhancedNeedsRevisionTwo { revision: 1 })
    );

    let deep = Enhanced {
        ord: 0x4000,
        ..enhanced
    };
    let deep = StartupFrame {
        enhanced: Some(deep),
        ..frame
    };
    assert_eq!(
        deep.emit(),
        Err(ConfigError::DepthTooLarge {
            value: 0x4000,
            max: NO_AUTO
        })
    );
}

prop_compose! {
    fn kinds()(send: bool, write: bool, read: bool) -> RtrKinds {
        RtrKinds { send, write, read }
    }
}

fn enhanced() -> impl Strategy<Value = Enhanced> {
    let model = prop_oneof![
        Just(Model::ClientServer),
        kinds().prop_map(Model::PeerToPeer)
    ];
    (model, 0..=NO_AUTO, 0..=NO_AUTO).prop_map(|(model, ird, ord)| Enhanced { model, ird, ord })
}

/// Maximum lengths in bytes of Private Data and of random input. They are smaller under Miri, which
/// takes long to generate them.
const PRIVATE: usize = if cfg!(miri) { 20 } else { 512 };
const RANDOM: usize = if cfg!(miri) { 30 } else { 600 };

prop_compose! {
    fn frames()(
        kind in prop_oneof![Just(FrameKind::Request), Just(FrameKind::Reply)],
        markers: bool,
        crc: bool,
        rejected: bool,
        revision: u8,
        enhanced in proptest::option::of(enhanced()),
        mut private_data in proptest::collection::vec(any::<u8>(), 0..=PRIVATE),
    ) -> StartupFrame {
        let enhanced = enhanced.filter(|_| revision >= 2);
        private_data.truncate(if enhanced.is_some() { 508 } else { 512 });
        StartupFrame { kind, markers, crc, rejected, revision, enhanced, private_data }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn what_was_emitted_parses_to_the_same(frame in frames(), more in 0..9usize) {
        let mut bytes = frame.emit().unwrap();
        let len = bytes.len();
        bytes.resize(len + more, 0xFD);
        let parsed = StartupFrame::parse(frame.kind, &bytes);
        prop_assert_eq!(parsed, Ok(Parsed::Frame(frame, len)));
    }

    #[test]
    fn random_bytes_behind_the_key_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..RANDOM)) {
        let mut bytes = REQUEST_KEY.to_vec();
        bytes.extend_from_slice(&tail);
        let _ = StartupFrame::parse(FrameKind::Request, &bytes);
        let _ = StartupFrame::parse(FrameKind::Request, &tail);
    }
}
