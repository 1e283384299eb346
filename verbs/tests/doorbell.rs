//! The doorbell: what a program that polls posts one after the other leaves together, and nothing stays.

mod common;

use std::time::Duration;

use common::{Setup, Side, Wire};
use uwarp_verbs::{Notify, SendWr};

/// Two endpoints. The first one has just polled, and the background leaves it to its polls from then on.
fn polled() -> (Side, Side) {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].takeover = Duration::from_secs(3600);
    (setup.caps.max_send_wr, setup.caps.max_recv_wr) = (300, 300);
    setup.cq_depth = 600;
    let (a, b) = setup.connected();
    for wr_id in 0..300 {
        b.post_empty(wr_id);
    }
    a.send_cq.is_empty();
    (a, b)
}

/// FPDUs that were framed so far: the record counts them.
fn framed(a: &Side) -> u64 {
    a.qp.flight_record().seen()
}

fn send(a: &Side, wr_id: u64) {
    a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
}

#[test]
fn the_first_post_leaves_at_once_and_those_behind_it_with_the_next_poll() {
    let (a, b) = polled();
    let before = framed(&a);
    send(&a, 0);
    assert_eq!(framed(&a), before + 1);
    send(&a, 1);
    send(&a, 2);
    assert_eq!(framed(&a), before + 1);
    a.send_cq.success(0);
    assert_eq!(framed(&a), before + 1, "it had a completion to give");
    a.send_cq.successes(1..3);
    assert_eq!(framed(&a), before + 3);
    b.recv_cq.successes(0..3);
}

#[test]
fn a_post_after_completions_were_taken_leaves_at_once() {
    let (a, b) = polled();
    let before = framed(&a);
    for wr_id in 0..10 {
        send(&a, wr_id);
        assert_eq!(framed(&a), before + 1 + wr_id);
        a.send_cq.success(wr_id);
    }
    b.recv_cq.successes(0..10);
}

#[test]
fn where_several_were_posted_the_last_time_the_first_one_waits_too() {
    let (a, b) = polled();
    (0..3).for_each(|wr_id| send(&a, wr_id));
    a.send_cq.successes(0..3);
    let before = framed(&a);
    send(&a, 3);
    assert_eq!(framed(&a), before);
    a.send_cq.success(3);
    // It was alone, and so is the next one.
    send(&a, 4);
    assert_eq!(framed(&a), before + 2);
    b.recv_cq.successes(0..5);
}

#[test]
fn enough_requests_or_octets_leave_without_a_poll() {
    let (a, b) = polled();
    let before = framed(&a);
    (0..256).for_each(|wr_id| send(&a, wr_id));
    assert_eq!(framed(&a), before + 1);
    send(&a, 256);
    assert_eq!(framed(&a), before + 257, "256 behind the first");
    b.recv_cq.successes(0..257);

    let (a, b) = polled();
    let (octets, target) = (a.filled(1, 512 << 10), b.blank(512 << 10));
    let (sges, to) = ([octets.sge(0, 512 << 10)], target.remote());
    let write = |wr_id| {
        let wr = SendWr::write(wr_id, &sges, to.addr, to.rkey);
        a.qp.post_send(&wr).unwrap();
    };
    write(0);
    let one = framed(&a);
    write(1);
    assert_eq!(framed(&a), one);
    write(2);
    assert!(framed(&a) > one, "1 MiB behind the first");
    a.send_cq.successes(0..3);
}

#[test]
fn nothing_waits_for_a_poll_once_a_notification_is_asked_for() {
    let (a, b) = polled();
    let before = framed(&a);
    send(&a, 0);
    send(&a, 1);
    assert_eq!(framed(&a), before + 1);
    // Of the other CQ: the first one has a completion.
    a.recv_cq.req_notify(Notify::Any);
    assert_eq!(framed(&a), before + 2);
    send(&a, 2);
    send(&a, 3);
    assert_eq!(framed(&a), before + 4);
    b.recv_cq.successes(0..4);
}

#[test]
fn what_waits_is_sent_before_the_connection_is_closed_or_its_qp_is_dropped() {
    let (a, b) = polled();
    (0..3).for_each(|wr_id| send(&a, wr_id));
    a.qp.disconnect();
    b.recv_cq.successes(0..3);

    let (a, b) = polled();
    (0..3).for_each(|wr_id| send(&a, wr_id));
    drop(a);
    b.recv_cq.successes(0..3);
}

#[test]
fn what_waits_leaves_by_the_background_when_nobody_polls_any_more() {
    let (a, b) = Setup::new(Wire::Kernel).connected();
    (0..30).for_each(|wr_id| b.post_empty(wr_id));
    for round in 0..10 {
        let _ = a.send_cq.poll_one();
        (3 * round..3 * round + 3).for_each(|wr_id| send(&a, wr_id));
        b.recv_cq.successes(3 * round..3 * round + 3);
    }
}
