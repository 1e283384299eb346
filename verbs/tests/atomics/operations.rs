//! Effect and result of each atomic operation.

use proptest::prelude::*;
use uwarp_verbs::{RemoteBuffer, SendWr, Status, WcOpcode};

use crate::common::{Wire, brief, pair, peers};
use crate::{all_of, original, sink, word, words};

#[test]
fn a_fetch_add_adds_and_gives_back_what_was_there() {
    // 7306-5.2.2-03.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let counter = words(&b, &[40, 1]);
        let remote = counter.remote();
        let (to, rkey) = (remote.addr, remote.rkey);
        assert_eq!(
            original(&a, 1, |s| SendWr::fetch_add(
                1,
                s,
                RemoteBuffer::at(to, rkey),
                2
            )),
            40
        );
        assert_eq!(
            original(&a, 2, |s| SendWr::fetch_add(
                2,
                s,
                RemoteBuffer::at(to, rkey),
                0
            )),
            42
        );
        // Adding -1 wraps around.
        let minus_one = u64::MAX;
        assert_eq!(
            original(&a, 3, |s| SendWr::fetch_add(
                3,
                s,
                RemoteBuffer::at(to + 8, rkey),
                minus_one
            )),
            1
        );
        assert_eq!(
            original(&a, 4, |s| SendWr::fetch_add(
                4,
                s,
                RemoteBuffer::at(to + 8, rkey),
                minus_one
            )),
            0
        );
        assert_eq!((word(&counter, 0), word(&counter, 1)), (42, u64::MAX));
        // 7306-5.2.1-05: the target's program does not notice the atomics.
        b.recv_cq.assert_empty();
        b.send_cq.assert_empty();
    }
}

#[test]
fn a_compare_swap_stores_only_where_it_finds_what_it_expects() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let lock = words(&b, &[7]);
        let (to, rkey) = (lock.remote().addr, lock.remote().rkey);
        let swap = |wr_id, compare, swap| {
            original(&a, wr_id, |s| {
                SendWr::compare_swap(wr_id, s, RemoteBuffer::at(to, rkey), compare, swap)
            })
        };
        assert_eq!((swap(1, 6, 99), word(&lock, 0)), (7, 7)); // 7306-5.1.2-i02
        assert_eq!((swap(2, 7, 99), word(&lock, 0)), (7, 99));
        assert_eq!((swap(3, 7, 1), word(&lock, 0)), (99, 99));
    }
}

#[test]
fn a_swap_stores_whatever_it_finds() {
    let (a, b) = pair(Wire::MEMORY);
    let cell = words(&b, &[123]);
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    for (wr_id, before, after) in [(1, 123, 0), (2, 0, u64::MAX), (3, u64::MAX, 5)] {
        let found = original(&a, wr_id, |s| {
            SendWr::swap(wr_id, s, RemoteBuffer::at(to, rkey), after)
        });
        assert_eq!((found, word(&cell, 0)), (before, after));
    }
}

#[test]
fn completions_name_the_operation() {
    let (a, b) = pair(Wire::MEMORY);
    let (cell, sink) = (words(&b, &[0]), sink(&a));
    let (to, rkey, sges) = (cell.remote().addr, cell.remote().rkey, all_of(&sink));
    for (wr, opcode) in [
        (
            SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1),
            WcOpcode::FetchAdd,
        ),
        (
            SendWr::compare_swap(1, &sges, RemoteBuffer::at(to, rkey), 0, 1),
            WcOpcode::CompareSwap,
        ),
        (
            SendWr::swap(1, &sges, RemoteBuffer::at(to, rkey), 1),
            WcOpcode::CompareSwap,
        ),
    ] {
        a.qp.post_send(&wr).unwrap();
        assert_eq!(brief(&a.send_cq.next()), (1, Status::Success, opcode, 8));
    }
    // An unsignaled atomic has no completion.
    let quiet = SendWr::fetch_add(2, &sges, RemoteBuffer::at(to, rkey), 1).unsignaled();
    a.qp.post_send(&quiet).unwrap();
    a.qp.post_send(&SendWr::fetch_add(3, &sges, RemoteBuffer::at(to, rkey), 1))
        .unwrap();
    a.send_cq.success(3);
}

#[test]
fn the_responder_does_atomics_as_well() {
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        let counter = words(&a, &[5]);
        let (to, rkey) = (counter.remote().addr, counter.remote().rkey);
        let found = original(&b, 1, |s| {
            SendWr::fetch_add(1, s, RemoteBuffer::at(to, rkey), 5)
        });
        assert_eq!((found, word(&counter, 0)), (5, 10));
    }
}

#[test]
fn the_sink_takes_the_result_at_any_address_and_nothing_else_changes() {
    let (a, b) = pair(Wire::MEMORY);
    let cell = words(&b, &[0x0102_0304_0506_0708]);
    let sink = a.blank(24);
    for at in 0..=16 {
        sink.write_at(0, &[0xA5; 24]).unwrap();
        let sges = [sink.sge(at, 8)];
        let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
        a.qp.post_send(&SendWr::fetch_add(at, &sges, RemoteBuffer::at(to, rkey), 0))
            .unwrap();
        a.send_cq.success(at);
        let value = 0x0102_0304_0506_0708_u64.to_ne_bytes(); // 7306-5.1.1-i02
        crate::common::placed_only(&sink, at as usize, &value, "sink");
    }
}

/// FetchAdd bit by bit, as RFC 7306 section 5.1.1 specifies it.
fn add_bit_by_bit(original: u64, add: u64, mask: u64) -> u64 {
    let (mut result, mut carry) = (0, 0);
    for bit in 0..64 {
        let sum = carry + (original >> bit & 1) + (add >> bit & 1);
        result |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    result
}

fn swap_bit_by_bit(original: u64, compare: (u64, u64), swap: (u64, u64)) -> u64 {
    let bit = |word: u64, at: u32| word >> at & 1;
    let equal =
        (0..64).all(|at| bit(compare.1, at) == 0 || bit(compare.0, at) == bit(original, at));
    (0..64).fold(0, |result, at| {
        let stored = equal && bit(swap.1, at) == 1;
        result | bit(if stored { swap.0 } else { original }, at) << at
    })
}

#[test]
fn masks_do_what_the_rfc_says_bit_by_bit() {
    let (a, b) = pair(Wire::MEMORY);
    let cell = words(&b, &[0]);
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    let word_of = || prop_oneof![any::<u64>(), Just(0), Just(u64::MAX), 0..4u64];
    let case = (
        word_of(),
        word_of(),
        word_of(),
        word_of(),
        word_of(),
        any::<bool>(),
    );
    let mut runner = proptest::test_runner::TestRunner::default();
    let done = runner.run(&case, |(before, data, mask, compare, compare_mask, add)| {
        cell.write_at(0, &before.to_ne_bytes()).unwrap();
        let (found, after) = if add {
            let found = original(&a, 1, |s| {
                SendWr::fetch_add(1, s, RemoteBuffer::at(to, rkey), data).mask(mask)
            });
            (found, add_bit_by_bit(before, data, mask))
        } else {
            let found = original(&a, 1, |s| {
                SendWr::compare_swap(1, s, RemoteBuffer::at(to, rkey), compare, data)
                    .compare_mask(compare_mask)
                    .swap_mask(mask)
            });
            let after = swap_bit_by_bit(before, (compare, compare_mask), (data, mask));
            (found, after)
        };
        prop_assert_eq!(found, before);
        prop_assert_eq!(word(&cell, 0), after);
        Ok(())
    });
    done.unwrap();
}
