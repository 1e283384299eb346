use alloc::vec::Vec;

use super::*;

/// Returns one error for each variant and each wording of its message.
fn all() -> Vec<StartupError> {
    let not_mpa = |first: &[u8], peer| StartupError::NotMpa {
        first: FirstBytes::of(first, &[]),
        peer,
    };
    let closed = |reset, received, enhanced, peer| StartupError::Closed {
        reset,
        received,
        enhanced,
        peer,
    };
    let (initiator, responder) = (Role::Initiator, Role::Responder);
    Vec::from([
        not_mpa(b"HTTP/1.1 400 Bad Request\r\n", responder),
        not_mpa(b"HTTP/1.1 400\r\nServer: x", responder),
        not_mpa(b"GET / HTTP/1.1\r\n", initiator),
        not_mpa(b"\x16\x03\x01\x02\x00", initiator),
        not_mpa(b"x\x00\x01", initiator),
        not_mpa(b"?", initiator),
        not_mpa("h\u{e9}llo".as_bytes(), initiator),
        StartupError::RequestInsteadOfReply,
        StartupError::ReplyInsteadOfRequest,
        StartupError::UnsupportedRevision {
            revision: 0,
            highest: 2,
        },
        StartupError::UnsupportedRevision {
            revision: 2,
            highest: 1,
        },
        StartupError::PrivateDataTooLong { len: 513 },
        StartupError::EnhancedDataMissing { len: 3 },
        StartupError::EnhancedMismatch {
            reply_enhanced: false,
        },
        StartupError::EnhancedMismatch {
            reply_enhanced: true,
        },
        StartupError::NoPlace {
            limit: 16,
            of_peer: true,
        },
        StartupError::NoPlace {
            limit: 1024,
            of_peer: false,
        },
        StartupError::Displaced {
            limit: 4096,
            of_listener: true,
        },
        StartupError::Displaced {
            limit: 16384,
            of_listener: false,
        },
        StartupError::TooManyConnections {
            limit: 8,
            of_peer: true,
        },
        StartupError::TooManyConnections {
            limit: 4096,
            of_peer: false,
        },
        StartupError::TooManyStagErrors {
            limit: 256,
            wait_ms: 800,
        },
        closed(false, 0, true, responder),
        closed(true, 0, true, responder),
        closed(false, 0, false, responder),
        closed(true, 1, true, responder),
        closed(false, 19, false, initiator),
        StartupError::TimedOut {
            received: 0,
            peer: initiator,
        },
        StartupError::TimedOut {
            received: 0,
            peer: responder,
        },
        StartupError::TimedOut {
            received: 17,
            peer: initiator,
        },
    ])
}

#[test]
fn every_startup_error_has_its_code_and_words() {
    let table: Vec<_> = all()
        .iter()
        .map(|e| {
            let retry = if e.may_retry_with_revision_1() {
                " (retry with revision 1)"
            } else {
                ""
            };
            std::format!("{} {}{retry}: {e}", e.code().code(), e.code())
        })
        .collect();
    insta::assert_snapshot!(table.join("\n"));
}

#[test]
fn every_config_error_has_its_words() {
    let all = [
        ConfigError::PrivateDataTooLong { len: 600, max: 512 },
        ConfigError::PrivateDataTooLong { len: 509, max: 508 },
        ConfigError::DepthTooLarge {
            value: 20_000,
            max: NO_AUTO,
        },
        ConfigError::LimitBelowIrd { ird: 8, max_ird: 4 },
        ConfigError::PeerToPeerNeedsRevisionTwo,
        ConfigError::NoRtrKind,
        ConfigError::EnhancedNeedsRevisionTwo { revision: 1 },
        ConfigError::NothingToAnswer,
    ];
    let text: Vec<_> = all.iter().map(|e| std::format!("{e}")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn first_bytes_keep_24() {
    let first = FirstBytes::of(b"abc", &[b'd'; 40]);
    assert_eq!(first.as_slice(), b"abcddddddddddddddddddddd");
    assert_eq!(FirstBytes::of(&[], &[]).as_slice(), b"");
}
