//! Unreliable QPs (`IBV_QPT_UC`): sends to a peer that is not there are dropped, and succeed.

use std::net::Ipv4Addr;
use std::time::Duration;

use uwarp_verbs::{
    Access, EndReason, MemoryRegion, PairOptions, PeerQp, PostErrorKind, Qp, QpCaps, QpState,
    SendWr, Settings, Status,
};

use crate::caller::{Caller, UNRELIABLE, await_caller};
use crate::common::until;
use crate::{Host, exchange, meet};

/// Maximum time that a send waits for a peer, in tests in which it waits that long.
const SHORT: Duration = Duration::from_millis(100);

fn unreliable(host: &Host) -> Qp {
    let builder = host.pd.qp().rendezvous(&host.rendezvous);
    let builder = builder.unreliable(true).placed_writes(true);
    builder.build(&host.cq, &host.cq).unwrap()
}

#[test]
fn two_unreliable_qps_meet_and_exchange_messages_but_no_reads() {
    for [a, b] in [[Host::here(), Host::here()], Host::two_in_memory()] {
        let (x, y) = (unreliable(&a), unreliable(&b));
        meet([&a, &b], [&x, &y]);
        exchange([&a, &b], [&x, &y]);
        let remote = b.region.remote().slice(512, 8).unwrap();
        x.post_send(&SendWr::write_inline(5, b"12345678", remote))
            .unwrap();
        a.done([5]);
        let sges = [a.region.sge(0, 8)];
        let refused = x.post_send(&SendWr::read(6, &sges, remote)).unwrap_err();
        assert_eq!(refused.kind, PostErrorKind::Unreliable);
        exchange([&a, &b], [&x, &y]);
        assert_eq!(x.query().ord, 0);
    }
}

#[test]
fn an_unreliable_qp_may_be_connected_to_itself() {
    let a = Host::here();
    let x = unreliable(&a);
    x.pair(a.peer(&x), &PairOptions::default()).unwrap();
    a.receive(&x, 1);
    a.send(&x, 2);
    a.done([1, 2]);
}

#[test]
fn sends_to_a_peer_that_has_gone_succeed() {
    for [a, b] in [[Host::here(), Host::here()], Host::two_in_memory()] {
        let (x, y) = (unreliable(&a), unreliable(&b));
        meet([&a, &b], [&x, &y]);
        exchange([&a, &b], [&x, &y]);
        a.receive(&x, 11);
        drop(y);
        // Some are taken by TCP, and some are dropped.
        for wr_id in 20..60 {
            a.send(&x, wr_id);
            a.done([wr_id]);
        }
        until("the peer has gone", || x.state() == QpState::Connecting);
        a.send(&x, 61);
        let remote = b.region.remote().slice(512, 8).unwrap();
        x.post_send(&SendWr::write_inline(62, b"12345678", remote))
            .unwrap();
        a.done([61, 62]);
        a.cq.assert_empty();
        assert!(x.end_reason().is_none());
    }
}

#[test]
fn sends_to_nobody_succeed_after_their_patience_and_then_at_once() {
    let a = Host::here();
    let x = unreliable(&a);
    let peer = PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), x.qp_num() + 1);
    x.pair(peer, &PairOptions::default().patience(Some(SHORT)))
        .unwrap();
    a.send(&x, 1);
    a.send(&x, 2);
    a.done([1, 2]);
    a.send(&x, 3);
    assert!(a.cq.poll_one().is_some_and(|done| done.wr_id == 3));
    assert_eq!(x.state(), QpState::Connecting);
}

#[test]
fn a_peer_that_comes_late_gets_what_is_sent_from_then_on() {
    // The one side calls, the other is called.
    for side in [0, 1] {
        let mut hosts = [Host::here(), Host::here()].map(|host| {
            let qp = unreliable(&host);
            (host, qp)
        });
        hosts.sort_by_key(|(_, qp)| qp.qp_num());
        if side == 1 {
            hosts.reverse();
        }
        let [(a, x), (b, y)] = hosts;
        let options = PairOptions::default().patience(Some(SHORT));
        x.pair(b.peer(&y), &options).unwrap();
        a.send(&x, 1);
        a.done([1]);
        y.pair(a.peer(&x), &options).unwrap();
        // The message that finds them connected arrives. Those before it are dropped.
        b.receive(&y, 2);
        until("they have met", || {
            a.send(&x, 3);
            a.done([3]);
            b.cq.poll_one().is_some_and(|done| done.wr_id == 2)
        });
        // What x has sent since may use these receives, so only y sends.
        a.receive(&x, 4);
        b.send(&y, 5);
        a.done([4]);
        b.done([5]);
    }
}

#[test]
fn a_local_error_in_a_dropped_send_ends_the_qp() {
    let a = Host::here();
    let builder = a.pd.qp().rendezvous(&a.rendezvous).unreliable(true);
    let builder = builder.late_faults(true).caps(QpCaps::default());
    let x = builder.build(&a.cq, &a.cq).unwrap();
    let peer = PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), x.qp_num() + 1);
    x.pair(peer, &PairOptions::default().patience(Some(SHORT)))
        .unwrap();
    a.send(&x, 1);
    let mut wrong = a.region.sge(0, 8);
    wrong.lkey ^= 0xFF;
    x.post_send(&SendWr::send(2, &[wrong])).unwrap();
    a.send(&x, 3);
    a.done([1]);
    let status = [(); 2].map(|()| {
        let completion = a.cq.next();
        (completion.wr_id, completion.status)
    });
    assert_eq!(status, [(2, Status::LocalProtection), (3, Status::WrFlush)]);
    assert_eq!(x.state(), QpState::Error);
}

/// An unreliable QP with a CQ for one completion.
fn with_a_short_cq(a: &Host) -> Qp {
    let short = a.device.create_cq(1).unwrap();
    let builder = a.pd.qp().rendezvous(&a.rendezvous).unreliable(true);
    builder.build(&short, &a.cq).unwrap()
}

/// Posts two sends of this region.
fn send_twice(x: &Qp, region: &MemoryRegion) {
    for wr_id in [1, 2] {
        let sges = [region.sge(0, region.len() as u32)];
        x.post_send(&SendWr::send(wr_id, &sges)).unwrap();
    }
}

/// Waits until the QP has ended because its short CQ has lost a completion.
fn ends_in_overflow(a: &Host, x: &Qp) {
    until("the QP ends", || x.state() == QpState::Error);
    let reason = x.end_reason();
    let lost = matches!(reason, Some(EndReason::CqOverflow { wr_id: 2, .. }));
    assert!(lost, "{reason:?}");
    until("its connection is gone", || {
        a.device.usage().connections == 0
    });
    until("the QP is reset", || x.reset());
}

#[test]
fn a_lost_completion_of_a_send_to_a_peer_that_goes_ends_the_qp() {
    /// More bytes than TCP takes if the peer does not read.
    const LARGE: usize = 32 << 20;
    let a = Host::here();
    let large = a.pd.register(vec![0; LARGE], Access::NONE).unwrap();
    let x = with_a_short_cq(&a);
    await_caller(&x);
    let caller = Caller::new(&x, UNRELIABLE);
    send_twice(&x, &large);
    until("the first send begins", || caller.peer.has_arrived());
    caller.peer.reset();
    ends_in_overflow(&a, &x);
}

#[test]
fn a_lost_completion_of_a_send_to_nobody_ends_the_qp() {
    let a = Host::here();
    let x = with_a_short_cq(&a);
    let nobody = PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), x.qp_num() + 1);
    x.pair(nobody, &PairOptions::default().patience(Some(SHORT)))
        .unwrap();
    send_twice(&x, &a.region);
    ends_in_overflow(&a, &x);
}

#[test]
fn a_reliable_and_an_unreliable_qp_do_not_meet() {
    for side in [0, 1] {
        let [a, b] = [Host::here(), Host::here()];
        let (x, y) = (unreliable(&a), b.qp());
        let options = PairOptions::default().patience(Some(SHORT));
        match side {
            0 => {
                x.pair(b.peer(&y), &options).unwrap();
                y.pair(a.peer(&x), &options).unwrap();
            }
            _ => {
                y.pair(a.peer(&x), &options).unwrap();
                x.pair(b.peer(&y), &options).unwrap();
            }
        }
        a.receive(&x, 1);
        b.send(&y, 2);
        b.gone(2);
        a.cq.assert_empty();
    }
}

#[test]
fn placed_writes_of_the_device_are_not_for_unreliable_qps() {
    let host = |_| {
        Host::with(
            std::sync::Arc::new(uwarp_verbs::llp::kernel::KernelNetwork::default()),
            crate::LOOPBACK,
            uwarp_verbs::RendezvousOptions::default().addr(Some(crate::LOOPBACK)),
            Settings::default().placed_writes(true),
        )
    };
    let [a, b] = [0, 1].map(host);
    let (x, y) = (unreliable(&a), unreliable(&b));
    meet([&a, &b], [&x, &y]);
    let remote = b.region.remote().slice(512, 8).unwrap();
    x.post_send(&SendWr::write_inline(1, b"12345678", remote))
        .unwrap();
    a.done([1]);
}
