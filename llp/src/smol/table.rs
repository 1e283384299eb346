//! What a stack knows of its connections and listeners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::backlog::Backlog;
use super::mailbox::Mailbox;
use super::segment::FlowKey;
use super::stack::EPHEMERAL;
use crate::LlpError;

/// The most connections that linger; beyond, the expired and then any are forgotten.
pub(super) const MAX_LINGERING: usize = 4096;

/// Its connections, its listeners, and the state of its link.
#[derive(Default)]
pub(super) struct Table {
    pub(super) flows: HashMap<FlowKey, Flow>,
    pub(super) listeners: BTreeMap<u16, Vec<Listening>>,
    pub(super) lingering: usize,
    pub(super) next_port: u16,
    /// Why the link is down for good.
    pub(super) fault: Option<LlpError>,
}

/// A pair of addresses that is in use.
pub(super) enum Flow {
    Live(Arc<Mailbox>),
    /// Closed by both or by us, dropped by its owner: until then the port pair stays in use, and a
    /// FIN is acknowledged.
    Lingering {
        until: Instant,
    },
}

/// A port that is listened at, or kept for that.
pub(super) struct Listening {
    /// `None` for all addresses of the host.
    pub(super) addr: Option<IpAddr>,
    /// `None` while it is only kept for somebody: nobody listens, and connections are refused.
    pub(super) backlog: Option<Arc<Backlog>>,
}

impl Listening {
    fn takes(&self, addr: IpAddr) -> bool {
        self.addr.is_none_or(|own| own == addr)
    }
}

impl Table {
    pub(super) fn listener(&self, at: SocketAddr) -> Option<&Arc<Backlog>> {
        let listeners = self.listeners.get(&at.port())?;
        // A listener at this very address comes before one at all addresses.
        let exact = listeners
            .iter()
            .find(|listening| listening.addr == Some(at.ip()));
        let any = || listeners.iter().find(|listening| listening.takes(at.ip()));
        exact
            .or_else(any)
            .and_then(|listening| listening.backlog.as_ref())
    }

    /// The entry of an address that is listened at or reserved.
    pub(super) fn listening_at(&mut self, at: SocketAddr) -> Option<&mut Listening> {
        let addr = (!at.ip().is_unspecified()).then_some(at.ip());
        let listeners = self.listeners.get_mut(&at.port())?;
        listeners
            .iter_mut()
            .find(|listening| listening.addr == addr)
    }

    /// A port that nobody listens at, has reserved, or has connections from.
    pub(super) fn free_port(&self) -> Option<u16> {
        let used: HashSet<u16> = self.flows.keys().map(|key| key.local.port()).collect();
        EPHEMERAL
            .rev()
            .find(|port| !self.listeners.contains_key(port) && !used.contains(port))
    }

    /// The connections that `concerns` picks, in the order of their addresses.
    pub(super) fn live(&self, concerns: impl Fn(&FlowKey) -> bool) -> Vec<(FlowKey, Arc<Mailbox>)> {
        let live = self.flows.iter().filter_map(|(key, flow)| match flow {
            Flow::Live(mailbox) if concerns(key) => Some((*key, Arc::clone(mailbox))),
            _ => None,
        });
        let mut live: Vec<_> = live.collect();
        live.sort_unstable_by_key(|(key, _)| (key.local, key.remote));
        live
    }

    pub(super) fn forget_lingering(&mut self, now: Instant) {
        self.flows
            .retain(|_, flow| !matches!(flow, Flow::Lingering { until } if *until <= now));
        let count = |flow: &Flow| matches!(flow, Flow::Lingering { .. });
        self.lingering = self.flows.values().filter(|flow| count(flow)).count();
        if self.lingering >= MAX_LINGERING {
            self.flows.retain(|_, flow| !count(flow));
            self.lingering = 0;
        }
    }
}
