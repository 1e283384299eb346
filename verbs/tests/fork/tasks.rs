//! The async API: buffers, connections, and pending futures.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use uwarp_verbs::aio::{BufferPool, Connection, Domain, Error, Listener, RegisteredBuf};

use super::executor::{Counter, block_on, both, poll_once};
use super::*;

struct Tasks {
    domain: Domain,
    listener: Listener,
    ours: Connection,
    theirs: Connection,
    pool: BufferPool,
}

impl Tasks {
    fn new(device: &Device) -> Tasks {
        let domain = Domain::new(device).unwrap();
        let end = || Connection::new(&domain, QpCaps::default()).unwrap();
        let tasks = Tasks {
            listener: Listener::bind(&domain, "127.0.0.1:0".parse().unwrap()).unwrap(),
            ours: end(),
            theirs: end(),
            pool: domain.pool(4, 64).unwrap(),
            domain,
        };
        let (to, options) = (tasks.listener.local_addr(), ConnectOptions::default());
        let (connected, ()) = block_on(both(tasks.ours.connect(to, &options), async {
            let request = tasks.listener.accept().await.unwrap();
            let options = AcceptOptions::default();
            request.accept_on(&tasks.theirs, &options).await.unwrap();
        }));
        connected.unwrap();
        tasks
    }

    fn buf(&self, bytes: &[u8]) -> RegisteredBuf {
        let mut buf = self.pool.try_get().unwrap();
        buf.fill_from(bytes);
        buf
    }
}

/// Polls a future once and returns its result if it is ready.
fn once<F: Future>(future: F) -> Option<F::Output> {
    match poll_once(Box::pin(future).as_mut()) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[track_caller]
fn refused(error: &Error) {
    let Error::Refused(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.kind, PostErrorKind::Inherited(Inherited));
}

pub(super) fn the_async_api() {
    let device = Device::tcp().unwrap();
    let tasks = Tasks::new(&device);
    let held = tasks.buf(b"held");
    // The child inherits a pending receive.
    let mut receiving = Box::pin(tasks.theirs.recv(tasks.buf(b"")));
    let woken = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&woken));
    let poll = receiving.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll.is_pending());
    // The message has arrived and woken the receive. Only the parent may take the message.
    once(tasks.ours.send_inline(b"first")).unwrap().unwrap();
    until("a message", || woken.count() > 0);
    // The child also inherits a pending connect, because the listener has not answered yet.
    let (late, options) = (
        Connection::new(&tasks.domain, QpCaps::default()).unwrap(),
        ConnectOptions::default(),
    );
    let mut connecting = Box::pin(late.connect(tasks.listener.local_addr(), &options));
    assert!(poll_once(connecting.as_mut()).is_pending());
    in_a_child(|| {
        assert!(matches!(
            poll_once(connecting.as_mut()),
            Poll::Ready(Err(ConnectError::Inherited(_)))
        ));
        assert!(poll_once(receiving.as_mut()).is_pending());
        drop(receiving);
        in_the_child(&device, &tasks, held);
    });
    drop(connecting);
    drop(late);
    // The buffer that was used only in the child is in the pool again.
    assert_eq!(tasks.pool.available(), 3);
    let tasks = AssertUnwindSafe(std::cell::Cell::new(Some(tasks)));
    in_a_child(|| drop(tasks.take()));
    let tasks = tasks.take().unwrap();
    let receive = tasks.pool.try_get().unwrap();
    tasks.theirs.post_recv(receive).unwrap();
    let sent = once(tasks.ours.send(tasks.buf(b"still there"))).unwrap();
    sent.0.unwrap();
    // The dropped future did not take the message, so the next receive takes it.
    let (result, got) = block_on(tasks.theirs.recv(tasks.pool.try_get().unwrap()));
    assert_eq!((result.unwrap().len, &got[..]), (5, &b"first"[..]));
    drop(got);
    let (result, got) = block_on(tasks.theirs.recv(tasks.pool.try_get().unwrap()));
    assert_eq!((result.unwrap().len, &got[..]), (11, &b"still there"[..]));
}

fn in_the_child(device: &Device, tasks: &Tasks, held: RegisteredBuf) {
    let Tasks {
        domain,
        listener,
        ours,
        pool,
        ..
    } = tasks;
    assert!(pool.try_get().is_none() && pool.available() == 0);
    assert!(once(pool.get()).is_none());
    let (result, held) = once(ours.send(held)).unwrap();
    refused(&result.unwrap_err());
    let (result, held) = once(ours.recv(held)).unwrap();
    refused(&result.map(drop).unwrap_err());
    refused(&once(ours.recv_shared()).unwrap().map(drop).unwrap_err());
    let (error, held) = ours.post_recv(held).unwrap_err();
    refused(&error);
    let nowhere = RemoteBuffer {
        addr: 0,
        len: 64,
        rkey: 0,
    };
    let (result, held) = once(ours.read(held, nowhere)).unwrap();
    refused(&result.unwrap_err());
    refused(&once(ours.send_inline(b"no")).unwrap().unwrap_err());
    let result = once(ours.fetch_add(nowhere, 1)).unwrap();
    refused(&result.map(drop).unwrap_err());
    assert!(once(ours.closed()).is_some());
    assert!(matches!(
        once(listener.accept()).unwrap(),
        Err(ListenError::Inherited(_))
    ));
    let options = ConnectOptions::default();
    let result = once(ours.connect(listener.local_addr(), &options)).unwrap();
    assert!(matches!(result, Err(ConnectError::Inherited(_))));
    assert!(Domain::new(device).is_err() && domain.pool(1, 1).is_err());
    assert!(Connection::new(domain, QpCaps::default()).is_err());
    drop(held);
}
