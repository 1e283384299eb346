//! Sends and Writes of `Bytes`.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::Bytes;
use uwarp_verbs::aio::{Domain, Error, PoolError};
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{Access, Device, QpCaps, RegisterError, Settings};

use crate::executor::{block_on, both, poll_once};
use crate::{narrow, pair};

/// Owner of bytes that records its drop.
struct Owner(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn bytes_are_sent_and_written_without_a_pool() {
    let (a, b) = pair();
    let before = a.domain.device().usage().stags;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let inbox = b.domain.register(vec![0; 100], access).unwrap();
    let whole = Bytes::from(b"head and body".to_vec());
    block_on(async {
        for part in [whole.clone(), whole.slice(9..), Bytes::new()] {
            let send = a.connection.send_bytes(part.clone());
            let ((received, buf), sent) = both(b.connection.recv(b.blank()), send).await;
            sent.unwrap();
            assert_eq!((received.unwrap().len, &buf[..]), (part.len(), &part[..]));
        }
        let (body, at) = (whole.slice(9..), inbox.remote().slice(10, 4).unwrap());
        a.connection.write_bytes(body, at).await.unwrap();
        let (received, sent) = both(
            b.connection.recv(b.blank()),
            a.connection.solicited().send_bytes(whole.slice(..4)),
        )
        .await;
        sent.unwrap();
        assert!(received.0.unwrap().solicited);
    });
    let mut written = [0; 6];
    inbox.read_at(9, &mut written).unwrap();
    assert_eq!(&written, b"\0body\0");
    assert_eq!(&whole[..], b"head and body");
    assert_eq!(a.domain.device().usage().stags, before, "none is left");
}

#[test]
fn bytes_that_do_not_fit_or_cannot_be_registered_are_refused() {
    let (a, b) = pair();
    let small = b.domain.register(vec![0; 3], Access::REMOTE_READ).unwrap();
    let four = Bytes::from_static(b"four");
    block_on(async {
        let refused = a.connection.write_bytes(four, small.remote()).await;
        assert!(matches!(
            refused,
            Err(Error::TooSmall {
                len: 4,
                room: 3,
                ..
            })
        ));
        a.connection.send_inline(b"still up").await.unwrap();
    });
    let mut settings = Settings::default();
    settings.limits.max_mr = 1;
    let device = Device::open(Arc::new(KernelNetwork::default()), settings).unwrap();
    let domain = Domain::new(&device).unwrap();
    let connection = uwarp_verbs::aio::Connection::new(&domain, QpCaps::default()).unwrap();
    let _only = domain.register(vec![0], Access::NONE).unwrap();
    let refused = block_on(connection.send_bytes(Bytes::from_static(b"more")));
    assert!(matches!(
        refused,
        Err(Error::Memory(PoolError::Register(
            RegisterError::TooMany { .. }
        )))
    ));
}

#[test]
fn a_dropped_send_keeps_its_bytes_until_the_network_has_taken_them() {
    const LARGE: usize = 1 << 20;
    let (a, b) = narrow(QpCaps::default());
    let inbox = b.domain.pool(2, LARGE).unwrap();
    b.connection.post_recv(inbox.try_get().unwrap()).unwrap();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let bytes = Bytes::from_owner(Owner(vec![7; LARGE], Arc::clone(&is_dropped)));
    {
        let mut send = pin!(a.connection.send_bytes(bytes));
        assert!(poll_once(send.as_mut()).is_pending());
    }
    assert!(!is_dropped.load(Ordering::SeqCst), "in flight");
    block_on(async {
        let (received, buf) = b.connection.recv(inbox.get().await).await;
        assert_eq!(received.unwrap().len, LARGE);
        assert!(buf.iter().all(|byte| *byte == 7));
    });
    // The thread that delivers the completion releases the bytes.
    block_on(poll_fn(|cx| {
        cx.waker().wake_by_ref();
        match is_dropped.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }));
}
