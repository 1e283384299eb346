//! Every operation of the async API.

use crate::executor::{block_on, both};
use crate::{BUFFERS, SIZE, pair};
use uwarp_verbs::aio::Error;
use uwarp_verbs::{Access, PostErrorKind, RemoteBuffer};

#[test]
fn a_message_arrives_in_the_buffer_that_was_posted_for_it() {
    let (a, b) = pair();
    block_on(async {
        // The receive is polled first, so it is posted before the message arrives.
        let (received, sent) = both(
            b.connection.recv(b.blank()),
            a.connection.send(a.buf(b"one message")),
        )
        .await;
        sent.0.unwrap();
        assert_eq!(&sent.1[..], b"one message", "the buffer comes back");
        let (received, buf) = received;
        assert_eq!(received.unwrap().len, 11);
        assert_eq!(&buf[..], b"one message");
        assert_eq!(buf.capacity(), SIZE);
    });
    assert_eq!((a.pool.available(), b.pool.available()), (BUFFERS, BUFFERS));
}

#[test]
fn messages_come_in_order_in_buffers_that_were_posted_before() {
    let (a, b) = pair();
    block_on(async {
        for _ in 0..3 {
            b.connection.post_recv(b.blank()).unwrap();
        }
        for n in 0..6u8 {
            a.connection.send_inline(&[n; 3]).await.unwrap();
            let (received, buf) = b.connection.recv(b.blank()).await;
            assert_eq!((received.unwrap().len, &buf[..]), (3, &[n; 3][..]));
        }
        a.connection.send_inline(b"").await.unwrap();
        let (received, buf) = b.connection.recv(b.blank()).await;
        assert_eq!((received.unwrap().len, buf.len()), (0, 0));
    });
    assert_eq!(b.pool.available(), BUFFERS - 3, "three are still posted");
}

#[test]
fn writes_and_reads_reach_memory_that_was_lent() {
    let (a, b) = pair();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let lent = b.domain.register(vec![7; 100], all).unwrap();
    let remote = lent.remote();
    block_on(async {
        let part = remote.slice(10, 90).unwrap();
        let (written, _) = a.connection.write(a.buf(b"written"), part).await;
        written.unwrap();
        // A Read after the Write sees its bytes (RFC 5040 section 5.5).
        let (read, buf) = a
            .connection
            .read(a.blank(), remote.slice(8, 11).unwrap())
            .await;
        read.unwrap();
        assert_eq!(&buf[..], b"\x07\x07written\x07\x07");
        let (read, buf) = a.connection.read(buf, remote.slice(0, 0).unwrap()).await;
        read.unwrap();
        assert_eq!(buf.len(), 0);
    });
    let mut bytes = [0; 7];
    lent.read_at(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
}

#[test]
fn what_does_not_fit_is_refused_and_the_connection_stands() {
    let (a, b) = pair();
    let lent = b.domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    block_on(async {
        let (error, buf) = a
            .connection
            .write(a.buf(b"nine octets"), lent.remote())
            .await;
        assert!(matches!(
            error,
            Err(Error::TooSmall {
                len: 11,
                room: 8,
                ..
            })
        ));
        assert_eq!(&buf[..], b"nine octets");
        let large = RemoteBuffer {
            len: SIZE as u64 + 1,
            ..lent.remote()
        };
        let (error, buf) = a.connection.read(buf, large).await;
        let error = error.unwrap_err();
        assert!(!error.is_end());
        assert_eq!(
            error.to_string(),
            "4097 bytes do not fit into 4096: the buffer is too small"
        );
        // This buffer belongs to another domain.
        let (error, foreign) = a.connection.send(b.buf(b"not mine")).await;
        let Err(Error::Refused(error)) = error else {
            panic!("{error:?}")
        };
        assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
        assert_eq!(&foreign[..], b"not mine");
        let (error, _) = a.connection.post_recv(foreign).unwrap_err();
        assert!(matches!(error, Error::Refused(_)));
        let too_long = a.connection.send_inline(&[0; 1000]).await.unwrap_err();
        assert!(!too_long.is_end(), "{too_long}");
        // The connection still works.
        let (received, sent) = both(b.connection.recv(b.blank()), a.connection.send(buf)).await;
        sent.0.unwrap();
        received.0.unwrap();
    });
    assert_eq!((a.pool.available(), b.pool.available()), (BUFFERS, BUFFERS));
}

#[test]
fn the_key_of_a_region_cannot_be_given_back_with_a_message() {
    let (a, b) = pair();
    // The peer may invalidate only STags that belong to one QP: windows and fast regions, but no
    // shared region. The STag of a region is refused (RFC 5040 section 8.1.1), and the connection
    // ends.
    let lent = b.domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    block_on(async {
        let send = a
            .connection
            .send_and_invalidate(a.buf(b"back"), lent.rkey());
        let (received, _) = both(b.connection.recv(b.blank()), send).await;
        let error = received.0.unwrap_err();
        assert!(error.is_end(), "{error}");
    });
}

#[test]
fn atomics_give_what_the_word_held_before() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let lent = b.domain.register(vec![0; 32], access).unwrap();
    let start = lent.addr().next_multiple_of(8) - lent.addr();
    let word = lent.remote().slice(start, 8).unwrap();
    block_on(async {
        assert_eq!(a.connection.fetch_add(word, 5).await.unwrap(), 0);
        let (one, two) = both(
            a.connection.fetch_add(word, 1),
            a.connection.fetch_add(word, 1),
        )
        .await;
        assert_eq!((one.unwrap(), two.unwrap()), (5, 6));
        assert_eq!(a.connection.compare_swap(word, 1, 100).await.unwrap(), 7);
        assert_eq!(a.connection.compare_swap(word, 7, 100).await.unwrap(), 7);
        assert_eq!(a.connection.swap(word, 9).await.unwrap(), 100);
        let short = a.connection.fetch_add(word.slice(0, 7).unwrap(), 1).await;
        assert!(matches!(short, Err(Error::TooSmall { .. })));
    });
    let mut bytes = [0; 8];
    lent.read_at(start as usize, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 9);
}

#[test]
fn a_write_with_immediate_tells_the_peer_when_it_is_there() {
    let (a, b) = pair();
    let lent = b
        .domain
        .register(vec![0; 8], Access::LOCAL_WRITE | Access::REMOTE_WRITE)
        .unwrap();
    block_on(async {
        let buf = a.buf(b"written");
        let write = a
            .connection
            .write_with_immediate(buf, lent.remote(), *b"8 octets");
        let ((received, buf), (written, _)) = both(b.connection.recv(b.blank()), write).await;
        written.unwrap();
        assert_eq!(received.unwrap().immediate, Some(*b"8 octets"));
        let mut bytes = [0; 7];
        lent.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"written");
        let send = a.connection.send_immediate([7; 8]);
        let ((received, _), sent) = both(b.connection.recv(buf), send).await;
        sent.unwrap();
        assert_eq!(received.unwrap().immediate, Some([7; 8]));
    });
}
