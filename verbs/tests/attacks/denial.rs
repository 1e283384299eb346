//! Sections 6.4.3.1, 6.4.3.2, 6.4.5 and 6.4.6: queues that overflow, and STags that are
//! invalidated.

use uwarp_verbs::{AcceptOptions, AsyncEvent, Qp, QpCaps, RecvWr, Srq, SrqAttr, SrqModify, Status};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{ROLES, Role, Scene, Setup, Victim, settings};
use crate::wire::{CRC, Code, REPLY, REQUEST, SEND, Untagged, startup};
use crate::{INVALID, Use, refuses_use};

/// Receives belong to one stream. A peer that sends more messages than receives were posted ends
/// its own stream.
#[test]
fn s6_4_3_1_more_sends_than_receives() {
    for role in ROLES {
        let s = Scene::with(&Setup {
            receives: false,
            ..Setup::new(role)
        });
        let send = s.next_send(b"octets").bytes();
        s.refuses(&send, Code::ddp(2, 0x02), "no receive is posted", None);
    }
}

/// The peer sends one more message after all posted receives are consumed.
#[test]
fn s6_4_3_1_sends_until_the_receives_are_used_up() {
    let mut s = Scene::new(Role::Responder);
    s.delivers(b"one");
    s.delivers(b"two");
    let send = s.next_send(b"").bytes();
    s.refuses(&send, Code::ddp(2, 0x02), "no receive is posted", None);
}

/// One stream consumes the receives that it shares with another. The program gets the limit event
/// in time, the greedy stream ends, and the other one continues once receives are posted again
/// (5040-8.1.2-08: completions name their stream).
#[test]
fn s6_4_3_1_one_stream_uses_up_a_shared_receive_queue() {
    let mut settings = settings();
    settings.limits.max_qp += 2;
    settings.limits.max_srq += 1;
    let mut victim = Victim::new(settings);
    let srq = victim.pd.create_srq(SrqAttr::default().max_wr(8)).unwrap();
    for wr_id in 1..=4 {
        srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    srq.modify(SrqModify::default().limit(Some(2))).unwrap();
    let (mut greedy, greedy_qp) = shares(&victim, &srq);
    let (mut modest, modest_qp) = shares(&victim, &srq);
    let empty = |msn| Untagged::new(SEND, 0, msn, b"").bytes();
    greedy.send_ulpdus(&[empty(1), empty(2), empty(3), empty(4), empty(5)]);
    eventually("an event for the program", || {
        let event = victim.device.poll_event()?;
        matches!(event, AsyncEvent::SrqLimitReached { .. }).then_some(())
    });
    for wr_id in 1..=4 {
        let taken = victim.recv_cq.wait(Some(PATIENCE)).expect("a Send arrives");
        assert_eq!(
            (taken.wr_id, taken.status, taken.qp_num),
            (wr_id, Status::Success, greedy_qp.qp_num())
        );
    }
    greedy.fin();
    assert!(greedy_qp.wait_closed(PATIENCE));
    srq.post_recv(&RecvWr::new(5, &[])).unwrap();
    modest.send_ulpdus(&[empty(1)]);
    let taken = victim.recv_cq.wait(Some(PATIENCE)).expect("a Send arrives");
    assert_eq!(
        (taken.wr_id, taken.status, taken.qp_num),
        (5, Status::Success, modest_qp.qp_num())
    );
    modest.fin();
    assert!(modest_qp.wait_closed(PATIENCE));
    victim.healthy.works();
    drop((greedy_qp, modest_qp, srq));
    // Both streams have ended. Each raised the event `LastWqeReached`: its QP takes no more
    // receives from the SRQ.
    let last = std::iter::from_fn(|| victim.device.poll_event())
        .filter(|event| matches!(event, AsyncEvent::LastWqeReached { .. }));
    assert_eq!(last.count(), 2);
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Connects a QP that takes its receives from the SRQ.
fn shares(victim: &Victim, srq: &Srq) -> (Peer, Qp) {
    let cq = &victim.recv_cq;
    let qp = victim.pd.qp().srq(srq).build(cq, cq).unwrap();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request.accept(&qp, &AcceptOptions::default()).unwrap();
    assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
    (peer, qp)
}

/// The peer overflows a CQ that is too small for the posted receives. Completions are lost, and the
/// program gets an event. Streams with other CQs are not affected (5040-8.1.1-08).
#[test]
fn s6_4_6_overflow_of_an_unshared_cq() {
    let mut settings = settings();
    settings.limits.max_qp += 1;
    settings.limits.max_cq += 1;
    let mut victim = Victim::new(settings);
    let small = victim.device.create_cq(2).unwrap();
    let qp = victim
        .pd
        .create_qp(&small, &small, QpCaps::default())
        .unwrap();
    for wr_id in 1..=5 {
        qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request.accept(&qp, &AcceptOptions::default()).unwrap();
    assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
    let flood: Vec<_> = (1..=5)
        .map(|msn| Untagged::new(SEND, 0, msn, b"").bytes())
        .collect();
    peer.send_ulpdus(&flood);
    eventually("an event for the program", || {
        let event = victim.device.poll_event()?;
        matches!(event, AsyncEvent::CqOverflow { .. }).then_some(())
    });
    let taken: Vec<_> = std::iter::from_fn(|| small.poll_one()).collect();
    let first: Vec<_> = taken.iter().take(2).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(first, [(1, Status::Success), (2, Status::Success)]);
    victim.healthy.works();
    drop((qp, small));
    victim.check_unharmed();
}

/// A CQ gets at most one entry for each receive, and the program posts the receives. A shared CQ
/// with an entry for each receive of all its QPs (CQ_MIN_SIZE) cannot overflow, however much one
/// peer sends.
#[test]
fn s6_4_3_2_flood_of_completions_in_a_shared_cq() {
    let mut settings = settings();
    settings.limits.max_qp += 2;
    settings.limits.max_cq += 1;
    let mut victim = Victim::new(settings);
    let caps = QpCaps::default().max_send_wr(0).max_recv_wr(4);
    let shared = victim.device.create_cq(8).unwrap();
    let mut ends = Vec::new();
    for name in [b"loud".as_slice(), b"calm"] {
        let qp = victim.pd.create_qp(&shared, &shared, caps).unwrap();
        for wr_id in 1..=4 {
            qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        }
        let mut peer = Peer::connect(victim.listener.local_addr());
        peer.send_startup(REQUEST, CRC, 1, name);
        let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
        request.accept(&qp, &AcceptOptions::default()).unwrap();
        peer.receive_startup();
        ends.push((peer, qp));
    }
    let sends = |count| {
        let all = (1..=count).map(|msn| Untagged::new(SEND, 0, msn, b"").bytes());
        all.collect::<Vec<_>>()
    };
    // The first stream sends five messages for four receives. Then the other stream uses all four
    // of its receives.
    ends[0].0.send_ulpdus(&sends(5));
    assert!(ends[0].1.wait_closed(PATIENCE) || ends[0].1.end_reason().is_some());
    ends[1].0.send_ulpdus(&sends(4));
    let mut found = [0; 2];
    for _ in 0..8 {
        let done = shared.wait(Some(PATIENCE)).expect("no completion is lost");
        assert_eq!(done.status, Status::Success);
        found[usize::from(done.qp_num == ends[1].1.qp_num())] += 1;
    }
    assert_eq!(found, [4, 4]);
    assert!(ends[1].1.end_reason().is_none());
    assert_eq!(
        victim.reasons().len(),
        1,
        "the loud stream ended, and no other"
    );
    drop((ends, shared));
    victim.check_unharmed();
}

/// One peer must not invalidate memory that other peers use.
#[test]
fn s6_4_5_invalidation_of_an_stag_that_streams_share() {
    for role in ROLES {
        let s = Scene::new(role);
        let at = (s.memory.writable.rkey(), s.memory.writable.addr());
        // At the end of the test the healthy connection writes to the same region.
        refuses_use(s, Use::Invalidate, at, &INVALID, "");
    }
}
