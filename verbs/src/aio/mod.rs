//! The async API: operations are futures that any runtime can drive.
//!
//! There is no runtime in it and no thread beyond the device's own one. Whoever finds a completion wakes the
//! task that waits for it, after every lock is gone: the thread that posts (a Send is often complete before its post
//! returns, and its future is then ready at the first poll), or the device's background thread, which sleeps in
//! `epoll_wait`. So a message costs two hops at most: from the socket to that thread, from there to the task.
//!
//! # Buffers
//! A [`RegisteredBuf`] goes into an operation and comes back with its result. In between nobody has it, so safe code cannot
//! touch memory in flight. It dereferences to its bytes, which is sound for these reasons:
//! * its region grants no remote right and may have no windows, so no peer writes it but by the operation that it was
//!   given to;
//! * its protection domain belongs to a [`Domain`] and is never handed out, so that no work request of the synchronous
//!   API can name it, whatever lkey it makes up.
//!
//! Memory that peers may read or write by themselves is a [`MemoryRegion`] from [`Domain::register`], or a
//! [`FastRegion`](crate::FastRegion) from [`Domain::alloc_fast_region`], which only copy bytes in and out. Windows show a part of a
//! region to the peer for a while, fast registration a part of a fast region ([`Connection::bind_window`], [`Connection::register`]).
//!
//! # Futures that are dropped
//! Dropping a future is always safe, at every point:
//! * before its first poll, or while it waits for a place in the send queue, nothing was posted, and the buffer goes back
//!   to its pool;
//! * after that the operation goes on, keeps the buffer until its completion, and then gives it back to its pool.
//!   Whether it is carried out cannot be told any more;
//! * a [`recv`](Connection::recv) that is dropped loses no message: its buffer stays posted, and the next call gets what
//!   comes into it.
//!
//! # Order
//! An operation is posted when its future is first polled (and has a place in the send queue; places are given in the order
//! of asking). So `a.await; b.await` keeps its order, and for futures that are polled together the order is that of the
//! polls. [`Connection::fence`] lets an operation wait for the Reads posted before it.
//!
//! # What it does not cover
//! Reads that invalidate their sink (the sink is a buffer of a pool, which no STag that ends could serve) and
//! [`CmId`](crate::CmId)s. A [`Qp`](crate::Qp) of the synchronous API does both, on the same device and beside async
//! connections; its CQ's channel and the device have descriptors that a runtime can watch.
//!
//! # Shared receives and unsignaled requests
//! Connections may take their receives from one [`Srq`]. Operations by way of [`Connection::unsignaled`] are ready when
//! they are posted, and their buffers go back to the pool when a later operation has completed.
//!
//! # Example
//! ```
//! use uwarp_verbs::aio::{Connection, Domain, Listener};
//! use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps};
//!
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     struct Unpark(std::thread::Thread);
//! #     impl std::task::Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
//! #     let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
//! #     let mut future = std::pin::pin!(future);
//! #     loop {
//! #         let mut cx = std::task::Context::from_waker(&waker);
//! #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut cx) { return value; }
//! #         std::thread::park();
//! #     }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Domain::new(&Device::tcp()?)?;
//! let listener = Listener::bind(&server, "127.0.0.1:0".parse()?)?;
//! let addr = listener.local_addr();
//! let serve = std::thread::spawn(move || block_on(async {
//!     let connection = Connection::new(&server, QpCaps::default()).unwrap();
//!     // A buffer is there before the peer can send.
//!     let pool = server.pool(2, 64).unwrap();
//!     connection.post_recv(pool.get().await).unwrap();
//!     listener.accept().await.unwrap().accept_on(&connection, &AcceptOptions::default()).await.unwrap();
//!     let (received, request) = connection.recv(pool.get().await).await;
//!     assert_eq!((received.unwrap().len, &request[..]), (5, &b"hello"[..]));
//!     let (sent, _) = connection.send(request).await;
//!     sent.unwrap();
//!     connection.closed().await
//! }));
//!
//! let client = Domain::new(&Device::tcp()?)?;
//! let answer = block_on(async {
//!     let connection = client.connect(addr, &ConnectOptions::default()).await.unwrap();
//!     let pool = client.pool(2, 64).unwrap();
//!     let mut buf = pool.get().await;
//!     buf.fill_from(b"hello");
//!     connection.post_recv(pool.get().await).unwrap();
//!     let (sent, buf) = connection.send(buf).await;
//!     sent.unwrap();
//!     let (received, answer) = connection.recv(buf).await;
//!     received.unwrap();
//!     connection.close().await.unwrap();
//!     answer.to_vec()
//! });
//! assert_eq!(answer, b"hello");
//! # serve.join().unwrap();
//! # Ok(()) }
//! ```

mod buf;
mod connection;
mod error;
mod extensions;
mod flagged;
mod gate;
mod listener;
mod memory;
mod srq;
mod table;
mod unsignaled;
mod wakers;

use std::net::ToSocketAddrs;

pub use buf::{BufferPool, RegisteredBuf};
pub use connection::{Connection, Received};
pub use error::{Error, OpenError, PoolError};
pub use extensions::Masked;
pub use flagged::Flagged;
pub use listener::{Listener, Request};
pub use srq::Srq;
pub use unsignaled::Unsignaled;
pub(crate) use wakers::Wakers;

use crate::cm::resolve;
use crate::mem::{Access, RegisterError};
use crate::{ConnectError, ConnectOptions, Device, DeviceError, MemoryRegion, Pd, QpCaps};

/// A protection domain for the async API (`ibv_pd`): buffers and connections work together only within one.
///
/// Its domain is its own; see the [module](self) for why. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Domain {
    device: Device,
    pd: Pd,
}

impl Domain {
    /// A new domain of that device (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// As [`Device::alloc_pd`].
    pub fn new(device: &Device) -> Result<Domain, DeviceError> {
        Ok(Domain {
            device: device.clone(),
            pd: device.alloc_pd()?,
        })
    }

    /// The device (the `context` of `ibv_pd`).
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// `count` buffers of `size` bytes each, in one region that no peer has any right to (`ibv_reg_mr`, once for all).
    ///
    /// # Errors
    /// No memory, or as [`Pd::register`].
    pub fn pool(&self, count: usize, size: usize) -> Result<BufferPool, PoolError> {
        BufferPool::new(count, size, |buffer| {
            self.pd.register_shared(buffer, Access::LOCAL_WRITE)
        })
    }

    /// Registers memory for peers to read or write by themselves (`ibv_reg_mr`): `data` is its first content.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register(&self, data: Vec<u8>, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.pd.register(data, access)
    }

    /// Connects to an iWARP endpoint with a new connection of default sizes (`ibv_create_qp`, `rdma_connect`). To post
    /// receives before, or for other sizes: [`Connection::new`], then [`Connection::connect`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> impl Future<Output = Result<Connection, OpenError>> {
        let addrs = resolve(to);
        async move {
            let addrs = addrs.map_err(ConnectError::from)?;
            let connection = Connection::new(self, QpCaps::default())?;
            connection.connect_to(addrs, options).await?;
            Ok(connection)
        }
    }
}
