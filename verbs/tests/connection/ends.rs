//! Ends of connections: disconnects with data in flight, dropped QPs, and resets.

use super::*;

const COUNT: u64 = 60;
const LEN: u64 = 20_000;

/// Posts receives for `COUNT` Sends and for one more message.
fn expect_sends(side: &Side) -> uwarp_verbs::MemoryRegion {
    let sink = side.blank((COUNT * LEN) as usize);
    for i in 0..COUNT {
        side.qp
            .post_recv(&RecvWr::new(i, &[sink.sge(i * LEN, LEN as u32)]))
            .unwrap();
    }
    side.post_empty(COUNT);
    sink
}

fn post_sends(side: &Side, source: &uwarp_verbs::MemoryRegion) {
    for i in 0..COUNT {
        side.qp
            .post_send(&SendWr::send(i, &[source.sge(i * LEN, LEN as u32)]))
            .unwrap();
    }
}

#[test]
fn everything_posted_before_a_disconnect_arrives() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (sink, source) = (expect_sends(&b), a.filled(1, (COUNT * LEN) as usize));
        let (target, back) = (b.blank(100_000), a.blank(100_000));
        let remote = target.remote();
        post_sends(&a, &source);
        a.qp.post_send_list(&[
            SendWr::write(
                100,
                &[source.sge(0, 100_000)],
                RemoteBuffer::at(remote.addr, remote.rkey),
            )
            .unsignaled(),
            SendWr::read(
                101,
                &[back.sge(0, 100_000)],
                RemoteBuffer::at(remote.addr, remote.rkey),
            ),
            SendWr::write_inline(102, b"last", RemoteBuffer::at(remote.addr, remote.rkey)).fence(),
        ])
        .unwrap();
        a.post_empty(7);
        a.qp.disconnect();
        b.recv_cq.successes(0..COUNT);
        a.send_cq.successes((0..COUNT).chain([101, 102]));
        assert!(
            matches!(b.wait_end(), EndReason::PeerDisconnect),
            "{:?}",
            b.qp.end_reason()
        );
        assert!(
            matches!(a.wait_end(), EndReason::LocalDisconnect),
            "{:?}",
            a.qp.end_reason()
        );
        b.recv_cq.flushed(COUNT);
        a.recv_cq.flushed(7);
        same(&content(&sink), &content(&source), "sent");
        same(&content(&back), &content(&source)[..100_000], "read");
        same(
            &content(&target),
            &[b"last", &content(&source)[4..100_000]].concat(),
            "written",
        );
        assert!(
            matches!(a.ended_event(), (num, EndReason::LocalDisconnect) if num == a.qp.qp_num())
        );
        assert!(
            matches!(b.ended_event(), (num, EndReason::PeerDisconnect) if num == b.qp.qp_num())
        );
    }
}

#[test]
fn what_is_on_its_way_to_a_side_that_disconnects_still_arrives() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        both_ways(&a, &b);
        let (sink, source) = (expect_sends(&b), a.filled(1, (COUNT * LEN) as usize));
        post_sends(&a, &source);
        b.qp.disconnect();
        a.send_cq.successes(0..COUNT);
        b.recv_cq.successes(0..COUNT);
        assert!(
            matches!(a.wait_end(), EndReason::PeerDisconnect),
            "{:?}",
            a.qp.end_reason()
        );
        assert!(
            matches!(b.wait_end(), EndReason::LocalDisconnect),
            "{:?}",
            b.qp.end_reason()
        );
        b.recv_cq.flushed(COUNT);
        same(&content(&sink), &content(&source), "sent");
    }
}

#[test]
fn both_sides_may_disconnect_at_once_with_data_under_way() {
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        let sides = [&a, &b];
        let sinks = sides.map(expect_sends);
        let sources = [
            a.filled(1, (COUNT * LEN) as usize),
            b.filled(2, (COUNT * LEN) as usize),
        ];
        // Requests posted after the peer's FIN are flushed, so both sides post first.
        let posted = Barrier::new(2);
        std::thread::scope(|scope| {
            for (side, source) in sides.into_iter().zip(&sources) {
                let posted = &posted;
                scope.spawn(move || {
                    post_sends(side, source);
                    posted.wait();
                    side.qp.disconnect();
                });
            }
        });
        for side in sides {
            side.send_cq.successes(0..COUNT);
            side.recv_cq.successes(0..COUNT);
            side.recv_cq.flushed(COUNT);
            assert!(
                matches!(
                    side.wait_end(),
                    EndReason::LocalDisconnect | EndReason::PeerDisconnect
                ),
                "{:?}",
                side.qp.end_reason()
            );
        }
        same(&content(&sinks[1]), &content(&sources[0]), "a to b");
        same(&content(&sinks[0]), &content(&sources[1]), "b to a");
    }
}

#[test]
fn either_side_may_disconnect_an_idle_connection_and_again_does_nothing() {
    for wire in Wire::BOTH {
        for first in [0, 1] {
            let (a, b) = pair(wire);
            let sides = [&a, &b];
            sides[first].qp.disconnect();
            sides[first].qp.disconnect();
            assert!(matches!(
                sides[first].wait_end(),
                EndReason::LocalDisconnect
            ));
            assert!(matches!(
                sides[1 - first].wait_end(),
                EndReason::PeerDisconnect
            ));
            for side in sides {
                side.qp.disconnect();
                assert_eq!(side.qp.state(), QpState::Error);
                // Each end is reported once.
                side.ended_event();
                assert!(
                    side.device
                        .poll_event()
                        .is_none_or(|event| matches!(event, AsyncEvent::Established { .. }))
                );
            }
        }
    }
}

#[test]
fn a_disconnect_waits_for_reads_that_were_posted_before_it() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        setup.connect.ord = 2;
        let (a, b) = setup.connected();
        let (lent, sink) = (b.filled(1, 1 << 20), a.blank(1 << 20));
        let remote = lent.remote();
        for i in 0..16u64 {
            let at = i << 16;
            a.qp.post_send(&SendWr::read(
                i,
                &[sink.sge(at, 1 << 16)],
                RemoteBuffer::at(remote.addr + at, remote.rkey),
            ))
            .unwrap();
        }
        a.qp.disconnect();
        a.send_cq.successes(0..16);
        a.wait_end();
        same(&content(&sink), &content(&lent), "read");
    }
}

#[test]
fn a_dropped_qp_with_work_under_way_flushes_it_and_the_peer_hears_of_it() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        // A second connection between the same devices must not be affected.
        let (mine, theirs) = (a.another_qp(), b.another_qp());
        join(
            &ends.listener,
            &mine,
            &theirs,
            &setup.connect,
            &setup.accept,
        );
        ends.join();
        both_ways(a, b);
        // This is more than can be transferred before the drop, even on a busy machine.
        let (lent, sink) = (b.blank(64 << 20), a.blank(64 << 20));
        let remote = lent.remote();
        let num = mine.qp_num();
        for i in 0..20 {
            mine.post_send(&SendWr::read(
                i,
                &[sink.sge(0, 64 << 20)],
                RemoteBuffer::at(remote.addr, remote.rkey),
            ))
            .unwrap();
        }
        theirs.post_recv(&RecvWr::new(50, &[])).unwrap();
        drop(mine);
        let mut flushed = 0;
        for i in 0..20 {
            let completion = a.send_cq.next();
            assert_eq!((completion.wr_id, completion.qp_num), (i, num));
            assert!(
                matches!(completion.status, Status::Success | Status::WrFlush),
                "{completion:?}"
            );
            flushed += u32::from(completion.status == Status::WrFlush);
        }
        assert!(flushed > 0);
        assert!(theirs.wait_closed(LIMIT));
        assert!(
            matches!(theirs.end_reason(), Some(EndReason::LlpLost { .. })),
            "{:?}",
            theirs.end_reason()
        );
        assert_eq!(b.recv_cq.flushed(50).qp_num, theirs.qp_num());
        exchange(a, b);
    }
}

#[test]
fn an_idle_qp_that_is_dropped_closes_gracefully_and_so_does_a_whole_device() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        both_ways(&a, &b);
        let Side { device, qp, .. } = a;
        drop(qp);
        assert!(
            matches!(b.wait_end(), EndReason::PeerDisconnect),
            "{:?}",
            b.qp.end_reason()
        );
        drop(device);

        let (a, b) = pair(wire);
        both_ways(&a, &b);
        drop(a);
        assert!(
            matches!(b.wait_end(), EndReason::PeerDisconnect),
            "{:?}",
            b.qp.end_reason()
        );
    }
}

#[test]
fn a_qp_is_used_again_after_a_reset() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        assert!(a.qp.reset(), "an idle QP may be reset");
        for round in 0..4 {
            assert!(a.qp.connection().is_none() && a.qp.end_reason().is_none());
            ends.join();
            exchange(a, b);
            assert!(!a.qp.reset());
            if round % 2 == 0 {
                a.qp.disconnect();
            } else {
                b.qp.disconnect();
            }
            for side in [a, b] {
                side.wait_end();
                assert!(side.qp.reset());
                assert_eq!(side.qp.state(), QpState::Idle);
                side.send_cq.assert_empty();
                side.recv_cq.assert_empty();
            }
        }
    }
}

#[test]
fn a_reset_flushes_receives_that_wait() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    ends.a.post_empty(1);
    assert!(ends.a.qp.reset());
    ends.a.recv_cq.flushed(1);
    ends.a.recv_cq.assert_empty();
}

#[test]
fn both_sides_hear_of_the_beginning_and_of_the_end() {
    use std::os::fd::AsFd;
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let established = |side: &Side| match side.device.wait_event(Some(LIMIT)) {
            Some(AsyncEvent::Established { qp_num }) => assert_eq!(qp_num, side.qp.qp_num()),
            other => panic!("{other:?}"),
        };
        established(&a);
        // The responder has no event yet, because the initiator's first FPDU has not arrived.
        assert!(b.device.poll_event().is_none());
        bell(&a, &b);
        established(&b);
        a.qp.disconnect();
        for side in [&a, &b] {
            // The device's descriptor must be readable exactly while events are pending.
            let fd = side.device.as_fd();
            let mut fds = [rustix::event::PollFd::new(
                &fd,
                rustix::event::PollFlags::IN,
            )];
            let limit = rustix::event::Timespec {
                tv_sec: LIMIT.as_secs() as i64,
                tv_nsec: 0,
            };
            assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1);
            assert_eq!(side.ended_event().0, side.qp.qp_num());
            assert!(side.device.poll_event().is_none());
            let now = rustix::event::Timespec::default();
            assert_eq!(rustix::event::poll(&mut fds, Some(&now)).unwrap(), 0);
        }
    }
}
