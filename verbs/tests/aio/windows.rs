//! Memory that is lent to the peer for a limited time: windows and fast regions.

use crate::executor::{block_on, both};
use crate::{BUFFERS, pair};
use uwarp_verbs::aio::Error;
use uwarp_verbs::{Access, Buffer, Status, WindowKind, inc_rkey};

/// Status of a failed operation.
#[track_caller]
fn status(result: Result<(), Error>) -> Status {
    match result {
        Err(Error::Failed { error, .. }) => error.0.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_of_each_kind_shows_a_part_of_a_region_while_it_is_bound() {
    for kind in [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B] {
        let (a, b) = pair();
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = b.domain.register(vec![0; 100], access).unwrap();
        let mut window = b.domain.alloc_window(kind).unwrap();
        let bind = region.window(10, 20, Access::REMOTE_WRITE).zero_based();
        block_on(async {
            let remote = b.connection.bind_window(&mut window, &bind).await.unwrap();
            assert_eq!((remote.addr, remote.len), (0, 20));
            assert_eq!((remote.rkey, window.is_bound()), (window.rkey(), true));
            let (written, buf) = a.connection.write(a.buf(b"shown"), remote).await;
            written.unwrap();
            let (received, sent) = both(b.connection.recv(b.blank()), a.connection.send(buf)).await;
            sent.0.unwrap();
            received.0.unwrap();
            let mut bytes = [0; 5];
            region.read_at(10, &mut bytes).unwrap();
            assert_eq!(&bytes, b"shown");
            if kind == WindowKind::Type1 {
                let none = region.window(0, 0, Access::NONE);
                b.connection.bind_window(&mut window, &none).await.unwrap();
            } else {
                b.connection.invalidate_window(&window).await.unwrap();
            }
            assert!(!window.is_bound());
            // The old STag is invalid. The next binding has another key.
            let next = b.connection.bind_window(&mut window, &bind).await.unwrap();
            assert_ne!(next.rkey, remote.rkey);
            let (_, _) = a.connection.write(a.buf(b"late"), remote).await;
            let reason = b.connection.closed().await.to_string();
            assert!(reason.contains("another key"), "{kind}: {reason}");
        });
        region.read_at(10, &mut [0; 5]).unwrap();
        assert_eq!(a.pool.available(), BUFFERS);
    }
}

#[test]
fn a_window_is_given_back_with_a_message() {
    // 5040-8.1.1-04: the peer may invalidate a type 2 window, because it belongs to one connection.
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region = b.domain.register(vec![0; 8], access).unwrap();
    let mut window = b.domain.alloc_window(WindowKind::Type2B).unwrap();
    let bind = region.window(0, 8, Access::REMOTE_WRITE);
    block_on(async {
        for round in 0..3u8 {
            let remote = b.connection.bind_window(&mut window, &bind).await.unwrap();
            let (written, buf) = a.connection.write(a.buf(&[round; 8]), remote).await;
            written.unwrap();
            let back = a.connection.send_and_invalidate(buf, remote.rkey);
            let ((received, _), (sent, _)) = both(b.connection.recv(b.blank()), back).await;
            sent.unwrap();
            assert_eq!(received.unwrap().invalidated, Some(remote.rkey));
            assert!(!window.is_bound());
            let mut bytes = [0; 8];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [round; 8]);
        }
        // The window is no longer bound.
        let result = b.connection.invalidate_window(&window).await;
        assert_eq!(status(result), Status::LocalQpOperation);
        assert!(!b.connection.closed().await.is_orderly());
    });
}

#[test]
fn a_bind_that_cannot_be_ends_the_connection() {
    let (_a, b) = pair();
    // Like the memory of a pool, the region lacks the right to bind windows.
    let region = b.domain.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
    let mut window = b.domain.alloc_window(WindowKind::Type2A).unwrap();
    let bind = region.window(0, 8, Access::REMOTE_READ);
    block_on(async {
        let result = b.connection.bind_window(&mut window, &bind).await;
        assert_eq!(status(result.map(|_| ())), Status::WindowBind);
        let reason = b.connection.closed().await.to_string();
        assert!(reason.contains("not registered for binding"), "{reason}");
    });
    assert!(!window.is_bound());
}

#[test]
fn a_fast_region_is_registered_part_by_part() {
    let (a, b) = pair();
    let memory = Buffer::zeroed(1000).unwrap();
    let fast = b.domain.alloc_fast_region(memory).unwrap();
    block_on(async {
        for round in 0..3u8 {
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let stag = inc_rkey(fast.stag());
            let part = fast.register(stag, 100 * u64::from(round), 50, rights);
            let remote = b.connection.register(&part.iova(0x5000)).await.unwrap();
            assert_eq!((remote.addr, remote.rkey), (0x5000, stag));
            let (written, buf) = a.connection.write(a.buf(&[round; 50]), remote).await;
            written.unwrap();
            let (read, buf) = a.connection.read(buf, remote).await;
            read.unwrap();
            assert_eq!(&buf[..], [round; 50]);
            b.connection.invalidate_fast(&fast).await.unwrap();
            assert!(!fast.is_valid());
        }
        let mut bytes = [0; 50];
        fast.read_at(200, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 50]);
        let result = b.connection.invalidate_fast(&fast).await;
        assert_eq!(status(result), Status::LocalQpOperation);
    });
}
