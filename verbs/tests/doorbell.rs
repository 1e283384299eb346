//! The doorbell: requests that a polling program posts one after another are sent together, and
//! none of them stays unsent.

mod common;

use std::time::Duration;

use common::{Setup, Side, Wire, until};
use uwarp_verbs::{AsyncEvent, IbvQpState, Notify, QpModify, RemoteBuffer, SendWr};

/// Connects two endpoints. The first one has just polled, so the background leaves its connection
/// to its polls.
fn polled() -> (Side, Side) {
    polled_with_depth(600)
}

/// As [`polled`], with CQs of this depth.
fn polled_with_depth(depth: u32) -> (Side, Side) {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].takeover = Duration::from_secs(3600);
    (setup.caps.max_send_wr, setup.caps.max_recv_wr) = (300, 300);
    setup.cq_depth = depth;
    let (a, b) = setup.connected();
    for wr_id in 0..300 {
        b.post_empty(wr_id);
    }
    // The polls are repeated, because a poll does not count while the background still drives the
    // connection.
    for _ in 0..10 {
        a.send_cq.assert_empty();
        std::thread::sleep(Duration::from_millis(1));
    }
    (a, b)
}

/// Returns the number of FPDUs framed so far, according to the flight record.
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
    // The batch before this post had a single request, so this request is sent at once.
    send(&a, 4);
    assert_eq!(framed(&a), before + 2);
    b.recv_cq.successes(0..5);
}

#[test]
fn a_long_list_waits_for_the_poll_and_a_short_one_leaves_at_once() {
    for (len, waits) in [(2, false), (15, false), (16, true), (64, true)] {
        let (a, b) = polled();
        let before = framed(&a);
        let list: Vec<SendWr<'_>> = (0..len).map(|wr_id| SendWr::send(wr_id, &[])).collect();
        a.qp.post_send_list(&list).unwrap();
        let gone = if waits { 0 } else { len };
        assert_eq!(framed(&a), before + gone, "of a list of {len}");
        a.send_cq.successes(0..len);
        assert_eq!(framed(&a), before + len);
        b.recv_cq.successes(0..len);
    }
}

#[test]
fn enough_requests_or_bytes_leave_without_a_poll() {
    let (a, b) = polled();
    let before = framed(&a);
    (0..256).for_each(|wr_id| send(&a, wr_id));
    assert_eq!(framed(&a), before + 1);
    send(&a, 256);
    assert_eq!(framed(&a), before + 257, "256 after the first");
    b.recv_cq.successes(0..257);

    let (a, b) = polled();
    let (bytes, target) = (a.filled(1, 512 << 10), b.blank(512 << 10));
    let (sges, to) = ([bytes.sge(0, 512 << 10)], target.remote());
    let write = |wr_id| {
        let wr = SendWr::write(wr_id, &sges, RemoteBuffer::at(to.addr, to.rkey));
        a.qp.post_send(&wr).unwrap();
    };
    write(0);
    let one = framed(&a);
    write(1);
    assert_eq!(framed(&a), one);
    write(2);
    assert!(framed(&a) > one, "1 MiB after the first");
    a.send_cq.successes(0..3);
}

#[test]
fn nothing_waits_for_a_poll_once_a_notification_is_asked_for() {
    let (a, b) = polled();
    let before = framed(&a);
    send(&a, 0);
    send(&a, 1);
    assert_eq!(framed(&a), before + 1);
    // Arms the receive CQ, because the send CQ has a completion.
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
    let mut setup = Setup::new(Wire::Kernel);
    // Even on a busy machine all posts fall within this time, so some of them stay staged.
    setup.settings[0].takeover = Duration::from_millis(100);
    let (a, b) = setup.connected();
    (0..9).for_each(|wr_id| b.post_empty(wr_id));
    for round in 0..3 {
        let _ = a.send_cq.poll_one();
        (3 * round..3 * round + 3).for_each(|wr_id| send(&a, wr_id));
        b.recv_cq.successes(3 * round..3 * round + 3);
    }
}

/// A poll that finds a completion does not receive from the socket.
#[test]
fn who_posts_and_polls_and_always_finds_a_completion_receives_all_the_same() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].takeover = Duration::from_millis(50);
    let (a, b) = setup.connected();
    let (lent, sink) = (a.filled(3, 8), b.blank(8));
    let (source, target) = (a.filled(1, 8), b.blank(8));
    // After this poll the background leaves incoming data to the polls.
    b.post_empty(1000);
    send(&a, 1000);
    a.send_cq.success(1000);
    for wr_id in 0..20 {
        a.post_empty(wr_id);
        b.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
        until("a poll has received", || a.recv_cq.poll_one().is_some());
        b.send_cq.success(wr_id);
    }
    let (from, to) = (lent.remote(), target.remote());
    let (into, sges) = ([sink.sge(0, 8)], [source.sge(0, 8)]);
    b.qp.post_send(&SendWr::read(
        1,
        &into,
        RemoteBuffer::at(from.addr, from.rkey),
    ))
    .unwrap();
    let mut wr_id = 0;
    until("the Read is answered", || {
        let wr = SendWr::write(wr_id, &sges, RemoteBuffer::at(to.addr, to.rkey));
        a.qp.post_send(&wr).unwrap();
        a.send_cq.success(wr_id);
        wr_id += 1;
        b.send_cq.poll_one().is_some()
    });
}

/// Without a recent poll nothing is staged, however fast the posts follow one another.
#[test]
fn who_has_polled_long_ago_has_all_sent_at_once() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].takeover = Duration::from_millis(1);
    let (a, b) = setup.connected();
    (0..5).for_each(|wr_id| b.post_empty(wr_id));
    send(&a, 0);
    a.send_cq.success(0);
    std::thread::sleep(Duration::from_millis(2));
    let before = framed(&a);
    for sent in 1..5 {
        send(&a, sent);
        assert_eq!(framed(&a), before + sent);
    }
    b.recv_cq.successes(0..5);
}

#[test]
fn a_drain_sends_what_waits() {
    let (a, b) = polled();
    (0..3).for_each(|wr_id| send(&a, wr_id));
    assert!(a.qp.drain_sends(Duration::from_secs(300)));
    b.recv_cq.successes(0..3);
}

#[test]
fn a_post_that_is_refused_counts_for_nothing() {
    let (a, b) = polled();
    let before = framed(&a);
    let stranger = uwarp_verbs::Sge {
        addr: 0,
        len: 8,
        lkey: 0,
    };
    a.qp.post_send(&SendWr::send(0, &[stranger])).unwrap_err();
    send(&a, 0);
    assert_eq!(framed(&a), before + 1);
    b.recv_cq.success(0);
}

#[test]
fn requests_that_wait_make_no_completion_at_a_reset_that_discards_completions() {
    let (a, b) = polled_with_depth(2);
    let before = framed(&a);
    (0..4).for_each(|wr_id| send(&a, wr_id));
    assert_eq!(framed(&a), before + 1);
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    a.qp.modify(&reset.discard_completions()).unwrap();
    a.send_cq.assert_empty();
    // They were sent, and their completions did not fill the CQ.
    b.recv_cq.successes(0..2);
    while let Some(event) = a.device.poll_event() {
        assert!(!matches!(event, AsyncEvent::CqOverflow { .. }), "{event:?}");
    }
}
