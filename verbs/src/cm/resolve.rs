//! Addresses of an id: the local one, the peer's, and the route between them.

use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use uwarp_llp::{BoundPort, LlpError, Network};

use super::attempts;
use super::event::{CmEventData, CmEventKind};
use super::id::{CmError, CmId};
use super::inner::IdLocked;
use super::state::CmInput;
use crate::device::DeviceInner;

/// Function that reserves a port of a network.
type Reserve = fn(&(dyn Network + 'static), SocketAddr) -> Result<Box<dyn BoundPort>, LlpError>;

impl CmId {
    /// Binds a local address, to listen at or to connect from (`rdma_bind_addr`). Port 0 selects a
    /// free port, which is known on return and reserved while the id has it. An unspecified address
    /// (`0.0.0.0`, `::`) means all addresses.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Network`] with the reason.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), CmError> {
        self.bind(addr, Network::reserve)
    }

    /// Binds like [`bind_addr`](Self::bind_addr), but `::` means only IPv6 addresses
    /// (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// See [`bind_addr`](Self::bind_addr).
    pub fn bind_addr_of_one_family(&self, addr: SocketAddr) -> Result<(), CmError> {
        self.bind(addr, Network::reserve_one_family)
    }

    fn bind(&self, addr: SocketAddr, reserve: Reserve) -> Result<(), CmError> {
        let inner = self.inner()?;
        let mut id = inner.lock()?;
        let next = id.state.next(CmInput::Bind)?;
        id.bind(&inner.device, addr, reserve)?;
        id.state = next;
        Ok(())
    }

    /// Finds the local address for connections to `to` (`rdma_resolve_addr`). It is the address of
    /// [`bind_addr`](Self::bind_addr), or `from` (which is then bound as by `bind_addr`), or one
    /// that the network chooses. No packet is sent, so there is no timeout: `AddrResolved` or
    /// `AddrError` is queued before the call returns. If `to` has several addresses, the first with
    /// a route is used. If no address has a route, `AddrError` reports the error of the last
    /// address. A host name blocks until the system has resolved it.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Resolve`] if a name has no address.
    pub fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: impl ToSocketAddrs,
    ) -> Result<(), CmError> {
        let inner = self.inner()?;
        let addrs = attempts::resolve(to)?;
        let mut id = inner.lock()?;
        let next = id.state.next(CmInput::ResolveAddr)?;
        let mut outcome = Err(LlpError::Misuse {
            op: "resolve this address",
            why: "there is none",
        });
        for to in addrs {
            outcome = id.resolve(&inner.device, from, to);
            if outcome.is_ok() {
                break;
            }
        }
        let data = match outcome {
            Ok(()) => {
                id.state = next;
                CmEventData::new(CmEventKind::AddrResolved)
            }
            Err(error) => CmEventData::failure(CmEventKind::AddrError, error),
        };
        let _ = inner.queue_event_locked(&id, data);
        Ok(())
    }

    /// Confirms that there is a route to the resolved address (`rdma_resolve_route`). TCP finds the
    /// route for each packet, so this call is only for programs that follow the order of
    /// librdmacm's calls. `RouteResolved` or `RouteError` is queued before the call returns.
    ///
    /// # Errors
    /// [`CmError::WrongState`].
    pub fn resolve_route(&self) -> Result<(), CmError> {
        let inner = self.inner()?;
        let mut id = inner.lock()?;
        let next = id.state.next(CmInput::ResolveRoute)?;
        let to = id
            .peer
            .ok_or(id.wrong("resolve_route", "a resolved address"))?;
        let data = match inner.device.network.source_for(to) {
            Ok(_) => {
                id.state = next;
                CmEventData::new(CmEventKind::RouteResolved)
            }
            Err(error) => CmEventData::failure(CmEventKind::RouteError, error),
        };
        let _ = inner.queue_event_locked(&id, data);
        Ok(())
    }
}

/// Returns the local address for connections to `to`. A link-local address is on the link of `to`
/// (RFC 4007 section 6).
fn local_on_the_way(source: IpAddr, port: u16, to: SocketAddr) -> SocketAddr {
    match (source, to) {
        (IpAddr::V6(source), SocketAddr::V6(to)) if source.is_unicast_link_local() => {
            SocketAddrV6::new(source, port, 0, to.scope_id()).into()
        }
        _ => SocketAddr::new(source, port),
    }
}

impl IdLocked {
    fn bind(
        &mut self,
        device: &DeviceInner,
        addr: SocketAddr,
        reserve: Reserve,
    ) -> Result<(), LlpError> {
        let port = reserve(&*device.network, addr)?;
        self.bound = Some(port.local_addr());
        self.local = self.bound;
        self.port = Some(port);
        Ok(())
    }

    fn resolve(
        &mut self,
        device: &DeviceInner,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(), LlpError> {
        let misuse = |why| LlpError::Misuse {
            op: "resolve this address",
            why,
        };
        if from.is_some() && self.bound.is_some() {
            return Err(misuse("the id has a local address already"));
        }
        if let Some(own) = from.or(self.bound)
            && own.is_ipv4() != to.is_ipv4()
        {
            let (local, peer) = (own.ip(), to.ip());
            return Err(LlpError::FamilyMismatch { local, peer });
        }
        let source = device.network.source_for(to)?;
        if let Some(from) = from {
            self.bind(device, from, Network::reserve)?;
        }
        let own = match self.bound {
            Some(bound) if bound.ip().is_unspecified() => {
                local_on_the_way(source, bound.port(), to)
            }
            Some(bound) => bound,
            None => local_on_the_way(source, 0, to),
        };
        (self.local, self.peer) = (Some(own), Some(to));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_of_ours_is_on_the_link_of_the_peers() {
        let own = |source: &str, to: &str| {
            local_on_the_way(source.parse().unwrap(), 7, to.parse().unwrap()).to_string()
        };
        assert_eq!(own("fe80::5", "[fe80::1%3]:1"), "[fe80::5%3]:7");
        assert_eq!(own("2001:db8::5", "[2001:db8::1]:1"), "[2001:db8::5]:7");
        assert_eq!(own("192.0.2.5", "192.0.2.1:1"), "192.0.2.5:7");
    }
}
