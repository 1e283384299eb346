//! [`Link`]: the interface between a stack and the link that carries its packets.

use std::net::IpAddr;
use std::sync::Arc;

use super::mailbox::Mailbox;
use super::packet::Packet;
use super::stack::Stack;

/// Carries packets away from a stack. Middleware that loses, delays or damages packets wraps
/// another link.
pub(crate) trait Link: Send + Sync {
    /// Sends one IP packet. Its delivery is not reported. `route` caches the destination of this
    /// sender's packets.
    fn send(&self, packet: Packet, route: &mut Route);
    /// Returns true if there is a route to this address.
    fn reaches(&self, addr: IpAddr) -> bool;
    /// Returns the neighbour to which packets for `to` are sent, or `None` on a link without
    /// neighbours.
    fn next_hop(&self, to: IpAddr) -> Option<IpAddr>;
    /// Returns the local address to use towards `to`, or `None` for the first one of its family.
    fn source_for(&self, to: IpAddr) -> Option<IpAddr>;
    /// Returns true if packets of the connection with the inbox `sender` have to wait. In that
    /// case, the signal of `sender` is raised once packets may be sent.
    fn subscribe_if_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool;
    /// Passes received packets to `stack`. The driver of any connection calls it. It returns at
    /// once if another thread is doing the same.
    fn poll(&self, stack: &Stack);
    /// Returns true if [`poll`](Self::poll) may find received packets. Links that deliver packets
    /// by themselves return false.
    fn takes_in(&self) -> bool {
        false
    }
    /// Ends the link's thread, if it has one. Called when the last user of the stack is dropped.
    fn close(&self);
    /// Returns a description of the link for a log.
    fn describe(&self) -> String;
}

/// Cached destination of a connection's packets, to save a lookup for each packet.
#[derive(Default)]
pub(crate) struct Route {
    /// True if the peer's address belongs to this same stack, so that the link is not used.
    pub(crate) local: bool,
    /// Inbox at the other end, after the first packet was delivered there.
    pub(crate) inbox: Option<Arc<Mailbox>>,
    /// Neighbour to which the packets are sent, on a link that has neighbours.
    pub(crate) hop: Option<IpAddr>,
    /// Inbox of the sender itself, where the link records the sequence numbers sent.
    pub(crate) own: Option<Arc<Mailbox>>,
}

impl Route {
    /// Delivers a packet to the cached inbox. Returns the packet if no inbox is cached or the inbox
    /// was closed.
    pub(crate) fn deliver(&mut self, packet: Packet) -> Result<(), Packet> {
        let Some(inbox) = &self.inbox else {
            return Err(packet);
        };
        inbox.deliver(packet).inspect_err(|_| self.inbox = None)
    }

    /// Returns true if packets of the connection with the inbox `sender` have to wait. In that
    /// case, the signal of `sender` is raised once packets may be sent.
    pub(crate) fn subscribe_if_full(&self, sender: &Arc<Mailbox>) -> bool {
        self.inbox
            .as_ref()
            .is_some_and(|inbox| inbox.subscribe_if_full(sender))
    }
}
