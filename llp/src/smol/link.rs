//! Interface between a stack and the link that carries its packets.

use std::net::IpAddr;
use std::sync::Arc;

use super::mailbox::Mailbox;
use super::packet::Packet;
use super::stack::Stack;

/// Carries packets away from a stack. Middleware that loses, delays or damages packets wraps
/// another link.
pub(crate) trait Link: Send + Sync {
    /// Sends one IP packet, without a report of its arrival. `route` caches where the packets of
    /// this sender go.
    fn send(&self, packet: Packet, route: &mut Route);
    /// Returns true if there is a route to this address.
    fn reaches(&self, addr: IpAddr) -> bool;
    /// Returns the neighbour for packets to `to`, on a link that has neighbours.
    fn next_hop(&self, to: IpAddr) -> Option<IpAddr>;
    /// Returns the local address to use towards `to`, or `None` for the first one of its family.
    fn source_for(&self, to: IpAddr) -> Option<IpAddr>;
    /// Returns true if packets of the connection with the inbox `sender` have to wait. The signal
    /// of `sender` is then raised when they may be sent.
    fn subscribe_if_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool;
    /// Takes in packets that arrived and hands them to `stack`. The driver of any connection calls
    /// it. Never waits for another thread that does the same.
    fn poll(&self, stack: &Stack);
    /// Returns true if [`poll`](Self::poll) does anything.
    fn takes_in(&self) -> bool {
        false
    }
    /// Ends whatever runs on its own. Called when the last user of the stack is gone.
    fn close(&self);
    /// Description of the link for a log.
    fn describe(&self) -> String;
}

/// Cached destination of a connection's packets, to save a lookup for each.
#[derive(Default)]
pub(crate) struct Route {
    /// The peer has an address of this same stack, so the link is not used.
    pub(crate) local: bool,
    /// Inbox at the other end, once a packet found it.
    pub(crate) inbox: Option<Arc<Mailbox>>,
    /// Neighbour that the packets go to, on a link that has neighbours.
    pub(crate) hop: Option<IpAddr>,
    /// Inbox of the sender itself, where the link notes what was sent.
    pub(crate) own: Option<Arc<Mailbox>>,
}

impl Route {
    /// Delivers a packet to the cached inbox. Returns it if no inbox is cached, or that inbox is
    /// gone.
    pub(crate) fn deliver(&mut self, packet: Packet) -> Result<(), Packet> {
        let Some(inbox) = &self.inbox else {
            return Err(packet);
        };
        inbox.deliver(packet).inspect_err(|_| self.inbox = None)
    }

    /// Returns true if packets of the connection with the inbox `sender` have to wait.
    pub(crate) fn subscribe_if_full(&self, sender: &Arc<Mailbox>) -> bool {
        self.inbox
            .as_ref()
            .is_some_and(|inbox| inbox.subscribe_if_full(sender))
    }
}
