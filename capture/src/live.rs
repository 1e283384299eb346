//! Registry of the connections that are being recorded. It prevents a connection with both ends in
//! this process from being recorded twice, and gives connections that reuse a pair of addresses
//! different sequence numbers.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Local and peer address of every [`crate::Flow`] that records into a capture.
#[derive(Default)]
pub(crate) struct LiveFlows {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    recorded: HashSet<(SocketAddr, SocketAddr)>,
    begun: u32,
}

impl LiveFlows {
    /// Registers a connection and returns its number in this capture, counted from 0. `None` if it
    /// is already being recorded, by its other end or by a second `Flow` for the same end.
    pub(crate) fn enter(&self, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.recorded.contains(&(peer, local)) || !state.recorded.insert((local, peer)) {
            return None;
        }
        let number = state.begun;
        state.begun = number.wrapping_add(1);
        Some(number)
    }

    pub(crate) fn leave(&self, local: SocketAddr, peer: SocketAddr) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.recorded.remove(&(local, peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_recorded_connection_is_not_recorded_again() {
        let a: SocketAddr = "127.0.0.1:7174".parse().unwrap();
        let b: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        let live = LiveFlows::default();
        assert_eq!(live.enter(a, b), Some(0));
        assert_eq!(live.enter(b, a), None);
        assert_eq!(live.enter(a, b), None);
        live.leave(a, b);
        assert_eq!(live.enter(b, a), Some(1));
    }
}
