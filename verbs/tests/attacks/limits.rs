//! Sections 6.4.1, 6.4.2 and 6.4.3.3: attackers that take too large a share of the device's
//! resources.

use std::time::Duration;

use uwarp_verbs::{
    AcceptError, AcceptOptions, Access, Cause, DeviceError, Limits, ModifySrqError, PdLimits,
    PeerLimits, Qp, QpCaps, RegisterError, Settings, SrqAttr, SrqModify, StartupError,
};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{Role, Scene, Sees, Setup, Victim, settings};
use crate::victim::PATIENT;
use crate::wire::{CRC, Code, ENHANCED, REJECT, REPLY, REQUEST, Untagged, startup, words};

/// Address of the attacker. The honest connection comes from 127.0.0.1.
pub(crate) const ATTACKER: [u8; 4] = [127, 0, 0, 2];
/// Address of another honest peer.
pub(crate) const OTHER: [u8; 4] = [127, 0, 0, 3];

pub(crate) fn with(change: impl FnOnce(&mut Limits)) -> Settings {
    let mut settings = settings();
    settings.limits.max_startup = 64;
    change(&mut settings.limits);
    settings
}

/// Connects a peer from this address. `ird_ord`: IRD and ORD of an enhanced Request, if it is one.
pub(crate) fn opens(victim: &Victim, from: [u8; 4], ird_ord: Option<[u8; 4]>) -> Peer {
    let mut peer = Peer::connect_from(from, victim.listener.local_addr());
    match ird_ord {
        None => peer.send_startup(REQUEST, CRC, 1, b""),
        Some(words) => peer.send_startup(REQUEST, CRC | ENHANCED, 2, &words),
    }
    peer
}

/// Accepts the next Request with a new QP.
pub(crate) fn accepts(victim: &Victim) -> Result<Qp, AcceptError> {
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    let cq = &victim.recv_cq;
    let qp = victim.pd.create_qp(cq, cq, QpCaps::default()).unwrap();
    request.accept(&qp, &AcceptOptions::default()).map(|()| qp)
}

/// Called after all objects of the attacker are gone. Checks that the healthy connection works and
/// that nothing is left over.
pub(crate) fn goes_on(mut victim: Victim) {
    victim.healthy.works();
    victim.check_unharmed();
    victim.leaves_nothing();
}

#[test]
fn s6_4_1_more_connections_than_one_address_may_have() {
    let victim = Victim::new(with(|limits| {
        limits.max_qp = 8;
        limits.per_peer.max_qp = 2;
    }));
    let join = |from| {
        let mut peer = opens(&victim, from, None);
        let qp = accepts(&victim).unwrap();
        assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
        (peer, qp)
    };
    let (first, second) = (join(ATTACKER), join(ATTACKER));
    let reject = startup(REPLY, CRC | REJECT, 1, b"");
    // The program gets no Request, and the listener reports a failure.
    for _ in 0..3 {
        let mut third = opens(&victim, ATTACKER, None);
        assert_eq!(third.receive_startup(), reject);
        third.expect_fin();
        let (who, error) = eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
        assert_eq!(who, third.addr());
        let expected = StartupError::TooManyConnections {
            limit: 2,
            of_peer: true,
        };
        assert_eq!(error, expected);
        let said = Cause::from(error).to_string();
        assert!(
            said.contains("the peer already has 2 connections"),
            "{said}"
        );
        let hint = Cause::from(error).hint().unwrap();
        assert!(hint.contains("limits.per_peer.max_qp"), "{hint}");
        assert!(victim.listener.poll_request().is_none());
    }
    let other = join(OTHER);
    // A connection that has ended makes room for another.
    first.0.fin();
    assert!(first.1.wait_closed(PATIENCE));
    eventually("a place for another one", || {
        let mut next = opens(&victim, ATTACKER, None);
        eventually("a request, or a failure", || {
            let request = victim.listener.poll_request().map(|_| Some(()));
            request.or_else(|| victim.listener.poll_failure().map(|_| None))
        })
        .inspect(|()| assert_eq!(next.receive_startup(), reject))
    });
    drop((first, second, other));
    victim.reasons();
    goes_on(victim);
}

/// Two Requests arrive before one of them is accepted. The second accept fails with a reason.
#[test]
fn s6_4_1_requests_at_once_beyond_the_connections_of_one_address() {
    let victim = Victim::new(with(|limits| {
        limits.max_qp = 8;
        limits.per_peer.max_qp = 1;
    }));
    // The Requests may arrive in another order than the peers connected.
    let (mut first, mut second) = (
        opens(&victim, ATTACKER, None),
        opens(&victim, ATTACKER, None),
    );
    let requests = [(); 2].map(|()| victim.listener.wait_request(Some(PATIENCE)).unwrap());
    let cq = &victim.recv_cq;
    let qp = || victim.pd.create_qp(cq, cq, QpCaps::default()).unwrap();
    let (ours, refused) = (qp(), qp());
    let [one, other] = requests;
    if one.peer_addr() != first.addr() {
        std::mem::swap(&mut first, &mut second);
    }
    one.accept(&ours, &AcceptOptions::default()).unwrap();
    let error = other
        .accept(&refused, &AcceptOptions::default())
        .unwrap_err();
    let AcceptError::Limit(limit) = &error else {
        panic!("{error}")
    };
    assert_eq!((limit.peer(), limit.limit()), (Some(ATTACKER.into()), 1));
    let words = "the peer 127.0.0.2 already has 1 connections";
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(first.receive_startup(), startup(REPLY, CRC, 1, b""));
    let reject = startup(REPLY, CRC | REJECT, 1, b"");
    assert_eq!(second.receive_startup(), reject);
    second.expect_fin();
    drop((first, second, ours, refused));
    victim.reasons();
    goes_on(victim);
}

/// One domain creates as many QPs and regions as it can. Another domain has its own limit.
#[test]
fn s6_4_1_more_objects_than_one_protection_domain_may_have() {
    let victim = Victim::new(with(|limits| {
        limits.max_qp = 10;
        limits.max_mr = 20;
        limits.per_pd = PdLimits::default()
            .max_qp(4)
            .max_mr(8)
            .max_srq(2)
            .max_recv_wr(500);
    }));
    let (greedy, cq) = (victim.device.alloc_pd().unwrap(), &victim.recv_cq);
    let caps = QpCaps::default().max_recv_wr(100);
    let qps: Vec<Qp> = (0..4)
        .map(|_| greedy.create_qp(cq, cq, caps).unwrap())
        .collect();
    let error = greedy.create_qp(cq, cq, caps).unwrap_err();
    assert!(
        matches!(error, DeviceError::PdLimit { limit: 4, .. }),
        "{error}"
    );
    let regions: Vec<_> = (0..8)
        .map(|_| greedy.register(vec![0; 8], Access::NONE).unwrap())
        .collect();
    let error = greedy.register(vec![0; 8], Access::NONE).unwrap_err();
    assert_eq!(error, RegisterError::TooManyInPd { limit: 8 });
    let srq = |max_wr| greedy.create_srq(SrqAttr::default().max_wr(max_wr));
    let error = srq(101).unwrap_err();
    let expected = matches!(
        error,
        DeviceError::PdReceives {
            asked: 101,
            limit: 500
        }
    );
    assert!(expected, "{error}");
    let srqs = [srq(50).unwrap(), srq(49).unwrap()];
    let error = srq(1).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("already has 2 SRQs"), "{said}");
    let more = |max_wr| SrqModify::default().max_wr(Some(max_wr));
    let error = srqs[1].modify(more(51)).unwrap_err();
    let expected = ModifySrqError::PdReceives {
        max_wr: 51,
        limit: 500,
    };
    assert_eq!((error, srqs[1].query().max_wr), (expected, 49));
    srqs[1].modify(more(50)).unwrap();
    let other = victim.device.alloc_pd().unwrap();
    let whole = SrqAttr::default().max_wr(500 - caps.max_recv_wr);
    let _its = other.create_srq(whole).unwrap();
    drop(other.create_qp(cq, cq, caps).unwrap());
    drop(other.register(vec![0; 8], Access::NONE).unwrap());
    // Released objects can be created again, and a QP with an SRQ has no receives of its own.
    drop(srqs);
    let all = srq(100).unwrap();
    drop(qps);
    drop(greedy.qp().srq(&all).build(cq, cq).unwrap());
    all.modify(more(500)).unwrap();
    greedy.create_qp(cq, cq, caps).unwrap_err();
    greedy.qp().srq(&all).build(cq, cq).unwrap();
    drop(regions);
    // The limits of the device itself are reported separately.
    let mut victim = victim;
    victim.check_unharmed();
}

/// The error of a limit of the whole device names the limit. Existing objects keep working.
#[test]
fn s6_4_1_more_objects_than_the_device_may_have() {
    let mut victim = Victim::new(settings());
    let cq = &victim.recv_cq;
    let error = victim.pd.create_qp(cq, cq, QpCaps::default()).unwrap_err();
    assert!(error.to_string().contains("already has 3 QPs"), "{error}");
    let error = victim.pd.register(vec![0; 8], Access::NONE).unwrap_err();
    assert_eq!(error, RegisterError::TooMany { limit: 8 });
    victim.check_unharmed();
}

/// Peers connect and then do nothing. At whichever step they stop, the connection ends by itself.
#[test]
fn s6_4_2_connections_that_do_nothing() {
    // The honest connection must be set up and used within this time as well.
    let soon = Duration::from_secs(1);
    let victim = Victim::new(
        with(|limits| limits.max_qp = 4)
            .timeouts(PATIENT.request(soon).first_fpdu(Some(soon)).close(soon)),
    );
    let mut silent = Peer::connect_from(ATTACKER, victim.listener.local_addr());
    silent.expect_fin();
    let (_, error) = eventually("a failure at the listener", || {
        victim.listener.poll_failure()
    });
    assert!(error.to_string().contains("sent nothing more"), "{error}");
    let mut idle = opens(&victim, ATTACKER, None);
    let qp = accepts(&victim).unwrap();
    idle.receive_startup();
    idle.expect_fin();
    assert!(qp.wait_closed(PATIENCE));
    let reason = qp.end_reason().unwrap().to_string();
    assert!(reason.contains("sent no first message"), "{reason}");
    drop((silent, idle, qp));
    victim.reasons();
    goes_on(victim);
}

/// Peers ask for the largest IRD and use none of it. The share of one address is limited
/// (5040-8.1.1-09), and the rest is available to others.
#[test]
fn s6_4_2_idle_connections_that_ask_for_many_reads() {
    // The honest connection, with both ends on 127.0.0.1, uses 32 of the total.
    let victim = Victim::new(with(|limits| {
        limits.max_qp = 10;
        limits.max_ird = 16;
        limits.max_ird_total = 32 + 40 + 12;
        limits.per_peer.max_ird_total = 40;
    }));
    let mut held = Vec::new();
    for (from, asked, granted) in [
        (ATTACKER, 100, 16),
        (ATTACKER, 100, 16),
        (ATTACKER, 100, 8),
        (ATTACKER, 100, 0),
        (OTHER, 4, 12),
        (OTHER, 4, 0),
    ] {
        let mut peer = opens(&victim, from, Some(words(0, asked)));
        let qp = accepts(&victim).unwrap();
        let reply = startup(REPLY, CRC | ENHANCED, 2, &words(granted, 0));
        assert_eq!(peer.receive_startup(), reply, "{asked} of {from:?}");
        assert_eq!(qp.connection().unwrap().ird, granted);
        held.push((peer, qp));
    }
    for (peer, qp) in held {
        peer.fin();
        assert!(qp.wait_closed(PATIENCE));
    }
    // The attacker's share of the IRD was released.
    let mut peer = opens(&victim, OTHER, Some(words(0, 100)));
    let qp = accepts(&victim).unwrap();
    let reply = startup(REPLY, CRC | ENHANCED, 2, &words(16, 0));
    assert_eq!(peer.receive_startup(), reply);
    drop(qp);
    drop(peer);
    goes_on(victim);
}

/// The peer sends one Read more than the IRD allows. The attacker's stream ends, and no other
/// stream is affected.
#[test]
fn s6_4_3_3_more_reads_than_the_ird() {
    for ird in [0, 2, 4] {
        let mut s = Scene::with(&Setup {
            ird,
            ..Setup::new(Role::Responder)
        });
        let requests: Vec<_> = (1..=u32::from(ird) + 1)
            .map(|msn| {
                Untagged {
                    msn,
                    ..s.read_request(s.read())
                }
                .bytes()
            })
            .collect();
        s.peer.send_ulpdus(&requests);
        let last = requests.last().unwrap();
        let due = Code::ddp(2, 0x02).about(last);
        s.ends(Sees::Terminate(due), "may be outstanding (IRD)");
    }
}

/// With default limits, a peer that reaches its own limits does not affect another peer.
#[test]
fn s6_4_1_defaults_leave_room_for_others() {
    let limits = Limits::default();
    let PeerLimits {
        max_qp,
        max_half_open,
        max_ird_total,
        max_receive_memory,
        max_send_memory,
        ..
    } = limits.per_peer;
    assert!(max_qp <= limits.max_qp / 16);
    assert!(max_half_open <= limits.max_startup / 2 && max_half_open <= limits.max_half_open / 16);
    assert!(max_ird_total <= limits.max_ird_total / 16);
    assert!(max_receive_memory <= limits.max_receive_memory / 16);
    assert!(max_send_memory <= limits.max_send_memory / 16);
    // The defaults do not restrict one honest user: 10,000 connections with the largest IRD.
    assert!(max_qp >= 10_000 && max_ird_total >= 10_000 * u32::from(limits.max_ird));
}
