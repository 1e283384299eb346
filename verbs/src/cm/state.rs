//! States of a CM id, and the transitions between them.

use std::fmt;

/// The state of a [`CmId`](crate::CmId).
///
/// ```text
///            bind            resolve_addr              resolve_route
///   IDLE ──────────► BOUND ───────────────► ADDRESS ─────────────────► ROUTE
///    │ │               │   (also from IDLE)                            │  ▲
///    │ │ connect_over  │ listen (also from IDLE)               connect │  │ refused, rejected,
///    │ └───────────┐   ▼                                               ▼  │ timed out ...
///    │             │ LISTENING                                     CONNECTING
///    │             └────────────────────────────────────────────►   │  │
///    │ ◄──────────────── the same, over a stream ───────────────────┘  │
///    │ (also from LISTENING, if no request arrives)                    │ established
///                                                                      │
///   (request arrives)    accept               established              ▼   ended
///       REQUESTED ───────────────► ACCEPTING ───────────────────► CONNECTED ─────► DISCONNECTED
///           │                          │ failed
///           └── reject, too late ──────┴────► REJECTED        DESTROYED: from every state
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CmState {
    /// Newly created.
    Idle,
    /// The id has a local address.
    Bound,
    /// The peer's address and the local address are known.
    AddrResolved,
    /// Ready to connect.
    RouteResolved,
    /// The id listens for connection requests.
    Listening,
    /// The id belongs to a connection request that waits for a decision.
    Requested,
    /// The request is being accepted.
    Accepting,
    /// A connection is being made.
    Connecting,
    /// The connection was established.
    Connected,
    /// The connection has ended.
    Disconnected,
    /// The request was rejected, or could not be accepted.
    Rejected,
    /// The id was destroyed.
    Destroyed,
}

/// Input of the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum CmInput {
    Bind,
    ResolveAddr,
    ResolveRoute,
    Listen,
    Connect,
    /// Connects over a stream of the program.
    ConnectOver,
    /// The connection was not established.
    Failed,
    /// As `Failed`, over a stream of the program; or no request arrived over it.
    FailedOver,
    Accept,
    /// This side rejected the request, or the program decided too late.
    Reject,
    Established,
    Over,
    Destroy,
}

impl CmInput {
    /// Name of the call in messages.
    fn call(self) -> &'static str {
        match self {
            CmInput::Bind => "bind_addr",
            CmInput::ResolveAddr => "resolve_addr",
            CmInput::ResolveRoute => "resolve_route",
            CmInput::Listen => "listen",
            CmInput::Connect => "connect",
            CmInput::ConnectOver => "connect_over",
            CmInput::Accept => "accept",
            CmInput::Reject => "reject",
            CmInput::Destroy => "destroy",
            CmInput::Failed | CmInput::FailedOver | CmInput::Established | CmInput::Over => {
                "an event of the connection"
            }
        }
    }

    /// Precondition of the call, in words.
    fn needs(self) -> &'static str {
        match self {
            CmInput::Bind | CmInput::ConnectOver => "a new id",
            CmInput::ResolveAddr | CmInput::Listen => "a new id, or one with a local address",
            CmInput::ResolveRoute => "an id with a resolved address: call resolve_addr first",
            CmInput::Connect => {
                "an id with a resolved route: call resolve_addr and resolve_route first"
            }
            CmInput::Accept | CmInput::Reject => "the id of an undecided connection request",
            CmInput::Established | CmInput::Failed | CmInput::FailedOver => {
                "a connection that is being made"
            }
            CmInput::Over => "a connection",
            CmInput::Destroy => "an id",
        }
    }
}

/// Error: the state of the id does not allow the call (`EINVAL` of librdmacm).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call}: the id is in state {state}, but the call needs {needs}")]
pub struct WrongState {
    /// Name of the call.
    pub call: &'static str,
    /// State of the id.
    pub state: CmState,
    /// Precondition of the call.
    pub needs: &'static str,
}

impl CmState {
    /// Returns the state after `input`.
    pub(super) fn next(self, input: CmInput) -> Result<CmState, WrongState> {
        use CmInput as I;
        use CmState as S;
        match (self, input) {
            (S::Idle, I::Bind) => Ok(S::Bound),
            (S::Idle | S::Bound, I::ResolveAddr) => Ok(S::AddrResolved),
            (S::AddrResolved, I::ResolveRoute) => Ok(S::RouteResolved),
            (S::Idle | S::Bound, I::Listen) => Ok(S::Listening),
            (S::RouteResolved, I::Connect) | (S::Idle, I::ConnectOver) => Ok(S::Connecting),
            (S::Connecting, I::Failed) => Ok(S::RouteResolved),
            (S::Connecting | S::Listening, I::FailedOver) => Ok(S::Idle),
            (S::Requested, I::Accept) => Ok(S::Accepting),
            (S::Accepting, I::Failed) | (S::Requested, I::Reject) => Ok(S::Rejected),
            (S::Connecting | S::Accepting, I::Established) => Ok(S::Connected),
            (S::Connected, I::Over) => Ok(S::Disconnected),
            (_, I::Destroy) => Ok(S::Destroyed),
            (state, input) => Err(WrongState {
                call: input.call(),
                state,
                needs: input.needs(),
            }),
        }
    }
}

impl fmt::Display for CmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CmState::Idle => "IDLE",
            CmState::Bound => "BOUND",
            CmState::AddrResolved => "ADDRESS",
            CmState::RouteResolved => "ROUTE",
            CmState::Listening => "LISTENING",
            CmState::Requested => "REQUESTED",
            CmState::Accepting => "ACCEPTING",
            CmState::Connecting => "CONNECTING",
            CmState::Connected => "CONNECTED",
            CmState::Disconnected => "DISCONNECTED",
            CmState::Rejected => "REJECTED",
            CmState::Destroyed => "DESTROYED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const STATES: [CmState; 12] = [
        CmState::Idle,
        CmState::Bound,
        CmState::AddrResolved,
        CmState::RouteResolved,
        CmState::Listening,
        CmState::Requested,
        CmState::Accepting,
        CmState::Connecting,
        CmState::Connected,
        CmState::Disconnected,
        CmState::Rejected,
        CmState::Destroyed,
    ];
    const INPUTS: [CmInput; 13] = [
        CmInput::Bind,
        CmInput::ResolveAddr,
        CmInput::ResolveRoute,
        CmInput::Listen,
        CmInput::Connect,
        CmInput::ConnectOver,
        CmInput::Failed,
        CmInput::FailedOver,
        CmInput::Accept,
        CmInput::Reject,
        CmInput::Established,
        CmInput::Over,
        CmInput::Destroy,
    ];

    #[test]
    fn state_x_input() {
        let mut table = String::new();
        for input in INPUTS {
            write!(table, "{:13}", format!("{input:?}")).unwrap();
            for state in STATES {
                if let Ok(next) = state.next(input) {
                    write!(table, " {state}->{next}").unwrap();
                }
            }
            table.push('\n');
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_refused_call_says_what_it_needs() {
        let error = CmState::Idle.next(CmInput::Connect).unwrap_err();
        assert_eq!(
            error.to_string(),
            "connect: the id is in state IDLE, but the call needs an id with a resolved route: call \
             resolve_addr and resolve_route first"
        );
    }
}
