//! Addresses of an id: its own, the peer's, and the way between them.

use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use uwarp_llp::{BoundPort, LlpError, Network};

use super::attempts;
use super::event::{CmEventData, CmEventKind};
use super::id::{CmError, CmId};
use super::inner::IdLocked;
use super::state::CmInput;
use crate::device::DeviceInner;

/// How a network gives a port.
type Reserve = fn(&(dyn Network + 'static), SocketAddr) -> Result<Box<dyn BoundPort>, LlpError>;

impl CmId {
    /// Takes a local address, to listen at or to connect from (`rdma_bind_addr`). Port 0 takes a free one; it is known
    /// when this returns, and nobody else's as long as the id has it. An unspecified address (`0.0.0.0`, `::`) means
    /// all of them.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Network`] that says what is in the way.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), CmError> {
        self.bind(addr, Network::reserve)
    }

    /// As [`bind_addr`](Self::bind_addr), but `::` means the addresses of IPv6 alone (`RDMA_OPTION_ID_AFONLY`).
    ///
    /// # Errors
    /// As [`bind_addr`](Self::bind_addr).
    pub fn bind_addr_of_one_family(&self, addr: SocketAddr) -> Result<(), CmError> {
        self.bind(addr, Network::reserve_one_family)
    }

    fn bind(&self, addr: SocketAddr, reserve: Reserve) -> Result<(), CmError> {
        let inner = self.inner();
        let mut id = self.locked()?;
        let next = id.state.next(CmInput::Bind)?;
        id.bind(&inner.device, addr, reserve)?;
        id.state = next;
        Ok(())
    }

    /// Finds the own address for connections to `to` (`rdma_resolve_addr`): that of [`bind_addr`](Self::bind_addr), or
    /// `from` (which is then taken as by `bind_addr`), or what the network chooses. It asks nobody, so it needs no
    /// timeout; `AddrResolved` or `AddrError` waits when this returns. Of several addresses in `to` the first one to which
    /// there is a way is taken; the error of `AddrError` is that of the last one. A host name blocks until the system has
    /// resolved it.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Resolve`] where a name gives no address.
    pub fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: impl ToSocketAddrs,
    ) -> Result<(), CmError> {
        let addrs = attempts::resolve(to)?;
        let inner = self.inner();
        let mut id = self.locked()?;
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
        let _ = inner.tell_locked(&id, data);
        Ok(())
    }

    /// Confirms that there is a way to the resolved address (`rdma_resolve_route`). TCP finds it packet by packet, so
    /// this is for programs that know the order of the calls. `RouteResolved` or `RouteError` waits when this returns.
    ///
    /// # Errors
    /// [`CmError::WrongState`].
    pub fn resolve_route(&self) -> Result<(), CmError> {
        let inner = self.inner();
        let mut id = self.locked()?;
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
        let _ = inner.tell_locked(&id, data);
        Ok(())
    }
}

/// Our address on the way to `to`. A link-local one is on the link of that address (RFC 4007 section 6).
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
