//! Threads that poll, post and wait on the same objects at the same time.

use super::*;

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};

#[test]
fn several_threads_may_wait_on_one_cq() {
    let _busy = busy();
    const SENDS: u64 = 200;
    const THREADS: u64 = 4;
    let caps = QpCaps::default().max_recv_wr(256);
    for wire in Wire::BOTH {
        let (a, b) = Setup {
            caps,
            ..Setup::new(wire)
        }
        .connected();
        for wr_id in 0..SENDS + THREADS {
            b.post_empty(wr_id);
        }
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    // The last Sends, one for each thread, mark the end.
                    let mut last = 0;
                    while last < SENDS {
                        let completion = b.recv_cq.next();
                        assert_eq!(completion.status, Status::Success);
                        last = completion.wr_id;
                        seen.lock().unwrap().push(last);
                    }
                });
            }
            for wr_id in 0..SENDS + THREADS {
                // Some Sends are posted together, and others one after the other.
                if wr_id % 64 > 32 {
                    until("the ones before", || {
                        seen.lock().unwrap().len() as u64 >= wr_id
                    });
                }
                a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
                a.send_cq.success(wr_id);
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..SENDS + THREADS).collect::<Vec<_>>());
    }
}

#[test]
fn two_threads_may_poll_one_cq_while_two_others_post() {
    let _busy = busy();
    const EACH: u64 = 300;
    for wire in Wire::BOTH {
        // A request leaves the queue even if its completion is not polled, so the CQ must have room
        // for all completions.
        let (a, b) = Setup {
            cq_depth: 2 * EACH as u32,
            ..Setup::new(wire)
        }
        .connected();
        let target = b.blank(64);
        let to = target.remote();
        let taken = AtomicUsize::new(0);
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for first in [0, 1000] {
                let a = &a;
                scope.spawn(move || {
                    for wr_id in first..first + EACH {
                        until("a place in the send queue", || {
                            a.qp.post_send(&SendWr::write_inline(
                                wr_id,
                                &[1; 64],
                                RemoteBuffer::at(to.addr, to.rkey),
                            ))
                            .is_ok()
                        });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    until("all completions", || {
                        let mut some = [Completion::default(); 5];
                        let count = a.send_cq.poll(&mut some);
                        taken.fetch_add(count, Ordering::Relaxed);
                        seen.lock()
                            .unwrap()
                            .extend(some[..count].iter().map(|completion| completion.wr_id));
                        taken.load(Ordering::Relaxed) == 2 * EACH as usize
                    });
                });
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..EACH).chain(1000..1000 + EACH).collect::<Vec<_>>());
        both_ways(&a, &b);
    }
}

#[test]
fn a_cq_may_be_polled_from_one_thread_and_waited_on_by_another() {
    let _busy = busy();
    const COUNT: usize = 200;
    for wire in Wire::BOTH {
        let (a, _b) = pair(wire);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while taken.load(Ordering::SeqCst) < COUNT {
                    let count =
                        usize::from(a.send_cq.wait(Some(Duration::from_millis(10))).is_some());
                    taken.fetch_add(count, Ordering::SeqCst);
                }
            });
            for wr_id in 0..COUNT as u64 {
                a.qp.post_send(&SendWr::write(wr_id, &[], RemoteBuffer::at(0, 0)))
                    .unwrap();
                until("a completion", || {
                    let count = usize::from(a.send_cq.poll_one().is_some());
                    taken.fetch_add(count, Ordering::SeqCst) + count > wr_id as usize
                });
            }
        });
        assert_eq!(taken.into_inner(), COUNT);
    }
}

/// The programs on both sides sleep only in `poll(2)`.
#[test]
fn programs_that_sleep_on_the_channels_descriptor_are_woken() {
    let _busy = busy();
    const ROUNDS: u64 = 100;
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let sides: Vec<_> = [&ends.a, &ends.b]
            .into_iter()
            .map(|side| {
                let channel = side.device.create_channel().unwrap();
                let cq = side.device.create_cq_on(64, &channel, 0).unwrap();
                let qp = side
                    .pd
                    .create_qp(&side.send_cq, &cq, QpCaps::default())
                    .unwrap();
                qp.post_recv(&RecvWr::new(0, &[])).unwrap();
                (channel, CqHandle(cq), qp)
            })
            .collect();
        join(
            &ends.listener,
            &sides[0].2,
            &sides[1].2,
            &setup.connect,
            &setup.accept,
        );
        std::thread::scope(|scope| {
            for (number, (channel, cq, qp)) in sides.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        cq.req_notify(Notify::Any);
                        if number == 0 {
                            qp.post_send(&SendWr::send(round, &[]).unsignaled())
                                .unwrap();
                        }
                        let received = loop {
                            // A completion before the CQ was armed raises no event.
                            if let Some(completion) = cq.poll_one() {
                                break completion;
                            }
                            let fd = channel.as_fd();
                            let limit = Timespec {
                                tv_sec: LIMIT.as_secs() as i64,
                                tv_nsec: 0,
                            };
                            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                            assert_eq!(
                                rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
                                1,
                                "round {round}: the descriptor did not become ready"
                            );
                            drop(channel.get_event(Some(LIMIT)).unwrap());
                            cq.req_notify(Notify::Any);
                        };
                        assert_eq!((received.wr_id, received.status), (round, Status::Success));
                        qp.post_recv(&RecvWr::new(round + 1, &[])).unwrap();
                        if number == 1 {
                            qp.post_send(&SendWr::send(round, &[]).unsignaled())
                                .unwrap();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_thread_that_polls_and_then_sleeps_elsewhere_leaves_nothing_undone() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let target = b.blank(8);
        let to = target.remote();
        for round in 0..100_u64 {
            // The target polls and then stops. The background has not taken its connection over
            // yet.
            b.recv_cq.assert_empty();
            a.qp.post_send(&SendWr::write_inline(
                round,
                &round.to_be_bytes(),
                RemoteBuffer::at(to.addr, to.rkey),
            ))
            .unwrap();
            a.send_cq.success(round);
            until("the Write", || content(&target) == round.to_be_bytes());
        }
    }
}

#[test]
fn a_wait_ends_when_another_thread_drives_the_connection() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        b.post_empty(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.next());
            // The send CQ belongs to the same connection, so polling it also drives the receive
            // side.
            a.qp.post_send(&SendWr::send(1, &[])).unwrap();
            until("the wait's end", || {
                b.send_cq.assert_empty();
                waiting.is_finished()
            });
            assert_eq!(waiting.join().unwrap().wr_id, 1);
        });
        // The end of the connection flushes the receive, which ends the wait as well.
        b.post_empty(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.next());
            a.qp.disconnect();
            assert_eq!(waiting.join().unwrap().status, Status::WrFlush);
        });
    }
}

#[test]
fn two_threads_may_wait_each_on_one_cq_of_a_qp() {
    let _busy = busy();
    const COUNT: u64 = 50;
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        for side in [&a, &b] {
            for wr_id in 0..COUNT {
                side.post_empty(wr_id);
            }
        }
        std::thread::scope(|scope| {
            for side in [&a, &b] {
                scope.spawn(|| side.recv_cq.successes(0..COUNT));
                scope.spawn(|| {
                    for wr_id in 0..COUNT {
                        side.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
                        side.send_cq.success(wr_id);
                    }
                });
            }
        });
    }
}

#[test]
fn a_thread_may_wait_before_there_is_a_connection() {
    let _busy = busy();
    for wire in Wire::BOTH {
        for retry in [false, true] {
            let mut setup = Setup::new(wire);
            if retry {
                setup.settings[0].retry_with_revision_1 = true;
                setup.settings[1].accept_revision = Revision::One;
            }
            let ends = setup.unconnected();
            for side in [&ends.a, &ends.b] {
                side.post_empty(1);
            }
            std::thread::scope(|scope| {
                let waiting =
                    [&ends.a, &ends.b].map(|side| scope.spawn(|| side.recv_cq.success(1)));
                ends.join();
                ends.a.qp.post_send(&SendWr::send(2, &[])).unwrap();
                ends.b.qp.post_send(&SendWr::send(2, &[])).unwrap();
                for thread in waiting {
                    thread.join().unwrap();
                }
            });
        }
    }
}

#[test]
fn a_thread_may_wait_on_while_its_qp_loses_one_connection_and_gets_another() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        let (a, b) = (&ends.a, &ends.b);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.success(1));
            for _ in 0..5 {
                ends.join();
                a.qp.disconnect();
                for side in [a, b] {
                    side.wait_end();
                    assert!(side.qp.reset());
                }
            }
            b.post_empty(1);
            ends.join();
            a.qp.post_send(&SendWr::send(1, &[])).unwrap();
            waiting.join().unwrap();
        });
    }
}

#[test]
fn a_qp_may_be_dropped_while_a_thread_waits_on_its_cq() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        ends.join();
        let others: Vec<(Qp, Qp)> = (0..4).map(|_| (a.another_qp(), b.another_qp())).collect();
        for (mine, theirs) in &others {
            join(&ends.listener, mine, theirs, &setup.connect, &setup.accept);
        }
        b.post_empty(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.success(1));
            for (index, (mine, theirs)) in others.into_iter().enumerate() {
                // The connection ends gracefully, or with requests in flight.
                if index % 2 == 1 {
                    theirs.post_send(&SendWr::send(7, &[])).unwrap();
                }
                drop(theirs);
                assert!(mine.wait_closed(LIMIT));
            }
            a.qp.post_send(&SendWr::send(2, &[])).unwrap();
            waiting.join().unwrap();
        });
        b.send_cq.flushed(7);
        b.send_cq.flushed(7);
    }
}
