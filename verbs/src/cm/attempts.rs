//! Connecting to the addresses of a name, one after the other.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use uwarp_engine::fork_guard::ForkGuarded;

use super::connect::{ConnectError, ConnectOptions, Connected, Starter, start};
use crate::connection::Connection;
use crate::connection::inner::QpInner;
use uwarp_engine::event::EndReason;

/// Error: the addresses of a name could not be determined, or there are none.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The resolver of the system failed.
    #[error(
        "the address cannot be resolved: {error}; check the spelling of the name and the resolver of this machine"
    )]
    System {
        /// Error of the resolver.
        error: Arc<io::Error>,
    },
    /// The name has no address.
    #[error("the name has no address; give at least one")]
    NoAddress,
}

/// Returns the addresses in their order. Blocks until the system has resolved a host name.
pub(crate) fn resolve(to: impl ToSocketAddrs) -> Result<VecDeque<SocketAddr>, ResolveError> {
    let addrs = to.to_socket_addrs().map_err(|error| ResolveError::System {
        error: Arc::new(error),
    })?;
    let addrs: VecDeque<_> = addrs.collect();
    if addrs.is_empty() {
        return Err(ResolveError::NoAddress);
    }
    Ok(addrs)
}

/// An address to which TCP did not connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Address that was tried.
    pub addr: SocketAddr,
    /// Error of TCP.
    pub error: Box<ConnectError>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addr, error) = (self.addr.to_string(), self.error.to_string());
        if error.contains(&addr) {
            return f.write_str(&error);
        }
        write!(f, "{addr}: {error}")
    }
}

/// Attempts of one call to connect to several addresses. The next address is tried only if TCP did
/// not connect to the previous one. Posted work is kept from one attempt to the next. If `Attempts`
/// is dropped between two attempts, the QP ends with the last failure.
pub(crate) struct Attempts<'a> {
    qp: &'a ForkGuarded<Arc<QpInner>>,
    options: &'a ConnectOptions,
    addrs: VecDeque<SocketAddr>,
    failed: Vec<Attempt>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(
        qp: &'a ForkGuarded<Arc<QpInner>>,
        addrs: VecDeque<SocketAddr>,
        options: &'a ConnectOptions,
    ) -> Self {
        Attempts {
            qp,
            options,
            addrs,
            failed: Vec::new(),
        }
    }

    /// Starts to connect to the next address. [`connect_outcome`](super::connect_outcome) reports
    /// the outcome.
    pub(crate) fn begin(&mut self) -> Result<SocketAddr, ConnectError> {
        let to = self.addrs.pop_front().ok_or(ResolveError::NoAddress)?;
        let (qp, options) = (self.qp.get()?, self.options);
        let target = Some((options.local, to));
        let starter = Starter::Call {
            more_addresses: !self.addrs.is_empty(),
        };
        start(qp, to, options, target, starter, || {
            qp.device.network.connect(options.local, to)
        })?;
        Ok(to)
    }

    /// Evaluates the outcome of an attempt. Returns the result of the call, or `None` if another
    /// address is to be tried.
    pub(crate) fn judge(
        &mut self,
        addr: SocketAddr,
        outcome: Result<Connected, ConnectError>,
    ) -> Option<Result<Connected, ConnectError>> {
        let error = match outcome {
            Err(error) if is_unconnected(&error) => error,
            outcome => return Some(outcome),
        };
        if self.addrs.is_empty() && self.failed.is_empty() {
            return Some(Err(error));
        }
        let error = Box::new(error);
        self.failed.push(Attempt { addr, error });
        if !self.addrs.is_empty() {
            return None;
        }
        let tried = std::mem::take(&mut self.failed);
        Some(Err(ConnectError::NoneConnected { tried }))
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if let Some(qp) = self.qp.here() {
            qp.with(Connection::no_more_attempts);
        }
    }
}

/// Returns true if TCP did not connect.
fn is_unconnected(error: &ConnectError) -> bool {
    match error {
        ConnectError::Llp { .. } => true,
        ConnectError::Ended { reason, .. } => matches!(**reason, EndReason::ConnectTimedOut),
        _ => false,
    }
}

/// Lists the failed attempts in words.
pub(super) fn list(tried: &[Attempt]) -> String {
    let tried: Vec<String> = tried.iter().map(Attempt::to_string).collect();
    tried.join("; ")
}
