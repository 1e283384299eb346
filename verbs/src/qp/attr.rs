//! What a QP tells of itself.

use std::net::SocketAddr;

use uwarp_llp::Keepalive;

use super::modify::IbvQpState;
use super::state::QpState;
use super::{Qp, QpCaps};
use crate::engine::Connection;
use crate::mem::Access;
use crate::settings::Timeouts;

/// What [`Qp::query`] tells (`ibv_query_qp`): how the QP stands now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpAttr {
    /// The state.
    pub state: QpState,
    /// The same in the words of libibverbs (`qp_state`), as the table at [`QpState`] says: `Idle` is
    /// `IBV_QPS_INIT` once that was asked for, and `IBV_QPS_RESET` before.
    pub ibv_state: IbvQpState,
    /// Whether the send queue is still being drained for a graceful close (`sq_draining`).
    pub sq_draining: bool,
    /// What the peer may do through this QP.
    pub access: Access,
    /// The sizes of the queues, as granted: just what was asked for.
    pub caps: QpCaps,
    /// Reads and atomic operations that the peer may have outstanding (`max_dest_rd_atomic`): as negotiated, 0
    /// before MPA startup is done.
    pub ird: u16,
    /// Reads and atomic operations that this side may have outstanding (`max_rd_atomic`): as negotiated, 0
    /// before MPA startup is done.
    pub ord: u16,
    /// Of [`ird`](Self::ird), places that are taken now: requests that are not answered in whole (no such number in
    /// the verbs). 0 when there is no connection.
    pub ird_used: u16,
    /// The same of [`ord`](Self::ord): requests of this side that wait for their answer.
    pub ord_used: u16,
    /// Our end of the connection that there is or was last.
    pub local: Option<SocketAddr>,
    /// The peer's end of it.
    pub peer: Option<SocketAddr>,
    /// How long each step of a connection may last.
    pub timeouts: Timeouts,
    /// When a silent peer is taken for dead; `None`: the network decides.
    pub keepalive: Option<Keepalive>,
}

/// What a QP was made with (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpInit {
    /// The sizes of the queues.
    pub caps: QpCaps,
    /// What the peer may do through the QP at first, and again after a reset.
    pub access: Access,
    /// Whether every request of the send queue makes a completion (`sq_sig_all`).
    pub signal_all: bool,
    /// The program's own number (`qp_context`).
    pub context: u64,
}

fn ibv_state(conn: &Connection) -> IbvQpState {
    match conn.state {
        QpState::Idle if conn.initialized => IbvQpState::Init,
        QpState::Idle => IbvQpState::Reset,
        QpState::Connecting => IbvQpState::Init,
        QpState::Rts => IbvQpState::Rts,
        QpState::Closing => IbvQpState::Sqd,
        QpState::Terminate => IbvQpState::Sqe,
        QpState::Error => IbvQpState::Err,
    }
}

impl Qp {
    /// How the QP stands now (`ibv_query_qp`). In the child of a fork: in `Error`, without a connection.
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
            timeouts: self.inner().ctx.settings.timeouts,
            keepalive: self.inner().ctx.keepalive,
        };
        if self.is_inherited() {
            return attr;
        }
        let locked = self.inner().lock();
        let conn = &locked.driven.conn;
        attr.state = conn.state;
        attr.ibv_state = ibv_state(conn);
        attr.sq_draining = conn.state == QpState::Closing && !conn.sq.is_empty();
        attr.access = conn.access;
        if let Some(negotiated) = &conn.negotiated {
            (attr.ird, attr.ord) = (negotiated.ird, negotiated.ord);
        }
        (attr.ird_used, attr.ord_used) = conn.places_used();
        if let Some(addrs) = locked.addrs() {
            (attr.local, attr.peer) = (Some(addrs.local), Some(addrs.peer));
        }
        attr
    }

    /// Name of the congestion control of the TCP connection as it is now: the kernel's (`reno`, `cubic`, `bbr` ...), or
    /// `none`, `reno` or `cubic` of a TCP in user space. `None` without a connection.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        if self.is_inherited() {
            return None;
        }
        let locked = self.inner().lock();
        locked.driven.llp.as_ref()?.congestion_control()
    }

    /// What it was made with (`ibv_qp_init_attr`).
    #[must_use]
    pub fn init_attr(&self) -> QpInit {
        self.made.init()
    }
}
