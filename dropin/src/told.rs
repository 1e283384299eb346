//! The plain words of what went wrong, on standard error, once for each connection: a program says "status 10" and no more.

use uwarp_verbs::{Completion, EndReason, Status};

use crate::qp::registry;
use crate::rnic::tell;

/// A completion in error that the program is about to see.
#[cold]
pub(crate) fn completion(done: &Completion) {
    let number = done.qp_num;
    let known = registry::with(number, |kept| {
        let Some(reason) = kept.qp.end_reason() else {
            return;
        };
        if is_worth_words(&reason) && kept.told.first() {
            match kept.qp.connection() {
                Some(connection) => tell(format_args!(
                    "the connection of queue pair {number} to {} ended: {reason}",
                    connection.peer
                )),
                None => tell(format_args!("queue pair {number}: {reason}")),
            }
        }
    });
    // The queue pair is gone, and nothing more is known than what the completion carries.
    if known.is_none()
        && done.status != Status::WrFlush
        && let Some(cause) = &done.cause
    {
        tell(format_args!("queue pair {number}, which is gone: {cause}"));
    }
}

/// Whether an end is an error that a person would ask about. What the program did itself, or the peer's program, is none; what
/// became of a connection that never stood, the event of the connection manager says.
pub(crate) fn is_worth_words(reason: &EndReason) -> bool {
    match reason {
        EndReason::LocalDisconnect | EndReason::PeerDisconnect | EndReason::Aborted => false,
        EndReason::ConnectTimedOut
        | EndReason::StartupFailed { .. }
        | EndReason::ConnectFailed { .. }
        | EndReason::Rejected { .. } => false,
        _ => true,
    }
}

/// Whether something was told of one object.
#[derive(Default)]
pub(crate) struct Told(std::sync::atomic::AtomicBool);

impl Told {
    /// True the first time.
    pub(crate) fn first(&self) -> bool {
        !self.0.swap(true, std::sync::atomic::Ordering::Relaxed)
    }

    /// A new connection begins.
    pub(crate) fn again(&self) {
        self.0.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_a_program_wanted_is_worth_no_words() {
        assert!(!is_worth_words(&EndReason::PeerDisconnect));
        assert!(!is_worth_words(&EndReason::Aborted));
        assert!(is_worth_words(&EndReason::CloseTimedOut));
        assert!(is_worth_words(&EndReason::Stalled { sending: true }));
    }

    #[test]
    fn words_come_once_for_each_connection() {
        let told = Told::default();
        assert!(told.first() && !told.first());
        told.again();
        assert!(told.first());
    }
}
