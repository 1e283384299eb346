//! Queue pairs: handles, posting of work requests, and closing.

pub(crate) mod attr;
pub(crate) mod builder;
mod datagrams;
mod drain;
pub(crate) mod modify;
mod regions;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::mem::WindowBind;
use uwarp_engine::state::QpState;
use uwarp_mpa::Revision;

use crate::connection::QpContext;
use crate::connection::inner::QpInner;
use crate::cq::Cq;
use crate::device::DeviceInner;
use crate::mw::MemoryWindow;
use crate::pd::Pd;
use crate::refused::refused;
use crate::rendezvous::Rendezvous;
use crate::srq::{Srq, SrqUser};
use builder::QpBuilder;
#[cfg(doc)]
use uwarp_engine::connection::PostErrorKind;
use uwarp_engine::connection::{FlightRecord, PostError, each};
use uwarp_engine::event::EndReason;
use uwarp_engine::limits::Number;
use uwarp_engine::setters;
use uwarp_engine::wr::{BindWr, RecvWr, SendWr};

/// Sizes of the queues of a QP (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpCaps {
    /// Capacity of the send queue, in work requests. Default: 128.
    ///
    /// A request occupies a slot from the post until its completion is polled. A request that is
    /// unsignaled and succeeds occupies its slot until a later completion of the queue is polled. A
    /// queue whose requests are all unsignaled therefore stays full after this many requests.
    pub max_send_wr: u32,
    /// Capacity of the receive queue, in work requests. A receive occupies a slot from the post
    /// until its completion is polled. Default: 128.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather elements in a send work request. Default: 4.
    pub max_send_sge: u32,
    /// Maximum number of scatter/gather elements in a receive. Default: 4.
    pub max_recv_sge: u32,
    /// Maximum number of bytes of inline data in a work request. Default: 256.
    pub max_inline_data: u32,
}

setters! { const QpCaps {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
} }

impl QpCaps {
    /// Returns the values of [`Default`], usable in constants.
    #[must_use]
    pub const fn new() -> Self {
        QpCaps {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        }
    }
}

impl Default for QpCaps {
    fn default() -> Self {
        QpCaps::new()
    }
}

/// Reason why a QP could not be destroyed (`ibv_destroy_qp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyQpError {
    /// Asynchronous events of the QP were taken from the device and not acknowledged.
    #[error(
        "{events} asynchronous events of the queue pair are not acknowledged; drop them, or call ack_events"
    )]
    Unacknowledged {
        /// Number of these events.
        events: u64,
    },
}

/// Parameters negotiated with the peer, and addresses of the two ends (RFC 5044 section 7.1, RFC
/// 6581 section 9).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// MPA revision in use.
    pub revision: Revision,
    /// Whether FPDUs carry a CRC32C that is checked, in both directions.
    pub crc: bool,
    /// Whether this side inserts Markers.
    pub tx_markers: bool,
    /// Whether the peer inserts Markers.
    pub rx_markers: bool,
    /// Number of RDMA Reads and Atomic Operations that the peer may have outstanding.
    pub ird: u16,
    /// Number of RDMA Reads and Atomic Operations that this side may have outstanding.
    pub ord: u16,
    /// IRD stated by the peer (enhanced startup only).
    pub peer_ird: Option<u16>,
    /// ORD stated by the peer (enhanced startup only).
    pub peer_ord: Option<u16>,
    /// Private data sent by the peer.
    pub private_data: Vec<u8>,
}

/// A queue pair (`ibv_qp`): one end of an RDMA connection (RFC 5040 section 6), with a send queue
/// and a receive queue.
///
/// Dropping it ends its connection: gracefully if no work is outstanding, otherwise by a reset.
/// Outstanding work then completes as flushed.
pub struct Qp {
    inner: ForkGuarded<Arc<QpInner>>,
    /// Attributes with which the QP was created. They also keep the objects alive that the QP uses.
    made: Box<QpBuilder>,
    /// Set if outstanding work makes no completion when the QP is dropped.
    discards: bool,
    _uses_srq: Option<SrqUser>,
    send_cq: Cq,
    recv_cq: Cq,
}

impl Qp {
    pub(crate) fn new(
        inner: Arc<QpInner>,
        made: QpBuilder,
        uses_srq: Option<SrqUser>,
        send_cq: Cq,
        recv_cq: Cq,
    ) -> Self {
        Qp {
            inner: ForkGuarded::new(inner),
            _uses_srq: uses_srq,
            made: Box::new(made),
            discards: false,
            send_cq,
            recv_cq,
        }
    }

    /// Returns the shared part of the QP.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&Arc<QpInner>, Inherited> {
        self.inner.get()
    }

    /// Returns the shared part of the QP, to post to it.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork, where posting is not possible.
    #[inline]
    pub(crate) fn to_post(&self) -> Result<&Arc<QpInner>, PostError> {
        self.inner.get().map_err(refused)
    }

    /// Returns the shared part of the QP, for a call that makes a check at each of several steps.
    pub(crate) fn guarded(&self) -> &ForkGuarded<Arc<QpInner>> {
        &self.inner
    }

    /// Returns the attributes of the QP that never change. A child may read them, too.
    pub(crate) fn attributes(&self) -> &QpContext {
        &self.inner.unguarded().ctx
    }

    /// Returns the number of the QP. It is not reused while a reference to it is held.
    pub(crate) fn number(&self) -> Arc<Number> {
        self.inner.unguarded().number()
    }

    /// Returns true if the QP belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.inner.unguarded().device, device)
    }

    /// Number of this QP, unique on its device (`ibv_qp.qp_num`). Completions carry it.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.attributes().qp_num
    }

    /// Protection domain of this QP (`ibv_qp.pd`).
    #[must_use]
    pub fn pd(&self) -> &Pd {
        self.made.pd()
    }

    /// Shared receive queue of this QP, if it has no receive queue of its own (`ibv_qp.srq`).
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.made.chosen_srq()
    }

    /// Rendezvous of the QP, if it has a number by which it can be connected.
    pub(crate) fn rendezvous(&self) -> Option<&Rendezvous> {
        self.made.chosen_rendezvous()
    }

    /// Number chosen by the program ([`QpBuilder::context`], `ibv_qp.qp_context`).
    #[must_use]
    pub fn context(&self) -> u64 {
        self.made.init().context
    }

    /// CQ that receives the completions of the send queue (`ibv_qp.send_cq`).
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// CQ that receives the completions of the receive queue (`ibv_qp.recv_cq`).
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// Current state (`ibv_qp.state`). In the child of a fork it is always `Error`.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.inner
            .here()
            .map_or(QpState::Error, |inner| inner.lock().driven.conn.state)
    }

    /// Posts one request to the send queue (`ibv_post_send`; RFC 5040 section 5).
    ///
    /// The request is sent at once if TCP takes it, no earlier request is waiting, and the program
    /// either does not poll or posts only one request between two polls. If a program polls and
    /// posts several requests between two polls, they are staged and sent together. Staged requests
    /// are sent with the next poll that finds no completion, or when they make a full batch. If the
    /// program stops polling, they are sent within 2 x
    /// [`Settings::takeover`](crate::Settings::takeover), or within 11 x `takeover` after it polled
    /// continuously for a long time.
    ///
    /// # Errors
    /// See [`PostErrorKind`]. A request posted to a connection that has ended is accepted and
    /// completes as flushed.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_list(std::slice::from_ref(wr))
    }

    /// Posts requests to the send queue in order (a list of `ibv_post_send`), and sends them
    /// together at the time that [`Qp::post_send`] describes. For that decision a list of 16 or
    /// more requests counts as several posts.
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused. Those before it were posted, and
    /// those after it were not.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.to_post()?
            .post(|conn| each(wrs, |_, wr| conn.post_send(wr)))
    }

    /// Posts all requests of a list or none (`ibv_wr_complete`). Otherwise it works like
    /// [`post_send_list`](Self::post_send_list). A request may not use memory that another request
    /// of the list registers.
    ///
    /// # Errors
    /// [`PostError`] names the first request that would be refused. None was posted.
    pub fn post_send_all(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.to_post()?.post(|conn| {
            if wrs.len() > 1 {
                each(wrs, |index, wr| conn.check_send(wr, index))?;
            }
            each(wrs, |_, wr| conn.post_send(wr))
        })
    }

    /// Number of requests that the send queue would accept now: its free slots (see
    /// [`QpCaps::max_send_wr`]). It is 0 in the child of a fork. (The verbs leave this count to the
    /// program.)
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.inner
            .here()
            .map_or(0, |inner| inner.lock().driven.conn.sq.room())
    }

    /// Binds a memory window of type 1 with a request without flags (`ibv_bind_mw`):
    /// [`Qp::post_bind`] with [`BindWr::new`].
    ///
    /// # Errors
    /// See [`Qp::post_bind`].
    pub fn bind_mw(
        &self,
        window: &mut MemoryWindow,
        wr_id: u64,
        bind: &WindowBind,
    ) -> Result<u32, PostError> {
        self.post_bind(window, &BindWr::new(wr_id, bind))
    }

    /// Posts a request that binds a memory window of type 1 (`ibv_bind_mw`), and returns the new
    /// STag.
    ///
    /// When the request completes, the window is bound to this STag, and the old binding has ended.
    /// Requests posted to this QP after this one find the window bound. A length of 0 bytes only
    /// ends the old binding.
    ///
    /// # Errors
    /// [`PostErrorKind::WindowKind`] for a window of type 2, and the errors of [`Qp::post_send`].
    /// The window is then unchanged.
    pub fn post_bind(&self, window: &mut MemoryWindow, wr: &BindWr) -> Result<u32, PostError> {
        let rkey = window
            .next_by_call()
            .map_err(|kind| PostError { index: 0, kind })?;
        self.post_send(&wr.to_send_wr(rkey))?;
        window.set_by_call(rkey);
        Ok(rkey)
    }

    /// Posts one buffer for a Send from the peer (`ibv_post_recv`; RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`PostErrorKind`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_list(std::slice::from_ref(wr))
    }

    /// Posts buffers for Sends from the peer. The buffers are used in this order (a list of
    /// `ibv_post_recv`).
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused. Those before it were posted, and
    /// those after it were not.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let inner = self.to_post()?;
        let mut locked = inner.lock();
        let conn = &mut locked.driven.conn;
        let result = each(wrs, |_, wr| conn.post_recv(wr));
        inner.resume_held_message(&mut locked);
        result
    }

    /// Starts a graceful close of the connection (`rdma_disconnect`; RFC 5040 section 6.2), and
    /// returns at once.
    ///
    /// Posted requests are carried out, and requests of the peer that have arrived are answered.
    /// Then FIN is sent. The peer's FIN completes the close, and flushes whatever is still posted.
    pub fn disconnect(&self) {
        if let Some(inner) = self.inner.here() {
            inner.with(crate::connection::Connection::disconnect);
        }
    }

    /// Waits until the connection has ended and all work is flushed (RFC 5044 section 7.2). Returns
    /// at once if there is no connection, and returns false if `timeout` passed first.
    #[must_use]
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        let Some(inner) = self.inner.here() else {
            return true;
        };
        inner
            .wait_until(Some(timeout), |locked| {
                matches!(locked.driven.conn.state, QpState::Error | QpState::Idle).then_some(())
            })
            .is_some()
    }

    /// Reason why the connection ended or is ending (RFC 5040 sections 6.2 and 7.1); `None` while
    /// it is open.
    ///
    /// If the close fails, an orderly reason ([`EndReason::is_orderly`]) may be replaced until the
    /// state is Error or Idle.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        self.inner.here()?.lock().driven.conn.end.clone()
    }

    /// Headers of the last 32 frames of the connection, in both directions. (The verbs have no
    /// counterpart.) The record is kept after the end of the connection, until the QP is used
    /// again. Payload is never recorded.
    #[must_use]
    pub fn flight_record(&self) -> FlightRecord {
        self.inner
            .here()
            .map(|inner| inner.lock().driven.conn.flight_record())
            .unwrap_or_default()
    }

    /// Parameters negotiated with the peer (RFC 6581 section 9); `None` before MPA startup is done.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionInfo> {
        let locked = self.inner.here()?.lock();
        let negotiated = locked.driven.conn.negotiated.as_ref()?;
        let addrs = locked.addrs()?;
        Some(ConnectionInfo {
            local: addrs.local,
            peer: addrs.peer,
            revision: negotiated.revision,
            crc: negotiated.crc,
            tx_markers: negotiated.tx_markers,
            rx_markers: negotiated.rx_markers,
            ird: negotiated.ird,
            ord: negotiated.ord,
            peer_ird: negotiated.peer_ird,
            peer_ord: negotiated.peer_ord,
            private_data: negotiated.private_data.clone(),
        })
    }

    /// Waits until all asynchronous events of this QP that were taken with
    /// [`Device::get_event`](crate::Device::get_event) are acknowledged.
    ///
    /// # Errors
    /// [`DestroyQpError`] if `timeout` passed first (`None` waits for ever).
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), DestroyQpError> {
        let Some(inner) = self.inner.here() else {
            return Ok(());
        };
        let waited = inner.wait_acknowledged(timeout);
        waited.map_err(|events| DestroyQpError::Unacknowledged { events })
    }

    /// Destroys the QP as `ibv_destroy_qp` does.
    ///
    /// Waits until all asynchronous events of this QP that were taken with
    /// [`Device::get_event`](crate::Device::get_event) are acknowledged, and discards those that
    /// were not taken. The connection then ends as it does when the QP is dropped. Dropping the QP
    /// neither waits nor discards events. Completions in its CQs stay there until they are polled.
    ///
    /// # Errors
    /// [`DestroyQpError`] if `timeout` passed first (`None` waits for ever); the unchanged QP is
    /// returned with it.
    pub fn destroy(self, timeout: Option<Duration>) -> Result<(), (Qp, DestroyQpError)> {
        let Some(inner) = self.inner.here() else {
            return Ok(());
        };
        match inner.mute(timeout) {
            Ok(()) => Ok(()),
            Err(events) => Err((self, DestroyQpError::Unacknowledged { events })),
        }
    }

    /// Destroys the QP as [`destroy`](Self::destroy) does, and removes its completions from its CQs
    /// as drivers of RNICs do.
    ///
    /// No poll that begins after this call returns one of its completions. Outstanding work makes
    /// no completion, so an armed CQ raises no event for it. Entries of an SRQ that the QP had
    /// taken are free again.
    ///
    /// # Errors
    /// See [`destroy`](Self::destroy).
    pub fn destroy_with_completions(
        mut self,
        timeout: Option<Duration>,
    ) -> Result<(), (Qp, DestroyQpError)> {
        let Some(inner) = self.inner.here() else {
            return Ok(());
        };
        if let Err(events) = inner.mute(timeout) {
            return Err((self, DestroyQpError::Unacknowledged { events }));
        }
        // Holds the number until the completions are removed, so that no new QP gets it earlier.
        let _number = inner.number();
        let ctx = Arc::clone(&inner.ctx);
        self.discards = true;
        drop(self);
        ctx.purge_completions();
        Ok(())
    }

    /// Makes a QP whose connection has ended ready for another one (`ibv_modify_qp` to
    /// `IBV_QPS_RESET`). Returns false while the QP is in use.
    ///
    /// Receives that were posted since the end complete as flushed. Completions of the previous
    /// connection stay in the CQs until they are polled. A program that reuses the QP polls them
    /// first or recognizes them by their `wr_id`.
    #[must_use]
    pub fn reset(&self) -> bool {
        self.inner
            .here()
            .is_some_and(|inner| inner.with(crate::connection::Connection::reset))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // In the child of a fork the memory is leaked, because freeing it would end the connection,
        // which continues in the parent.
        if let Some(inner) = self.inner.here_or_leak() {
            inner.orphan(self.discards);
        }
    }
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("qp_num", &self.qp_num())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
