//! A connection whose operations are futures.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use super::Domain;
use super::buf::{BufferPool, FlyingBuf, RegisteredBuf};
use super::error::Error;
use super::srq::Srq;
use super::table::Ops;
use crate::cm::{Attempts, connect_outcome, resolve};
use crate::completion::{Completion, Status, WcOpcode};
use crate::device::DeviceError;
use crate::engine::PostErrorKind;
use crate::event::EndReason;
use crate::mr::RemoteBuffer;
use crate::qp::state::QpState;
use crate::qp::wr::{RecvWr, SendWr};
use crate::qp::{ConnectionInfo, PostError, Qp, QpCaps};
use crate::{ConnectError, ConnectOptions, Connected};

/// One end of an RDMA connection (RFC 5040 section 6): a queue pair with a completion queue of its own.
///
/// All methods take `&self`: any number of tasks use one connection, through an `Arc` or a scope. An operation is
/// posted when its future is first polled, and operations of one task, one after the other, keep their order.
/// See the [module](super) about futures that are dropped.
///
/// Dropping it ends the connection: gracefully when nothing is under way, by a reset otherwise; buffers
/// that are still in flight go back to their pools.
pub struct Connection {
    // Dropped first: that flushes what is under way, and `ops` takes the buffers.
    pub(super) qp: Qp,
    pub(super) ops: Arc<Ops>,
    pub(super) domain: Domain,
    /// Where results of atomic operations come; made for the first one.
    pub(super) cells: OnceLock<BufferPool>,
}

/// What came with a message (RFC 5040 section 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Received {
    /// Bytes; the buffer's length is the same.
    pub len: usize,
    /// The STag that the message invalidated on this side.
    pub invalidated: Option<u32>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The message was Immediate Data (RFC 7306 section 6): these bytes, and none in the buffer.
    pub immediate: Option<[u8; 8]>,
}

impl Received {
    fn new(completion: Completion) -> Self {
        Received {
            len: completion.byte_len as usize,
            invalidated: completion.invalidated,
            solicited: completion.solicited,
            immediate: completion.immediate,
        }
    }
}

impl Connection {
    /// An end that is not connected yet (`ibv_create_cq`, `ibv_create_qp`). Receives may be posted.
    ///
    /// # Errors
    /// As [`Pd::create_qp`](crate::Pd::create_qp).
    pub fn new(domain: &Domain, caps: QpCaps) -> Result<Connection, DeviceError> {
        Self::made(domain, caps, None)
    }

    /// An end that takes its receives from `srq` (`ibv_qp_init_attr.srq`), which has to be of the same domain.
    /// [`recv_shared`](Self::recv_shared) gives its messages; `max_recv_wr` and `max_recv_sge` mean nothing.
    ///
    /// # Errors
    /// As [`Pd::create_qp`](crate::Pd::create_qp).
    pub fn with_srq(domain: &Domain, caps: QpCaps, srq: &Srq) -> Result<Connection, DeviceError> {
        Self::made(domain, caps, Some(srq))
    }

    fn made(domain: &Domain, caps: QpCaps, srq: Option<&Srq>) -> Result<Connection, DeviceError> {
        let receives = srq.map_or(caps.max_recv_wr, |srq| srq.shared.srq.query().max_wr);
        let depth = caps.max_send_wr.saturating_add(receives).max(1);
        let cq = domain.device().create_cq(depth)?;
        let mut builder = domain.pd().qp().caps(caps);
        if let Some(srq) = srq {
            builder = builder.srq(&srq.shared.srq);
        }
        let qp = builder.build(&cq, &cq)?;
        let shared = srq.map(|srq| Arc::clone(&srq.shared));
        let own = srq.map_or(caps.max_recv_wr, |_| 0);
        let ops = Ops::new(cq, caps.max_send_wr, own, shared);
        qp.inner().watch(Arc::<Ops>::clone(&ops));
        Ok(Connection {
            qp,
            ops,
            domain: domain.clone(),
            cells: OnceLock::new(),
        })
    }

    /// Connects to an iWARP endpoint (RFC 5044 section 7.1): TCP, then MPA startup. Waits, without a thread, until that
    /// is done; the timeouts of the device bound every step. Dropping the future does not stop it; dropping the
    /// connection does.
    ///
    /// Several addresses are tried in order, as by [`Qp::connect`](crate::Qp::connect); a future that is dropped tries no
    /// other one. A host name is resolved by this call, which blocks its thread: a program that must not wait resolves
    /// it with its runtime, and passes the addresses.
    ///
    /// # Errors
    /// As [`Qp::connect`](crate::Qp::connect).
    pub fn connect(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> impl Future<Output = Result<Connected, ConnectError>> {
        let addrs = resolve(to);
        async move { self.connect_to(addrs?, options).await }
    }

    /// Connects to the first of these addresses that TCP connects to.
    pub(super) async fn connect_to(
        &self,
        addrs: VecDeque<SocketAddr>,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        let qp = self.qp.inner();
        let mut attempts = Attempts::new(qp, addrs, options);
        loop {
            let to = attempts.begin()?;
            let outcome = poll_fn(|cx| {
                qp.device.fork_guard.check()?;
                self.ops.changed.register(cx.waker());
                match connect_outcome(&qp.lock(), to) {
                    Some(outcome) => Poll::Ready(outcome),
                    None => Poll::Pending,
                }
            });
            let outcome = outcome.await;
            if let Some(outcome) = attempts.judge(to, outcome) {
                return outcome;
            }
        }
    }

    /// Sends the content of `buf` as one message (RFC 5040 section 5.3). Waits for a place in the send queue, and then until
    /// the network has taken the bytes; that the peer has them is not said.
    ///
    /// # Errors
    /// See [`Error`]. The buffer comes back in any case.
    pub async fn send(&self, buf: RegisteredBuf) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().send(buf).await
    }

    /// The same, and the peer's region `rkey` is invalidated when the message is delivered (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`]. The buffer comes back in any case.
    pub async fn send_and_invalidate(
        &self,
        buf: RegisteredBuf,
        rkey: u32,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().send_and_invalidate(buf, rkey).await
    }

    /// Sends a short message that is copied when it is posted (RFC 5040 section 5.3): at most `max_inline_data` bytes of
    /// the queue's [`QpCaps`]. It needs no buffer.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_inline(&self, octets: &[u8]) -> Result<(), Error> {
        self.plain().send_inline(octets).await
    }

    /// Writes the content of `buf` to the start of `remote` (RFC 5040 section 5.1). Nobody is told there; a
    /// message sent afterwards is delivered after the bytes were placed.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when it does not fit; see [`Error`]. The buffer comes back in any case.
    pub async fn write(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().write(buf, remote).await
    }

    /// Reads all of `remote` into the start of `buf`, whose length is then the number of bytes read (RFC 5040
    /// section 5.2). To read less, [`RemoteBuffer::slice`] it.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when it is more than the capacity; see [`Error`]. The buffer comes back in any case.
    pub async fn read(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().read(buf, remote).await
    }

    /// A work request that brings up to `len` bytes into a buffer.
    pub(super) async fn sink(
        &self,
        buf: RegisteredBuf,
        len: usize,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        if let Err(error) = self.qp.check() {
            return (Err(error.into()), buf);
        }
        let slot = self.ops.room().await;
        let flying = buf.launch();
        let sink = [flying.room(len)];
        self.run(slot, flying, |wr_id| {
            self.qp.post_send(&request(wr_id, &sink))
        })
        .await
    }

    /// A work request that takes bytes out of a buffer.
    pub(super) async fn source(
        &self,
        buf: RegisteredBuf,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        if let Err(error) = self.qp.check() {
            return (Err(error.into()), buf);
        }
        let slot = self.ops.room().await;
        let flying = buf.launch();
        let source = [flying.content()];
        self.run(slot, flying, |wr_id| {
            self.qp.post_send(&request(wr_id, &source))
        })
        .await
    }

    /// From the post of a work request that uses a buffer until both are back.
    async fn run(
        &self,
        slot: u32,
        buf: FlyingBuf,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        match self.ops.start(slot, Some(buf), post) {
            Ok(flight) => {
                let (completion, buf) = flight.await;
                (self.result(completion), owned(buf))
            }
            Err((error, buf)) => (Err(error.into()), owned(buf)),
        }
    }

    /// A work request without a buffer.
    pub(super) async fn bare(
        &self,
        request: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<(), Error> {
        self.qp.check()?;
        let slot = self.ops.room().await;
        match self.ops.start(slot, None, request) {
            Ok(flight) => self.result(flight.await.0).map(|_| ()),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Posts a buffer for a message of the peer, up to its whole capacity, and does not wait (RFC 5040 section 5.3).
    /// [`recv`](Self::recv) gives the messages. A peer may send as soon as it is connected, and a message for which no
    /// buffer is posted ends the connection: post receives before [`connect`](Self::connect) or
    /// [`Request::accept_on`](super::Request::accept_on).
    ///
    /// # Errors
    /// [`Error::Refused`], with the buffer: the receive queue is full, or the buffer is of another domain.
    #[expect(
        clippy::result_large_err,
        reason = "the buffer comes back; a refusal is rare"
    )]
    pub fn post_recv(&self, buf: RegisteredBuf) -> Result<(), (Error, RegisteredBuf)> {
        if let Err(error) = self.qp.check() {
            return Err((error.into(), buf));
        }
        let Some(slot) = self.ops.receive_slot() else {
            let context = &self.qp.inner().ctx;
            let depth = context.caps.max_recv_wr as usize;
            let kind = match &context.srq {
                Some(srq) => PostErrorKind::HasSrq { srq_num: srq.num() },
                None => PostErrorKind::RecvQueueFull { depth },
            };
            return Err((PostError { index: 0, kind }.into(), buf));
        };
        let capacity = buf.capacity();
        let flying = buf.launch();
        let sink = [flying.room(capacity)];
        let posted = self.ops.start(slot, Some(flying), |wr_id| {
            self.qp.post_recv(&RecvWr::new(wr_id, &sink))
        });
        match posted {
            Ok(flight) => {
                flight.detach();
                Ok(())
            }
            Err((error, buf)) => Err((error.into(), owned(buf))),
        }
    }

    /// Posts `buf` and gives the next message, in the buffer that it came in (RFC 5040 section 5.3): its own, or one
    /// that was posted before. Messages come in order; of several tasks that receive, each gets another one. When the
    /// receive queue is full, `buf` is posted in the place of the message.
    ///
    /// Dropping the future loses no message and no buffer: what was posted stays posted, and the next call gets the message.
    ///
    /// # Errors
    /// See [`Error`]. A buffer comes back in any case; when the connection has ended, one for each call.
    pub async fn recv(&self, buf: RegisteredBuf) -> (Result<Received, Error>, RegisteredBuf) {
        let waiting = match self.post_recv(buf) {
            Ok(()) => None,
            Err((Error::Refused(error), buf)) if is_full(&error) => Some(buf),
            Err((error, buf)) => return (Err(error), buf),
        };
        let slot = self.ops.message().await;
        let (completion, buf) = match self.ops.take(slot) {
            Some((completion, buf)) => (completion, owned(buf)),
            None => unreachable!("a message that was granted has landed"),
        };
        if let Some(waiting) = waiting
            && let Err((error, _)) = self.post_recv(waiting)
        {
            // Another task was faster: the queue is full again, and the buffer goes back to its pool.
            tracing::debug!(%error, "a receive was not posted");
        }
        (self.result(completion).map(Received::new), buf)
    }

    /// Gives the next message of a connection [with a shared receive queue](Self::with_srq), in the buffer that it took from
    /// the queue (RFC 5040 section 5.3). Messages come in order; of several tasks that receive, each gets another one.
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// [`Error::Failed`] when the connection has ended and its messages were taken.
    pub async fn recv_shared(&self) -> Result<(Received, RegisteredBuf), Error> {
        let mut message = self.ops.message();
        let slot = poll_fn(|cx| {
            self.ops.changed.register(cx.waker());
            if let Poll::Ready(slot) = Pin::new(&mut message).poll(cx) {
                return Poll::Ready(Some(slot));
            }
            if self.qp.is_inherited() || self.qp.state() != QpState::Error {
                return Poll::Pending;
            }
            // Another thread may have ended the connection and not yet brought what completed before.
            self.ops.deliver();
            match Pin::new(&mut message).poll(cx) {
                Poll::Ready(slot) => Poll::Ready(Some(slot)),
                Poll::Pending => Poll::Ready(None),
            }
        })
        .await;
        let Some((completion, buf)) = slot.and_then(|slot| self.ops.take(slot)) else {
            return Err(self.ended());
        };
        let received = self.result(completion)?;
        Ok((Received::new(received), owned(buf)))
    }

    /// The error of an operation that came when the connection had ended.
    fn ended(&self) -> Error {
        let flushed = Completion {
            status: Status::WrFlush,
            opcode: WcOpcode::Recv,
            qp_num: self.qp_num(),
            ..Completion::default()
        };
        match self.result(flushed) {
            Err(error) => error,
            Ok(_) => unreachable!("a flush is an error"),
        }
    }

    /// Closes the connection gracefully (RFC 5040 section 6.2): what was posted is carried out, then both sides close.
    /// Waits until that is done; the timeout for closing bounds it.
    ///
    /// # Errors
    /// The reason, when it ended in another way than by a close of one of the two sides.
    pub async fn close(&self) -> Result<(), EndReason> {
        self.qp.disconnect();
        match self.closed().await {
            EndReason::LocalDisconnect | EndReason::PeerDisconnect => Ok(()),
            reason => Err(reason),
        }
    }

    /// Waits until the connection has ended, whoever ends it, and says why (RFC 5040 section 6.2). An end that was
    /// never connected counts as closed by this side, and so does every one in the child of a fork.
    pub async fn closed(&self) -> EndReason {
        poll_fn(|cx| {
            if self.qp.is_inherited() {
                return Poll::Ready(());
            }
            self.ops.changed.register(cx.waker());
            match self.qp.state() {
                QpState::Error | QpState::Idle => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        self.qp.end_reason().unwrap_or(EndReason::LocalDisconnect)
    }

    /// What was agreed with the peer, its private data among it (RFC 5044 section 7.1, RFC 6581 section 9); `None`
    /// before it is connected.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.qp.connection()
    }

    /// Why the connection ended or is ending (RFC 5040 sections 6.2 and 7); `None` while it stands.
    /// A reason that is orderly ([`EndReason::is_orderly`]) may be replaced, if the close fails,
    /// until the connection has closed.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        self.qp.end_reason()
    }

    /// The number of its QP, as asynchronous events of the device name it (`qp_num` of `ibv_qp`).
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    fn result(&self, completion: Completion) -> Result<Completion, Error> {
        completion.ok().map_err(|error| Error::Failed {
            error,
            reason: self.qp.end_reason().map(Box::new),
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ops.abandon_all();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("qp", &self.qp)
            .finish_non_exhaustive()
    }
}

fn is_full(error: &PostError) -> bool {
    matches!(error.kind, PostErrorKind::RecvQueueFull { .. })
}

/// The buffer of an operation that was given one.
fn owned(buf: Option<RegisteredBuf>) -> RegisteredBuf {
    buf.unwrap_or_else(|| unreachable!("a slot keeps its buffer until it is taken"))
}
