//! Listener of a stack in user space. Each SYN begins a connection, and the listener drives its
//! handshake.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::backlog::Backlog;
use super::connection::SmolConnection;
use super::packet::Packet;
use super::reserved::SmolPort;
use super::segment::Segment;
use super::signal::Signal;
use super::stack::Stack;
use crate::{Llp, LlpError, LlpListener};

/// A listening port of a stack in user space.
pub(crate) struct SmolListener {
    port: SmolPort,
    backlog: Arc<Backlog>,
    /// Connections whose handshake is in progress.
    opening: Vec<SmolConnection>,
    /// Established connections that wait to be accepted.
    ready: VecDeque<SmolConnection>,
}

impl SmolListener {
    /// Starts to listen at the reserved address `port`.
    pub(crate) fn new(port: SmolPort, backlog: u32) -> Result<Self, LlpError> {
        let backlog = Arc::new(Backlog::new(backlog, Arc::new(Signal::new()?)));
        port.stack().listen(port.local(), &backlog)?;
        Ok(Self {
            port,
            backlog,
            opening: Vec::new(),
            ready: VecDeque::new(),
        })
    }

    fn stack(&self) -> &Arc<Stack> {
        self.port.stack()
    }

    /// Begins a connection for a SYN and passes the SYN to it.
    fn begin(&mut self, packet: Packet) -> Result<(), LlpError> {
        let Some(segment) = Segment::parse(packet.bytes()) else {
            self.stack().pool.give_one(packet);
            return Ok(());
        };
        let begun = match SmolConnection::answer(self.stack(), segment.key, &self.backlog.signal) {
            Ok(begun) => begun,
            Err(error) => {
                self.stack().refuse(packet);
                return Err(error);
            }
        };
        // A repeated SYN belongs to the connection that the first SYN began.
        let mailbox = match &begun {
            Ok(connection) => connection.mailbox(),
            Err(other) => other,
        };
        if let Err(packet) = mailbox.deliver(packet) {
            self.stack().pool.give_one(packet);
        }
        self.opening.extend(begun);
        Ok(())
    }

    /// Drives the handshakes. Moves established connections to `ready` and drops failed ones.
    fn advance(&mut self) {
        let mut index = 0;
        while let Some(connection) = self.opening.get_mut(index) {
            connection.pump_if_due();
            match connection.handshake_ended() {
                None => index += 1,
                Some(Ok(())) => self.ready.push_back(self.opening.swap_remove(index)),
                Some(Err(())) => drop(self.opening.swap_remove(index)),
            }
        }
        self.count();
    }

    fn count(&self) {
        self.backlog
            .held
            .store(self.opening.len() + self.ready.len(), Ordering::Release);
    }
}

impl LlpListener for SmolListener {
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError> {
        self.stack().poll();
        if let Some(error) = self.stack().fault() {
            return Err(error);
        }
        while let Some(packet) = self.backlog.take() {
            let begun = self.begin(packet);
            self.count();
            begun?;
        }
        self.advance();
        let Some(connection) = self.ready.pop_front() else {
            return Ok(None);
        };
        self.count();
        connection.mailbox().leave_listener();
        Ok(Some(Box::new(connection)))
    }

    fn local_addr(&self) -> SocketAddr {
        self.port.local()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.backlog.signal.as_fd()
    }

    fn clear_readiness(&mut self) {
        self.backlog.signal.clear();
    }

    fn deadline(&self) -> Option<Instant> {
        self.opening.iter().filter_map(Llp::deadline).min()
    }
}

impl Drop for SmolListener {
    fn drop(&mut self) {
        self.stack().unlisten(self.port.local());
        for packet in self.backlog.close() {
            self.stack().refuse(packet);
        }
    }
}
