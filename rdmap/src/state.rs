//! States of a stream.

/// State of a stream.
///
/// ```text
///  Closing <---- close ---- Operational ---- peer closes ----> PeerClosed
///   |   |                    |   |   |                          |     |
///   |   | peer's             |   |   +-------- error -----+     |     |
///   |   | Terminate          |   |                        |   error   |
///   |   v                    |   |                        v     v     |
///   |  Terminated <----------+   |                        Failed      |
///   |       peer's Terminate     |                          |         |
///   |                            |      Terminate sent      |         |
///   |                            +------------------+       |    +----+
///   | peer closes,                                  v       v    v
///   | error                                          Terminating
///   v
///  Closed <---- close ---- PeerClosed, Failed, Terminating, Terminated
///         <---- LLP lost ---- every state
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamState {
    /// Messages are sent and received.
    Operational,
    /// This side closed its half: nothing may be sent, the peer's messages still arrive.
    Closing,
    /// The peer closed its half: nothing arrives any more, but messages may still be sent.
    PeerClosed,
    /// An error was found. Incoming segments are dropped, and only the Terminate Message may be
    /// sent.
    Failed,
    /// The Terminate Message was sent. Nothing may follow it.
    Terminating,
    /// The peer's Terminate Message arrived. Nothing is sent any more.
    Terminated,
    /// Nothing is sent or received.
    Closed,
}

/// Event that changes the state of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamEvent {
    /// A received segment was wrong, or this side cannot continue.
    Error,
    /// The Terminate Message was begun.
    TerminateSent,
    /// The peer's Terminate Message arrived.
    TerminateReceived,
    /// This side closes its half of the LLP stream.
    Close,
    /// The peer closed its half of the LLP stream.
    PeerClose,
    /// The LLP stream is lost.
    LlpLost,
}

impl StreamState {
    /// Returns the state after `event`. Returns `None` if the event does not apply; the state then
    /// remains.
    #[must_use]
    pub const fn next(self, event: StreamEvent) -> Option<StreamState> {
        use StreamEvent as E;
        use StreamState as S;
        Some(match (self, event) {
            (S::Closed, _) => return None,
            (_, E::LlpLost) => S::Closed,

            (S::Operational | S::PeerClosed, E::Error) => S::Failed,
            // Nothing may be sent any more, not even a Terminate.
            (S::Closing, E::Error) => S::Closed,
            // Only the first error counts (5040-7.1-05).
            (S::Failed | S::Terminating | S::Terminated, E::Error) => return None,

            (S::Operational | S::PeerClosed | S::Failed, E::TerminateSent) => S::Terminating,
            // 5040-5.4-07: a Terminate is sent at most once, and nothing after it.
            (S::Closing | S::Terminating | S::Terminated, E::TerminateSent) => return None,

            (S::Operational | S::Closing, E::TerminateReceived) => S::Terminated,
            // 5041-7.1-18: after an error all incoming segments are dropped, including a Terminate.
            (S::PeerClosed | S::Failed | S::Terminating | S::Terminated, E::TerminateReceived) => {
                return None;
            }

            (S::Operational, E::Close) => S::Closing,
            (S::Closing, E::Close) => return None,
            (S::PeerClosed | S::Failed | S::Terminating | S::Terminated, E::Close) => S::Closed,

            (S::Operational, E::PeerClose) => S::PeerClosed,
            (S::Closing, E::PeerClose) => S::Closed,
            (S::PeerClosed, E::PeerClose) => return None,
            // These states already drop all incoming segments; the close does not change what may
            // be sent.
            (S::Failed | S::Terminating | S::Terminated, E::PeerClose) => self,
        })
    }

    /// Returns true if messages may be sent. (`Failed` only allows the Terminate Message.)
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, StreamState::Operational | StreamState::PeerClosed)
    }

    /// Returns true if incoming segments are processed.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, StreamState::Operational | StreamState::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use core::fmt::Write as _;

    const STATES: [StreamState; 7] = [
        StreamState::Operational,
        StreamState::Closing,
        StreamState::PeerClosed,
        StreamState::Failed,
        StreamState::Terminating,
        StreamState::Terminated,
        StreamState::Closed,
    ];
    const EVENTS: [StreamEvent; 6] = [
        StreamEvent::Error,
        StreamEvent::TerminateSent,
        StreamEvent::TerminateReceived,
        StreamEvent::Close,
        StreamEvent::PeerClose,
        StreamEvent::LlpLost,
    ];

    #[test]
    fn state_x_event() {
        let mut table = format!("{:12} sends receives", "");
        for event in EVENTS {
            let _ = write!(table, " | {:17}", format!("{event:?}"));
        }
        for state in STATES {
            let (sends, receives) = (state.sends(), state.receives());
            let _ = write!(
                table,
                "\n{:12} {sends:5} {receives:8}",
                format!("{state:?}")
            );
            for event in EVENTS {
                let next = state
                    .next(event)
                    .map_or("-".into(), |next| format!("{next:?}"));
                let _ = write!(table, " | {next:17}");
            }
        }
        let lines: alloc::vec::Vec<&str> = table.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn no_state_after_a_terminate_lets_anything_be_sent() {
        // 5040-5.4-07, over every path: the states reachable after a Terminate in either direction.
        let mut reached = alloc::vec![StreamState::Terminating, StreamState::Terminated];
        let mut at = 0;
        while let Some(state) = reached.get(at).copied() {
            assert!(!state.sends() && !state.receives(), "{state:?}");
            assert_eq!(state.next(StreamEvent::TerminateSent), None);
            for next in EVENTS.iter().filter_map(|event| state.next(*event)) {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
            at += 1;
        }
    }
}
