//! Knowledge of a QP about a peer that is not there: it has none until it sends.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    AsyncEvent, EndReason, IbvQpState, PairOptions, PeerQp, Progress, Qp, QpModify, QpState,
    RendezvousOptions, Settings, SrqAttr, Status,
};

use crate::common::until;
use crate::{Host, LOOPBACK, exchange, in_order, meet};

/// Maximum time that a send waits, in tests that wait for its failure.
const SHORT: Duration = Duration::from_millis(100);

/// Options with patience of [`SHORT`].
fn impatient() -> PairOptions {
    PairOptions::default().patience(Some(SHORT))
}

#[test]
fn a_peer_that_goes_is_not_noticed_until_something_is_sent() {
    for [a, b] in [[Host::here(), Host::here()], Host::two_in_memory()] {
        let (x, y) = (a.qp(), b.qp());
        meet([&a, &b], [&x, &y]);
        exchange([&a, &b], [&x, &y]);
        a.receive(&x, 11);
        drop(y);
        // The peer has gone when this side is no longer ready to send.
        until("the peer has gone", || x.state() == QpState::Connecting);
        a.cq.assert_empty();
        assert!(x.end_reason().is_none());
        for wr_id in [21, 22] {
            a.send(&x, wr_id);
        }
        a.gone(21);
        // The rest is flushed, also the receive.
        let mut flushed = [(); 2].map(|()| {
            let completion = a.cq.next();
            assert_eq!(completion.status, Status::WrFlush);
            completion.wr_id
        });
        flushed.sort_unstable();
        assert_eq!(flushed, [11, 22]);
        assert_eq!(x.state(), QpState::Error);
        let Some(EndReason::PeerGone { last: Some(last) }) = x.end_reason() else {
            panic!("{:?}", x.end_reason());
        };
        assert!(matches!(*last, EndReason::PeerDisconnect), "{last:?}");
    }
}

#[test]
fn a_qp_whose_peer_has_gone_can_be_reset_and_meets_another() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    exchange([&a, &b], [&x, &y]);
    drop(y);
    until("the peer has gone", || x.state() == QpState::Connecting);
    x.modify(&QpModify::new().ibv_state(IbvQpState::Reset))
        .unwrap();
    let z = b.qp();
    meet([&a, &b], [&x, &z]);
    exchange([&a, &b], [&x, &z]);
}

#[test]
fn a_send_fails_after_its_patience_if_nobody_listens() {
    let host = Host::here();
    let qp = host.qp();
    // The larger number is called. The rendezvous listens at another address.
    let peer = PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), qp.qp_num() + 1);
    qp.pair(peer, &impatient()).unwrap();
    host.receive(&qp, 1);
    host.send(&qp, 2);
    host.send(&qp, 3);
    host.gone(2);
    for _ in [1, 3] {
        assert_eq!(host.cq.next().status, Status::WrFlush);
    }
    let reason = qp.end_reason().unwrap().to_string();
    assert!(
        reason.contains("does not answer: ") && reason.contains("refused"),
        "{reason}"
    );
}

#[test]
fn a_send_fails_after_its_patience_if_the_peer_never_knows_this_number() {
    // The one side calls, the other is called.
    for side in [0, 1] {
        let hosts = in_order::<2>();
        let ((host, qp), (other, peer)) = (&hosts[side], &hosts[1 - side]);
        qp.pair(other.peer(peer), &impatient()).unwrap();
        host.send(qp, 1);
        host.gone(1);
        assert_eq!(qp.state(), QpState::Error);
        assert_eq!(peer.state(), QpState::Idle);
    }
}

#[test]
fn a_qp_that_was_given_another_peer_is_not_taken() {
    let [(a, x), (b, y), (c, z)] = in_order();
    // The first QP calls the second one, which has the third one for its peer.
    y.pair(c.peer(&z), &PairOptions::default()).unwrap();
    x.pair(b.peer(&y), &impatient()).unwrap();
    a.send(&x, 1);
    a.gone(1);
    z.pair(b.peer(&y), &PairOptions::default()).unwrap();
    exchange([&b, &c], [&y, &z]);
}

#[test]
fn a_peer_that_is_destroyed_while_it_is_called_is_a_peer_that_does_not_answer() {
    for side in [0, 1] {
        let mut hosts = in_order::<2>();
        if side == 1 {
            hosts.reverse();
        }
        let [(host, qp), (other, peer)] = hosts;
        qp.pair(other.peer(&peer), &impatient()).unwrap();
        drop(peer);
        host.cq.assert_empty();
        host.send(&qp, 1);
        host.gone(1);
    }
}

#[test]
fn a_device_rests_after_a_send_has_failed_and_after_an_abort() {
    let settings = Settings::default().progress(Progress::Manual);
    let network = Arc::<KernelNetwork>::default();
    let options = RendezvousOptions::default().addr(Some(LOOPBACK));
    let host = Host::with(network, LOOPBACK, options, settings);
    let nobody = |qp: &Qp| PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), qp.qp_num() + 1);
    let [failed, aborted] = [(); 2].map(|()| host.qp());
    for qp in [&failed, &aborted] {
        qp.pair(nobody(qp), &impatient()).unwrap();
        host.send(qp, 1);
    }
    aborted.abort();
    until("the send has failed", || {
        host.device.progress();
        failed.state() == QpState::Error
    });
    std::thread::sleep(2 * SHORT);
    // Nothing is due any more.
    until("the device rests", || host.device.progress().is_none());
}

#[test]
fn a_shared_receive_queue_keeps_its_receives_and_hears_of_the_last_one() {
    let [a, b] = [Host::here(), Host::here()];
    let srq = a.pd.create_srq(SrqAttr::default()).unwrap();
    let builder = a.pd.qp().rendezvous(&a.rendezvous).srq(&srq);
    let (x, y) = (builder.build(&a.cq, &a.cq).unwrap(), b.qp());
    meet([&a, &b], [&x, &y]);
    b.receive(&y, 1);
    a.send(&x, 2);
    b.done([1]);
    a.done([2]);
    drop(y);
    until("the peer has gone", || x.state() == QpState::Connecting);
    a.send(&x, 3);
    a.gone(3);
    until("the last receive is taken", || {
        let event = a.device.get_event(Some(Duration::ZERO));
        matches!(event.as_deref(), Some(AsyncEvent::LastWqeReached { qp_num }) if *qp_num == x.qp_num())
    });
}

#[test]
fn a_shared_receive_queue_hears_of_no_last_receive_at_a_reset() {
    let [a, b] = [Host::here(), Host::here()];
    let srq = a.pd.create_srq(SrqAttr::default()).unwrap();
    let builder = a.pd.qp().rendezvous(&a.rendezvous).srq(&srq);
    let (x, y, z) = (builder.build(&a.cq, &a.cq).unwrap(), b.qp(), b.qp());
    meet([&a, &b], [&x, &y]);
    a.send(&x, 1);
    let to = |state| x.modify(&QpModify::new().ibv_state(state)).unwrap();
    to(IbvQpState::Reset);
    let last_receives = || {
        let events = std::iter::from_fn(|| a.device.poll_event());
        let last = |event: &AsyncEvent| matches!(event, AsyncEvent::LastWqeReached { .. });
        events.filter(last).count()
    };
    assert_eq!(last_receives(), 0);
    // The error state is reported, also after a reset.
    meet([&a, &b], [&x, &z]);
    to(IbvQpState::Err);
    assert_eq!(last_receives(), 1);
}
