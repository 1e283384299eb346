//! Races between threads, for a bounded number of rounds.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uwarp_mpa::Payload;

use super::super::{Purpose, WindowBind, WindowKind};
use super::*;

/// Length of a copy that is still in progress when the other thread acts. Shorter under Miri, which
/// is slow.
const LONG: usize = if cfg!(miri) { 64 } else { 64 * 1024 };
const MIDDLE: usize = if cfg!(miri) { 64 } else { 16 * 1024 };
/// Number of words in a copy that has blocks and a tail. Under Miri there are no blocks.
const WORDS: usize = if cfg!(miri) { 96 } else { 1024 };

#[test]
fn nothing_is_placed_after_deregistration_returned() {
    let table = table();
    let rounds = rounds(100);
    let placed = AtomicUsize::new(0);
    for round in 0..rounds {
        let memory = buffer(LONG);
        let stag = table.insert(spec(&memory)).unwrap().stag();
        let start = Barrier::new(3);
        let seen = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let ones = vec![1; LONG];
                    start.wait();
                    while let Ok(target) = write_target(&table, stag, 0, LONG as u32) {
                        if target.place(0, &ones).is_err() {
                            break;
                        }
                        seen.store(true, Ordering::Relaxed);
                        placed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            start.wait();
            while round % 2 == 0 && !seen.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            if round % 3 == 0 {
                assert!(table.invalidate(stag).is_some());
            } else {
                table.remove(stag).unwrap();
            }
            // No transfer accesses the memory any more.
            memory.write_at(0, &vec![2; LONG]).unwrap();
            for _ in 0..20 {
                thread::yield_now();
            }
            assert!(
                contents(&memory).iter().all(|byte| *byte == 2),
                "placed after deregistration or invalidation returned"
            );
        });
    }
    assert!(placed.load(Ordering::Relaxed) >= rounds as usize / 2);
}

#[test]
fn nothing_is_placed_through_a_window_once_its_invalidation_returned() {
    let table = table();
    let memory = buffer(MIDDLE);
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    let region = RegionSpec {
        access,
        ..spec(&memory)
    };
    let lkey = table.insert(region).unwrap().stag().0;
    let kind = WindowKind::Type2B;
    let me = asker(1, 7);
    let mut stag = table.reserve(1, Purpose::Window(kind)).unwrap().0;
    let bind = WindowBind {
        lkey,
        addr: 0,
        len: MIDDLE as u64,
        access: Access::REMOTE_WRITE,
        zero_based: true,
    };
    for round in 0..rounds(100) {
        stag = crate::mem::inc_rkey(stag);
        let placed = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let ones = vec![1; MIDDLE];
                    // Places bytes from before the bind until the invalidation.
                    loop {
                        let Ok(target) =
                            write_target(&table, uwarp_ddp::STag(stag), 0, MIDDLE as u32)
                        else {
                            if placed.load(Ordering::Relaxed) > 0 {
                                break;
                            }
                            thread::yield_now();
                            continue;
                        };
                        if target.place(0, &ones).is_ok() {
                            placed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            table.bind(stag, &bind, false, &me).unwrap();
            while placed.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            match round % 3 {
                0 => assert_eq!(table.invalidate(uwarp_ddp::STag(stag)), Some(0)),
                1 => table.end_for(stag >> 8, 7),
                _ => table.invalidate_locally(stag, &me).unwrap(),
            }
            memory.write_at(0, &vec![2; MIDDLE]).unwrap();
            for _ in 0..20 {
                thread::yield_now();
            }
            assert!(contents(&memory).iter().all(|byte| *byte == 2));
        });
    }
    assert_eq!(table.remove(uwarp_ddp::STag(lkey)), Ok(()));
}

#[test]
fn a_bind_and_a_deregistration_at_once_are_one_after_the_other() {
    let table = table();
    let me = asker(1, 7);
    for _ in 0..rounds(300) {
        let memory = buffer(8);
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = RegionSpec {
            access,
            ..spec(&memory)
        };
        let lkey = table.insert(region).unwrap().stag().0;
        let window = table
            .reserve(1, Purpose::Window(WindowKind::Type2A))
            .unwrap()
            .0;
        let stag = crate::mem::inc_rkey(window);
        let bind = WindowBind {
            lkey,
            addr: 0,
            len: 8,
            access: Access::REMOTE_WRITE,
            zero_based: true,
        };
        let (bound, removed) = thread::scope(|scope| {
            let binding = scope.spawn(|| table.bind(stag, &bind, false, &me).is_ok());
            let removed = table.remove(uwarp_ddp::STag(lkey));
            (binding.join().unwrap(), removed)
        });
        // Whichever of the two was first succeeded, and the other was refused.
        assert_eq!(bound, removed.is_err(), "{removed:?}");
        assert_eq!(
            write_target(&table, uwarp_ddp::STag(stag), 0, 8).is_ok(),
            bound
        );
        table.free(stag >> 8);
        table.revoke(uwarp_ddp::STag(lkey));
    }
    assert_eq!(table.live(), 0);
}

#[test]
fn registrations_pins_and_checks_of_many_threads_do_not_disturb_each_other() {
    let table = table();
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let table = &table;
            scope.spawn(move || {
                let memory = buffer(64);
                let mut list = SgList::default();
                for round in 0..rounds(500) {
                    let stag = table.insert(spec(&memory)).unwrap().stag();
                    let byte = [number ^ round as u8; 64];
                    write_target(table, stag, 0, 64)
                        .unwrap()
                        .place(0, &byte)
                        .unwrap();
                    let sge = Sge {
                        addr: 0,
                        len: 64,
                        lkey: stag.0,
                    };
                    list.resolve(table, 1, 7, &[sge], false).unwrap();
                    let runs = pin(&list, 0, 64).unwrap();
                    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 1 }));
                    let mut out = [0; 64];
                    list.source(0, 64).unwrap().copy(0, &mut out, None);
                    assert_eq!(out, byte);
                    drop(runs);
                    table.remove(stag).unwrap();
                }
            });
        }
    });
    assert_eq!(table.live(), 0);
}

#[test]
fn of_two_threads_that_deregister_one_succeeds() {
    let table = table();
    for _ in 0..rounds(100) {
        let stag = table.insert(spec(&buffer(8))).unwrap().stag();
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| match table.remove(stag) {
                    Ok(()) => {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => assert_eq!(error, DeregisterError::Unknown { stag: stag.0 }),
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 1);
        assert_eq!(table.live(), 0);
    }
}

#[test]
fn deregistration_waits_for_a_source() {
    let table = table();
    let memory = buffer(8);
    let stag = table.insert(spec(&memory)).unwrap().stag();
    let target = read_target(&table, stag, 8);
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        let source = target.source().unwrap();
        scope.spawn(|| {
            table.remove(stag).unwrap();
            gone.store(true, Ordering::SeqCst);
        });
        let until = Instant::now() + Duration::from_millis(30);
        while Instant::now() < until {
            assert!(!gone.load(Ordering::SeqCst));
            thread::yield_now();
        }
        drop(source);
    });
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
#[cfg_attr(
    miri,
    ignore = "reads and writes of different widths race here by design, which the portable path does by atomics of those widths and Miri calls a race"
)]
fn who_sees_the_last_byte_sees_all_bytes() {
    for (offset, len) in [(0, 64), (3, 61), (1, 4000), (8, 8), (5, 2)] {
        let table = table();
        let memory = buffer(4096);
        let stag = table.insert(spec(&memory)).unwrap().stag();
        thread::scope(|scope| {
            let reader = &memory;
            scope.spawn(move || {
                let mut all = vec![0; len];
                let mut last = [0];
                while last[0] < 200 {
                    reader.read_at(offset + len - 1, &mut last).unwrap();
                    reader.read_at(offset, &mut all).unwrap();
                    assert!(
                        all.iter().all(|byte| *byte >= last[0]),
                        "{} then {all:?}",
                        last[0]
                    );
                    thread::yield_now();
                }
            });
            let target = write_target(&table, stag, offset as u64, len as u32).unwrap();
            for message in 1..=200 {
                target.place(0, &vec![message; len]).unwrap();
                if message % 16 == 0 {
                    thread::yield_now();
                }
            }
        });
    }
}

#[test]
fn an_aligned_word_is_never_seen_in_halves() {
    let table = table();
    let memory = buffer(WORDS);
    let stag = table.insert(spec(&memory)).unwrap().stag();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = [0; 8];
            while !done.load(Ordering::Relaxed) {
                // Word 40 lies in the blocks of the bulk copy, the other word in the tail.
                for at in [40, WORDS - 24] {
                    memory.read_at(at, &mut word).unwrap();
                    assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
                }
            }
        });
        let target = write_target(&table, stag, 0, WORDS as u32).unwrap();
        for round in 0..rounds(20_000) {
            target.place(0, &[round as u8; WORDS]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}
