//! States of a QP on an iWARP RNIC, and the transitions between them.

use core::fmt;

/// State of a QP.
///
/// The names are those of the iWARP verbs; the table below gives the names of `ibv_qp_state`.
///
/// ```text
///            attach                 startup done
///   Idle ───────────► Connecting ───────────────► Rts
///    ▲                    │                      │ │ │
///    │                    │ startup failed       │ │ └── disconnect, or the peer's FIN ──► Closing
///    │                    ▼                      │ └──── an error here, or the peer's ─► Terminate
///    └──── reset ────── Error ◄──────────────────┘       Terminate Message                    │
///                         ▲   LLP lost                             Closing ── closed ──┐      │
///                         └────────────────────────────────────────────────────────────┴──────┘
/// ```
///
/// A program changes the state with `Qp::modify` of `uwarp-verbs`, which has the table of legal
/// transitions. Two details differ from the RDMA protocol verbs:
///
/// * `Connecting` lies between Idle and RTS of the verbs, because here connect and accept are
///   operations of the QP.
/// * After the end of a connection the QP is in `Error`, even after a graceful close, which leads
///   to Idle in the verbs. So no receive is posted for the next connection by mistake.
///   `Qp::reset` leads back to `Idle`.
///
/// | here | `ibv_qp_state` | receives posted in this state | sends posted in this state |
/// |---|---|---|---|
/// | `Idle` | `RESET`, `INIT` | wait | are refused |
/// | `Connecting` | `INIT` | wait | wait |
/// | `Rts` | `RTS` | are used | are carried out |
/// | `Closing` | `SQD` | are used until the peer has closed too | are flushed |
/// | `Terminate` | `SQE` | are flushed | are flushed |
/// | `Error` | `ERR` | are flushed | are flushed |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpState {
    /// No connection. Receives may be posted.
    Idle,
    /// An LLP stream is attached, and MPA startup is in progress. A QP that is connected by its
    /// number is also in this state while it meets its peer, and after the peer has gone
    /// (`Qp::pair`).
    Connecting,
    /// Ready to send: the RDMAP stream is open.
    Rts,
    /// One side asked for a graceful close. Requests posted before are still carried out.
    Closing,
    /// A Terminate Message was sent or received; the LLP is being closed.
    Terminate,
    /// The connection has ended, and all work was flushed. Only a reset leads out of this state.
    Error,
}

/// Event that may change the state of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpEvent {
    /// An LLP stream was attached (connect, accept).
    Attach,
    /// MPA startup reached Full Operation.
    Established,
    /// MPA startup ended without a stream: refused, rejected, timed out, or the peer does not speak
    /// MPA.
    StartupFailed,
    /// The consumer asked for a graceful close.
    Disconnect,
    /// The peer's FIN arrived at an FPDU boundary.
    PeerFin,
    /// An error was found here and a Terminate Message is being sent.
    TerminateSent,
    /// The peer's Terminate Message arrived.
    TerminateReceived,
    /// The LLP was reset, lost or timed out.
    LlpLost,
    /// The consumer gave up the connection, or moved the QP to Error.
    Abort,
    /// Both halves of the LLP are closed.
    Closed,
    /// The consumer resets the QP for another use.
    Reset,
    /// A QP that is connected by its number has left its stream, or an attempt to open one, and
    /// keeps its work.
    StreamLeft,
}

/// Error for an event that is not possible in the current state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidTransition;

impl QpState {
    /// All states.
    pub const ALL: [QpState; 6] = [
        QpState::Idle,
        QpState::Connecting,
        QpState::Rts,
        QpState::Closing,
        QpState::Terminate,
        QpState::Error,
    ];

    /// Returns the state after `event`, or an error if the event is not possible in this state.
    pub fn next(self, event: QpEvent) -> Result<QpState, InvalidTransition> {
        use QpEvent as E;
        use QpState as S;
        match (self, event) {
            (S::Idle, E::Attach) => Ok(S::Connecting),
            (S::Connecting, E::Established) => Ok(S::Rts),
            (S::Connecting, E::StartupFailed | E::LlpLost | E::Disconnect | E::PeerFin) => {
                Ok(S::Error)
            }
            // RFC 6581 sections 9.1 and 9.2: an accepted startup may end with a Terminate (codes 6
            // and 7).
            (S::Connecting, E::TerminateSent) => Ok(S::Terminate),
            (S::Rts, E::Disconnect | E::PeerFin) => Ok(S::Closing),
            (S::Rts | S::Closing, E::TerminateSent | E::TerminateReceived) => Ok(S::Terminate),
            (S::Closing, E::Disconnect | E::PeerFin) => Ok(S::Closing),
            (S::Terminate, E::PeerFin | E::Disconnect) => Ok(S::Terminate),
            (S::Rts | S::Closing | S::Terminate, E::LlpLost) => Ok(S::Error),
            (S::Closing | S::Terminate, E::Closed) => Ok(S::Error),
            (_, E::Abort) => Ok(S::Error),
            (S::Idle | S::Error, E::Reset) => Ok(S::Idle),
            (S::Error, E::Disconnect) => Ok(S::Error),
            (S::Connecting | S::Rts, E::StreamLeft) => Ok(S::Connecting),
            _ => Err(InvalidTransition),
        }
    }

    /// Returns true if work posted in this state completes at once as flushed. Receives in
    /// `Closing` are flushed only after the peer's FIN.
    pub fn flushes(self) -> bool {
        matches!(self, QpState::Closing | QpState::Terminate | QpState::Error)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Idle => "IDLE",
            QpState::Connecting => "CONNECTING",
            QpState::Rts => "RTS",
            QpState::Closing => "CLOSING",
            QpState::Terminate => "TERMINATE",
            QpState::Error => "ERROR",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    const STATES: [QpState; 6] = QpState::ALL;
    const EVENTS: [QpEvent; 12] = [
        QpEvent::Attach,
        QpEvent::Established,
        QpEvent::StartupFailed,
        QpEvent::Disconnect,
        QpEvent::PeerFin,
        QpEvent::TerminateSent,
        QpEvent::TerminateReceived,
        QpEvent::LlpLost,
        QpEvent::Abort,
        QpEvent::Closed,
        QpEvent::Reset,
        QpEvent::StreamLeft,
    ];

    #[test]
    fn state_table() {
        let mut table = String::new();
        write!(table, "{:18}", "").unwrap();
        for state in STATES {
            write!(table, "{:>12}", state.to_string()).unwrap();
        }
        table.push('\n');
        for event in EVENTS {
            write!(table, "{:18}", format!("{event:?}")).unwrap();
            for state in STATES {
                let cell = state
                    .next(event)
                    .map_or_else(|_| "-".to_owned(), |next| next.to_string());
                write!(table, "{cell:>12}").unwrap();
            }
            table.push('\n');
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn only_reset_leads_out_of_error() {
        for event in EVENTS {
            match QpState::Error.next(event) {
                Ok(QpState::Error) | Err(_) => {}
                Ok(next) => assert_eq!((event, next), (QpEvent::Reset, QpState::Idle)),
            }
        }
    }
}
