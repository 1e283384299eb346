//! Local addresses that are reserved before they are used to connect or listen.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection::{SmolConnection, local_for};
use super::listener::SmolListener;
use super::stack::Stack;
use super::user::User;
use crate::{BoundPort, Llp, LlpError, LlpListener};

/// A reserved address of a stack. Dropping it releases the address.
pub(crate) struct SmolPort {
    stack: User,
    local: SocketAddr,
}

impl SmolPort {
    pub(crate) fn take(stack: &Arc<Stack>, addr: SocketAddr) -> Result<Self, LlpError> {
        let local = stack.reserve(addr)?;
        Ok(Self {
            stack: User::of(stack),
            local,
        })
    }

    pub(super) fn stack(&self) -> &User {
        &self.stack
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }
}

impl BoundPort for SmolPort {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn connect(self: Box<Self>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        // A stack has only one link, so the scope of an IPv6 address is ignored.
        let to = SocketAddr::new(to.ip(), to.port());
        // The reservation ends with this call. The port then belongs to the connection, and
        // `free_port` skips ports of connections too.
        let local = local_for(&self.stack, Some(self.local), to)?;
        Ok(Box::new(SmolConnection::connect(&self.stack, local, to)?))
    }

    fn listen(self: Box<Self>, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        Ok(Box::new(SmolListener::new(*self, backlog)?))
    }
}

impl Drop for SmolPort {
    fn drop(&mut self) {
        self.stack.release(self.local);
    }
}
