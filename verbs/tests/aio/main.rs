//! The async API, run by minimal runtimes.

mod bytes;
mod dropped;
mod ends;
mod executor;
mod flags;
mod many;
mod operations;
mod pressure;
mod shared;
mod wakers;
mod windows;

use std::sync::Arc;

use executor::{block_on, both};
use uwarp_verbs::aio::{BufferPool, Connection, Domain, Listener, RegisteredBuf};
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps, Settings};

/// One end of a connection: a domain with a pool, and the connection.
pub(crate) struct End {
    pub(crate) domain: Domain,
    pub(crate) pool: BufferPool,
    pub(crate) connection: Connection,
}

/// Number of buffers in each pool.
pub(crate) const BUFFERS: usize = 8;
/// Length of each buffer in bytes.
pub(crate) const SIZE: usize = 4096;

impl End {
    fn new(device: &Device, caps: QpCaps) -> End {
        let domain = Domain::new(device).unwrap();
        End {
            pool: domain.pool(BUFFERS, SIZE).unwrap(),
            connection: Connection::new(&domain, caps).unwrap(),
            domain,
        }
    }

    /// Returns a buffer with this content.
    #[track_caller]
    pub(crate) fn buf(&self, bytes: &[u8]) -> RegisteredBuf {
        let mut buf = self.pool.try_get().expect("a free buffer");
        assert_eq!(buf.fill_from(bytes), bytes.len());
        buf
    }

    #[track_caller]
    pub(crate) fn blank(&self) -> RegisteredBuf {
        self.pool.try_get().expect("a free buffer")
    }
}

/// Connects two ends over kernel TCP. The second one accepts; either may send first.
#[track_caller]
pub(crate) fn pair() -> (End, End) {
    pair_with(QpCaps::default())
}

#[track_caller]
pub(crate) fn pair_with(caps: QpCaps) -> (End, End) {
    let (a, b) = (Device::tcp().unwrap(), Device::tcp().unwrap());
    join(&a, &b, "127.0.0.1:0", caps)
}

/// Connects two ends over smoltcp and an in-memory link. Its buffers are small, so that a send
/// waits for the receiver.
#[track_caller]
pub(crate) fn narrow(caps: QpCaps) -> (End, End) {
    let settings = MemorySettings::default()
        .receive_buffer(16 << 10)
        .send_buffer(16 << 10);
    let (a, b) = MemoryNetwork::pair(&settings).unwrap();
    let a = Device::open(Arc::new(a), Settings::default()).unwrap();
    let b = Device::open(Arc::new(b), Settings::default()).unwrap();
    join(&a, &b, "192.0.2.2:7174", caps)
}

#[track_caller]
fn join(a: &Device, b: &Device, addr: &str, caps: QpCaps) -> (End, End) {
    let (a, b) = (End::new(a, caps), End::new(b, caps));
    let listener = Listener::bind(&b.domain, addr.parse().unwrap()).unwrap();
    let options = ConnectOptions::default().peer_to_peer(true);
    block_on(async {
        let accept = async {
            let request = listener.accept().await.unwrap();
            request
                .accept_on(&b.connection, &AcceptOptions::default())
                .await
        };
        let connect = a.connection.connect(listener.local_addr(), &options);
        let (connected, accepted) = both(connect, accept).await;
        connected.unwrap();
        accepted.unwrap();
    });
    (a, b)
}
