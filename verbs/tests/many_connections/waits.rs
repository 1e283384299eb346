//! Sleeping threads and notifications with many connections of one CQ.

use super::*;

use std::sync::mpsc::channel;
use std::thread::ScopedJoinHandle;

use uwarp_verbs::{Notify, RemoteBuffer};

#[test]
fn a_message_on_any_connection_wakes_the_thread_that_sleeps() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for round in 0..40 {
            let (mine, theirs) = &world.pairs[round * 3 % 8];
            theirs.post_recv(&RecvWr::new(round as u64, &[])).unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| b.recv_cq.success(round as u64));
                mine.post_send(&SendWr::send(1, &[])).unwrap();
                a.send_cq.success(1);
                end(waiting, &a.send_cq);
            });
        }
    }
}

/// Waits until a waiting thread ends. Keeps polling as the peer, because TCP in user space needs
/// its turns as well.
fn end<T>(waiting: ScopedJoinHandle<'_, T>, peer: &Cq) {
    until("the end of a wait", || {
        assert_eq!(taken(peer), 0);
        waiting.is_finished()
    });
    waiting.join().unwrap();
}

#[test]
fn what_was_staged_leaves_before_a_thread_sleeps_or_asks_for_a_notification() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for round in 0..20 {
            assert_eq!(a.send_cq.poll_one(), None);
            for (mine, theirs) in &world.pairs {
                for wr_id in 0..4 {
                    theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
                    mine.post_send(&SendWr::send(wr_id, &[]).unsignaled())
                        .unwrap();
                }
            }
            std::thread::scope(|scope| {
                let sleeping = match round % 2 {
                    // The wait lasts its whole time, because no completion arrives.
                    0 => Some(scope.spawn(|| a.send_cq.wait(Some(Duration::from_millis(1))))),
                    _ => {
                        a.recv_cq.req_notify(Notify::Any);
                        None
                    }
                };
                if let Some(thread) = sleeping {
                    assert_eq!(thread.join().unwrap(), None);
                }
                let mut received = 0;
                until("what was staged", || {
                    // The kernel's TCP sends without further calls. TCP in user space may need
                    // another turn.
                    assert_eq!(
                        if wire == Wire::Kernel {
                            0
                        } else {
                            taken(&a.send_cq)
                        },
                        0
                    );
                    received += taken(&b.recv_cq);
                    received == 32
                });
            });
        }
    }
}

#[test]
fn nothing_is_staged_while_a_thread_sleeps() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for round in 0..20 {
            let (mine, theirs) = &world.pairs[round % 8];
            mine.post_recv(&RecvWr::new(9, &[])).unwrap();
            for wr_id in 0..4 {
                theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            }
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| a.recv_cq.success(9));
                assert_eq!(a.send_cq.poll_one(), None);
                for wr_id in 0..4 {
                    // From here on this side does not poll. The thread may or may not sleep
                    // already.
                    mine.post_send(&SendWr::send(wr_id, &[]).unsignaled())
                        .unwrap();
                }
                b.recv_cq.successes(0..4);
                theirs.post_send(&SendWr::send(9, &[])).unwrap();
                b.send_cq.success(9);
                waiting.join().unwrap();
            });
        }
    }
}

#[test]
fn a_connection_that_joins_while_a_thread_sleeps_wakes_it() {
    for wire in Wire::BOTH {
        // The side's own QP counts as well. Up to four QPs of a CQ are polled one by one.
        let mut world = World::new(wire, 2, Settings::default().takeover);
        for round in 0..5 {
            let cq = world.ends.b.recv_cq.clone();
            let waiting = std::thread::spawn(move || cq.success(round));
            world.add();
            let (mine, theirs) = world.pairs.last().unwrap();
            theirs.post_recv(&RecvWr::new(round, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            world.ends.a.send_cq.success(1);
            waiting.join().unwrap();
            world.exchange();
        }
    }
}

/// These connections exist before the CQ has enough of them for a group. They move to the group
/// while a thread sleeps on them.
#[test]
fn a_thread_that_slept_before_there_were_many_is_woken_by_the_first_ones_too() {
    for wire in Wire::BOTH {
        let mut world = World::new(wire, 3, Settings::default().takeover);
        let cq = world.ends.b.recv_cq.clone();
        let (done, results) = channel();
        let waiting = std::thread::spawn(move || {
            for wr_id in 0..20 {
                cq.success(wr_id);
                done.send(()).unwrap();
            }
        });
        for wr_id in 0..20 {
            let (mine, theirs) = &world.pairs[wr_id as usize % 3];
            theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            results.recv_timeout(LIMIT).unwrap();
            world.ends.a.send_cq.success(1);
            if wr_id % 6 == 5 {
                world.add();
            }
        }
        waiting.join().unwrap();
    }
}

#[test]
fn after_a_request_for_a_notification_the_background_takes_over_at_once() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        let target = b.blank(8);
        let to = target.remote();
        for round in 0..40 {
            let (mine, _) = &world.pairs[round * 5 % 8];
            // After this poll the background alone would check the sockets only in an hour.
            assert_eq!(b.recv_cq.poll_one(), None);
            b.recv_cq.req_notify(Notify::Any);
            let bytes = [round as u8; 8];
            mine.post_send(&SendWr::write_inline(
                1,
                &bytes,
                RemoteBuffer::at(to.addr, to.rkey),
            ))
            .unwrap();
            a.send_cq.success(1);
            until("the Write", || {
                assert_eq!(taken(&a.send_cq), 0);
                content(&target) == bytes
            });
        }
    }
}
