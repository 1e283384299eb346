//! The words of every cause, to be read as a user would.

use super::*;
use crate::mem::{LocalFault, LocalFaultKind, SlotFault};

#[test]
fn a_cause_is_small_enough_for_every_completion() {
    assert!(size_of::<Cause>() <= 56, "{}", size_of::<Cause>());
    assert!(size_of::<Option<Cause>>() <= 56);
}

/// One cause with all that it answers.
fn row(cause: &Cause) -> String {
    let code = cause
        .code()
        .map_or_else(String::new, |code| format!(", {code}"));
    let demand = cause
        .requirement()
        .map_or_else(String::new, |demand| format!(", {}", demand.id()));
    let hint = cause.hint().unwrap_or("-");
    format!(
        "{}\n  hint: {hint}\n  {}, {}{code}{demand}\n",
        cause.sentence(),
        cause.who(),
        cause.layer()
    )
}

fn table(title: &str, causes: impl IntoIterator<Item = Cause>) -> String {
    let rows: String = causes.into_iter().map(|cause| row(&cause)).collect();
    format!("# {title}\n{rows}\n")
}

fn statuses() -> impl Iterator<Item = Cause> {
    [
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::WrFlush,
        Status::WindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::ReceiverNotReady,
        Status::RemoteAbort,
        Status::Fatal,
        Status::ResponseTimeout,
        Status::General,
    ]
    .into_iter()
    .filter_map(Cause::of_status)
}

/// Every Terminate of which the numbers mean something, and some that mean nothing.
fn terminates() -> impl Iterator<Item = Cause> {
    let codes = [(0_u8, 0_u8), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)];
    codes.into_iter().flat_map(|(layer, etype)| {
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xFF]
            .into_iter()
            .filter_map(move |code| {
                Terminate::parse(&[layer << 4 | etype, code, 0, 0]).map(Cause::from)
            })
    })
}

fn ends() -> [Cause; 11] {
    [
        EndKind::LocalDisconnect,
        EndKind::PeerDisconnect,
        EndKind::Aborted,
        EndKind::ClosedMidway,
        EndKind::ConnectTimedOut,
        EndKind::CloseTimedOut,
        EndKind::Stalled { sending: true },
        EndKind::Stalled { sending: false },
        EndKind::Rejected {
            octets: 7,
            peer_ord: Some(4),
        },
        EndKind::Inherited,
        EndKind::DecisionTooLate,
    ]
    .map(Cause::end)
}

fn local() -> [Cause; 11] {
    let lkey = 0x1a2b_0001;
    [
        LocalProblem::ReceiveGone,
        LocalProblem::ReadSinkGone,
        LocalProblem::PayloadGone,
        LocalProblem::Element(LocalFault {
            index: 1,
            kind: LocalFaultKind::InvalidKey { lkey },
        }),
        LocalProblem::Memory {
            verb: LocalVerb::Invalidate,
            fault: SlotFault::NotValid { stag: lkey },
        },
        LocalProblem::Memory {
            verb: LocalVerb::InvalidateSink,
            fault: SlotFault::WindowsBound {
                stag: lkey,
                count: 2,
            },
        },
        LocalProblem::NoReads,
        LocalProblem::RtrRead,
        LocalProblem::MovedToTerminate,
        LocalProblem::QpReset,
        LocalProblem::QpDropped,
    ]
    .map(Cause::local)
}

/// To be read as a user would.
#[test]
fn statuses_ends_local_problems_and_terminates_in_words() {
    let text = [
        table("completion statuses", statuses()),
        table("ends of a connection", ends()),
        table("work requests of this side", local()),
        table("Terminate Messages of the peer", terminates()),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn every_status_local_problem_and_terminate_has_a_hint_and_tells_it_once() {
    for cause in statuses().chain(local()).chain(terminates()) {
        let hint = cause.hint().unwrap_or_else(|| panic!("{cause}"));
        assert_eq!(cause.to_string().matches(hint).count(), 1, "{cause}");
    }
}
