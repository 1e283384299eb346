//! Objects of a device that are notified when the network fails: the ids of connection management.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use uwarp_llp::LlpError;

use crate::progress::background::{Background, Source, Token, Verdict};

/// An object that is notified.
pub(crate) trait Removable: Send + Sync {
    /// Reports that the network of the device has failed.
    fn report_removal(&self, error: LlpError);
}

/// Ids of one device.
pub(crate) struct Ids {
    /// The background thread notifies the ids, because the thread that detects the failure may hold
    /// any lock.
    token: Token,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<Token, Weak<dyn Removable>>,
    /// Error of the network, until the ids are notified.
    unreported: Option<LlpError>,
}

impl Ids {
    pub(crate) fn new(background: &Background) -> Arc<Self> {
        let ids = Arc::new(Ids {
            token: background.token(),
            state: Mutex::default(),
        });
        let source: Weak<Ids> = Arc::downgrade(&ids);
        background.enlist(ids.token, source);
        ids
    }

    pub(crate) fn add(&self, token: Token, id: Weak<dyn Removable>) {
        self.state.lock().known.insert(token, id);
    }

    pub(crate) fn forget(&self, token: Token) {
        self.state.lock().known.remove(&token);
    }

    /// Records that the network has failed permanently, and schedules the notification of the ids.
    pub(crate) fn network_down(&self, error: LlpError, background: &Background) {
        self.state.lock().unreported = Some(error);
        background.at(self.token, background.now());
    }
}

impl Source for Ids {
    fn attend(&self, _now: Instant) -> Verdict {
        let (error, ids) = {
            let mut state = self.state.lock();
            let ids: Vec<_> = state.known.values().filter_map(Weak::upgrade).collect();
            (state.unreported.take(), ids)
        };
        if let Some(error) = error {
            for id in ids {
                id.report_removal(error);
            }
        }
        Verdict::Settled
    }
}
