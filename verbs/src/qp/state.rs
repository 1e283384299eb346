//! The states of a QP on an iWARP RNIC, and what moves it from one to the next.

use core::fmt;

/// The state of a QP.
///
/// The names are those of the iWARP verbs; `ibv` names are beside them, because programs know those.
///
/// ```text
///            attach                 startup done
///   Idle ───────────► Connecting ───────────────► Rts
///    ▲                    │                      │ │ │
///    │                    │ startup failed       │ │ └── disconnect, or the peer's FIN ──► Closing
///    │                    ▼                      │ └──── an error here, or the peer's ───► Terminate
///    └──── reset ────── Error ◄──────────────────┘       Terminate Message                    │
///                         ▲   LLP lost                             Closing ── closed ──┐      │
///                         └────────────────────────────────────────────────────────────┴──────┘
/// ```
///
/// Leaving a state on the program's word is [`Qp::modify`](crate::Qp::modify), which has the table of what is legal.
/// Two things differ from the RDMA protocol verbs: `Connecting` is between their Idle and RTS, for connect and
/// accept belong to the QP here; and a QP whose connection has ended is in `Error`, also after a graceful close
/// (there: Idle), so that no receive is posted for the next connection by mistake. [`Qp::reset`](crate::Qp::reset)
/// leads back.
///
/// | here | `ibv_qp_state` | may post receives | may post sends |
/// |---|---|---|---|
/// | `Idle` | `RESET`, `INIT` | yes, they wait | no |
/// | `Connecting` | `INIT` | yes, they wait | yes, they wait |
/// | `Rts` | `RTS` | yes | yes |
/// | `Closing` | `SQD` | yes, until the peer has closed too | they are flushed |
/// | `Terminate` | `SQE` | they are flushed | they are flushed |
/// | `Error` | `ERR` | they are flushed | they are flushed |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpState {
    /// No connection. Receives may be posted.
    Idle,
    /// An LLP stream is attached and MPA startup is under way.
    Connecting,
    /// Ready to send: the RDMAP stream is open.
    Rts,
    /// One side asked for a graceful close; what was posted before is still carried out.
    Closing,
    /// A Terminate Message was sent or received; the LLP is being closed.
    Terminate,
    /// The connection is gone. All work was flushed; only a reset leads out.
    Error,
}

/// What can happen to a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum QpEvent {
    /// An LLP stream was attached (connect, accept).
    Attach,
    /// MPA startup has reached Full Operation.
    Established,
    /// MPA startup ended without a stream: refused, rejected, timed out, not MPA.
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
    /// The consumer gives the connection up, or moves the QP to Error.
    Abort,
    /// Both halves of the LLP are closed.
    Closed,
    /// The consumer resets the QP for another use.
    Reset,
}

/// An event that the state does not allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InvalidTransition;

impl QpState {
    /// All of them.
    pub const ALL: [QpState; 6] = [
        QpState::Idle,
        QpState::Connecting,
        QpState::Rts,
        QpState::Closing,
        QpState::Terminate,
        QpState::Error,
    ];

    /// The state after `event`, or an error when the event cannot happen in this state.
    pub(crate) fn next(self, event: QpEvent) -> Result<QpState, InvalidTransition> {
        use QpEvent as E;
        use QpState as S;
        match (self, event) {
            (S::Idle, E::Attach) => Ok(S::Connecting),
            (S::Connecting, E::Established) => Ok(S::Rts),
            (S::Connecting, E::StartupFailed | E::LlpLost | E::Disconnect | E::PeerFin) => {
                Ok(S::Error)
            }
            // RFC 6581 9.1 and 9.2 end an accepted startup with a Terminate (codes 6 and 7).
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
            _ => Err(InvalidTransition),
        }
    }

    /// Whether work posted in this state completes at once with a flush status.
    pub(crate) fn flushes(self) -> bool {
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
    const EVENTS: [QpEvent; 11] = [
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
