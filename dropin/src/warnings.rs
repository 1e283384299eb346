//! Messages about errors on standard error, at most one for each connection. Without them, a user
//! would see only messages of the program, such as "status 10".

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use uwarp_verbs::{Completion, EndReason, Status};

use crate::qp::QpInner;
use crate::registry::QPS;
use crate::rnic::{warn, warn_about};

/// Prints the cause of a failed completion, before the program gets it.
#[cold]
pub(crate) fn completion(done: &Completion) {
    let number = done.qp_num;
    let words = QPS.with(number, |_, inner| {
        let reason = inner.qp.end_reason();
        reason.and_then(|reason| end_message(inner, &reason))
    });
    match words {
        Some(Some((peer, words))) => warn_about(peer, format_args!("{words}")),
        Some(None) => {}
        // The queue pair was destroyed. Only the cause in the completion is known.
        None => {
            if done.status != Status::WrFlush
                && let Some(cause) = &done.cause
            {
                warn(format_args!(
                    "queue pair {number} (already destroyed): {cause}"
                ));
            }
        }
    }
}

/// Prints the reason for the end of a connection, before the program gets the event.
pub(crate) fn end(number: u32, reason: &EndReason) {
    let message = QPS.with(number, |_, inner| end_message(inner, reason));
    if let Some(Some((peer, words))) = message {
        warn_about(peer, format_args!("{words}"));
    }
}

/// Returns the message about the end of a connection, or `None` if an earlier call returned it. The
/// caller prints it after the registry is unlocked, because printing makes system calls.
fn end_message(inner: &QpInner, reason: &EndReason) -> Option<(Option<SocketAddr>, String)> {
    if !is_reportable(reason) || !inner.end_warning.claim() {
        return None;
    }
    let number = inner.qp.qp_num();
    let peer = inner.qp.query().peer;
    let words = match peer {
        Some(peer) => format!("the connection of queue pair {number} to {peer} ended: {reason}"),
        None => format!("queue pair {number}: {reason}"),
    };
    Some((peer, words))
}

/// Returns true if the end of a connection is an error that a message should explain. An end that
/// either program requested is not an error. The event of the connection manager reports a failed
/// connection attempt.
pub(crate) fn is_reportable(reason: &EndReason) -> bool {
    !matches!(
        reason,
        EndReason::LocalDisconnect
            | EndReason::PeerDisconnect
            | EndReason::Aborted
            | EndReason::ConnectTimedOut
            | EndReason::StartupFailed { .. }
            | EndReason::ConnectFailed { .. }
            | EndReason::Rejected { .. }
    )
}

/// Remembers whether a warning about one object was printed.
pub(crate) struct OnceWarning(AtomicBool);

impl OnceWarning {
    pub(crate) const fn new() -> Self {
        OnceWarning(AtomicBool::new(false))
    }

    /// Marks the warning as printed. Returns true if it was not marked before.
    pub(crate) fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Allows the warning again, for a new connection.
    pub(crate) fn rearm(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_a_program_wanted_is_worth_no_words() {
        assert!(!is_reportable(&EndReason::PeerDisconnect));
        assert!(!is_reportable(&EndReason::Aborted));
        assert!(is_reportable(&EndReason::CloseTimedOut { undelivered: 0 }));
        assert!(is_reportable(&EndReason::Stalled { sending: true }));
    }

    #[test]
    fn words_come_once_for_each_connection() {
        let warning = OnceWarning::new();
        assert!(warning.claim() && !warning.claim());
        warning.rearm();
        assert!(warning.claim());
    }
}
