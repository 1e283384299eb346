//! Unreliable datagrams (`IBV_QPT_UD`) between QPs of rendezvous, over UDP.
//!
//! iWARP has no datagrams, so these are not on the wire of the RFCs. A QP for datagrams has a
//! number of a rendezvous, whose port of UDP has the same number as its port of TCP. A Send names
//! the address and the number of its destination, and a Q_Key. It is one datagram of UDP
//! (`uwarp_engine::datagram`), and complete at once. It may be lost, repeated or reordered.
//!
//! A receive gets a Global Route Header of 40 bytes, and then the payload. A datagram with another
//! Q_Key than the QP has, or without a receive that is long enough, is dropped.
//!
//! `port.rs` receives for all QPs of a port. The part of a connection object is
//! `connection/datagram.rs` of `uwarp-engine`.

pub(crate) mod port;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use uwarp_engine::datagram::Header;
use uwarp_llp::LlpError;

use crate::connection::inner::QpInner;
use crate::device::Device;
use uwarp_engine::connection::{PostError, PostErrorKind};
use uwarp_engine::wr::SendWr;

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
    traffic_class: u8,
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
            None => {
                let inner = self.inner().map_err(|_| LlpError::Misuse {
                    op: "choose an address to send datagrams from",
                    why: "the device was opened before a fork() and belongs to the parent process; open a new device in this process",
                })?;
                inner.network.source_for(SocketAddr::new(peer, 0))?
            }
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
            traffic_class: 0,
        })
    }
}

/// A Send to one of many QPs ([`Qp::post_datagram`](crate::Qp::post_datagram)).
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

impl QpInner {
    pub(crate) fn post_datagrams<'a>(
        &self,
        wrs: impl Iterator<Item = DatagramWr<'a>> + Clone,
    ) -> Result<(), PostError> {
        // The post of a single one checks it.
        if wrs.clone().nth(1).is_some() {
            let mut locked = self.lock();
            let conn = &mut locked.driven.conn;
            conn.set_now(self.device.now());
            for (index, wr) in wrs.clone().enumerate() {
                let checked = conn.check_datagram(&wr.send, index);
                checked.map_err(|kind| PostError { index, kind })?;
            }
        }
        let mut waits = true;
        for (index, wr) in wrs.enumerate() {
            let posted = self.send_datagram(&wr, &mut waits);
            posted.map_err(|kind| PostError { index, kind })?;
        }
        Ok(())
    }

    /// Posts a Send, and sends its datagram. `waits`: waits for room in a full socket; becomes
    /// false if there was none in time.
    fn send_datagram(&self, wr: &DatagramWr<'_>, waits: &mut bool) -> Result<(), PostErrorKind> {
        let mut locked = self.lock();
        let mut bytes = std::mem::take(&mut locked.datagram);
        let conn = &mut locked.driven.conn;
        conn.set_now(self.device.now());
        let header = Header {
            source: self.ctx.qp_num,
            destination: wr.qp_num,
            qkey: match wr.qkey & OWN_QKEY {
                0 => wr.qkey,
                _ => conn.attr.qkey,
            },
            immediate: wr.immediate,
            solicited: wr.send.is_solicited(),
            traffic_class: wr.path.traffic_class,
            from: wr.path.from,
            to: wr.path.to,
        };
        bytes.clear();
        bytes.extend_from_slice(&header.to_bytes());
        let posted = conn.post_datagram(&wr.send, &mut bytes);
        self.publish(&mut locked);
        // While this thread waits for room, others may receive for the QP.
        drop(locked);
        if posted == Ok(true)
            && let Some(port) = self.datagrams()
            && let Some(to) = wr.path.destination(wr.qp_num)
        {
            *waits = port.send(&bytes, &header, to, *waits);
        }
        self.lock().datagram = bytes;
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
    /// Sets the traffic class that the receiver's Global Route Header reports. The network does not
    /// see it. Default: 0.
    #[must_use]
    pub fn with_traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

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
