//! Operations that wait for room in full queues.

use std::pin::pin;

use crate::executor::{block_on, both, poll_once};
use crate::{BUFFERS, pair_with};
use uwarp_verbs::QpCaps;
use uwarp_verbs::aio::Error;

#[test]
fn a_full_send_queue_makes_sends_wait_and_none_fails() {
    const EACH: u8 = 100;
    const ALL: usize = 3 * EACH as usize;
    let (a, b) = pair_with(QpCaps::default().max_send_wr(1).max_recv_wr(1 + ALL as u32));
    // All receives are posted before the first message is sent.
    let inbox = b.domain.pool(1 + ALL, 2).unwrap();
    for _ in 0..ALL {
        b.connection.post_recv(inbox.try_get().unwrap()).unwrap();
    }
    let sender = |first: u8| {
        let a = &a;
        async move {
            for n in 0..EACH {
                let (sent, _) = a.connection.send(a.buf(&[first, n])).await;
                sent.unwrap();
            }
        }
    };
    let receiver = async {
        let mut next = [0; 3];
        let mut buf = inbox.try_get().unwrap();
        for _ in 0..ALL {
            let received;
            (received, buf) = b.connection.recv(buf).await;
            received.unwrap();
            let sender = &mut next[usize::from(buf[0])];
            assert_eq!(*sender, buf[1], "each sender's messages keep their order");
            *sender += 1;
        }
        assert_eq!(next, [EACH; 3]);
    };
    let senders = both(sender(0), both(sender(1), sender(2)));
    block_on(both(receiver, senders));
    assert_eq!(a.pool.available(), BUFFERS);
}

#[test]
fn a_full_receive_queue_refuses_a_post_and_makes_a_receive_wait() {
    let (a, b) = pair_with(QpCaps::default().max_recv_wr(1));
    b.connection.post_recv(b.blank()).unwrap();
    let (error, buf) = b.connection.post_recv(b.blank()).unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && error.to_string().contains("full"));
    let mut recv = Box::pin(b.connection.recv(buf));
    assert!(poll_once(recv.as_mut()).is_pending());
    block_on(async {
        a.connection.send_inline(b"one").await.unwrap();
        let (received, buf) = recv.await;
        received.unwrap();
        assert_eq!(&buf[..], b"one");
        // The waiting receive has posted its own buffer in place of the consumed one.
        assert_eq!(b.pool.available(), BUFFERS - 2);
        a.connection.send_inline(b"two").await.unwrap();
        let (received, buf) = b.connection.recv(buf).await;
        received.unwrap();
        assert_eq!(&buf[..], b"two");
    });
}

#[test]
fn an_empty_pool_makes_who_wants_a_buffer_wait() {
    let (a, _b) = pair_with(QpCaps::default());
    let mut held: Vec<_> = (0..BUFFERS).map(|_| a.blank()).collect();
    assert!(a.pool.try_get().is_none());
    let mut get = pin!(a.pool.get());
    assert!(poll_once(get.as_mut()).is_pending());
    held.pop();
    assert!(poll_once(get.as_mut()).is_ready());
}
