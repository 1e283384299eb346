//! Dropped futures: no buffer is lost, returned too early, or written to at the wrong time.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::executor::{Counter, block_on, poll_once};
use crate::{BUFFERS, narrow, pair};
use uwarp_verbs::{Access, QpCaps};

/// A message of this length is larger than the buffers of the narrow link, so that a send waits for
/// the receiver.
const LARGE: usize = 1 << 20;

#[test]
fn a_future_that_was_never_polled_gives_its_buffer_back_and_does_nothing() {
    let (a, b) = pair();
    drop(a.connection.send(a.buf(b"never")));
    drop(b.connection.recv(b.blank()));
    assert_eq!((a.pool.available(), b.pool.available()), (BUFFERS, BUFFERS));
    block_on(async {
        a.connection.post_recv(a.blank()).unwrap();
        b.connection.send_inline(b"first").await.unwrap();
        let (received, buf) = a.connection.recv(a.blank()).await;
        received.unwrap();
        assert_eq!(&buf[..], b"first");
    });
}

#[test]
fn a_dropped_send_keeps_its_buffer_until_the_network_has_taken_it() {
    let (a, b) = narrow(QpCaps::default());
    let inbox = b.domain.pool(2, LARGE).unwrap();
    b.connection.post_recv(inbox.try_get().unwrap()).unwrap();
    let pool = a.domain.pool(1, LARGE).unwrap();
    let mut buf = pool.try_get().unwrap();
    buf.fill(7);
    {
        let mut send = pin!(a.connection.send(buf));
        assert!(poll_once(send.as_mut()).is_pending());
    }
    block_on(async {
        let (received, buf) = b.connection.recv(inbox.get().await).await;
        assert_eq!(received.unwrap().len, LARGE);
        assert!(buf.iter().all(|byte| *byte == 7), "sent as it was");
        // The pool is empty, so this waits until the network has taken the buffer.
        let mut again = pool.get().await;
        again.fill(8);
    });
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_response_is_placed() {
    let (a, b) = narrow(QpCaps::default());
    let lent = b
        .domain
        .register(vec![9; LARGE], Access::REMOTE_READ)
        .unwrap();
    let pool = a.domain.pool(1, LARGE).unwrap();
    {
        let mut read = pin!(a.connection.read(pool.try_get().unwrap(), lent.remote()));
        assert!(poll_once(read.as_mut()).is_pending());
    }
    block_on(async {
        // When the pool hands out the buffer again, no byte of the response is placed in it any
        // more.
        let mut buf = pool.get().await;
        assert!(buf.iter().all(|byte| *byte == 9));
        buf.fill(1);
        let (read, other) = a
            .connection
            .read(a.blank(), lent.remote().slice(0, 10).unwrap())
            .await;
        read.unwrap();
        assert_eq!(&other[..], [9; 10]);
        assert!(buf.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn a_dropped_receive_loses_no_message_and_no_buffer() {
    let (a, b) = pair();
    for _ in 0..3 {
        let mut recv = pin!(b.connection.recv(b.blank()));
        assert!(poll_once(recv.as_mut()).is_pending());
    }
    assert_eq!(b.pool.available(), BUFFERS - 3, "they stay posted");
    block_on(async {
        for n in 0..4u8 {
            a.connection.send_inline(&[n]).await.unwrap();
            if n == 3 {
                break;
            }
            let (received, buf) = b.connection.recv(b.blank()).await;
            received.unwrap();
            assert_eq!(&buf[..], [n]);
        }
        let (received, buf) = b.connection.recv(b.blank()).await;
        received.unwrap();
        assert_eq!(&buf[..], [3]);
    });
    drop(b.connection);
    assert_eq!(b.pool.available(), BUFFERS);
}

#[test]
fn a_receive_that_was_woken_and_dropped_passes_its_message_on() {
    let (a, b) = pair();
    let (first, second) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let wakers = [
        Waker::from(Arc::clone(&first)),
        Waker::from(Arc::clone(&second)),
    ];
    let mut one = Box::pin(b.connection.recv(b.blank()));
    let mut two = Box::pin(b.connection.recv(b.blank()));
    assert!(
        one.as_mut()
            .poll(&mut Context::from_waker(&wakers[0]))
            .is_pending()
    );
    assert!(
        two.as_mut()
            .poll(&mut Context::from_waker(&wakers[1]))
            .is_pending()
    );
    block_on(a.connection.send_inline(b"for one of them")).unwrap();
    while first.count() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(second.count(), 0);
    drop(one);
    assert_eq!(second.count(), 1);
    let Poll::Ready((received, buf)) = poll_once(two.as_mut()) else {
        panic!("the message was lost")
    };
    received.unwrap();
    assert_eq!(&buf[..], b"for one of them");
}

#[test]
fn a_send_is_safe_to_drop_after_any_number_of_polls() {
    const LEN: usize = 100_000;
    const COUNT: u8 = 6;
    let (a, b) = narrow(QpCaps::default().max_send_wr(2));
    let pool = a.domain.pool(COUNT.into(), LEN).unwrap();
    // One receive for each message, and one for the marker; each `recv` posts another one.
    let inbox = b.domain.pool(usize::from(COUNT) + 2, LEN).unwrap();
    for _ in 0..=COUNT {
        b.connection.post_recv(inbox.try_get().unwrap()).unwrap();
    }
    for polls in 0..5 {
        let mut sends: Vec<_> = (0..COUNT)
            .map(|n| {
                let mut buf = pool.try_get().unwrap();
                buf.fill(n);
                Some(Box::pin(a.connection.send(buf)))
            })
            .collect();
        for _ in 0..polls {
            for slot in &mut sends {
                if let Some(send) = slot
                    && poll_once(send.as_mut()).is_ready()
                {
                    *slot = None;
                }
            }
        }
        drop(sends);
        block_on(async {
            // Posted messages arrive unchanged and in order, although no future waits for them. Two
            // of them fitted into the queue at once. The others followed when these two had
            // completed.
            a.connection.send_inline(b"marker").await.unwrap();
            let mut arrived = 0;
            loop {
                let (received, buf) = b.connection.recv(inbox.get().await).await;
                received.unwrap();
                if &buf[..] == b"marker" {
                    break;
                }
                assert_eq!(buf.len(), LEN);
                assert!(buf.iter().all(|byte| *byte == arrived));
                arrived += 1;
            }
            assert!(if polls == 0 {
                arrived == 0
            } else {
                arrived >= 2
            });
            // All buffers return to the pool.
            let mut all = Vec::new();
            for _ in 0..COUNT {
                all.push(pool.get().await);
            }
        });
    }
}

#[test]
fn a_dropped_connection_sends_all_buffers_home() {
    let (a, b) = narrow(QpCaps::default());
    let inbox = b.domain.pool(3, LARGE).unwrap();
    for _ in 0..2 {
        b.connection.post_recv(inbox.try_get().unwrap()).unwrap();
    }
    let pool = a.domain.pool(4, LARGE).unwrap();
    for _ in 0..2 {
        a.connection.post_recv(pool.try_get().unwrap()).unwrap();
        let mut send = pin!(a.connection.send(pool.try_get().unwrap()));
        // The send is most likely in flight now, because the link holds only a small part of it.
        let _ = poll_once(send.as_mut());
    }
    drop(a.connection);
    assert_eq!(pool.available(), 4);
    // The peer receives the messages that arrived completely, and then the end of the connection.
    block_on(async {
        let mut buf = inbox.get().await;
        for _ in 0..2 {
            let received;
            (received, buf) = b.connection.recv(buf).await;
            if received.is_err() {
                break;
            }
        }
        let (received, _) = b.connection.recv(buf).await;
        assert!(received.unwrap_err().is_end());
    });
}
