//! Completion channels: arming a CQ, events, and CQs that are dropped.

use super::*;

/// A connection whose responder has a channel on its receive CQ.
struct Waiter {
    a: Side,
    b: Side,
    qp: Qp,
    cq: CqHandle,
    channel: CompletionChannel,
}

fn waiter(wire: Wire) -> Waiter {
    let setup = Setup::new(wire);
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let channel = b.device.create_channel().unwrap();
    let cq = b.device.create_cq_on(16, &channel, 0x1234).unwrap();
    let qp = b.pd.create_qp(&b.send_cq, &cq, QpCaps::default()).unwrap();
    for wr_id in 1..9 {
        qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    join(&listener, &a.qp, &qp, &setup.connect, &setup.accept);
    Waiter {
        a,
        b,
        qp,
        cq: CqHandle(cq),
        channel,
    }
}

impl Waiter {
    fn send(&self, solicited: bool) {
        let wr = SendWr::send(1, &[]);
        self.a
            .qp
            .post_send(&if solicited { wr.solicited() } else { wr })
            .unwrap();
        self.a.send_cq.success(1);
    }

    /// Polls all completions so far, and asserts that no event is raised.
    #[track_caller]
    fn no_event(&self) {
        assert_eq!(self.channel.waiting(), 0);
        assert!(!readable(self.channel.as_fd(), Duration::ZERO));
        assert!(self.channel.try_get_event().is_none());
    }

    #[track_caller]
    fn event(&self) {
        assert!(
            readable(self.channel.as_fd(), LIMIT),
            "the descriptor did not become readable"
        );
        let event = self.channel.get_event(Some(LIMIT)).unwrap();
        assert_eq!(event.context(), 0x1234);
        drop(event);
        self.no_event();
    }
}

#[test]
fn an_armed_cq_makes_its_channels_descriptor_readable_once() {
    for wire in Wire::BOTH {
        let w = waiter(wire);
        w.send(false);
        w.cq.success(1);
        w.no_event();

        w.cq.req_notify(Notify::Any);
        w.cq.assert_empty();
        w.no_event();
        w.send(false);
        w.event();
        w.cq.success(2);
        // The CQ must be armed again before the next event.
        w.send(false);
        w.cq.success(3);
        w.no_event();

        w.cq.req_notify(Notify::Any);
        w.send(false);
        w.send(true);
        w.event();
        w.cq.successes([4, 5]);
        w.no_event();
    }
}

#[test]
fn a_cq_armed_for_solicited_completions_sleeps_through_others() {
    for wire in Wire::BOTH {
        let w = waiter(wire);
        w.cq.req_notify(Notify::Solicited);
        w.send(false);
        assert!(!w.cq.success(1).solicited);
        w.no_event();
        w.send(true);
        w.event();
        assert!(w.cq.success(2).solicited);
    }
}

#[test]
fn arming_for_any_is_not_taken_back_by_arming_for_solicited() {
    let w = waiter(Wire::MEMORY);
    w.cq.req_notify(Notify::Any);
    w.cq.req_notify(Notify::Solicited);
    w.send(false);
    w.event();
    // If the requests are made in the other order, the second one widens the arming.
    w.cq.success(1);
    w.cq.req_notify(Notify::Solicited);
    w.cq.req_notify(Notify::Any);
    w.send(false);
    w.event();
}

#[test]
fn an_error_is_an_event_for_those_who_wait_for_solicited_completions() {
    let w = waiter(Wire::MEMORY);
    w.cq.req_notify(Notify::Solicited);
    w.a.qp.disconnect();
    assert!(readable(w.channel.as_fd(), LIMIT));
    w.channel.get_event(Some(LIMIT)).unwrap().ack_later();
    assert_eq!(w.cq.flushed(1).qp_num, w.qp.qp_num());
    assert!(
        w.b.qp.end_reason().is_none(),
        "the other QP of the device has nothing to do with it"
    );
}

#[test]
fn a_completion_between_the_last_poll_and_the_arming_is_found_by_polling_again() {
    let w = waiter(Wire::MEMORY);
    w.cq.assert_empty();
    w.send(false);
    // A round trip shows that the Send has arrived. It does not poll this CQ.
    let lent = w.b.filled(1, 1);
    let remote = lent.remote();
    let sink = w.a.blank(1);
    w.a.qp
        .post_send(&SendWr::read(
            5,
            &[sink.sge(0, 1)],
            RemoteBuffer::at(remote.addr, remote.rkey),
        ))
        .unwrap();
    w.a.send_cq.success(5);
    w.cq.req_notify(Notify::Any);
    w.no_event();
    w.cq.success(1);
    w.no_event();
    // The CQ is still armed.
    w.send(false);
    w.event();
}

#[test]
fn one_channel_tells_its_cqs_apart() {
    let w = waiter(Wire::MEMORY);
    let second = w.b.device.create_cq_on(4, &w.channel, 99).unwrap();
    assert_eq!(w.channel.cq_count(), 2);
    let qp =
        w.b.pd
            .create_qp(&second, &second, QpCaps::default())
            .unwrap();
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    let listener = w.b.device.listen("192.0.2.2:9".parse().unwrap()).unwrap();
    let other = w.a.another_qp();
    join(
        &listener,
        &other,
        &qp,
        &Default::default(),
        &Default::default(),
    );
    w.cq.req_notify(Notify::Any);
    second.req_notify(Notify::Solicited);
    w.send(false);
    other.post_send(&SendWr::send(1, &[]).solicited()).unwrap();
    let mut contexts: Vec<u64> = (0..2)
        .map(|_| w.channel.get_event(Some(LIMIT)).unwrap().context())
        .collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [99, 0x1234]);
}

#[test]
fn a_channel_without_events_says_so() {
    let channel = Device::tcp().unwrap().create_channel().unwrap();
    let waited = Duration::from_millis(1);
    assert!(
        matches!(channel.get_event(Some(waited)), Err(ChannelError::TimedOut(time)) if time == waited)
    );
    let flags = rustix::fs::fcntl_getfl(&channel).unwrap();
    rustix::fs::fcntl_setfl(&channel, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(matches!(
        channel.get_event(None),
        Err(ChannelError::WouldBlock)
    ));
}

#[test]
fn events_of_a_cq_that_is_gone_are_taken_back() {
    let Waiter {
        a,
        b,
        qp,
        cq,
        channel,
    } = waiter(Wire::MEMORY);
    cq.req_notify(Notify::Any);
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    assert!(readable(channel.as_fd(), LIMIT));
    drop((qp, cq));
    until("the end of the QP and of its CQ", || {
        channel.cq_count() == 0
    });
    assert_eq!(channel.waiting(), 0);
    assert!(!readable(channel.as_fd(), Duration::ZERO));
    drop(b);
}
