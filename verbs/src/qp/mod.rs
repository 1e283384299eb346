//! Queue pairs: posting work, connecting, closing.

pub(crate) mod attr;
pub(crate) mod builder;
mod drain;
pub(crate) mod guard;
pub(crate) mod inner;
pub(crate) mod modify;
mod polling;
pub(crate) mod posting;
pub(crate) mod state;
mod transport;
pub(crate) mod wr;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use uwarp_llp::Llp;
use uwarp_mpa::Revision;

use crate::cm::{ConnectError, ConnectOptions, Connected};
use crate::cq::Cq;
use crate::engine::{FlightRecord, PostErrorKind};
use crate::event::EndReason;
use crate::fork_guard::Inherited;
use crate::mem::WindowBind;
use crate::mw::MemoryWindow;
use crate::pd::Pd;
use crate::setters::setters;
use crate::srq::{Srq, SrqUser};
use builder::QpBuilder;
use inner::QpInner;
use posting::each;
use state::QpState;
use wr::{BindWr, RecvWr, SendWr};

/// Sizes of a QP's queues (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QpCaps {
    /// Places of the send queue. A request has its place from the post until its completion is polled, or, if it is
    /// unsignaled and succeeds, until a later completion of the queue is polled. A queue whose requests are all
    /// unsignaled therefore stays full after this many. Default: 128.
    pub max_send_wr: u32,
    /// Places of the receive queue. A receive has its place from the post until its completion is polled. Default: 128.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of one send work request. Default: 4.
    pub max_send_sge: u32,
    /// Scatter/gather elements of one receive. Default: 4.
    pub max_recv_sge: u32,
    /// Bytes of inline data in one work request. Default: 256.
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
    /// The defaults, as [`Default`] gives them, for constants.
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

/// A work request that was not taken, and those after it in the same list (`bad_wr` of `ibv_post_send`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {index} of the list was not posted: {kind}")]
pub struct PostError {
    /// Place of the refused request in the list; those before it were posted.
    pub index: usize,
    /// Why.
    pub kind: PostErrorKind,
}

/// Why a QP could not be destroyed (`ibv_destroy_qp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyQpError {
    /// Events of it were taken from the device and not acknowledged.
    #[error(
        "{events} asynchronous events of the queue pair are not acknowledged; drop them, or call ack_events"
    )]
    Unacknowledged {
        /// How many.
        events: u64,
    },
}

/// What was agreed with the peer, and where the two ends are (RFC 5044 section 7.1, RFC 6581 section 9).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// The MPA revision in use.
    pub revision: Revision,
    /// Whether FPDUs carry a CRC32C that is checked, in both directions.
    pub crc: bool,
    /// Whether we put Markers into what we send.
    pub tx_markers: bool,
    /// Whether the peer puts Markers into what it sends.
    pub rx_markers: bool,
    /// RDMA Reads and atomic operations that the peer may have outstanding.
    pub ird: u16,
    /// RDMA Reads and atomic operations that we may have outstanding.
    pub ord: u16,
    /// IRD as the peer stated it (enhanced startup only).
    pub peer_ird: Option<u16>,
    /// ORD as the peer stated it (enhanced startup only).
    pub peer_ord: Option<u16>,
    /// Private data that the peer sent.
    pub private_data: Vec<u8>,
}

/// A queue pair (`ibv_qp`): one end of an RDMA connection (RFC 5040 section 6), with its send queue and its receive
/// queue.
///
/// Dropping it ends its connection: gracefully when nothing is under way, by a reset otherwise.
/// Work that is outstanding then completes as flushed.
pub struct Qp {
    inner: Arc<QpInner>,
    /// What it was made with. What the QP uses lives at least as long as it does.
    made: Box<QpBuilder>,
    /// Work that is outstanding when it is dropped makes no completion.
    discards: bool,
    _uses_srq: Option<SrqUser>,
    send_cq: Cq,
    recv_cq: Cq,
}

impl Qp {
    pub(crate) fn new(inner: Arc<QpInner>, made: QpBuilder, send_cq: Cq, recv_cq: Cq) -> Self {
        Qp {
            inner,
            _uses_srq: made.chosen_srq().map(Srq::user),
            made: Box::new(made),
            discards: false,
            send_cq,
            recv_cq,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        &self.inner
    }

    /// # Errors
    /// In the child of a fork, where nothing may be posted.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), PostError> {
        let kind = |inherited: Inherited| PostError {
            index: 0,
            kind: inherited.into(),
        };
        self.inner.device.fork_guard.check().map_err(kind)
    }

    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.inner.device.fork_guard.is_here()
    }

    /// The number of this QP, unique on its device (`ibv_qp.qp_num`); completions carry it.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.inner.ctx.qp_num
    }

    /// The protection domain it was made in (`ibv_qp.pd`).
    #[must_use]
    pub fn pd(&self) -> &Pd {
        self.made.pd()
    }

    /// The shared receive queue that it takes its receives from, if it has none of its own (`ibv_qp.srq`).
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.made.chosen_srq()
    }

    /// The number that the program gave it ([`QpBuilder::context`], `ibv_qp.qp_context`).
    #[must_use]
    pub fn context(&self) -> u64 {
        self.made.init().context
    }

    /// The CQ that completions of the send queue go to (`ibv_qp.send_cq`).
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// The CQ that completions of the receive queue go to (`ibv_qp.recv_cq`).
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// The state it is in (`ibv_qp.state`); in the child of a fork that is `Error`.
    #[must_use]
    pub fn state(&self) -> QpState {
        if self.is_inherited() {
            return QpState::Error;
        }
        self.inner.lock().driven.conn.state
    }

    /// Posts one request to the send queue (`ibv_post_send`; RFC 5040 section 5). It is sent at once when TCP takes it,
    /// nothing posted before it waits, and the program does not poll, or posts one request between two polls. A program that polls
    /// and posts one request after the other has them sent together: with the next poll that finds no completion, when there are
    /// enough of them, or when it has not polled for [`Settings::takeover`](crate::Settings::takeover) (twice that at most, and eleven times that behind a long time of polls).
    ///
    /// # Errors
    /// See [`PostErrorKind`]. A request posted to a connection that has ended is taken and completes
    /// as flushed.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_list(std::slice::from_ref(wr))
    }

    /// Posts requests to the send queue in order, and sends them together (a list of `ibv_post_send`), when
    /// [`Qp::post_send`] would; a list of 16 and more counts as several posts there.
    ///
    /// # Errors
    /// The first request that was not taken; none after it was.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.check()?;
        self.inner
            .post(|conn| each(wrs, |_, wr| conn.post_send(wr)))
    }

    /// As [`post_send_list`](Self::post_send_list), but all of them or none (`ibv_wr_complete`). A request may not use memory that
    /// another one of the same list registers.
    ///
    /// # Errors
    /// The first request that would not be taken; none was.
    pub fn post_send_all(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.check()?;
        self.inner.post(|conn| {
            if wrs.len() > 1 {
                each(wrs, |index, wr| conn.check_send(wr, index))?;
            }
            each(wrs, |_, wr| conn.post_send(wr))
        })
    }

    /// How many requests the send queue would take now: its places that are free, see [`QpCaps::max_send_wr`] (the verbs
    /// leave the counting to the program). None in the child of a fork.
    #[must_use]
    pub fn send_room(&self) -> usize {
        if self.is_inherited() {
            return 0;
        }
        self.inner.lock().driven.conn.sq.room()
    }

    /// Binds a memory window of type 1 with a request of no flags (`ibv_bind_mw`): [`Qp::post_bind`] of
    /// [`BindWr::new`].
    ///
    /// # Errors
    /// As [`Qp::post_bind`].
    pub fn bind_mw(
        &self,
        window: &mut MemoryWindow,
        wr_id: u64,
        bind: &WindowBind,
    ) -> Result<u32, PostError> {
        self.post_bind(window, &BindWr::new(wr_id, bind))
    }

    /// Posts a request to bind a memory window of type 1 (`ibv_bind_mw`), and gives the STag that it will have: the
    /// window has it from the completion on, and what is posted behind finds it bound. An old binding ends then; 0
    /// bytes only end it.
    ///
    /// # Errors
    /// [`PostErrorKind::WindowKind`] for a window of type 2, and as [`Qp::post_send`]; the window then stays as it is.
    pub fn post_bind(&self, window: &mut MemoryWindow, wr: &BindWr) -> Result<u32, PostError> {
        let rkey = window
            .next_by_call()
            .map_err(|kind| PostError { index: 0, kind })?;
        self.post_send(&wr.to_send_wr(rkey))?;
        window.set_by_call(rkey);
        Ok(rkey)
    }

    /// Posts one buffer for a Send of the peer (`ibv_post_recv`; RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`PostErrorKind`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_list(std::slice::from_ref(wr))
    }

    /// Posts buffers for Sends of the peer, used in this order (a list of `ibv_post_recv`).
    ///
    /// # Errors
    /// The first request that was not taken; none after it was.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.check()?;
        let mut locked = self.inner.lock();
        let conn = &mut locked.driven.conn;
        let result = each(wrs, |_, wr| conn.post_recv(wr));
        self.inner.go_on(&mut locked);
        result
    }

    /// Connects to an iWARP endpoint (`rdma_connect`; RFC 5044 section 7.1): TCP, then MPA startup. Blocks until that
    /// is done.
    ///
    /// Where `to` is several addresses, as a host name may be, they are tried in order until TCP connects to one. What was
    /// posted before stays posted meanwhile.
    ///
    /// # Errors
    /// See [`ConnectError`]; it says which step failed and whose fault it was, and names the addresses that were tried.
    pub fn connect(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        crate::cm::connect(&self.inner, to, options)
    }

    /// As [`Qp::connect`], over a stream that is connected already: for programs that talk over it
    /// first (RFC 5044 section 7.1), or exchange addresses out of band. The peer takes it with
    /// [`Device::request_over`](crate::Device::request_over). `options.local` means nothing here.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps, llp::kernel::KernelNetwork};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let mut ours = std::net::TcpStream::connect(tcp.local_addr()?)?;
    /// let server = std::thread::spawn(move || {
    ///     let (mut theirs, _) = tcp.accept().unwrap();
    ///     theirs.write_all(b"RDMA, please").unwrap();
    ///     let device = Device::tcp().unwrap();
    ///     let stream = KernelNetwork::default().adopt(theirs).unwrap();
    ///     let request = device.request_over(stream, b"").unwrap();
    ///     let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    ///     let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    ///     request.accept(&qp, &AcceptOptions::default()).unwrap();
    ///     qp.wait_closed(std::time::Duration::from_secs(5))
    /// });
    /// let mut said = [0; 12];
    /// ours.read_exact(&mut said)?;
    /// let device = Device::tcp()?;
    /// let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
    /// let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
    /// qp.connect_over(KernelNetwork::default().adopt(ours)?, &ConnectOptions::default())?;
    /// qp.disconnect();
    /// assert!(server.join().unwrap());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Qp::connect`].
    pub fn connect_over(
        &self,
        stream: Box<dyn Llp>,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        crate::cm::connect_over(&self.inner, stream, options)
    }

    /// Starts to close the connection gracefully (`rdma_disconnect`; RFC 5040 section 6.2): what
    /// was posted is carried out, then FIN; the peer's FIN completes the close, and what is then
    /// still posted is flushed. Requests of the peer that have arrived are answered before the FIN.
    /// Returns at once.
    pub fn disconnect(&self) {
        if !self.is_inherited() {
            self.inner.with(crate::engine::Connection::disconnect);
        }
    }

    /// Waits until the connection has ended and all work is flushed (RFC 5044 section 7.2): at once where there is
    /// none. False when `timeout` passed first.
    #[must_use]
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        if self.is_inherited() {
            return true;
        }
        self.inner
            .wait_until(Some(timeout), |locked| {
                matches!(locked.driven.conn.state, QpState::Error | QpState::Idle).then_some(())
            })
            .is_some()
    }

    /// Why the connection ended, or is ending (RFC 5040 sections 6.2 and 7.1); `None` while it
    /// stands. A reason that is orderly ([`EndReason::is_orderly`]) may be replaced, if the close
    /// fails, until the state is Error or Idle.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        if self.is_inherited() {
            return None;
        }
        self.inner.lock().driven.conn.end.clone()
    }

    /// The headers of the last 32 frames of the connection, in both directions (the verbs have no counterpart); of the
    /// one before, until the QP is used again. Payload is never kept.
    #[must_use]
    pub fn flight_record(&self) -> FlightRecord {
        if self.is_inherited() {
            return FlightRecord::default();
        }
        self.inner.lock().driven.conn.flight_record()
    }

    /// What was agreed with the peer (RFC 6581 section 9); `None` before MPA startup is done.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionInfo> {
        if self.is_inherited() {
            return None;
        }
        let locked = self.inner.lock();
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

    /// Waits until every asynchronous event of it that was taken with [`Device::get_event`](crate::Device::get_event) is
    /// acknowledged.
    ///
    /// # Errors
    /// [`DestroyQpError`] when `timeout` passed first (`None` waits for ever).
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> Result<(), DestroyQpError> {
        if self.is_inherited() {
            return Ok(());
        }
        let waited = self.inner.wait_acknowledged(timeout);
        waited.map_err(|events| DestroyQpError::Unacknowledged { events })
    }

    /// Destroys the QP as `ibv_destroy_qp` does: waits until every asynchronous event of it that was taken with
    /// [`Device::get_event`](crate::Device::get_event) is acknowledged, and takes back those that were not taken.
    /// Its connection ends as if it were dropped. (Dropping asks for neither.)
    ///
    /// Completions that are in its CQs stay there until they are polled.
    ///
    /// # Errors
    /// [`DestroyQpError`] when `timeout` passed first (`None` waits for ever), with the QP back, as it was.
    pub fn destroy(self, timeout: Option<Duration>) -> Result<(), (Qp, DestroyQpError)> {
        if self.is_inherited() {
            return Ok(());
        }
        match self.inner.mute(timeout) {
            Ok(()) => Ok(()),
            Err(events) => Err((self, DestroyQpError::Unacknowledged { events })),
        }
    }

    /// As [`destroy`](Self::destroy), but removes the completions of the QP from its CQs too, as drivers of RNICs do:
    /// no poll that begins after this finds one. Work that is outstanding makes no completion, so an armed CQ has no
    /// event for it. Places of an SRQ that the QP had taken are free.
    ///
    /// # Errors
    /// As [`destroy`](Self::destroy).
    pub fn destroy_with_completions(
        mut self,
        timeout: Option<Duration>,
    ) -> Result<(), (Qp, DestroyQpError)> {
        if self.is_inherited() {
            return Ok(());
        }
        if let Err(events) = self.inner.mute(timeout) {
            return Err((self, DestroyQpError::Unacknowledged { events }));
        }
        // Nobody else has the number before they are out.
        let (_number, qp_num) = (self.inner.number(), self.qp_num());
        let cqs = [self.send_cq.clone(), self.recv_cq.clone()];
        self.discards = true;
        drop(self);
        for cq in &cqs {
            cq.shared().inner.purge(qp_num);
        }
        Ok(())
    }

    /// Makes a QP whose connection has ended ready for another one (`ibv_modify_qp` to `IBV_QPS_RESET`). False while it
    /// is in use.
    ///
    /// Receives that were posted in between complete as flushed. Completions of the life before stay in the CQs
    /// until they are polled: a program that uses the QP again polls them first, or tells them by their `wr_id`.
    #[must_use]
    pub fn reset(&self) -> bool {
        !self.is_inherited() && self.inner.with(crate::engine::Connection::reset)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Its connection goes on in the parent: not even the memory is freed, for that would end it.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        self.inner.orphan(self.discards);
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
