//! Table of a stack's connections and listeners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::backlog::Backlog;
use super::mailbox::Mailbox;
use super::segment::FlowKey;
use super::stack::EPHEMERAL;
use crate::LlpError;

/// Maximum number of lingering connections. At the limit the expired ones are dropped; if none has
/// expired, all are dropped.
pub(super) const MAX_LINGERING: usize = 4096;

/// Connections and listeners of a stack, and the state of its link.
#[derive(Default)]
pub(super) struct Table {
    pub(super) flows: HashMap<FlowKey, Flow>,
    pub(super) listeners: BTreeMap<u16, Vec<Listening>>,
    pub(super) lingering: usize,
    pub(super) next_port: u16,
    /// Permanent failure of the link.
    pub(super) fault: Option<LlpError>,
}

/// Use of a pair of addresses.
pub(super) enum Flow {
    Live(Arc<Mailbox>),
    /// A connection that its owner dropped after all bytes and the FIN of this side were
    /// acknowledged. Until the time `until`, its addresses stay in use and FINs are acknowledged.
    Lingering {
        until: Instant,
    },
}

/// A local address that has a listener or is reserved.
pub(super) struct Listening {
    /// Address of the listener; `None` for all addresses of the host.
    pub(super) addr: Option<IpAddr>,
    /// Queue of the listener. `None` while the address is only reserved; connections are then
    /// refused.
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
        // A listener at exactly this address takes precedence over a listener at all addresses.
        let exact = listeners
            .iter()
            .find(|listening| listening.addr == Some(at.ip()));
        let any = || listeners.iter().find(|listening| listening.takes(at.ip()));
        exact
            .or_else(any)
            .and_then(|listening| listening.backlog.as_ref())
    }

    /// Returns the entry of a local address that has a listener or is reserved.
    pub(super) fn listening_at(&mut self, at: SocketAddr) -> Option<&mut Listening> {
        let addr = (!at.ip().is_unspecified()).then_some(at.ip());
        let listeners = self.listeners.get_mut(&at.port())?;
        listeners
            .iter_mut()
            .find(|listening| listening.addr == addr)
    }

    /// Returns a port without listeners, reservations and connections.
    pub(super) fn free_port(&self) -> Option<u16> {
        let used: HashSet<u16> = self.flows.keys().map(|key| key.local.port()).collect();
        EPHEMERAL
            .rev()
            .find(|port| !self.listeners.contains_key(port) && !used.contains(port))
    }

    /// Returns the connections that satisfy `concerns`, in the order of their addresses.
    pub(super) fn live(&self, concerns: impl Fn(&FlowKey) -> bool) -> Vec<(FlowKey, Arc<Mailbox>)> {
        let live = self.flows.iter().filter_map(|(key, flow)| match flow {
            Flow::Live(mailbox) if concerns(key) => Some((*key, Arc::clone(mailbox))),
            _ => None,
        });
        let mut live: Vec<_> = live.collect();
        live.sort_unstable_by_key(|(key, _)| (key.local, key.remote));
        live
    }

    /// Ends the lingering of a connection with these addresses, if there is one.
    pub(super) fn end_lingering(&mut self, key: &FlowKey) {
        if let Some(Flow::Lingering { .. }) = self.flows.get(key) {
            self.flows.remove(key);
            self.lingering = self.lingering.saturating_sub(1);
        }
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
