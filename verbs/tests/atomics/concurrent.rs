//! Atomics of many connections and of the local CPU on one word: no operation is lost.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use uwarp_verbs::{AcceptOptions, Access, ConnectOptions, QpCaps, RemoteBuffer, SendWr};

use crate::common::{Setup, Side, Wire, join};
use crate::{all_of, original, sink, word, words};

const ROUNDS: u64 = 300;
const CONNECTIONS: usize = 4;

/// Adds 1 to a remote word `ROUNDS` times over a connection, with several requests in flight.
/// Returns the original values.
fn count_up(side: &Side, to: u64, rkey: u32) -> Vec<u64> {
    const DEPTH: u64 = 8;
    let sink = side.blank(8 * DEPTH as usize);
    let post = |nth: u64| {
        let sges = [sink.sge(8 * (nth % DEPTH), 8)];
        let wr = SendWr::fetch_add(nth, &sges, RemoteBuffer::at(to, rkey), 1);
        side.qp.post_send(&wr).unwrap();
    };
    (0..DEPTH).for_each(post);
    let mut found = Vec::new();
    for nth in 0..ROUNDS {
        side.send_cq.success(nth);
        found.push(word(&sink, (nth % DEPTH) as usize));
        if nth + DEPTH < ROUNDS {
            post(nth + DEPTH);
        }
    }
    found
}

#[test]
fn adds_of_many_connections_and_of_the_local_cpu_all_count() {
    // 7306-5.3-01. uwarp's atomics are also atomic with regard to the local CPU.
    let ends = Setup::new(Wire::Kernel).unconnected();
    let counter: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    // SAFETY: the word is never freed, and only accessed by atomic instructions.
    #[expect(unsafe_code, reason = "memory that the program itself uses meanwhile")]
    let region = unsafe {
        let base = NonNull::from(counter).cast();
        ends.b.pd.register_in_place(base, 8, access)
    }
    .unwrap();
    let (to, rkey) = (region.remote().addr, region.remote().rkey);

    let clients: Vec<(Side, _)> = (0..CONNECTIONS)
        .map(|_| {
            let side = Side::new(ends.a.device.clone(), QpCaps::default(), 256);
            let qp = ends.b.another_qp();
            let (connect, accept) = (ConnectOptions::default(), AcceptOptions::default());
            join(&ends.listener, &side.qp, &qp, &connect, &accept);
            (side, qp)
        })
        .collect();
    let mut found: Vec<u64> = thread::scope(|scope| {
        let remote: Vec<_> = clients
            .iter()
            .map(|(side, _)| scope.spawn(move || count_up(side, to, rkey)))
            .collect();
        let local = scope.spawn(|| {
            (0..ROUNDS)
                .map(|_| counter.fetch_add(1, Ordering::Relaxed))
                .collect::<Vec<_>>()
        });
        let remote = remote.into_iter().flat_map(|thread| thread.join().unwrap());
        remote.chain(local.join().unwrap()).collect()
    });
    // All original values are different, and the sum is exact.
    found.sort_unstable();
    let total = ROUNDS * (CONNECTIONS as u64 + 1);
    assert_eq!(found, (0..total).collect::<Vec<_>>());
    assert_eq!(counter.load(Ordering::Relaxed), total);
}

#[test]
fn a_lock_of_compare_and_swap_lets_one_in_at_a_time() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    // Word 0 is the lock. Word 1 is changed only by the holder of the lock, by a Read and a swap.
    let memory = words(&ends.b, &[0, 0]);
    let (lock, rkey) = (memory.remote().addr, memory.remote().rkey);
    let clients: Vec<(Side, _)> = (0..3)
        .map(|_| {
            let side = Side::new(ends.a.device.clone(), QpCaps::default(), 64);
            let qp = ends.b.another_qp();
            let (connect, accept) = (ConnectOptions::default(), AcceptOptions::default());
            join(&ends.listener, &side.qp, &qp, &connect, &accept);
            (side, qp)
        })
        .collect();
    thread::scope(|scope| {
        for (id, (side, _)) in (1..).zip(&clients) {
            scope.spawn(move || {
                for _ in 0..20 {
                    while original(side, 1, |s| {
                        SendWr::compare_swap(1, s, RemoteBuffer::at(lock, rkey), 0, id)
                    }) != 0
                    {
                        thread::yield_now();
                    }
                    let value = sink(side);
                    let sges = all_of(&value);
                    side.qp
                        .post_send(&SendWr::read(2, &sges, RemoteBuffer::at(lock + 8, rkey)))
                        .unwrap();
                    side.send_cq.success(2);
                    let seen = word(&value, 0);
                    let before = original(side, 3, |s| {
                        SendWr::swap(3, s, RemoteBuffer::at(lock + 8, rkey), seen + 1)
                    });
                    assert_eq!(before, seen, "another one was inside");
                    let holder = original(side, 4, |s| {
                        SendWr::swap(4, s, RemoteBuffer::at(lock, rkey), 0)
                    });
                    assert_eq!(holder, id);
                }
            });
        }
    });
    assert_eq!((word(&memory, 0), word(&memory, 1)), (0, 60));
}
