//! Registry of the connections that are being recorded. If both ends of a connection are in this
//! process, the registry prevents a second recording. It also gives different sequence numbers to
//! connections that reuse a pair of addresses.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Registered connections, by local and peer address, of all [`crate::Flow`]s of a capture.
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
    /// Registers a connection and returns its number in this capture, counted from 0. Returns
    /// `None` if it is already being recorded, by its other end or by a second `Flow` for the same
    /// end.
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
