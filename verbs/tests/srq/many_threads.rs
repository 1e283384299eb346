//! Many threads post to one SRQ, and many connections take its receives.

use super::*;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Checks that every message of every client arrives once, completely, in the order of its client,
/// and in a receive of its own.
fn many_threads(wire: Wire, connections: usize, posters: u64, each: u64) {
    const LEN: u32 = 16;
    let s = shared_with(wire, connections, 64, OnNoReceive::Hold(LIMIT));
    let total = connections as u64 * each;
    let slots = s.b.blank(total as usize * LEN as usize);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..posters {
            scope.spawn(|| {
                loop {
                    let wr_id = next.fetch_add(1, Ordering::Relaxed);
                    if wr_id >= total {
                        return;
                    }
                    let sges = [slots.sge(wr_id * u64::from(LEN), LEN)];
                    until("room in the SRQ", || {
                        match s.srq.post_recv(&RecvWr::new(wr_id, &sges)) {
                            Ok(()) => true,
                            Err(error) => {
                                assert_eq!(error.kind, PostErrorKind::SrqFull { depth: 64 });
                                false
                            }
                        }
                    });
                }
            });
        }
        let send_cq = &s.a.send_cq;
        for (number, client) in (0u64..).zip(&s.clients) {
            scope.spawn(move || {
                for index in 0..each {
                    let mut bytes = [0; LEN as usize];
                    bytes[..8].copy_from_slice(&number.to_ne_bytes());
                    bytes[8..].copy_from_slice(&index.to_ne_bytes());
                    let wr = SendWr::send_inline(index, &bytes);
                    until("room in the send queue", || {
                        // All clients complete to this CQ.
                        if let Some(completion) = send_cq.poll_one() {
                            assert_eq!(completion.status, Status::Success);
                        }
                        client.post_send(&wr).is_ok()
                    });
                }
            });
        }
        let mut sent = vec![0; connections];
        let mut used = HashSet::new();
        for _ in 0..total {
            let completion = s.recv_cq.next();
            assert_eq!(completion.status, Status::Success);
            assert_eq!(completion.byte_len, LEN);
            assert!(used.insert(completion.wr_id), "a receive was used twice");
            let mut bytes = [0; LEN as usize];
            let at = completion.wr_id as usize * LEN as usize;
            slots.read_at(at, &mut bytes).unwrap();
            let (number, index) = bytes.split_at(8);
            let number = u64::from_ne_bytes(number.try_into().unwrap()) as usize;
            let index = u64::from_ne_bytes(index.try_into().unwrap());
            assert_eq!(completion.qp_num, s.servers[number].qp_num());
            assert_eq!(index, sent[number], "in the client's order");
            sent[number] += 1;
        }
        assert_eq!(sent, vec![each; connections]);
    });
    assert_eq!(s.srq.posted(), 0);
    for qp in &s.servers {
        assert_eq!(qp.state(), QpState::Rts, "{:?}", qp.end_reason());
    }
}

#[test]
fn many_threads_post_to_one_srq_while_many_connections_that_wait_take_from_it() {
    for wire in Wire::BOTH {
        many_threads(wire, 8, 4, 300);
    }
}
