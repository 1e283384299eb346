//! Unreliable datagrams (`IBV_QPT_UD`) between QPs of rendezvous, over UDP.
//!
//! iWARP has no datagrams, so these are not on the wire of the RFCs. A QP for datagrams has a
//! number of a rendezvous, whose port of UDP has the same number as its port of TCP. A Send names
//! the address and the number of its destination, and a Q_Key. It is one datagram of UDP
//! (`format.rs`), and complete at once. It may be lost, repeated or reordered.
//!
//! A receive gets a Global Route Header of 40 bytes, and then the payload. A datagram with another
//! Q_Key than the QP has, or without a receive that is long enough, is dropped.
//!
//! `port.rs` receives for all QPs of a port. The part of a connection object is
//! `engine/datagram.rs`.

pub(crate) mod format;
pub(crate) mod port;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;

use uwarp_llp::LlpError;

use self::format::Header;
use crate::device::Device;
use crate::engine::PostErrorKind;
use crate::qp::inner::QpInner;
use crate::qp::wr::SendWr;
use crate::qp::{PostError, Qp};

/// Bit of a Q_Key in a work request that makes the Send use the Q_Key of its own QP (InfiniBand
/// Architecture Specification, section 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// Way of datagrams to a host: the address that they are sent from, and the one that they are sent
/// to. It is what an address handle of libibverbs is (`ibv_ah`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramPath {
    from: IpAddr,
    to: IpAddr,
    /// Link of `to`, if it is a link-local address.
    scope: u32,
}

impl Device {
    /// Describes the way of datagrams to `peer`. `local`: address to send from; `None`: the network
    /// chooses. A link-local `peer` is on the interface of this address.
    ///
    /// # Errors
    /// [`LlpError`] if the two addresses have different families, or if the network has no way to
    /// `peer`.
    pub fn datagram_path(
        &self,
        local: Option<SocketAddr>,
        peer: IpAddr,
    ) -> Result<DatagramPath, LlpError> {
        let from = match local {
            Some(local) => {
                LlpError::check_families(local, SocketAddr::new(peer, 0))?;
                local.ip()
            }
            None => (self.inner().network).source_for(SocketAddr::new(peer, 0))?,
        };
        let scope = match (local, peer) {
            (Some(SocketAddr::V6(local)), IpAddr::V6(peer)) if peer.is_unicast_link_local() => {
                local.scope_id()
            }
            _ => 0,
        };
        Ok(DatagramPath {
            from,
            to: peer,
            scope,
        })
    }
}

/// A Send to one of many QPs ([`Qp::post_datagram`]).
#[derive(Clone, Copy, Debug)]
pub struct DatagramWr<'a> {
    send: SendWr<'a>,
    path: DatagramPath,
    qp_num: u32,
    qkey: u32,
    immediate: Option<[u8; 4]>,
}

impl<'a> DatagramWr<'a> {
    /// Creates a request to send `send`, which must be a Send without further options than
    /// solicited and unsignaled, to the QP `qp_num` of the host at the end of `path`.
    ///
    /// The QP takes it only if `qkey` is its Q_Key. If the highest bit of `qkey` is set, the Q_Key
    /// of the sending QP is used instead.
    #[must_use]
    pub fn new(send: SendWr<'a>, path: DatagramPath, qp_num: u32, qkey: u32) -> Self {
        DatagramWr {
            send,
            path,
            qp_num,
            qkey,
            immediate: None,
        }
    }

    /// Adds Immediate Data: four bytes in the order of the wire. The completion of the receive has
    /// them at the start of [`Completion::immediate`](crate::Completion::immediate).
    #[must_use]
    pub fn immediate(mut self, data: [u8; 4]) -> Self {
        self.immediate = Some(data);
        self
    }
}

/// Origin of a datagram, in the completion of the receive
/// ([`Completion::datagram`](crate::Completion::datagram)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramSource(NonZeroU32);

impl DatagramSource {
    /// Bit that no number of a QP has (24 bits).
    const IPV6: u32 = 1 << 31;

    /// Returns the origin of a datagram; `None` if its QP number is none.
    pub(crate) fn of(header: &Header) -> Option<Self> {
        let number = NonZeroU32::new(header.source).filter(|number| number.get() >> 24 == 0)?;
        let family = if header.is_ipv6() { Self::IPV6 } else { 0 };
        Some(DatagramSource(number | family))
    }

    /// Number of the QP that sent it.
    #[must_use]
    pub fn qp_num(self) -> u32 {
        self.0.get() & !Self::IPV6
    }

    /// Returns true if it came by IPv6. The Global Route Header is then an IPv6 header. Otherwise
    /// it is an IPv4 header in its bytes 20 to 39.
    #[must_use]
    pub fn is_ipv6(self) -> bool {
        self.0.get() & Self::IPV6 != 0
    }
}

impl Qp {
    /// Makes a QP for datagrams ([`QpBuilder::datagrams`](crate::QpBuilder::datagrams)) receive and
    /// send (`ibv_modify_qp` to RTR and RTS). Returns false if it is no such QP, or if it is not
    /// idle.
    pub fn open_datagrams(&self) -> bool {
        !self.is_inherited() && self.inner().with(crate::engine::Connection::open_datagrams)
    }

    /// Sets the Q_Key of the QP: datagrams with another one are dropped. Default, and after a
    /// reset: 0.
    pub fn set_qkey(&self, qkey: u32) {
        if !self.is_inherited() {
            self.inner().with(|conn| conn.qkey = qkey);
        }
    }

    /// Sends a datagram. The request is complete when the call returns, whether the datagram
    /// arrives or not.
    ///
    /// # Errors
    /// See [`PostErrorKind`]. A request posted to a QP in an error state is accepted and completes
    /// as flushed.
    pub fn post_datagram(&self, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        self.check()?;
        let posted = self.inner().post_datagram(wr);
        posted.map_err(|kind| PostError { index: 0, kind })
    }
}

impl QpInner {
    fn post_datagram(&self, wr: &DatagramWr<'_>) -> Result<(), PostErrorKind> {
        let mut locked = self.lock();
        let mut bytes = std::mem::take(&mut locked.datagram);
        let conn = &mut locked.driven.conn;
        conn.set_now(self.device.now());
        let header = Header {
            source: self.ctx.qp_num,
            destination: wr.qp_num,
            qkey: match wr.qkey & OWN_QKEY {
                0 => wr.qkey,
                _ => conn.qkey,
            },
            immediate: wr.immediate,
            solicited: wr.send.solicited,
            from: wr.path.from,
            to: wr.path.to,
        };
        bytes.clear();
        bytes.extend_from_slice(&header.to_bytes());
        let posted = conn.post_datagram(&wr.send, &mut bytes);
        if posted == Ok(true)
            && let Some(port) = self.datagrams()
            && let Some(to) = wr.path.destination(wr.qp_num)
        {
            port.send(&bytes, &header, to);
        }
        locked.datagram = bytes;
        self.publish(&mut locked);
        posted.map(drop)
    }

    /// Places a datagram into a receive. Returns the reason why it is dropped.
    pub(crate) fn receive_datagram(
        &self,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), &'static str> {
        let mut locked = self.lock();
        let received = locked.driven.conn.receive_datagram(header, payload);
        self.publish(&mut locked);
        received
    }
}

impl DatagramPath {
    /// Returns the address of the rendezvous of a QP. `None` if the number is none of a rendezvous.
    fn destination(self, qp_num: u32) -> Option<SocketAddr> {
        let port = u16::try_from(qp_num >> 8)
            .ok()
            .filter(|port| *port >= 1024)?;
        Some(match self.to {
            IpAddr::V6(to) => SocketAddrV6::new(to, port, 0, self.scope).into(),
            to => SocketAddr::new(to, port),
        })
    }
}
