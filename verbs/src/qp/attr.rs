//! Attributes of a QP, as queries return them.

use std::net::SocketAddr;

use uwarp_engine::mem::Access;
use uwarp_engine::state::QpState;
use uwarp_llp::Keepalive;

use super::modify::IbvQpState;
use super::{Qp, QpCaps};
use crate::connection::Connection;
use crate::settings::Timeouts;

/// Attributes and state of a QP, returned by [`Qp::query`] (`ibv_query_qp`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpAttr {
    /// Current state.
    pub state: QpState,
    /// State of libibverbs (`qp_state`) for the current state, by the table at [`QpState`]. For
    /// `Idle` it is `IBV_QPS_RESET`, or `IBV_QPS_INIT` after the program has requested that state.
    pub ibv_state: IbvQpState,
    /// Whether the send queue is still being drained for a graceful close (`sq_draining`).
    pub sq_draining: bool,
    /// Rights of the peer through this QP.
    pub access: Access,
    /// Sizes of the queues, exactly as requested.
    pub caps: QpCaps,
    /// Number of RDMA Reads and Atomic Operations that the peer may have outstanding
    /// (`max_dest_rd_atomic`), as negotiated; 0 before MPA startup is done.
    pub ird: u16,
    /// Number of RDMA Reads and Atomic Operations that this side may have outstanding
    /// (`max_rd_atomic`), as negotiated; 0 before MPA startup is done.
    pub ord: u16,
    /// Number of requests counted against [`ird`](Self::ird) that are not fully answered yet; 0
    /// without a connection. (The verbs have no such number.)
    pub ird_used: u16,
    /// Number of requests of this side counted against [`ord`](Self::ord) that await their
    /// response; 0 without a connection.
    pub ord_used: u16,
    /// Local address of the current or last connection.
    pub local: Option<SocketAddr>,
    /// Address of the peer of the current or last connection.
    pub peer: Option<SocketAddr>,
    /// Time limits of the steps of a connection.
    pub timeouts: Timeouts,
    /// Time after which a silent peer is considered dead; `None`: the network decides.
    pub keepalive: Option<Keepalive>,
}

/// Attributes with which a QP was created (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpInit {
    /// Sizes of the queues.
    pub caps: QpCaps,
    /// Rights of the peer through the QP after creation and after a reset.
    pub access: Access,
    /// Whether every request of the send queue makes a completion (`sq_sig_all`).
    pub signal_all: bool,
    /// Number chosen by the program (`qp_context`).
    pub context: u64,
}

fn ibv_state(conn: &Connection) -> IbvQpState {
    match conn.state {
        QpState::Idle if conn.attr.initialized => IbvQpState::Init,
        QpState::Idle => IbvQpState::Reset,
        QpState::Connecting => IbvQpState::Init,
        QpState::Rts => IbvQpState::Rts,
        QpState::Closing => IbvQpState::Sqd,
        QpState::Terminate => IbvQpState::Sqe,
        QpState::Error => IbvQpState::Err,
    }
}

impl Qp {
    /// Returns the current attributes and state (`ibv_query_qp`). In the child of a fork the state
    /// is `Error`, without a connection.
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr {
            state: QpState::Error,
            ibv_state: IbvQpState::Err,
            sq_draining: false,
            access: self.made.init().access,
            caps: self.made.init().caps,
            ird: 0,
            ord: 0,
            ird_used: 0,
            ord_used: 0,
            local: None,
            peer: None,
            timeouts: self.attributes().settings.timeouts,
            keepalive: self.attributes().keepalive,
        };
        let Ok(inner) = self.inner() else {
            return attr;
        };
        let locked = inner.lock();
        let conn = &locked.driven.conn;
        attr.state = conn.state;
        attr.ibv_state = ibv_state(conn);
        attr.sq_draining = conn.state == QpState::Closing && !conn.sq.is_empty();
        attr.access = conn.attr.access;
        if let Some(negotiated) = &conn.negotiated {
            (attr.ird, attr.ord) = (negotiated.ird, negotiated.ord);
        }
        (attr.ird_used, attr.ord_used) = conn.places_used();
        if let Some(addrs) = locked.addrs() {
            (attr.local, attr.peer) = (Some(addrs.local), Some(addrs.peer));
        }
        attr
    }

    /// Name of the congestion control of the TCP connection: the kernel's (`reno`, `cubic`, `bbr`
    /// ...), or `none`, `reno` or `cubic` for TCP in user space. `None` without a connection.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        let locked = self.inner().ok()?.lock();
        locked.driven.llp.as_ref()?.congestion_control()
    }

    /// Returns the attributes with which the QP was created (`ibv_qp_init_attr`).
    #[must_use]
    pub fn init_attr(&self) -> QpInit {
        self.made.init()
    }
}
