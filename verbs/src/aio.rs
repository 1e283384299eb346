//! The async API: operations are futures that any runtime can drive.
//!
//! The module has no runtime and starts no thread of its own. The thread that finds a completion
//! wakes the waiting task, after it has released every lock. Often this is the posting thread: a
//! Send mostly completes before its post returns, so its future is ready at the first poll.
//! Otherwise it is the device's background thread, which sleeps in `epoll_wait`. A message
//! therefore takes at most two thread switches: from the socket to the background thread, and from
//! there to the task.
//!
//! # Buffers
//! An operation takes a [`RegisteredBuf`] by value and returns it with the result. Safe code cannot
//! touch memory in flight, because it does not own the buffer during the operation. The buffer
//! dereferences to its bytes. This is sound for two reasons:
//! * Its region grants no remote right and accepts no windows. A peer writes to it only through the
//!   operation that took the buffer.
//! * Its protection domain belongs to a [`Domain`] and is never handed out. No work request of the
//!   synchronous API can name the region, whatever lkey it contains.
//!
//! [`Bytes`](::bytes::Bytes) can be sent as they are, because nobody writes them
//! ([`Connection::send_bytes`]).
//!
//! Memory that peers may read or write on their own is a [`MemoryRegion`] from
//! [`Domain::register`], or a [`FastRegion`](crate::FastRegion) from [`Domain::alloc_fast_region`].
//! Both give access only by copying bytes in and out. A memory window exposes part of a region to
//! the peer for a limited time ([`Connection::bind_window`]). A fast registration does the same for
//! part of a fast region ([`Connection::register`]).
//!
//! # Dropped futures
//! Dropping a future is safe at every point:
//! * Before its first poll, and while it waits for a place in the send queue, nothing was posted.
//!   The buffer returns to its pool.
//! * After the post, the operation continues and keeps the buffer until its completion. The buffer
//!   then returns to its pool. The program cannot learn whether the operation succeeded.
//! * A dropped [`recv`](Connection::recv) loses no message. Its buffer stays posted, and the next
//!   call returns the message that arrives in it.
//!
//! # Order
//! A future asks for a place in the send queue when it is first polled, and posts its operation
//! when it gets the place. Places are granted in the order of the requests. So `a.await; b.await`
//! keeps its order, and futures that are polled together are posted in the order of their first
//! polls. [`Connection::fence`] makes an operation wait for the Reads posted before it.
//!
//! # Not covered
//! The async API has no Reads that invalidate their sink, because the sink is a pool buffer whose
//! STag must stay valid. It has no [`CmId`](crate::CmId) either. A synchronous [`Qp`](crate::Qp)
//! offers both, and works on the same device as async connections. A runtime can watch the
//! descriptors of the device and of the completion channel.
//!
//! # Shared receives and unsignaled requests
//! Several connections can take their receives from one [`Srq`]. Operations through
//! [`Connection::unsignaled`] are ready as soon as they are posted. Their buffers return to the
//! pool when a later operation completes.
//!
//! # Example
//! ```
//! use uwarp_verbs::aio::{Connection, Domain, Listener};
//! use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps};
//!
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     struct Unpark(std::thread::Thread);
//! #     impl std::task::Wake for Unpark {
//! #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
//! #     }
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
//!     // The buffer is posted before the peer can send.
//!     let pool = server.pool(2, 64).unwrap();
//!     connection.post_recv(pool.get().await).unwrap();
//!     let request = listener.accept().await.unwrap();
//!     request.accept_on(&connection, &AcceptOptions::default()).await.unwrap();
//!     let (received, message) = connection.recv(pool.get().await).await;
//!     assert_eq!((received.unwrap().len, &message[..]), (5, &b"hello"[..]));
//!     let (sent, _) = connection.send(message).await;
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
mod bytes;
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

use std::net::ToSocketAddrs;

pub use buf::{BufferPool, RegisteredBuf};
pub use connection::{Connection, Received};
pub use error::{Error, OpenError, PoolError};
pub use extensions::Masked;
pub use flagged::Flagged;
pub use listener::{Listener, Request};
pub use srq::Srq;
pub use unsignaled::Unsignaled;

use uwarp_engine::mem::{Access, RegisterError};

use crate::cm::resolve;
use crate::{ConnectError, ConnectOptions, Device, DeviceError, MemoryRegion, Pd, QpCaps};

/// A protection domain for the async API (`ibv_pd`).
///
/// Buffers and connections work together only within one domain. The underlying [`Pd`] is never
/// handed out; the [module documentation](self) explains why. Clones are handles to the same
/// domain.
#[derive(Clone, Debug)]
pub struct Domain {
    device: Device,
    pd: Pd,
}

impl Domain {
    /// Allocates a domain on `device` (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// See [`Device::alloc_pd`].
    pub fn new(device: &Device) -> Result<Domain, DeviceError> {
        Ok(Domain {
            device: device.clone(),
            pd: device.alloc_pd()?,
        })
    }

    /// Device of this domain (`context` of `ibv_pd`).
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Allocates `count` buffers of `size` bytes each.
    ///
    /// All buffers lie in one region, which is registered once (`ibv_reg_mr`) and grants peers no
    /// right.
    ///
    /// # Errors
    /// [`PoolError::Memory`] if the allocation fails, [`PoolError::Register`] for the errors of
    /// [`Pd::register`].
    pub fn pool(&self, count: usize, size: usize) -> Result<BufferPool, PoolError> {
        BufferPool::new(count, size, |buffer| {
            self.pd.register_shared(buffer, Access::LOCAL_WRITE)
        })
    }

    /// Registers memory that peers may read or write on their own (`ibv_reg_mr`).
    ///
    /// `data` is the initial content, and its length in bytes is the length of the region.
    ///
    /// # Errors
    /// See [`Pd::register`].
    pub fn register(&self, data: Vec<u8>, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.pd.register(data, access)
    }

    /// Connects a new connection of default size to an iWARP endpoint (`ibv_create_qp`,
    /// `rdma_connect`).
    ///
    /// To choose other sizes, or to post receives first, use [`Connection::new`] and
    /// [`Connection::connect`].
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
