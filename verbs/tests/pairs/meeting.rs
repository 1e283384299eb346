//! The meeting of two QPs: who calls, in which order the programs may do their steps, and what is
//! kept until then.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    ConnectError, ConnectOptions, EndReason, IbvQpState, PairError, PairOptions, PeerQp, Qp,
    QpModify, QpState, RendezvousOptions, SendWr, Status,
};

use crate::common::until;
use crate::{Host, LOOPBACK, exchange, in_order, meet};

#[test]
fn two_qps_meet_whichever_side_knows_its_peer_first() {
    for [a, b] in [[Host::here(), Host::here()], Host::two_in_memory()] {
        for a_first in [true, false] {
            let (x, y) = (a.qp(), b.qp());
            if a_first {
                meet([&a, &b], [&x, &y]);
            } else {
                meet([&b, &a], [&y, &x]);
            }
            exchange([&a, &b], [&x, &y]);
        }
    }
}

#[test]
fn two_qps_of_one_device_meet() {
    let host = Host::here();
    let (x, y) = (host.qp(), host.qp());
    meet([&host, &host], [&x, &y]);
    host.receive(&x, 1);
    host.receive(&y, 2);
    host.send(&x, 3);
    host.send(&y, 4);
    host.done([1, 2, 3, 4]);
}

#[test]
fn a_send_waits_until_the_peer_knows_its_number() {
    // Each side once waits for the other, whichever of them calls first.
    for late in [0, 1] {
        let hosts = [Host::here(), Host::here()];
        let qps = hosts.each_ref().map(Host::qp);
        let early = 1 - late;
        let pair = |side: usize| {
            let peer = hosts[1 - side].peer(&qps[1 - side]);
            qps[side].pair(peer, &PairOptions::default()).unwrap();
        };
        pair(early);
        hosts[early].send(&qps[early], 7);
        // The call reaches the other side, or is refused, before that side knows its peer.
        std::thread::sleep(Duration::from_millis(20));
        hosts[early].cq.assert_empty();
        hosts[late].receive(&qps[late], 8);
        pair(late);
        hosts[late].done([8]);
        hosts[early].done([7]);
    }
}

#[test]
fn a_qp_is_connected_to_itself() {
    let host = Host::here();
    let qp = host.qp();
    qp.pair(host.peer(&qp), &PairOptions::default()).unwrap();
    host.receive(&qp, 1);
    host.send(&qp, 2);
    host.done([1, 2]);
    host.region.write_at(0, b"to be written").unwrap();
    let sges = [host.region.sge(0, 13)];
    qp.post_send(&SendWr::write(
        3,
        &sges,
        host.region.remote().slice(100, 13).unwrap(),
    ))
    .unwrap();
    let sges = [host.region.sge(200, 13)];
    qp.post_send(&SendWr::read(
        4,
        &sges,
        host.region.remote().slice(100, 13).unwrap(),
    ))
    .unwrap();
    host.done([3, 4]);
    let mut found = [0; 13];
    host.region.read_at(200, &mut found).unwrap();
    assert_eq!(&found, b"to be written");
}

#[test]
fn the_side_that_is_to_be_called_calls_in_reverse_if_it_is_not_reached() {
    let [(a, x), (b, y)] = in_order();
    // Nobody listens at this address, so the calls of the side that calls first are refused.
    let unreached = PeerQp::new(Ipv4Addr::new(127, 0, 0, 9).into(), y.qp_num());
    x.pair(unreached, &PairOptions::default()).unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    exchange([&a, &b], [&x, &y]);
}

/// Two hosts on an in-memory link with QPs of the same number. By IPv4 addresses the first host
/// calls first, by IPv6 addresses the second one.
fn of_equal_numbers() -> ([Host; 2], [Qp; 2], [[IpAddr; 2]; 2]) {
    let addrs = [["192.0.2.1", "2001:db8::2"], ["192.0.2.2", "2001:db8::1"]];
    let addrs = addrs.map(|own| own.map(|addr| addr.parse().unwrap()));
    let settings = MemorySettings::default().addresses(addrs.map(Vec::from));
    let (a, b) = MemoryNetwork::pair(&settings).unwrap();
    let options = RendezvousOptions::default().ports(Some(5000..=5000));
    let host = |network: MemoryNetwork| {
        let options = options.clone().any_source(true);
        Host::new(Arc::new(network), LOOPBACK, options)
    };
    let (a, b) = (host(a), host(b));
    let x = a.qp();
    let mut numbers = (0..1024).map(|_| b.qp());
    let y = numbers.find(|y| y.qp_num() == x.qp_num()).unwrap();
    ([a, b], [x, y], addrs)
}

#[test]
fn qps_of_one_number_meet_although_each_side_compares_other_addresses() {
    // Families by which the first host knows the second one, and the other way round: the sides
    // agree, both call first, or neither does.
    for (of_second, of_first) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        for _ in 0..3 {
            let ([a, b], [x, y], addrs) = of_equal_numbers();
            let peer = |addr, qp: &Qp| PeerQp::new(addr, qp.qp_num());
            let options = PairOptions::default();
            x.pair(peer(addrs[1][of_second], &y), &options).unwrap();
            y.pair(peer(addrs[0][of_first], &x), &options).unwrap();
            exchange([&a, &b], [&x, &y]);
        }
    }
}

#[test]
fn both_sides_may_be_reset_and_meet_again() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    for _ in 0..5 {
        meet([&a, &b], [&x, &y]);
        exchange([&a, &b], [&x, &y]);
        for qp in [&x, &y] {
            qp.modify(&QpModify::new().ibv_state(IbvQpState::Reset))
                .unwrap();
            assert_eq!(qp.state(), QpState::Idle);
        }
    }
}

#[test]
fn a_reset_that_discards_completions_leaves_none() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    for discards in [true, false] {
        meet([&a, &b], [&x, &y]);
        exchange([&a, &b], [&x, &y]);
        // One is complete and not polled, and three are outstanding.
        for wr_id in [1, 3, 4, 5] {
            a.receive(&x, wr_id);
        }
        let received = || a.device.traffic().received_bytes;
        let before = received();
        b.send(&y, 2);
        b.done([2]);
        until("the message", || received() > before);
        if discards {
            x.modify(&reset.discard_completions()).unwrap();
            a.cq.assert_empty();
        } else {
            x.modify(&reset).unwrap();
            let left = [1, 3, 4, 5].map(|_| a.cq.next().wr_id);
            assert_eq!(left, [1, 3, 4, 5]);
        }
        assert_eq!(x.state(), QpState::Idle);
        y.modify(&reset.discard_completions()).unwrap();
    }
}

#[test]
fn a_qp_that_was_reset_meets_another_peer() {
    let [a, b, c] = [Host::here(), Host::here(), Host::here()];
    let (x, y, z) = (a.qp(), b.qp(), c.qp());
    meet([&a, &b], [&x, &y]);
    exchange([&a, &b], [&x, &y]);
    // The third QP calls while the first one still has its old peer, or waits for its call.
    z.pair(a.peer(&x), &PairOptions::default()).unwrap();
    c.send(&z, 9);
    x.modify(&QpModify::new().ibv_state(IbvQpState::Reset))
        .unwrap();
    a.receive(&x, 1);
    x.pair(c.peer(&z), &PairOptions::default()).unwrap();
    a.done([1]);
    c.done([9]);
}

#[test]
fn many_pairs_meet_at_once_from_both_sides() {
    const PAIRS: usize = 300;
    let [a, b] = [Host::here(), Host::here()];
    let pairs: Vec<_> = (0..PAIRS).map(|_| (a.qp(), b.qp())).collect();
    std::thread::scope(|scope| {
        let (pairs, a, b) = (&pairs, &a, &b);
        scope.spawn(move || {
            for (wr_id, (x, y)) in (0..).zip(pairs) {
                a.receive(x, wr_id);
                x.pair(b.peer(y), &PairOptions::default()).unwrap();
                a.send(x, wr_id);
            }
        });
        for (wr_id, (x, y)) in (0..).zip(pairs.iter().rev()) {
            b.receive(y, wr_id);
            y.pair(a.peer(x), &PairOptions::default()).unwrap();
            b.send(y, wr_id);
        }
    });
    for host in [&a, &b] {
        for _ in 0..2 * PAIRS {
            let completion = host.cq.next();
            assert_eq!(completion.status, Status::Success, "{completion:?}");
        }
        host.cq.assert_empty();
    }
}

#[test]
fn a_qp_in_use_or_without_a_rendezvous_gets_no_peer() {
    let host = Host::here();
    let (x, y) = (host.qp(), host.qp());
    let options = PairOptions::default();
    x.pair(host.peer(&y), &options).unwrap();
    let again = x.pair(host.peer(&y), &options);
    let used = QpState::Connecting;
    assert!(
        matches!(again, Err(PairError::QpInUse { state }) if state == used),
        "{again:?}"
    );
    let at = host.device.listen((LOOPBACK, 0).into()).unwrap();
    let connected = x.connect(at.local_addr(), &ConnectOptions::default());
    assert!(
        matches!(connected, Err(ConnectError::QpInUse { state }) if state == used),
        "{connected:?}"
    );
    let plain = host.pd.qp().build(&host.cq, &host.cq).unwrap();
    let refused = plain.pair(PeerQp::new(LOOPBACK, y.qp_num()), &options);
    assert!(
        matches!(refused, Err(PairError::NoRendezvous)),
        "{refused:?}"
    );
    assert_eq!(plain.state(), QpState::Idle);
}

#[test]
fn a_qp_that_meets_its_peer_can_be_aborted_and_destroyed() {
    let host = Host::here();
    let (x, y) = (host.qp(), host.qp());
    x.pair(host.peer(&y), &PairOptions::default()).unwrap();
    host.receive(&x, 1);
    host.send(&x, 2);
    x.abort();
    for _ in 0..2 {
        assert_eq!(host.cq.next().status, Status::WrFlush);
    }
    until("the QP ends", || x.state() == QpState::Error);
    let reason = x.end_reason();
    assert!(matches!(reason, Some(EndReason::Aborted)), "{reason:?}");
    drop(x);
    let x = host.qp();
    x.pair(host.peer(&y), &PairOptions::default()).unwrap();
    drop(x);
}
