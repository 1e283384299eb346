//! Connections whose operations are futures.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use uwarp_engine::fork_guard::ForkGuarded;
use uwarp_engine::mem::RemoteBuffer;
use uwarp_engine::state::QpState;

use super::Domain;
use super::buf::{BufferPool, InFlightBuf, RegisteredBuf};
use super::error::Error;
use super::srq::Srq;
use super::table::{InFlightMemory, Ops, ReclaimedMemory};
use crate::cm::{Attempts, connect_outcome, resolve};
use crate::completion::{Completion, Status, WcOpcode};
use crate::device::DeviceError;
use crate::qp::{ConnectionInfo, Qp, QpCaps};
use crate::refused::refused;
use crate::{ConnectError, ConnectOptions, Connected};
use uwarp_engine::connection::{PostError, PostErrorKind};
use uwarp_engine::event::EndReason;
use uwarp_engine::wr::{RecvWr, SendWr};

/// One end of an RDMA connection (RFC 5040 section 6): a queue pair with its own completion queue.
///
/// All methods take `&self`, so any number of tasks can use one connection through an `Arc` or a
/// scope. An operation is posted when its future is first polled. Operations that one task awaits
/// in turn keep their order. The [module documentation](super) explains dropped futures.
///
/// Dropping the connection ends it: gracefully if no operation is in progress, by a reset
/// otherwise. Buffers that are still in flight return to their pools.
pub struct Connection {
    // Declared first, so dropped first: dropping the QP flushes the operations in progress, and
    // `ops` reclaims their buffers.
    pub(super) qp: Qp,
    ops: ForkGuarded<Arc<Ops>>,
    pub(super) domain: Domain,
    /// Buffers for the results of atomic operations. The first atomic operation allocates them.
    pub(super) cells: OnceLock<BufferPool>,
}

/// Properties of a received message (RFC 5040 section 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Received {
    /// Length in bytes, which is also the length of the returned buffer.
    pub len: usize,
    /// STag of this side that the message invalidated.
    pub invalidated: Option<u32>,
    /// True if the peer requested a solicited event.
    pub solicited: bool,
    /// The 8 bytes of an Immediate Data message (RFC 7306 section 6). Such a message leaves the
    /// buffer empty.
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
    /// Creates an end that is not connected yet (`ibv_create_cq`, `ibv_create_qp`). Receives may
    /// already be posted.
    ///
    /// # Errors
    /// See [`Pd::create_qp`](crate::Pd::create_qp).
    pub fn new(domain: &Domain, caps: QpCaps) -> Result<Connection, DeviceError> {
        Self::made(domain, caps, None)
    }

    /// Creates an end that takes its receives from `srq` (`ibv_qp_init_attr.srq`).
    ///
    /// The queue must belong to the same domain. [`recv_shared`](Self::recv_shared) returns the
    /// messages. `max_recv_wr` and `max_recv_sge` of `caps` have no effect.
    ///
    /// # Errors
    /// See [`Pd::create_qp`](crate::Pd::create_qp).
    pub fn with_srq(domain: &Domain, caps: QpCaps, srq: &Srq) -> Result<Connection, DeviceError> {
        Self::made(domain, caps, Some(srq))
    }

    fn made(domain: &Domain, caps: QpCaps, srq: Option<&Srq>) -> Result<Connection, DeviceError> {
        let receives = srq.map_or(caps.max_recv_wr, |srq| srq.srq.query().max_wr);
        let depth = caps.max_send_wr.saturating_add(receives).max(1);
        let cq = domain.device().create_cq(depth)?;
        let mut builder = domain.pd().qp().caps(caps);
        if let Some(srq) = srq {
            builder = builder.srq(&srq.srq);
        }
        let qp = builder.build(&cq, &cq)?;
        let shared = match srq {
            Some(srq) => Some(Arc::clone(srq.shared.get()?)),
            None => None,
        };
        let own = srq.map_or(caps.max_recv_wr, |_| 0);
        let completions = Arc::clone(&cq.shared()?.inner);
        let ops = Ops::new(completions, caps.max_send_wr, own, shared);
        qp.inner()?.watch(Arc::<Ops>::clone(&ops));
        Ok(Connection {
            qp,
            ops: ForkGuarded::new(ops),
            domain: domain.clone(),
            cells: OnceLock::new(),
        })
    }

    /// Connects to an iWARP endpoint (RFC 5044 section 7.1): TCP, then MPA startup.
    ///
    /// Completes when the connection is established or has failed, without blocking a thread. The
    /// device's timeouts bound every step. Dropping the future does not stop the attempt; dropping
    /// the connection does.
    ///
    /// Several addresses are tried in order, as by [`Qp::connect`](crate::Qp::connect). A dropped
    /// future tries no further address. This call resolves a host name itself, which blocks the
    /// calling thread. A program that must not block resolves the name with its runtime and passes
    /// the addresses.
    ///
    /// # Errors
    /// See [`Qp::connect`](crate::Qp::connect).
    pub fn connect(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> impl Future<Output = Result<Connected, ConnectError>> {
        let here = self.qp.guarded().get().map_err(ConnectError::from);
        let addrs = here.and_then(|_| Ok(resolve(to)?));
        async move { self.connect_to(addrs?, options).await }
    }

    /// Connects to the first of these addresses that accepts a TCP connection.
    pub(super) async fn connect_to(
        &self,
        addrs: VecDeque<SocketAddr>,
        options: &ConnectOptions,
    ) -> Result<Connected, ConnectError> {
        let mut attempts = Attempts::new(self.qp.guarded(), addrs, options);
        loop {
            let to = attempts.begin()?;
            let outcome = poll_fn(|cx| {
                let qp = self.qp.inner()?;
                self.ops.get()?.changed.register(cx.waker());
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

    /// Sends the content of `buf` as one message (RFC 5040 section 5.3).
    ///
    /// Waits for a place in the send queue, and then until TCP has accepted the bytes. Completion
    /// does not mean that the peer has received them.
    ///
    /// # Errors
    /// See [`Error`]. The buffer is always returned.
    pub async fn send(&self, buf: RegisteredBuf) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().send(buf).await
    }

    /// Sends `buf` as [`send`](Self::send) does, and invalidates an STag of the peer.
    ///
    /// The peer invalidates `rkey` when it delivers the message (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// See [`Error`]. The buffer is always returned.
    pub async fn send_and_invalidate(
        &self,
        buf: RegisteredBuf,
        rkey: u32,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().send_and_invalidate(buf, rkey).await
    }

    /// Sends a short message that is copied when it is posted (RFC 5040 section 5.3).
    ///
    /// The message needs no registered buffer. Its maximum length is `max_inline_data` bytes of the
    /// connection's [`QpCaps`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_inline(&self, bytes: &[u8]) -> Result<(), Error> {
        self.plain().send_inline(bytes).await
    }

    /// Writes the content of `buf` to the start of `remote` (RFC 5040 section 5.1).
    ///
    /// The peer is not notified. A message sent afterwards is delivered after the bytes were
    /// placed.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if the content does not fit into `remote`; see [`Error`]. The buffer is
    /// always returned.
    pub async fn write(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().write(buf, remote).await
    }

    /// Reads all of `remote` into the start of `buf` (RFC 5040 section 5.2).
    ///
    /// The length of `buf` becomes the number of bytes read. To read less, use
    /// [`RemoteBuffer::slice`].
    ///
    /// # Errors
    /// [`Error::TooSmall`] if `remote` is longer than the capacity of `buf`; see [`Error`]. The
    /// buffer is always returned.
    pub async fn read(
        &self,
        buf: RegisteredBuf,
        remote: RemoteBuffer,
    ) -> (Result<(), Error>, RegisteredBuf) {
        self.plain().read(buf, remote).await
    }

    /// Returns the operations, to post one.
    ///
    /// # Errors
    /// The connection was created before a fork.
    pub(super) fn ops(&self) -> Result<&Ops, PostError> {
        self.ops.get().map(|ops| &**ops).map_err(refused)
    }

    /// Runs a work request that places up to `len` bytes into a buffer, and waits for its
    /// completion.
    pub(super) async fn sink(
        &self,
        buf: RegisteredBuf,
        len: usize,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        let ops = match self.ops() {
            Ok(ops) => ops,
            Err(error) => return (Err(error.into()), buf),
        };
        let slot = ops.room().await;
        let in_flight = buf.start_transfer();
        let sink = [in_flight.room(len)];
        self.run(ops, slot, in_flight, |wr_id| {
            self.qp.post_send(&request(wr_id, &sink))
        })
        .await
    }

    /// Runs a work request that takes its data from a buffer, and waits for its completion.
    pub(super) async fn source(
        &self,
        buf: RegisteredBuf,
        request: impl for<'a> FnOnce(u64, &'a [crate::Sge]) -> SendWr<'a>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        let ops = match self.ops() {
            Ok(ops) => ops,
            Err(error) => return (Err(error.into()), buf),
        };
        let slot = ops.room().await;
        let in_flight = buf.start_transfer();
        let source = [in_flight.content()];
        self.run(ops, slot, in_flight, |wr_id| {
            self.qp.post_send(&request(wr_id, &source))
        })
        .await
    }

    /// Posts the work request of a slot, and waits for its completion.
    async fn run(
        &self,
        ops: &Ops,
        slot: u32,
        buf: InFlightBuf,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> (Result<Completion, Error>, RegisteredBuf) {
        match ops.start(slot, Some(InFlightMemory::Buf(buf)), post) {
            Ok(flight) => {
                let (completion, memory) = flight.await;
                (self.result(completion), ReclaimedMemory::buf(memory))
            }
            Err((error, memory)) => (Err(error.into()), ReclaimedMemory::buf(memory)),
        }
    }

    /// Runs a work request without a buffer, and waits for its completion.
    pub(super) async fn bare(
        &self,
        request: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<(), Error> {
        let ops = self.ops()?;
        let slot = ops.room().await;
        match ops.start(slot, None, request) {
            Ok(flight) => self.result(flight.await.0).map(|_| ()),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Posts a buffer for one message of the peer, without waiting (RFC 5040 section 5.3).
    ///
    /// The message may be as long as the buffer's capacity. [`recv`](Self::recv) returns the
    /// messages. A peer may send as soon as it is connected, and a message that finds no posted
    /// buffer ends the connection. Post receives before [`connect`](Self::connect) or
    /// [`Request::accept_on`](super::Request::accept_on).
    ///
    /// # Errors
    /// [`Error::Refused`] and the buffer, if the receive queue is full or the buffer is of another
    /// domain.
    #[expect(
        clippy::result_large_err,
        reason = "the buffer comes back; a refusal is rare"
    )]
    pub fn post_recv(&self, buf: RegisteredBuf) -> Result<(), (Error, RegisteredBuf)> {
        let ops = match self.ops() {
            Ok(ops) => ops,
            Err(error) => return Err((error.into(), buf)),
        };
        let Some(slot) = ops.receive_slot() else {
            let context = self.qp.attributes();
            let depth = context.caps.max_recv_wr as usize;
            let kind = match &context.srq {
                Some(srq) => PostErrorKind::HasSrq { srq_num: srq.num() },
                None => PostErrorKind::RecvQueueFull { depth },
            };
            return Err((PostError { index: 0, kind }.into(), buf));
        };
        let capacity = buf.capacity();
        let in_flight = buf.start_transfer();
        let sink = [in_flight.room(capacity)];
        let memory = Some(InFlightMemory::Buf(in_flight));
        let posted = ops.start(slot, memory, |wr_id| {
            self.qp.post_recv(&RecvWr::new(wr_id, &sink))
        });
        match posted {
            Ok(flight) => {
                flight.detach();
                Ok(())
            }
            Err((error, memory)) => Err((error.into(), ReclaimedMemory::buf(memory))),
        }
    }

    /// Posts `buf` and returns the next message with its buffer (RFC 5040 section 5.3).
    ///
    /// The returned buffer is `buf` or one that was posted earlier. Messages are returned in order.
    /// If several tasks receive, each message goes to one of them. If the receive queue is full,
    /// `buf` is posted in the place that the message frees.
    ///
    /// Dropping the future loses no message and no buffer: posted buffers stay posted, and the next
    /// call returns the message.
    ///
    /// # Errors
    /// See [`Error`]. A buffer is always returned. After the connection has ended, each call still
    /// returns one buffer: `buf`, or one posted earlier.
    pub async fn recv(&self, buf: RegisteredBuf) -> (Result<Received, Error>, RegisteredBuf) {
        let ops = match self.ops() {
            Ok(ops) => ops,
            Err(error) => return (Err(error.into()), buf),
        };
        let waiting = match self.post_recv(buf) {
            Ok(()) => None,
            Err((Error::Refused(error), buf)) if is_full(&error) => Some(buf),
            Err((error, buf)) => return (Err(error), buf),
        };
        let slot = ops.message().await;
        let (completion, buf) = match ops.take(slot) {
            Some((completion, memory)) => (completion, ReclaimedMemory::buf(memory)),
            None => unreachable!("the receive of a granted message has completed"),
        };
        if let Some(waiting) = waiting
            && let Err((error, _)) = self.post_recv(waiting)
        {
            // Another task filled the queue first; this buffer returns to its pool.
            tracing::debug!(%error, "a receive was not posted");
        }
        (self.result(completion).map(Received::new), buf)
    }

    /// Returns the next message of a connection [with a shared receive queue](Self::with_srq).
    ///
    /// The returned buffer is the one that the message took from the queue (RFC 5040 section 5.3).
    /// Messages are returned in order. If several tasks receive, each message goes to one of them.
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// [`Error::Failed`] if the connection has ended and all its messages were taken;
    /// [`Error::Refused`] in the child of a fork.
    pub async fn recv_shared(&self) -> Result<(Received, RegisteredBuf), Error> {
        let ops = self.ops()?;
        let mut message = ops.message();
        let slot = poll_fn(|cx| {
            // The future may be inherited.
            let Some(ops) = self.ops.here() else {
                return Poll::Pending;
            };
            ops.changed.register(cx.waker());
            if let Poll::Ready(slot) = Pin::new(&mut message).poll(cx) {
                return Poll::Ready(Some(slot));
            }
            if self.qp.state() != QpState::Error {
                return Poll::Pending;
            }
            // Another thread may have ended the connection without delivering earlier completions
            // yet.
            ops.deliver();
            match Pin::new(&mut message).poll(cx) {
                Poll::Ready(slot) => Poll::Ready(Some(slot)),
                Poll::Pending => Poll::Ready(None),
            }
        })
        .await;
        let Some((completion, memory)) = slot.and_then(|slot| ops.take(slot)) else {
            return Err(self.ended());
        };
        let received = self.result(completion)?;
        Ok((Received::new(received), ReclaimedMemory::buf(memory)))
    }

    /// Returns the error of an operation that started after the connection had ended.
    fn ended(&self) -> Error {
        let mut flushed = Completion::default();
        flushed.status = Status::WrFlush;
        flushed.opcode = WcOpcode::Recv;
        flushed.qp_num = self.qp_num();
        match self.result(flushed) {
            Err(error) => error,
            Ok(_) => unreachable!("a flush is an error"),
        }
    }

    /// Closes the connection gracefully (RFC 5040 section 6.2).
    ///
    /// Both sides close after the posted operations were executed. Completes when both have closed,
    /// or when the device's close timeout expires.
    ///
    /// # Errors
    /// The reason, if the connection did not end by a close of either side.
    pub async fn close(&self) -> Result<(), EndReason> {
        self.qp.disconnect();
        match self.closed().await {
            EndReason::LocalDisconnect | EndReason::PeerDisconnect => Ok(()),
            reason => Err(reason),
        }
    }

    /// Waits until the connection has ended, and returns the reason (RFC 5040 section 6.2).
    ///
    /// If this end was never connected, this returns [`EndReason::LocalDisconnect`] at once. The
    /// same holds for every connection in the child of a fork.
    pub async fn closed(&self) -> EndReason {
        poll_fn(|cx| {
            let Some(ops) = self.ops.here() else {
                return Poll::Ready(());
            };
            ops.changed.register(cx.waker());
            match self.qp.state() {
                QpState::Error | QpState::Idle => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        self.qp.end_reason().unwrap_or(EndReason::LocalDisconnect)
    }

    /// Parameters agreed with the peer, and its private data (RFC 5044 section 7.1, RFC 6581
    /// section 9).
    ///
    /// `None` before the connection is established.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.qp.connection()
    }

    /// Reason why the connection ended or is ending (RFC 5040 sections 6.2 and 7).
    ///
    /// `None` while the connection is up. An orderly reason ([`EndReason::is_orderly`]) is replaced
    /// if the close fails before it is complete.
    #[must_use]
    pub fn end_reason(&self) -> Option<EndReason> {
        self.qp.end_reason()
    }

    /// Number of the connection's QP, as the device's asynchronous events use it (`qp_num` of
    /// `ibv_qp`).
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    pub(super) fn result(&self, completion: Completion) -> Result<Completion, Error> {
        completion.ok().map_err(|error| Error::Failed {
            error,
            reason: self.qp.end_reason().map(Box::new),
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(ops) = self.ops.here() {
            ops.abandon_all();
        }
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
