//! Listeners whose requests are futures.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use super::Domain;
use super::connection::Connection;
use super::error::OpenError;
use crate::cm;
use crate::device::DeviceError;
use crate::qp::QpCaps;
use crate::{AcceptError, AcceptOptions, ConnectRequest, ListenError};

/// Listens for iWARP connections (RFC 5044 section 7.1); requests arrive as futures.
pub struct Listener {
    inner: cm::Listener,
    domain: Domain,
}

/// Connection request of a peer (an MPA Request, RFC 5044 section 7.1.1). Dropping it rejects it.
pub struct Request {
    inner: ConnectRequest,
    domain: Domain,
}

impl Listener {
    /// Listens for iWARP connections on `addr` (`rdma_listen`). Port 0 chooses a free port.
    ///
    /// # Errors
    /// See [`Device::listen`](crate::Device::listen).
    pub fn bind(domain: &Domain, addr: SocketAddr) -> Result<Listener, DeviceError> {
        Ok(Listener {
            inner: domain.device().listen(addr)?,
            domain: domain.clone(),
        })
    }

    /// Address of the listener, with the port that was chosen (`rdma_get_local_addr`).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// Waits for the next request (`rdma_get_request`).
    ///
    /// Any number of tasks may wait. Dropping the future loses no request.
    ///
    /// # Errors
    /// [`ListenError::Down`] if the device's network has failed.
    pub async fn accept(&self) -> Result<Request, ListenError> {
        let inner = poll_fn(|cx| match self.inner.poll_next(cx.waker()) {
            Some(request) => Poll::Ready(request),
            None => Poll::Pending,
        });
        Ok(Request {
            inner: inner.await?,
            domain: self.domain.clone(),
        })
    }

    /// The listener of the synchronous API, which also reports failed startups.
    ///
    /// The two APIs share one queue: a request goes either to that listener or to this one.
    #[must_use]
    pub fn inner(&self) -> &cm::Listener {
        &self.inner
    }
}

impl Request {
    /// The request of the synchronous API (RFC 5044 section 7.1.1): peer address, private data, IRD
    /// and ORD.
    #[must_use]
    pub fn info(&self) -> &ConnectRequest {
        &self.inner
    }

    /// Accepts with a new connection (`rdma_accept`).
    ///
    /// If the peer may send immediately, post receives first and use
    /// [`accept_on`](Self::accept_on).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn accept(
        self,
        caps: QpCaps,
        options: &AcceptOptions,
    ) -> Result<Connection, OpenError> {
        let connection = Connection::new(&self.domain, caps)?;
        self.accept_on(&connection, options).await?;
        Ok(connection)
    }

    /// Accepts with an existing connection (`rdma_accept`). Completes as soon as the MPA Reply is
    /// queued.
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub async fn accept_on(
        self,
        connection: &Connection,
        options: &AcceptOptions,
    ) -> Result<(), AcceptError> {
        self.inner.accept(&connection.qp, options)
    }

    /// Rejects the request, with private data for the peer's consumer (`rdma_reject`).
    ///
    /// # Errors
    /// See [`ConnectRequest::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), AcceptError> {
        self.inner.reject(private_data)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
