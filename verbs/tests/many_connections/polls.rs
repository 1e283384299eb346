//! Polls of a CQ with many connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use uwarp_verbs::RemoteBuffer;

#[test]
fn more_connections_than_one_look_finds_are_all_served() {
    // One query of the group's epoll set returns at most 64 ready sockets.
    let world = World::polled(Wire::Kernel, 150);
    world.exchange();
    let world = World::polled(Wire::MEMORY, 20);
    world.exchange();
}

#[test]
fn what_posts_have_staged_leaves_with_a_poll_that_finds_nothing() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 10);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for round in 0..20 {
            for (mine, theirs) in &world.pairs {
                for wr_id in 0..5 {
                    theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
                    mine.post_send(&SendWr::send(wr_id, &[])).unwrap();
                }
            }
            let (mut sent, mut received) = (0, 0);
            until("what was staged", || {
                sent += taken(&a.send_cq);
                received += taken(&b.recv_cq);
                (sent, received) == (50, 50)
            });
            assert_eq!(a.send_cq.poll_one(), None, "round {round}");
        }
    }
}

/// Each poll of this program finds a completion, and so makes no progress on other connections.
#[test]
fn a_program_that_always_finds_completions_receives_on_its_other_connections() {
    for wire in Wire::BOTH {
        let world = World::polled(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        let (target, source) = (a.blank(8), b.filled(1, 8));
        let to = target.remote();
        let (busy, _) = &world.pairs[0];
        let (_, peer) = &world.pairs[5];
        let sges = [source.sge(0, 8)];
        peer.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)))
            .unwrap();
        assert!(b.send_cq.wait(Some(LIMIT)).is_some());
        until("what the peer has written", || {
            busy.post_send(&SendWr::write(2, &[], RemoteBuffer::at(0, 0)))
                .unwrap();
            until("its completion", || taken(&a.send_cq) == 1);
            content(&target) == content(&source)
        });
    }
}

#[test]
fn threads_that_poll_and_post_at_the_same_time_leave_nothing_behind() {
    const EACH: usize = 200;
    for wire in Wire::BOTH {
        let world = World::holding(wire, 8);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for (_, theirs) in &world.pairs {
            for wr_id in 0..16 {
                theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            }
        }
        let total = EACH * world.pairs.len();
        let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let again = |completion: Completion| {
            let number = |(_, qp): &&(Qp, Qp)| qp.qp_num() == completion.qp_num;
            let (_, qp) = world.pairs.iter().find(number).unwrap();
            qp.post_recv(&RecvWr::new(0, &[])).unwrap();
        };
        std::thread::scope(|scope| {
            for (mine, _) in &world.pairs {
                scope.spawn(move || {
                    for wr_id in 0..EACH as u64 {
                        let wr = SendWr::send(wr_id, &[]);
                        until("a place", || mine.post_send(&wr).is_ok());
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    until("all completions", || {
                        let count = taken(&a.send_cq);
                        sent.fetch_add(count, Ordering::SeqCst) + count == total
                    });
                });
                scope.spawn(|| {
                    until("all receives", || {
                        let one = b.recv_cq.poll_one();
                        one.map(again);
                        let count = usize::from(one.is_some());
                        received.fetch_add(count, Ordering::SeqCst) + count == total
                    });
                });
            }
        });
    }
}

/// A message without a receive pauses only its own connection. The socket of that connection stays
/// readable.
#[test]
fn a_connection_that_is_paused_goes_on_when_it_may_and_holds_up_nobody() {
    let mut world = World::holding(Wire::Kernel, 8);
    let (a, b) = (&world.ends.a, &world.ends.b);
    let (mine, theirs) = world.pairs.remove(3);
    for wr_id in 0..10 {
        mine.post_send(&SendWr::send(wr_id, &[])).unwrap();
    }
    let mut sent = 0;
    until("the Sends", || {
        sent += taken(&a.send_cq);
        assert_eq!(taken(&b.recv_cq), 0);
        sent == 10
    });
    world.exchange();
    for wr_id in 0..10 {
        theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        until("its message", || taken(&b.recv_cq) == 1);
        world.exchange();
    }
}

#[test]
fn large_messages_that_the_network_does_not_take_at_once_go_on_by_polls() {
    const LEN: usize = 4 << 20;
    for wire in Wire::BOTH {
        let world = World::polled(wire, 6);
        let (a, b) = (&world.ends.a, &world.ends.b);
        let source = a.filled(1, LEN);
        let targets: Vec<_> = world.pairs.iter().map(|_| b.blank(LEN)).collect();
        for ((mine, _), target) in world.pairs.iter().zip(&targets) {
            let (to, sges) = (target.remote(), [source.sge(0, LEN as u32)]);
            mine.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)))
                .unwrap();
            mine.post_send(&SendWr::read(2, &[], RemoteBuffer::at(to.addr, to.rkey)))
                .unwrap();
        }
        let mut done = 0;
        until("all Writes and the Reads after them", || {
            done += taken(&a.send_cq);
            assert_eq!(taken(&b.recv_cq), 0);
            done == 12
        });
        for target in &targets {
            same(&content(target), &content(&source), "written");
        }
    }
}
