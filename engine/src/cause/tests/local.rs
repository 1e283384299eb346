//! Causes on this side: work requests, options, states, limits.

use std::net::IpAddr;

use crate::mem::{Access, LocalFault, LocalFaultKind, RegisterError, SlotFault, WindowKind};
use uwarp_rdmap::Peer;

use super::*;
use crate::limits::What;

/// Every fault of a window, a fast registration or an invalidation, with a work request that can
/// have it.
fn memory() -> Vec<LocalProblem> {
    let (stag, lkey) = (0x0000_1a2b, 0x0000_1a2c);
    let (access, region) = (Access::REMOTE_WRITE, Access::REMOTE_READ);
    let faults = every!(SlotFault {
        SlotFault::NoWindow { .. } => [SlotFault::NoWindow { stag }],
        SlotFault::NoFastRegion { .. } => [SlotFault::NoFastRegion { stag }],
        SlotFault::WrongKind { .. } => [SlotFault::WrongKind { stag, kind: WindowKind::Type1 }],
        SlotFault::NotAssociated { .. } => [SlotFault::NotAssociated { stag }],
        SlotFault::StillValid { .. } => [SlotFault::StillValid { stag, now: stag + 1 }],
        SlotFault::SameKey { .. } => [SlotFault::SameKey { stag }],
        SlotFault::NoRegion { .. } => [SlotFault::NoRegion { lkey }],
        SlotFault::NoBindRight { .. } => [SlotFault::NoBindRight { lkey }],
        SlotFault::Rights { .. } => [SlotFault::Rights { access, region }],
        SlotFault::OutOfBounds { .. } => [
            SlotFault::OutOfBounds { addr: 0x1f00, len: 512, base: 0x1000, size: 4096 }
        ],
        SlotFault::NoBytes => [SlotFault::NoBytes],
        SlotFault::Register(_) => [SlotFault::Register(RegisterError::NeedsLocalWrite { access })],
        SlotFault::NotValid { .. } => [SlotFault::NotValid { stag }],
        SlotFault::Type1 { .. } => [SlotFault::Type1 { stag }],
        SlotFault::WindowsBound { .. } => [SlotFault::WindowsBound { stag, count: 2 }],
    });
    faults
        .into_iter()
        .map(|fault| {
            let verb = match fault {
                SlotFault::NoWindow { .. }
                | SlotFault::WrongKind { .. }
                | SlotFault::NotAssociated { .. }
                | SlotFault::NoRegion { .. }
                | SlotFault::NoBindRight { .. }
                | SlotFault::Rights { .. }
                | SlotFault::NoBytes
                | SlotFault::OutOfBounds { .. } => LocalVerb::Bind,
                SlotFault::NoFastRegion { .. }
                | SlotFault::StillValid { .. }
                | SlotFault::SameKey { .. }
                | SlotFault::Register(_) => LocalVerb::Register,
                SlotFault::NotValid { .. }
                | SlotFault::Type1 { .. }
                | SlotFault::WindowsBound { .. } => LocalVerb::Invalidate,
            };
            LocalProblem::Memory { verb, fault }
        })
        .collect()
}

/// Every fault of an element whose memory another work request should have registered.
fn elements() -> impl Iterator<Item = LocalProblem> {
    let lkey = 0x0000_1a2c;
    let kinds = every!(LocalFaultKind {
        LocalFaultKind::InvalidKey { .. } => [LocalFaultKind::InvalidKey { lkey }],
        LocalFaultKind::Window { .. } => [LocalFaultKind::Window { lkey }],
        LocalFaultKind::NotAssociated { .. } => [LocalFaultKind::NotAssociated { lkey }],
        LocalFaultKind::NotWritable { .. } => [LocalFaultKind::NotWritable { lkey }],
        LocalFaultKind::OutOfBounds { .. } => [
            LocalFaultKind::OutOfBounds { lkey, addr: 0x1f00, len: 512 }
        ],
        LocalFaultKind::Unmapped { .. } => [LocalFaultKind::Unmapped { lkey }],
        LocalFaultKind::TooLong => [LocalFaultKind::TooLong],
        LocalFaultKind::OutsideList { .. } => [
            LocalFaultKind::OutsideList { offset: 60, len: 8, total: 64 }
        ],
    });
    let index = 1;
    kinds
        .into_iter()
        .map(move |kind| LocalProblem::Element(LocalFault { index, kind }))
}

#[test]
fn work_requests_of_this_side_in_words() {
    let mut problems = every!(LocalProblem {
        LocalProblem::ReceiveGone => [LocalProblem::ReceiveGone],
        LocalProblem::ReadSinkGone => [LocalProblem::ReadSinkGone],
        LocalProblem::PayloadGone => [LocalProblem::PayloadGone],
        LocalProblem::Unmapped { .. } => [
            LocalProblem::Unmapped { stag: 0x0000_1a2b, by: Unmapped::Write },
            LocalProblem::Unmapped { stag: 0x0000_1a2b, by: Unmapped::Read },
            LocalProblem::Unmapped { stag: 0x0000_1a2b, by: Unmapped::Atomic },
            LocalProblem::Unmapped { stag: 0x0000_1a2b, by: Unmapped::Receive },
            LocalProblem::Unmapped { stag: 0x0000_1a2b, by: Unmapped::Sink },
            LocalProblem::Unmapped { stag: 0, by: Unmapped::Payload },
        ],
        LocalProblem::NoReads => [LocalProblem::NoReads],
        LocalProblem::NoSendImmediate => [LocalProblem::NoSendImmediate],
        LocalProblem::NotADatagram => [LocalProblem::NotADatagram],
        LocalProblem::DatagramTooLong { .. } => [LocalProblem::DatagramTooLong { max: 1024 }],
        LocalProblem::RtrRead => [LocalProblem::RtrRead],
        LocalProblem::MovedToTerminate => [LocalProblem::MovedToTerminate],
        LocalProblem::QpReset => [LocalProblem::QpReset],
        LocalProblem::QpDropped => [LocalProblem::QpDropped],
        LocalProblem::Memory { .. } => [LocalProblem::Memory {
            verb: LocalVerb::InvalidateSink,
            fault: SlotFault::NotValid { stag: 0x0000_1a2b },
        }],
        LocalProblem::Element(_) => [LocalProblem::Element(LocalFault {
            index: 0,
            kind: LocalFaultKind::TooLong,
        })],
    });
    problems.extend(memory());
    problems.extend(elements());
    let causes = problems.into_iter().map(Cause::local);
    insta::assert_snapshot!(table("work requests of this side", causes, &[]));
}

#[test]
fn options_and_states_in_words() {
    let options = every!(ConfigError {
        ConfigError::PrivateDataTooLong { .. } => [
            ConfigError::PrivateDataTooLong { len: 600, max: 508 }
        ],
        ConfigError::DepthTooLarge { .. } => [
            ConfigError::DepthTooLarge { value: 0x4000, max: 0x3fff }
        ],
        ConfigError::LimitBelowIrd { .. } => [ConfigError::LimitBelowIrd { ird: 8, max_ird: 4 }],
        ConfigError::PeerToPeerNeedsRevisionTwo => [ConfigError::PeerToPeerNeedsRevisionTwo],
        ConfigError::NoRtrKind => [ConfigError::NoRtrKind],
        ConfigError::EnhancedNeedsRevisionTwo { .. } => [
            ConfigError::EnhancedNeedsRevisionTwo { revision: 1 }
        ],
        ConfigError::NothingToAnswer => [ConfigError::NothingToAnswer],
    });
    let (got, max, peer) = (300, 252, Peer::Siw);
    let limit = PrivateDataLimit { got, max, peer };
    let states = every!(QpState {
        QpState::Idle => [QpState::Idle],
        QpState::Connecting => [QpState::Connecting],
        QpState::Rts => [QpState::Rts],
        QpState::Closing => [QpState::Closing],
        QpState::Terminate => [QpState::Terminate],
        QpState::Error => [QpState::Error],
    });
    let calls = every!(RefusedCall {
        RefusedCall::Inherited => [RefusedCall::Inherited],
        RefusedCall::WouldWait => [RefusedCall::WouldWait],
        RefusedCall::DecisionTooLate => [RefusedCall::DecisionTooLate],
    });
    let text = [
        table("calls of connection management", calls, &[]),
        table("options", options, &[]),
        table("private data that the peer cannot take", [limit], &[]),
        table("the QP in another state than the call needs", states, &[]),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn limits_in_words_and_hints() {
    let kinds = every!(What {
        What::HalfOpen => [What::HalfOpen],
        What::Connections => [What::Connections],
        What::Ird => [What::Ird],
        What::ReceiveMemory => [What::ReceiveMemory],
        What::SendMemory => [What::SendMemory],
    });
    let peers: [Option<IpAddr>; 3] = [
        None,
        "192.0.2.2".parse().ok(),
        "2001:db8:0:1::".parse().ok(),
    ];
    let limits = kinds
        .into_iter()
        .flat_map(|what| peers.map(|peer| LimitReached::new(what, 16, peer)));
    insta::assert_snapshot!(table("limits", limits, &[]));
}

#[test]
fn a_limit_says_the_same_as_an_error_and_as_a_cause() {
    let limit = LimitReached::new(What::Connections, 16, None);
    assert_eq!(
        Cause::from(limit).to_string(),
        format!("limit reached: {limit}")
    );
}
