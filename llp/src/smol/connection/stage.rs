//! Stages of a connection in user space, and the events that change them.

use std::net::SocketAddr;

use smoltcp::socket::tcp::State;

use crate::LlpError;

/// Stage of a connection. smoltcp does not keep the reason why a socket closed, so the stage does.
///
/// ```text
///  connect, answer
///     |
///     v
///  Handshake -- established --> Open ----- graceful close ------> Finished
///     |  |                       |                                 ^
///     |  |                       | lost                            |
///     |  +---------------------- | ------ graceful close ----------+
///     | lost                     v
///     +----------------------> Failed <---- aborted ---- every stage, Failed itself too
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The handshake is in progress.
    Handshake,
    /// The connection is established, or a graceful close is in progress.
    Open,
    /// The connection was closed gracefully: both sides have sent and acknowledged everything.
    Finished,
    /// Neither direction works. Later calls return this error.
    Failed(LlpError),
}

/// Events that change the stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The handshake of smoltcp's socket is complete.
    Established,
    /// smoltcp closed the socket after a graceful close.
    ClosedOrderly,
    /// smoltcp closed the socket for this reason.
    Lost(LlpError),
    /// The owner aborted the connection. Later calls return this error.
    Aborted(LlpError),
}

impl Stage {
    /// Returns the stage after `event`. An event without meaning in this stage changes nothing.
    pub(super) const fn next(self, event: Event) -> Self {
        match (self, event) {
            // The owner ended the connection, so its error replaces any earlier one.
            (_, Event::Aborted(error)) => Stage::Failed(error),
            (Stage::Handshake, Event::Established) => Stage::Open,
            (Stage::Handshake | Stage::Open, Event::ClosedOrderly) => Stage::Finished,
            (Stage::Handshake | Stage::Open, Event::Lost(error)) => Stage::Failed(error),
            (Stage::Open, Event::Established)
            | (
                Stage::Finished | Stage::Failed(_),
                Event::Established | Event::ClosedOrderly | Event::Lost(_),
            ) => self,
        }
    }
}

/// Cause of a change of smoltcp's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Arrival,
    Timer,
}

impl Event {
    /// Returns the event that corresponds to a change of smoltcp's state from `before` to `after`,
    /// if any. `all_sent` is true if smoltcp's send buffer is empty.
    pub(super) fn of(
        (before, after): (State, State),
        cause: Cause,
        all_sent: bool,
        addr: SocketAddr,
    ) -> Option<Self> {
        match after {
            _ if before == after => None,
            State::Listen | State::SynSent | State::SynReceived => None,
            State::Closed => Some(Self::ended(before, cause, all_sent, addr)),
            _ => Some(Event::Established),
        }
    }

    /// Returns the event for a socket that smoltcp closed in the state `before`.
    fn ended(before: State, cause: Cause, all_sent: bool, addr: SocketAddr) -> Self {
        match (before, cause) {
            (State::TimeWait, _) => Event::ClosedOrderly,
            // The peer acknowledged the FIN, or it sent a reset after it had received all bytes.
            (State::LastAck | State::Closing, Cause::Arrival) if all_sent => Event::ClosedOrderly,
            (State::SynSent, Cause::Arrival) => Event::Lost(LlpError::Refused { addr }),
            (_, Cause::Arrival) => Event::Lost(LlpError::Reset { addr }),
            (_, Cause::Timer) => Event::Lost(LlpError::TimedOut { addr }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::{Debug, Write as _};
    use std::net::{IpAddr, Ipv4Addr};

    const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    // The stages and the events hold different errors, so that the table shows which one is kept.
    const STAGES: [Stage; 4] = [
        Stage::Handshake,
        Stage::Open,
        Stage::Finished,
        Stage::Failed(LlpError::TimedOut { addr: ADDR }),
    ];
    const EVENTS: [Event; 4] = [
        Event::Established,
        Event::ClosedOrderly,
        Event::Lost(LlpError::Reset { addr: ADDR }),
        Event::Aborted(LlpError::Broken { addr: ADDR }),
    ];
    const SOCKET_STATES: [State; 11] = [
        State::Closed,
        State::Listen,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];

    /// Returns the name of a stage or event, with the name of its error.
    fn name(value: impl Debug) -> String {
        format!("{value:?}").replace(&format!(" {{ addr: {ADDR} }}"), "")
    }

    fn trimmed(table: &str) -> String {
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    #[test]
    fn stage_x_event() {
        let mut table = format!("{:15}", "");
        for stage in STAGES {
            let _ = write!(table, " | {:16}", name(stage));
        }
        for event in EVENTS {
            let _ = write!(table, "\n{:15}", name(event));
            for stage in STAGES {
                let next = name(stage.next(event));
                let cell = if next == name(stage) { "-" } else { &next };
                let _ = write!(table, " | {cell:16}");
            }
        }
        insta::assert_snapshot!(trimmed(&table));
    }

    /// Prints the event for a socket that closes in each state, for each cause.
    #[test]
    fn socket_state_x_cause() {
        let columns = [
            (Cause::Arrival, true),
            (Cause::Arrival, false),
            (Cause::Timer, true),
            (Cause::Timer, false),
        ];
        let mut table = format!("{:12}", "to CLOSED");
        for (cause, all_sent) in columns {
            let sent = if all_sent { "all sent" } else { "not all" };
            let _ = write!(table, " | {:17}", format!("{cause:?}, {sent}"));
        }
        for before in SOCKET_STATES {
            let _ = write!(table, "\n{:12}", before.to_string());
            for (cause, all_sent) in columns {
                let event = Event::of((before, State::Closed), cause, all_sent, ADDR);
                let _ = write!(table, " | {:17}", event.map_or("-".into(), name));
            }
        }
        insta::assert_snapshot!(trimmed(&table));
    }

    /// If the socket does not close, the event depends only on the new state.
    #[test]
    fn socket_state_reached() {
        let mut table = String::new();
        for after in &SOCKET_STATES[1..] {
            let mut events = Vec::new();
            for before in SOCKET_STATES.iter().filter(|before| *before != after) {
                for (cause, all_sent) in [(Cause::Arrival, true), (Cause::Timer, false)] {
                    events.push(Event::of((*before, *after), cause, all_sent, ADDR));
                }
            }
            events.dedup();
            assert_eq!(events.len(), 1, "{after}");
            assert_eq!(Event::of((*after, *after), Cause::Timer, true, ADDR), None);
            let event = events[0].map_or("-".into(), name);
            let _ = writeln!(table, "{:12} {event}", after.to_string());
        }
        insta::assert_snapshot!(table);
    }
}
