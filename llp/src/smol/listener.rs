//! Listener of a stack in user space. It creates the connections of completed handshakes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::backlog::{Backlog, Completed};
use super::connection::SmolConnection;
use super::reserved::SmolPort;
use super::signal::Signal;
use super::stack::Stack;
use crate::{Llp, LlpError, LlpListener};

/// A listening port of a stack in user space.
pub(crate) struct SmolListener {
    port: SmolPort,
    backlog: Arc<Backlog>,
    /// Established connections that wait to be accepted.
    ready: VecDeque<SmolConnection>,
}

impl SmolListener {
    /// Starts to listen at the reserved address `port`.
    pub(crate) fn new(port: SmolPort, backlog: u32) -> Result<Self, LlpError> {
        let backlog = Arc::new(Backlog::new(backlog, Signal::new()?));
        port.stack().listen(port.local(), &backlog)?;
        Ok(Self {
            port,
            backlog,
            ready: VecDeque::new(),
        })
    }

    fn stack(&self) -> &Arc<Stack> {
        self.port.stack()
    }

    /// Creates the connection of a completed handshake, and passes the segments to it.
    fn begin(&mut self, completed: Completed) -> Result<(), LlpError> {
        let Completed {
            key,
            handshake,
            packets,
        } = completed;
        let mut begun = match SmolConnection::accept(self.stack(), key, &handshake) {
            Ok(begun) => begun,
            Err(error) => {
                for packet in packets {
                    self.stack().refuse(packet);
                }
                return Err(error);
            }
        };
        self.stack().handshakes.remove(&key);
        // More segments may arrive between two calls of this function for one handshake. They
        // belong to the connection that the first call has created.
        let mailbox = match &begun {
            Ok(connection) => connection.mailbox(),
            Err(other) => other,
        };
        for packet in packets {
            if let Err(packet) = mailbox.deliver(packet) {
                self.stack().pool.give_one(packet);
            }
        }
        if let Ok(connection) = &mut begun {
            connection.pump_if_due();
        }
        self.ready
            .extend(begun.ok().filter(SmolConnection::is_open));
        Ok(())
    }

    fn count(&self) {
        self.backlog.held.store(self.ready.len(), Ordering::Release);
    }
}

impl LlpListener for SmolListener {
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError> {
        self.stack().poll();
        if let Some(error) = self.stack().fault() {
            return Err(error);
        }
        self.stack().repeat_syn_acks();
        while let Some(completed) = self.backlog.take() {
            let begun = self.begin(completed);
            self.count();
            begun?;
        }
        let Some(connection) = self.ready.pop_front() else {
            return Ok(None);
        };
        self.count();
        // The new owner processes packets that have already arrived.
        connection.mailbox().signal.raise();
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
        self.stack().handshakes.deadline()
    }
}

impl Drop for SmolListener {
    fn drop(&mut self) {
        self.stack().unlisten(self.port.local());
        for packet in self.backlog.close().into_iter().flat_map(|c| c.packets) {
            self.stack().refuse(packet);
        }
    }
}
