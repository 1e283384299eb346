//! Events of the link as a whole, and the watchers that receive them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{LlpError, NetworkEvent, NetworkWatcher};

/// Delivers each event once to each watcher, including events before the watcher was added.
#[derive(Default)]
pub(super) struct Events {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Holds at most one event of the link, and one for each address and kind of conflict.
    happened: Vec<NetworkEvent>,
    watchers: Vec<Weak<dyn NetworkWatcher>>,
}

/// Returns true if both events report the same condition. Conflicts about one address are the same
/// condition even if the other host differs.
fn same(a: NetworkEvent, b: NetworkEvent) -> bool {
    use LlpError::DuplicateAddress as Duplicate;
    use NetworkEvent::AddressConflict as Conflict;
    match (a, b) {
        (NetworkEvent::Down(_), NetworkEvent::Down(_)) => true,
        (Conflict(Duplicate { addr: a, .. }), Conflict(Duplicate { addr: b, .. })) => a == b,
        (a, b) => a == b,
    }
}

impl Events {
    /// Notifies all watchers if the event is new. Returns true if the event is new.
    pub(super) fn tell(&self, event: NetworkEvent) -> bool {
        let watchers: Vec<Arc<dyn NetworkWatcher>> = {
            let mut state = self.state.lock();
            if state.happened.iter().any(|other| same(*other, event)) {
                return false;
            }
            state.happened.push(event);
            state.watchers.retain(|watcher| watcher.strong_count() > 0);
            state.watchers.iter().filter_map(Weak::upgrade).collect()
        };
        for watcher in watchers {
            watcher.network_event(event);
        }
        true
    }

    /// Adds a watcher, and notifies it of past events.
    pub(super) fn watch(&self, watcher: &Weak<dyn NetworkWatcher>) {
        let happened = {
            let mut state = self.state.lock();
            state.watchers.push(Weak::clone(watcher));
            state.happened.clone()
        };
        if let Some(watcher) = watcher.upgrade() {
            for event in happened {
                watcher.network_event(event);
            }
        }
    }

    /// Returns true if another host uses this own address.
    pub(super) fn is_in_conflict(&self, addr: std::net::IpAddr) -> bool {
        self.state.lock().happened.iter().any(|event| {
            matches!(event, NetworkEvent::AddressConflict(
                LlpError::DuplicateAddress { addr: other, .. }
                | LlpError::KernelHasAddress { addr: other },
            ) if *other == addr)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[derive(Default)]
    struct Recorded(Mutex<Vec<NetworkEvent>>);

    impl NetworkWatcher for Recorded {
        fn network_event(&self, event: NetworkEvent) {
            self.0.lock().push(event);
        }
    }

    #[test]
    fn each_watcher_is_told_once_of_each_event_whenever_it_begins_to_watch() {
        let down = |errno| NetworkEvent::Down(LlpError::LinkDown { why: "test", errno });
        let conflict = |last| {
            NetworkEvent::AddressConflict(LlpError::DuplicateAddress {
                addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
                mac: [last; 6],
            })
        };
        let events = Events::default();
        let (early, late) = (Arc::new(Recorded::default()), Arc::new(Recorded::default()));
        let weak = |recorded: &Arc<Recorded>| -> Weak<dyn NetworkWatcher> {
            let watcher: Arc<dyn NetworkWatcher> = Arc::<Recorded>::clone(recorded);
            Arc::downgrade(&watcher)
        };
        events.watch(&weak(&early));
        assert!(events.tell(conflict(1)));
        assert!(!events.tell(conflict(2)));
        events.watch(&weak(&late));
        assert!(events.tell(down(1)));
        assert!(!events.tell(down(2)));
        for recorded in [early, late] {
            assert_eq!(*recorded.0.lock(), [conflict(1), down(1)]);
        }
    }
}
