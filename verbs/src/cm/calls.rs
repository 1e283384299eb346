//! Calls of an id that make and end connections.

use std::sync::Arc;

use uwarp_llp::Llp;

use super::connect::{self, ConnectOptions, Starter};
use super::connect_request::{AcceptOptions, RejectOptions};
use super::id::{CmError, CmId};
use super::inner::IdInner;
use super::listener::Listening;
use super::pending_startup::PendingStartup;
use super::state::{CmInput, CmState};
use crate::connection::inner::QpInner;
use crate::connection::observer::Observer;
use crate::qp::Qp;

impl CmId {
    /// Listens for connections at the address of [`bind_addr`](Self::bind_addr), or at all
    /// addresses with a free port (`rdma_listen`). Each request arrives as `ConnectRequest`, with a
    /// new id on the same channel.
    ///
    /// At most `backlog` requests wait for a decision of the program (0: no limit besides
    /// [`Limits::max_startup`](crate::Limits::max_startup), which always applies). Further requests
    /// arrive after the program has decided; they are neither refused nor rejected. A request
    /// without a decision within [`Timeouts::decision`](crate::Timeouts::decision) is rejected,
    /// even if it waits beyond the backlog.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or the error of the network or of the settings.
    pub fn listen(&self, backlog: u32) -> Result<(), CmError> {
        let inner = self.inner()?;
        let mut id = inner.lock()?;
        let next = id.state.next(CmInput::Listen)?;
        let any = ([0, 0, 0, 0], 0).into();
        let port = match id.port.take() {
            Some(port) => port,
            None => inner.device.network.reserve(id.bound.unwrap_or(any))?,
        };
        let backlog = match backlog {
            0 => u32::MAX,
            backlog => backlog,
        };
        let sink = Arc::downgrade(inner);
        let listening = Listening::open(&inner.device, port, backlog, sink)?;
        id.local = Some(listening.local_addr());
        id.listening = Some(listening);
        id.over_stream = false;
        id.state = next;
        Ok(())
    }

    /// Connects `qp` to the resolved address (`rdma_connect`). `options.local` has no effect here.
    ///
    /// `Established` arrives when the peer has accepted. Otherwise `Rejected`, `Unreachable` or
    /// `ConnectError` arrives, and the id may connect again, with an idle QP.
    ///
    /// # Errors
    /// Nothing was started: [`CmError::WrongState`], [`CmError::OtherDevice`], or
    /// [`CmError::Connect`] for a QP in use and for options that have no representation on the
    /// wire.
    pub fn connect(&self, qp: &Qp, options: &ConnectOptions) -> Result<(), CmError> {
        let (inner, qp) = self.with_qp(qp)?;
        let (to, bound, mut port) = {
            let mut id = inner.state.lock();
            let next = id.state.next(CmInput::Connect)?;
            let to = id.peer.ok_or(id.wrong("connect", "a resolved address"))?;
            id.state = next;
            // A previous attempt may have used a stream.
            id.over_stream = false;
            id.qp = Arc::downgrade(qp);
            (to, id.bound, id.port.take())
        };
        let again = Some((bound, to));
        let begun = connect::start(
            qp,
            to,
            options,
            again,
            Starter::Id(Some(observer(inner))),
            || match port.take() {
                Some(port) => port.connect(to),
                None => inner.device.network.connect(bound, to),
            },
        );
        if begun.is_err() {
            let mut id = inner.state.lock();
            id.advance(CmInput::Failed);
            if id.state != CmState::Destroyed {
                id.port = port;
            }
        }
        follow(inner, qp, begun)
    }

    /// Connects like [`connect`](Self::connect), on a new id and over a stream that is already
    /// connected (RFC 5044 section 7.1.2). The peer accepts the connection with
    /// [`request_over`](Self::request_over). This call has no parameter for bytes already read from
    /// the stream, because the peer sends none before it has the Request. For a stream whose
    /// startup is done, see [`Qp::attach_stream`].
    ///
    /// # Errors
    /// See [`connect`](Self::connect).
    pub fn connect_over(
        &self,
        qp: &Qp,
        stream: Box<dyn Llp>,
        options: &ConnectOptions,
    ) -> Result<(), CmError> {
        let (inner, qp) = self.with_qp(qp)?;
        let to = stream.peer_addr();
        {
            let mut id = inner.state.lock();
            id.state = id.state.next(CmInput::ConnectOver)?;
            id.over_stream = true;
            id.qp = Arc::downgrade(qp);
            (id.local, id.peer) = (Some(stream.local_addr()), Some(to));
        }
        let starter = Starter::Id(Some(observer(inner)));
        let begun = connect::start(qp, to, options, None, starter, || Ok(stream));
        if begun.is_err() {
            inner.state.lock().advance(CmInput::FailedOver);
        }
        follow(inner, qp, begun)
    }

    /// Waits for the MPA Request on a stream that is already connected (RFC 5044 section 7.1.2), on
    /// a new id. `read` are bytes of the Request that the program has already read from the stream.
    /// The Request arrives as `ConnectRequest`, with an id of its own. If something else arrives,
    /// an event reports it, and the id can be used again like a new one.
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Request`] if the stream cannot be watched or a limit
    /// is reached.
    pub fn request_over(&self, stream: Box<dyn Llp>, read: &[u8]) -> Result<(), CmError> {
        let inner = self.inner()?;
        {
            let mut id = inner.lock()?;
            id.state = id.state.next(CmInput::Listen)?;
            id.over_stream = true;
            (id.local, id.peer) = (Some(stream.local_addr()), Some(stream.peer_addr()));
        }
        let sink = Arc::downgrade(inner);
        let started = PendingStartup::start(sink, &inner.device, stream, read, None);
        if started.is_err() {
            inner.state.lock().advance(CmInput::FailedOver);
        }
        Ok(started?)
    }

    /// Accepts the request (`rdma_accept`): sends the Reply and hands the connection to `qp`. Post
    /// receives before this call. `Established` is queued before the Reply is sent. If the
    /// initiator requests another connection after the Reply, that request is queued later, even on
    /// another channel. An initiator of the client-server model has to send first.
    ///
    /// # Errors
    /// [`CmError::WrongState`], [`CmError::OtherDevice`], or [`CmError::Accept`]. After
    /// [`CmError::Accept`] the request is rejected.
    pub fn accept(&self, qp: &Qp, options: &AcceptOptions) -> Result<(), CmError> {
        let (inner, qp) = self.with_qp(qp)?;
        let request = {
            let mut id = inner.state.lock();
            let request = id.take_request(CmInput::Accept)?;
            id.qp = Arc::downgrade(qp);
            request
        };
        inner.decided();
        let begun = request.accept_observed(qp, options, Some(observer(inner)));
        if begun.is_err() {
            inner.state.lock().advance(CmInput::Failed);
        }
        follow(inner, qp, begun)
    }

    /// Rejects the request (`rdma_reject`).
    ///
    /// # Errors
    /// [`CmError::WrongState`], or [`CmError::Accept`] if the private data is too long. In the
    /// latter case the request is rejected without private data.
    pub fn reject(&self, options: &RejectOptions) -> Result<(), CmError> {
        let inner = self.inner()?;
        let request = inner.lock()?.take_request(CmInput::Reject)?;
        inner.decided();
        Ok(request.reject_with(options)?)
    }

    /// Ends the connection gracefully (`rdma_disconnect`): posted work is carried out, then FIN is
    /// sent. `Disconnected` arrives when the connection has ended and all work is flushed. An
    /// attempt to connect is given up, and ends with `ConnectError`. Does nothing if the connection
    /// has ended already.
    ///
    /// # Errors
    /// [`CmError::WrongState`] without a connection.
    pub fn disconnect(&self) -> Result<(), CmError> {
        let qp = {
            let id = self.locked()?;
            match id.state {
                CmState::Connecting | CmState::Accepting | CmState::Connected => id.qp.upgrade(),
                CmState::Disconnected => None,
                _ => return Err(id.wrong("disconnect", "a connection").into()),
            }
        };
        if let Some(qp) = qp {
            qp.with(crate::connection::Connection::disconnect);
        }
        Ok(())
    }

    /// Returns the shared parts of the id and of the QP, which must belong to the same device.
    fn with_qp<'a>(&'a self, qp: &'a Qp) -> Result<(&'a Arc<IdInner>, &'a Arc<QpInner>), CmError> {
        let inner = self.inner()?;
        if !qp.is_of(&inner.device) {
            return Err(CmError::OtherDevice);
        }
        Ok((inner, qp.inner()?))
    }
}

/// Returns the id as the observer of its QP.
fn observer(id: &Arc<IdInner>) -> Arc<dyn Observer> {
    Arc::<IdInner>::clone(id)
}

/// Finishes a call that has started a connection: records the local address with the chosen port.
/// If the id was destroyed meanwhile, stops the QP's reports to the id.
fn follow<E: Into<CmError>>(
    inner: &IdInner,
    qp: &QpInner,
    begun: Result<(), E>,
) -> Result<(), CmError> {
    begun.map_err(Into::into)?;
    let addrs = qp.lock().addrs();
    if let Some(addrs) = addrs {
        inner.state.lock().local = Some(addrs.local);
    }
    if inner.state.lock().state == CmState::Destroyed {
        // Another thread destroyed the id, perhaps before the QP had the id as its observer.
        qp.unobserve(inner);
    }
    Ok(())
}
