//! Tests of each [`Cause`] that comes from TCP, its link, MPA startup or FPDUs.

use std::net::IpAddr;

use uwarp_llp::AttachError;
use uwarp_mpa::{Responder, ResponderConfig, Revision, Role, RtrKinds};

use super::*;

pub(super) fn llp() -> Vec<LlpError> {
    let (addr, op) = (addr(), "connect");
    let ip = IpAddr::from([192, 0, 2, 2]);
    every!(LlpError {
        LlpError::Refused { .. } => [LlpError::Refused { addr }],
        LlpError::Unreachable { .. } => [LlpError::Unreachable { addr }],
        LlpError::TimedOut { .. } => [LlpError::TimedOut { addr }],
        LlpError::Reset { .. } => [LlpError::Reset { addr }],
        LlpError::Broken { .. } => [LlpError::Broken { addr }],
        LlpError::AddressInUse { .. } => [LlpError::AddressInUse { addr }],
        LlpError::AddressUnavailable { .. } => [LlpError::AddressUnavailable { addr }],
        LlpError::FamilyMismatch { .. } => [
            LlpError::FamilyMismatch { local: "::1".parse().unwrap(), peer: ip }
        ],
        LlpError::ZoneMissing { .. } => [LlpError::ZoneMissing { addr: "fe80::1".parse().unwrap() }],
        LlpError::PermissionDenied { .. } => [LlpError::PermissionDenied { op: "listen" }],
        LlpError::Exhausted { .. } => [LlpError::Exhausted { op, what: "file descriptors" }],
        LlpError::Misuse { .. } => [LlpError::Misuse { op, why: "the families of the two addresses differ" }],
        LlpError::Attach(_) => [LlpError::Attach(AttachError::NoTun)],
        LlpError::LinkDown { .. } => [LlpError::LinkDown { why: "the other end has gone", errno: 32 }],
        LlpError::KernelHasAddress { .. } => [LlpError::KernelHasAddress { addr: ip }],
        LlpError::DuplicateAddress { .. } => [
            LlpError::DuplicateAddress { addr: ip, mac: [2, 0, 0, 0, 0, 1] }
        ],
        LlpError::Io { .. } => [LlpError::Io { op, errno: 22 }],
    })
}

pub(super) fn startup() -> Vec<StartupError> {
    let (initiator, responder) = (Role::Initiator, Role::Responder);
    let closed = |received, enhanced| StartupError::Closed {
        reset: false,
        received,
        enhanced,
        peer: responder,
    };
    every!(StartupError {
        StartupError::NotMpa { .. } => [not_mpa()],
        StartupError::RequestInsteadOfReply => [StartupError::RequestInsteadOfReply],
        StartupError::ReplyInsteadOfRequest => [StartupError::ReplyInsteadOfRequest],
        StartupError::UnsupportedRevision { .. } => [
            StartupError::UnsupportedRevision { revision: 3, highest: 2 },
            StartupError::UnsupportedRevision { revision: 2, highest: 1 },
        ],
        StartupError::PrivateDataTooLong { .. } => [StartupError::PrivateDataTooLong { len: 513 }],
        StartupError::EnhancedDataMissing { .. } => [StartupError::EnhancedDataMissing { len: 3 }],
        StartupError::EnhancedMismatch { .. } => [
            StartupError::EnhancedMismatch { reply_enhanced: true },
            StartupError::EnhancedMismatch { reply_enhanced: false },
        ],
        StartupError::TrailingBytes { .. } => [StartupError::TrailingBytes { count: 4 }],
        StartupError::RtrMissing => [StartupError::RtrMissing],
        StartupError::NoPlace { .. } => [
            StartupError::NoPlace { limit: 8, of_peer: true },
            StartupError::NoPlace { limit: 64, of_peer: false },
        ],
        StartupError::Displaced { .. } => [
            StartupError::Displaced { limit: 64, of_listener: true },
            StartupError::Displaced { limit: 64, of_listener: false },
        ],
        StartupError::TooManyConnections { .. } => [
            StartupError::TooManyConnections { limit: 8, of_peer: true },
            StartupError::TooManyConnections { limit: 64, of_peer: false },
        ],
        StartupError::TooManyStagErrors { .. } => [
            StartupError::TooManyStagErrors { limit: 256, wait_ms: 800 },
        ],
        StartupError::Closed { .. } => [closed(0, true), closed(0, false), closed(7, true)],
        StartupError::TimedOut { .. } => [
            StartupError::TimedOut { received: 0, peer: responder },
            StartupError::TimedOut { received: 0, peer: initiator },
            StartupError::TimedOut { received: 19, peer: initiator },
        ],
    })
}

/// Returns the error of a responder that reads something other than a Request.
fn not_mpa() -> StartupError {
    let config = ResponderConfig {
        crc: true,
        markers: false,
        max_revision: Revision::One,
        max_ird: 0,
        rtr: RtrKinds::NONE,
    };
    let mut responder = Responder::new(config).unwrap();
    let sent = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n";
    responder.receive(sent).unwrap_err()
}

#[test]
fn tcp_and_startup_in_words() {
    let framing = every!(DeframeError {
        DeframeError::BadCrc { .. } => [
            DeframeError::BadCrc { expected: 1, got: 2, position: 100 }
        ],
        DeframeError::MarkerMismatch { .. } => [
            DeframeError::MarkerMismatch { expected: 100, got: 96, position: 512 }
        ],
        DeframeError::LengthTooLong { .. } => [
            DeframeError::LengthTooLong { len: 65000, position: 100 }
        ],
    });
    let text = [
        // Causes with this text have no separate hint, because their sentence already contains the
        // commands to run.
        table("TCP and the link below", llp(), &["/dev/net/tun"]),
        table("MPA startup", startup(), &[]),
        table("FPDUs", framing.into_iter().map(Cause::framing), &[]),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn what_to_try_is_not_in_the_sentence_of_tcp_as_well() {
    for error in llp() {
        let cause = Cause::from(error);
        let Some(hint) = cause.hint() else { continue };
        let sentence = cause.sentence();
        for words in hint.split([',', ';']) {
            assert!(!sentence.contains(words), "{cause}");
        }
    }
}
