//! Fences, solicited messages, and the masks of atomic operations.

use crate::executor::{block_on, both};
use crate::{End, narrow, pair};
use uwarp_verbs::aio::{Masked, Received};
use uwarp_verbs::{Access, MemoryRegion, QpCaps, RemoteBuffer};

/// A message of this length is larger than the buffers of the narrow link.
const LARGE: usize = 1 << 20;

/// Receives the next message at `end` and discards its bytes.
async fn next(end: &End) -> Received {
    end.connection.recv(end.blank()).await.0.unwrap()
}

/// Registers a word at `end` that holds `value`, for atomics of the peer.
fn word(end: &End, value: u64) -> (MemoryRegion, RemoteBuffer) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let lent = end.domain.register(vec![0; 16], access).unwrap();
    let start = lent.addr().next_multiple_of(8) - lent.addr();
    lent.write_at(start as usize, &value.to_ne_bytes()).unwrap();
    let remote = lent.remote().slice(start, 8).unwrap();
    (lent, remote)
}

#[test]
fn behind_a_fence_a_write_leaves_what_an_earlier_read_gets_alone() {
    let (a, b) = narrow(QpCaps::default());
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let lent = b.domain.register(vec![9; LARGE], all).unwrap();
    let pool = a.domain.pool(1, LARGE).unwrap();
    let last = lent.remote().slice(LARGE as u64 - 8, 8).unwrap();
    let ((read, buf), (written, _)) = block_on(both(
        a.connection.read(pool.try_get().unwrap(), lent.remote()),
        a.connection.fence().write(a.buf(&[1; 8]), last),
    ));
    read.unwrap();
    written.unwrap();
    assert!(buf.iter().all(|byte| *byte == 9));
    let after = block_on(a.connection.fence().read(a.blank(), last));
    after.0.unwrap();
    assert_eq!(&after.1[..], [1; 8]);
}

#[test]
fn a_solicited_message_says_so_and_others_do_not() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let lent = b.domain.register(vec![0; 8], access).unwrap();
    block_on(async {
        for _ in 0..6 {
            b.connection.post_recv(b.blank()).unwrap();
        }
        let plain = &a.connection;
        let loud = plain.solicited();
        plain.send_inline(b"no").await.unwrap();
        assert!(!next(&b).await.solicited);
        loud.send_inline(b"yes").await.unwrap();
        assert!(next(&b).await.solicited);
        loud.fence().send(a.buf(b"yes")).await.0.unwrap();
        assert!(next(&b).await.solicited);
        loud.send_immediate([1; 8]).await.unwrap();
        let received = next(&b).await;
        assert_eq!(
            (received.solicited, received.immediate),
            (true, Some([1; 8]))
        );
        plain.send_immediate([2; 8]).await.unwrap();
        assert!(!next(&b).await.solicited);
        let written = loud.write_with_immediate(a.buf(b"octets"), lent.remote(), [3; 8]);
        written.await.0.unwrap();
        let received = next(&b).await;
        assert_eq!(
            (received.solicited, received.immediate),
            (true, Some([3; 8]))
        );
        // A Write completes nothing at the peer, so its solicited flag is ignored.
        loud.write(a.buf(b"more"), lent.remote()).await.0.unwrap();
        plain.send_inline(b"no").await.unwrap();
        assert!(!next(&b).await.solicited);
    });
}

#[test]
fn masked_atomics_work_on_the_bits_that_count() {
    // 7306-5.1.1-03, 7306-5.1.2: the FetchAdd has two counters in one word. The CmpSwap compares
    // one field of the word and stores another one.
    let (a, b) = pair();
    let (lent, remote) = word(&b, u64::MAX);
    let a = &a.connection;
    block_on(async {
        let ends = 1 << 63 | 1 << 31;
        let before = a.masked_fetch_add(remote, 1 << 32 | 2, ends).await.unwrap();
        assert_eq!(before, u64::MAX);
        let word = 1; // 2^32 - 1 + 1 above, 2^32 - 1 + 2 below, each without its carry
        assert_eq!(a.fence().fetch_add(remote, 0).await.unwrap(), word);
        let low = |value| Masked { value, mask: 0xFF };
        let high = |value: u64| Masked {
            value: value << 56,
            mask: 0xFF << 56,
        };
        // The compared value differs from the word only in bits outside the mask.
        let before = a.masked_compare_swap(remote, low(0xAB01), high(7)).await;
        assert_eq!(before.unwrap(), word);
        let word = 7 << 56 | 1;
        let before = a.masked_compare_swap(remote, low(2), high(8)).await;
        assert_eq!(before.unwrap(), word);
        let before = a
            .fence()
            .masked_compare_swap(remote, high(7), low(0xFF))
            .await;
        assert_eq!(before.unwrap(), word);
        let word = 7 << 56 | 0xFF;
        assert_eq!(a.fence().compare_swap(remote, word, 5).await.unwrap(), word);
        assert_eq!(a.fence().swap(remote, 6).await.unwrap(), 5);
    });
    let start = (remote.addr - lent.addr()) as usize;
    let mut bytes = [0; 8];
    lent.read_at(start, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 6);
}
