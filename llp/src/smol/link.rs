//! What a stack sends its packets by.

use std::net::IpAddr;
use std::sync::Arc;

use super::mailbox::Mailbox;
use super::packet::Packet;
use super::stack::Stack;

/// What carries packets away from a stack. Middleware that loses, delays or damages packets wraps
/// one of these.
pub(crate) trait Link: Send + Sync {
    /// Sends one IP packet; nothing tells whether it arrives. `route` is the sender's own memory of
    /// where its packets go.
    fn send(&self, packet: Packet, route: &mut Route);
    /// Whether there is a way to this address.
    fn reaches(&self, addr: IpAddr) -> bool;
    /// The neighbour that packets to `to` go to, on a link that has any.
    fn next_hop(&self, to: IpAddr) -> Option<IpAddr>;
    /// Which of our addresses to use towards `to`; `None` for the first one of its family.
    fn source_for(&self, to: IpAddr) -> Option<IpAddr>;
    /// Whether packets of the connection with the inbox `sender` are to wait. If so, the signal of
    /// `sender` is raised when they need not any more.
    fn is_full(&self, route: &Route, sender: &Arc<Mailbox>) -> bool;
    /// Takes in what has arrived and hands it to `stack`; called by whoever drives a connection.
    /// Never waits for another thread that does the same.
    fn poll(&self, stack: &Stack);
    /// Whether [`poll`](Self::poll) does anything.
    fn takes_in(&self) -> bool {
        false
    }
    /// Nobody uses the stack any more, and nobody can again: ends what runs on its own.
    fn close(&self);
    /// What it is, for a log.
    fn describe(&self) -> String;
}

/// Where the packets of one connection go, so that not every packet is looked up.
#[derive(Default)]
pub(crate) struct Route {
    /// The peer has an address of this same stack: the link is not used.
    pub(crate) local: bool,
    /// The inbox at the other end, once a packet found it.
    pub(crate) inbox: Option<Arc<Mailbox>>,
    /// The neighbour that the packets go to, on a link that has any.
    pub(crate) hop: Option<IpAddr>,
    /// The inbox of the sender itself, where the link notes what was sent.
    pub(crate) own: Option<Arc<Mailbox>>,
}

impl Route {
    /// Puts a packet straight where the last one went; gives it back when that is unknown or gone.
    pub(crate) fn deliver(&mut self, packet: Packet) -> Result<(), Packet> {
        let Some(inbox) = &self.inbox else {
            return Err(packet);
        };
        inbox.deliver(packet).inspect_err(|_| self.inbox = None)
    }

    /// Whether packets of the connection with the inbox `sender` are to wait.
    pub(crate) fn is_full(&self, sender: &Arc<Mailbox>) -> bool {
        self.inbox
            .as_ref()
            .is_some_and(|inbox| inbox.is_full(sender))
    }
}
