//! Causes and events of failed calls of connection management.

use uwarp_engine::cause::{Cause, RefusedCall};
use uwarp_engine::event::EndReason;
use uwarp_engine::fork_guard::Inherited;
use uwarp_engine::limits::{LimitReached, What};
use uwarp_engine::llp::LlpError;
use uwarp_engine::peer::PrivateDataLimit;
use uwarp_engine::state::QpState;
use uwarp_mpa::{ConfigError, StartupError};

use crate::cm::{
    AcceptError, Attempt, CmReason, ConnectError, RequestError, ResolveError, of_failure,
};
use crate::progress::WouldWait;
use samples::{addr, reasons};

#[path = "../../../../engine/src/cause/tests/samples.rs"]
mod samples;

/// Samples of every variant of an enum. A variant without a sample does not compile.
macro_rules! every {
    ($type:ty { $($variant:pat => [$($sample:expr),+ $(,)?]),+ $(,)? }) => {{
        let _ = |value: &$type| match value { $($variant => (),)+ };
        every_sample!($type { $($variant => [$($sample),+]),+ })
    }};
}

/// Samples of the variants of an enum. The tests of `uwarp-engine` check that none is missing.
macro_rules! every_sample {
    ($type:ty { $($variant:pat => [$($sample:expr),+ $(,)?]),+ $(,)? }) => {{
        let mut samples: Vec<$type> = Vec::new();
        $($(
            let sample: $type = $sample;
            assert!(matches!(sample, $variant), "{sample:?} is in another row");
            samples.push(sample);
        )+)+
        samples
    }};
}
use every_sample;

/// Kind and status of the event that an id gets, and the words of its [`CmReason`].
#[test]
fn failures_of_connection_management_in_words() {
    let mut text = String::from("# events of an id whose connection does not come about\n");
    for reason in reasons() {
        let (kind, status) = of_failure(&reason);
        let cause = CmReason::Connection {
            reason: reason.clone(),
        }
        .cause();
        assert_eq!(cause, reason.cause());
        text += &format!("{kind:?}, status {status}\n  {reason}\n");
    }
    insta::assert_snapshot!(text);
}

/// Every other error of connection management has the cause of the error that it contains.
#[test]
fn errors_of_connection_management_have_the_cause_of_what_is_in_them() {
    let (addr, error) = (addr(), LlpError::Reset { addr: addr() });
    let startup = StartupError::RtrMissing;
    let (options, state) = (ConfigError::NoRtrKind, QpState::Rts);
    let limit = LimitReached::new(What::Connections, 8, None);
    let (got, max, peer) = (300, 252, uwarp_rdmap::Peer::Siw);
    let data = PrivateDataLimit { got, max, peer };
    let rejected = EndReason::Rejected {
        private_data: b"no".to_vec(),
        peer_ird: None,
        peer_ord: None,
        ord_needed: None,
    };
    let connect = every!(ConnectError {
        ConnectError::Llp { .. } => [ConnectError::Llp { error }],
        ConnectError::NoneConnected { .. } => [ConnectError::NoneConnected {
            tried: vec![Attempt { addr, error: Box::new(ConnectError::Llp { error }) }],
        }],
        ConnectError::Resolve(_) => [ConnectError::Resolve(ResolveError::NoAddress)],
        ConnectError::Startup { .. } => [ConnectError::Startup { addr, error: startup }],
        ConnectError::Rejected { .. } => [
            ConnectError::Rejected {
                addr, private_data: b"no".to_vec(), peer_ird: None, peer_ord: None, ord_needed: None
            }
        ],
        ConnectError::QpInUse { .. } => [ConnectError::QpInUse { state }],
        ConnectError::Inherited(_) => [ConnectError::Inherited(Inherited)],
        ConnectError::WouldWait(_) => [ConnectError::WouldWait(WouldWait)],
        ConnectError::Options(_) => [ConnectError::Options(options)],
        ConnectError::PrivateData(_) => [ConnectError::PrivateData(data)],
        ConnectError::Ended { .. } => [
            ConnectError::Ended { addr, reason: Box::new(EndReason::ConnectTimedOut) }
        ],
    });
    let no_address = LlpError::Misuse {
        op: "resolve the address",
        why: "the name has no address",
    };
    let meant = [
        Cause::from(error),
        Cause::from(error),
        Cause::from(no_address),
        Cause::from(startup),
        rejected.cause(),
        Cause::from(state),
        Cause::from(RefusedCall::Inherited),
        Cause::from(RefusedCall::WouldWait),
        Cause::from(options),
        Cause::from(data),
        EndReason::ConnectTimedOut.cause(),
    ];
    assert!(connect.iter().map(Cause::from).eq(meant));

    let accept = every!(AcceptError {
        AcceptError::TooLate { .. } => [AcceptError::TooLate { peer: addr }],
        AcceptError::QpInUse { .. } => [AcceptError::QpInUse { state }],
        AcceptError::Options(_) => [AcceptError::Options(options)],
        AcceptError::PrivateData(_) => [AcceptError::PrivateData(data)],
        AcceptError::Inherited(_) => [AcceptError::Inherited(Inherited)],
        AcceptError::Llp(_) => [AcceptError::Llp(error)],
        AcceptError::Limit(_) => [AcceptError::Limit(limit)],
    });
    let meant = [
        Cause::from(RefusedCall::DecisionTooLate),
        Cause::from(state),
        Cause::from(options),
        Cause::from(data),
        Cause::from(RefusedCall::Inherited),
        Cause::from(error),
        Cause::from(limit),
    ];
    assert!(accept.iter().map(Cause::from).eq(meant));

    let request = every!(RequestError {
        RequestError::Startup { .. } => [RequestError::Startup { peer: addr, error: startup }],
        RequestError::Settings(_) => [RequestError::Settings(options)],
        RequestError::Inherited(_) => [RequestError::Inherited(Inherited)],
        RequestError::WouldWait(_) => [RequestError::WouldWait(WouldWait)],
        RequestError::Llp(_) => [RequestError::Llp(error)],
        RequestError::Limit(_) => [RequestError::Limit(limit)],
    });
    let meant = [
        Cause::from(startup),
        Cause::from(options),
        Cause::from(RefusedCall::Inherited),
        Cause::from(RefusedCall::WouldWait),
        Cause::from(error),
        Cause::from(limit),
    ];
    assert!(request.iter().map(Cause::from).eq(meant));

    let reasons = every!(CmReason {
        CmReason::Network { .. } => [CmReason::Network { error }],
        CmReason::Connection { .. } => [CmReason::Connection { reason: EndReason::Aborted }],
        CmReason::Startup { .. } => [CmReason::Startup { peer: addr, error: startup }],
    });
    let meant = [
        Cause::from(error),
        EndReason::Aborted.cause(),
        Cause::from(startup),
    ];
    assert!(reasons.iter().map(CmReason::cause).eq(meant));
}
