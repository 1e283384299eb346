//! Section 6.4.1: connections that never complete their startup, and honest peers that arrive
//! meanwhile.

use std::net::SocketAddr;

use uwarp_verbs::{CmEventKind, ConnectRequest, EventChannel, StartupError};

use crate::limits::{ATTACKER, OTHER, goes_on, opens, with};
use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::Victim;
use crate::victim::loopback;
use crate::wire::{CRC, REJECT, REPLY, REQUEST, startup};

/// Silent connections up to the limit of one address wait for their timeout. Each further
/// connection is reset at once.
#[test]
fn s6_4_1_more_half_open_connections_than_one_address_may_have() {
    let mut victim = Victim::new(with(|limits| limits.per_peer.max_half_open = 3));
    let to = victim.listener.local_addr();
    let silent = [(); 3].map(|()| Peer::connect_from(ATTACKER, to));
    for _ in 0..5 {
        let mut refused = Peer::connect_from(ATTACKER, to);
        let who = refused.addr();
        let failure = eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
        assert_eq!(failure.0, who);
        let words = failure.1.to_string();
        assert!(
            words.contains("too many connections in startup (3 of this peer)"),
            "{words}"
        );
        refused.expect_reset();
    }
    // Other addresses are served.
    let mut honest = opens(&victim, OTHER, None);
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    assert_eq!(request.peer_addr(), honest.addr());
    drop(request);
    assert_eq!(
        honest.receive_startup(),
        startup(REPLY, CRC | REJECT, 1, b"")
    );
    honest.expect_fin();
    victim.healthy.works();
    // When the silent connections are gone, there is room again.
    drop(silent);
    eventually("a place for another one", || {
        let mut next = Peer::connect_from(ATTACKER, to);
        if !next.offers(&startup(REQUEST, CRC, 1, b"")) {
            return None;
        }
        eventually("a request, or a failure", || {
            let request = victim.listener.poll_request().map(Some);
            request.or_else(|| victim.listener.poll_failure().map(|_| None))
        })
    });
    while victim.listener.poll_failure().is_some() {}
    goes_on(victim);
}

/// Connects a peer whose Request waits for the program's decision. Returns the peer and the
/// Request.
fn asks(victim: &Victim, host: u8) -> (Peer, ConnectRequest) {
    let peer = opens(victim, [127, 0, 0, host], None);
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    assert_eq!(request.peer_addr(), peer.addr());
    (peer, request)
}

/// Checks that the listener reports a connection that was displaced by a newer one.
fn told_of_displaced(victim: &Victim, who: SocketAddr, limit: u32, of_listener: bool) {
    let failure = eventually("a failure at the listener", || {
        victim.listener.poll_failure()
    });
    assert_eq!(
        failure,
        (who, StartupError::Displaced { limit, of_listener })
    );
}

/// An attacker sends complete Requests from many addresses. The limit of the device still holds.
#[test]
fn s6_4_1_more_half_open_connections_than_the_device_may_have() {
    let victim = Victim::new(with(|limits| limits.max_half_open = 4));
    let asked: Vec<_> = (2..6).map(|host| asks(&victim, host)).collect();
    let mut refused = Peer::connect_from([127, 0, 0, 9], victim.listener.local_addr());
    let (_, error) = eventually("a failure at the listener", || {
        victim.listener.poll_failure()
    });
    let said = error.to_string();
    assert!(
        said.contains("too many connections in startup (4 of all peers)"),
        "{said}"
    );
    refused.expect_reset();
    drop(asked);
    goes_on(victim);
}

/// An attacker with many addresses sends nothing. The oldest of its connections makes room for an
/// honest peer.
#[test]
fn s6_4_1_silent_connections_of_many_addresses_fill_the_device() {
    let victim = Victim::new(with(|limits| limits.max_half_open = 4));
    let to = victim.listener.local_addr();
    let mut silent: Vec<Peer> = (2..6)
        .map(|host| Peer::connect_from([127, 0, 0, host], to))
        .collect();
    let mut displaced = Vec::new();
    // While the silent connections are young, newcomers are refused.
    let (_honest, request) = eventually("an honest peer is heard", || {
        let mut honest = Peer::connect_from([127, 0, 0, 9], to);
        honest.offers(&startup(REQUEST, CRC, 1, b""));
        eventually("a request, or a refusal", || {
            if let Some(request) = victim.listener.poll_request() {
                return Some(Some(request));
            }
            match victim.listener.poll_failure()? {
                (_, StartupError::NoPlace { of_peer: false, .. }) => Some(None),
                failure => {
                    displaced.push(failure);
                    None
                }
            }
        })
        .map(|request| (honest, request))
    });
    displaced.extend(std::iter::from_fn(|| victim.listener.poll_failure()));
    let failure = StartupError::Displaced {
        limit: 4,
        of_listener: false,
    };
    assert_eq!(displaced, [(silent[0].addr(), failure)]);
    assert_eq!(victim.device.displaced_startups(), 1);
    silent[0].expect_reset();
    drop((silent, request));
    for _ in 0..3 {
        eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
    }
    goes_on(victim);
}

/// Silent peers take all places of a listener. Each honest peer gets the place of the oldest silent
/// peer.
#[test]
fn s6_4_1_silent_connections_of_many_addresses_fill_a_listener() {
    let victim = Victim::new(with(|limits| limits.max_startup = 8));
    let to = victim.listener.local_addr();
    let silent: Vec<Peer> = (2..10)
        .map(|host| Peer::connect_from([127, 0, 0, host], to))
        .collect();
    let mut asked = Vec::new();
    for mut oldest in silent {
        asked.push(asks(&victim, 20));
        told_of_displaced(&victim, oldest.addr(), 8, true);
        oldest.expect_reset();
    }
    assert_eq!(victim.device.displaced_startups(), 8);
    drop(asked);
    goes_on(victim);
}

/// A peer that has sent its Request keeps its place until the program decides, however many others
/// connect.
#[test]
fn s6_4_1_requests_that_wait_are_never_displaced() {
    let victim = Victim::new(with(|limits| limits.max_startup = 3));
    let to = victim.listener.local_addr();
    let (mut first, request) = asks(&victim, 2);
    let (_second, _held) = asks(&victim, 3);
    // Silent peers displace each other from the third and last place.
    let mut silent = Peer::connect_from(ATTACKER, to);
    for _ in 0..3 {
        let next = Peer::connect_from(ATTACKER, to);
        told_of_displaced(&victim, silent.addr(), 3, true);
        silent.expect_reset();
        silent = next;
    }
    let (_third, _also_held) = asks(&victim, 4);
    told_of_displaced(&victim, silent.addr(), 3, true);
    // Now no connection can be displaced. The fourth Request waits until the program decides on an
    // earlier one.
    let fourth = opens(&victim, OTHER, None);
    request.reject(b"").unwrap();
    let reject = startup(REPLY, CRC | REJECT, 1, b"");
    assert_eq!(first.receive_startup(), reject);
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    assert_eq!(request.peer_addr(), fourth.addr());
    assert_eq!(victim.device.displaced_startups(), 4);
    assert!(victim.listener.poll_failure().is_none());
    drop((request, _held, _also_held));
    goes_on(victim);
}

/// The backlog counts Requests only, so silent peers do not use it up.
#[test]
fn s6_4_1_silent_connections_and_a_small_backlog() {
    let victim = Victim::new(with(|limits| limits.per_peer.max_half_open = 4));
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(&victim.device, 0);
    id.bind_addr(loopback()).unwrap();
    id.listen(1).unwrap();
    let to = id.local_addr().unwrap();
    let silent = [(); 4].map(|()| Peer::connect_from(ATTACKER, to));
    let mut refused = Peer::connect_from(ATTACKER, to);
    refused.expect_reset();
    let asks = || {
        let mut peer = Peer::connect_from(OTHER, to);
        peer.send_startup(REQUEST, CRC, 1, b"");
        peer
    };
    let next = || {
        let event = channel.get_event(Some(PATIENCE)).unwrap();
        assert_eq!(event.kind(), CmEventKind::ConnectRequest);
        event
    };
    let mut first = asks();
    let event = next();
    // One pending Request fills the backlog. The next one is delivered after a decision.
    let second = asks();
    assert!(channel.try_get_event().is_none());
    drop(event);
    let reject = startup(REPLY, CRC | REJECT, 1, b"");
    assert_eq!(first.receive_startup(), reject);
    let event = next();
    assert_eq!(event.id().peer_addr().unwrap(), second.addr());
    assert_eq!(victim.device.displaced_startups(), 0);
    drop((event, silent));
    drop((id, channel));
    goes_on(victim);
}

/// The attacker keeps the TCP connections of failed startups open. Such a connection keeps its
/// place until it is closed.
#[test]
fn s6_4_1_failed_startups_that_the_peer_does_not_close() {
    let victim = Victim::new(with(|limits| limits.per_peer.max_half_open = 3));
    let to = victim.listener.local_addr();
    let mut failed = [(); 3].map(|()| Peer::connect_from(ATTACKER, to));
    for peer in &mut failed {
        peer.send(b"GET / HTTP/1.1\r\nHost: uwarp\r\n\r\n");
        peer.expect_fin();
        let (_, error) = eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
        assert!(error.to_string().contains("GET / HTTP/1.1"), "{error}");
    }
    let mut refused = Peer::connect_from(ATTACKER, to);
    let (_, error) = eventually("a failure at the listener", || {
        victim.listener.poll_failure()
    });
    assert!(error.to_string().contains("3 of this peer"), "{error}");
    refused.expect_reset();
    drop(failed);
    goes_on(victim);
}
