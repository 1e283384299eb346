use std::net::SocketAddrV6;

use super::*;
use crate::settings::{PdLimits, PeerLimits};

fn accounts() -> Arc<Accounts> {
    Accounts::new(&Limits {
        max_half_open: 5,
        max_ird_total: 100,
        per_peer: PeerLimits {
            max_half_open: 3,
            max_ird_total: 40,
            ..PeerLimits::default()
        },
        ..Limits::default()
    })
}

fn peer(accounts: &Arc<Accounts>, ip: &str) -> Arc<PeerAccount> {
    accounts.peer(SocketAddr::new(ip.parse().unwrap(), 4711))
}

#[test]
fn a_peer_at_its_limit_leaves_the_rest_to_others() {
    let accounts = accounts();
    let (greedy, other) = (peer(&accounts, "192.0.2.1"), peer(&accounts, "192.0.2.2"));
    let mut held: Vec<Charge> = (0..3)
        .map(|_| greedy.take(What::HalfOpen, 1).unwrap())
        .collect();
    let refused = greedy.take(What::HalfOpen, 1).unwrap_err();
    assert_eq!(refused.peer(), Some("192.0.2.1".parse().unwrap()));
    assert_eq!(
        refused.to_string(),
        "the peer 192.0.2.1 already has 3 connections in startup, the limit; wait until some are accepted or gone, or raise it in the settings (limits.per_peer.max_half_open)"
    );
    held.extend((0..2).map(|_| other.take(What::HalfOpen, 1).unwrap()));
    let refused = other.take(What::HalfOpen, 1).unwrap_err();
    assert_eq!((refused.peer(), refused.limit()), (None, 5));
    assert_eq!(
        refused.to_string(),
        "all peers together already have 5 connections in startup, the limit; wait until some are accepted or gone, or raise it in the settings (limits.max_half_open)"
    );
    // The refused amount does not stay charged to the device.
    held.remove(0);
    other.take(What::HalfOpen, 1).unwrap();
}

#[test]
fn what_can_be_less_is_granted_as_far_as_it_goes() {
    let accounts = accounts();
    let one = peer(&accounts, "192.0.2.1");
    let mut first = one.take_up_to(What::Ird, 30);
    let second = one.take_up_to(What::Ird, 30);
    let third = one.take_up_to(What::Ird, 30);
    assert_eq!(
        [first.amount(), second.amount(), third.amount()],
        [30, 10, 0]
    );
    first.shrink_to(4);
    assert_eq!(one.take_up_to(What::Ird, 30).amount(), 26);
    drop((first, second, third));
    let all: Vec<Charge> = ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
        .map(|ip| peer(&accounts, ip).take_up_to(What::Ird, 1000))
        .into();
    let granted: Vec<u64> = all.iter().map(Charge::amount).collect();
    assert_eq!(granted, [40, 40, 20], "the device has 100 in all");
}

#[test]
fn everything_comes_back_and_a_peer_without_charges_is_forgotten() {
    let accounts = accounts();
    for round in 0..1000_u32 {
        let addr = SocketAddr::from((std::net::Ipv4Addr::from(round), 1));
        let peer = accounts.peer(addr);
        let _charges = [
            peer.take(What::HalfOpen, 3).unwrap(),
            peer.take_up_to(What::Ird, 100),
            peer.take_in_any_case(What::ReceiveMemory, 1 << 40),
        ];
        assert_eq!(accounts.peers.lock().len(), 1);
    }
    assert!(accounts.peers.lock().is_empty());
    for what in [
        What::HalfOpen,
        What::Connections,
        What::Ird,
        What::ReceiveMemory,
        What::SendMemory,
    ] {
        assert_eq!(accounts.device.used(what), 0);
    }
}

#[test]
fn a_charge_keeps_the_account_of_its_peer() {
    let accounts = accounts();
    let charge = peer(&accounts, "192.0.2.1")
        .take(What::HalfOpen, 3)
        .unwrap();
    assert!(
        peer(&accounts, "192.0.2.1")
            .take(What::HalfOpen, 1)
            .is_err()
    );
    drop(charge);
    assert!(peer(&accounts, "192.0.2.1").take(What::HalfOpen, 1).is_ok());
}

#[test]
fn a_host_is_one_peer_whatever_addresses_it_takes() {
    let key = |ip: &str| PeerKey::of(SocketAddr::new(ip.parse().unwrap(), 1));
    let same = |a: &str, b: &str| key(a) == key(b);
    assert!(same("2001:db8::1", "2001:db8::ffff:1234:5678:9abc"));
    assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(same("192.0.2.1", "::ffff:192.0.2.1"));
    assert!(!same("192.0.2.1", "192.0.2.2"));
    assert!(!same("::1", "::2"));
    let whose = |ip: &str| Whose(Some(key(ip).ip)).to_string();
    assert_eq!(whose("2001:db8::1"), "the network 2001:db8::/64");
    assert_eq!(whose("::1"), "the peer ::1");
    // A host may take any number of link-local addresses, on each of its interfaces.
    assert!(same("fe80::1", "fe80::2"));
    let on = |scope| PeerKey::of(SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, scope).into());
    assert!(on(1) != on(2) && on(1) == on(1));
    assert_eq!(
        whose("fe80::1"),
        "the link-local addresses of one interface"
    );
}

#[test]
fn threads_that_take_and_give_at_once_never_pass_a_limit() {
    let accounts = accounts();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let accounts = &accounts;
            scope.spawn(move || {
                for round in 0..2000 {
                    let peer = peer(accounts, ["192.0.2.1", "192.0.2.2"][(thread + round) % 2]);
                    let _half_open = peer.take(What::HalfOpen, 2);
                    let ird = peer.take_up_to(What::Ird, 60);
                    assert!(ird.amount() <= 40);
                    assert!(accounts.device.used(What::HalfOpen) <= 5);
                    assert!(accounts.device.used(What::Ird) <= 100);
                }
            });
        }
    });
    assert!(accounts.peers.lock().is_empty());
    assert_eq!(accounts.device.used(What::HalfOpen), 0);
    assert_eq!(accounts.device.used(What::Ird), 0);
}

fn domain() -> Arc<PdAccount> {
    let (place, id) = Objects::new("protection domains", 1..=9).take(1).unwrap();
    PdAccount::new(id, place)
}

#[test]
fn a_protection_domain_has_its_own_limits() {
    let account = domain();
    for what in [OfPd::Qps, OfPd::Srqs, OfPd::Receives, OfPd::Reads] {
        let held: Vec<PdCharge> = std::iter::from_fn(|| account.take(what, 2, 7)).collect();
        assert_eq!(held.len(), 3, "{what:?}");
        assert!(account.take(what, 1, 7).is_some());
        drop(held);
        assert!(account.take(what, 7, 7).is_some());
    }
}

#[test]
fn what_is_charged_to_a_domain_changes_whole_or_not_at_all() {
    let account = domain();
    let take = |amount| account.take(OfPd::Receives, amount, 10);
    let mut charge = take(4).unwrap();
    let other = take(4).unwrap();
    assert!(!charge.change(7, 10));
    assert_eq!(charge.amount(), 4);
    assert!(charge.change(6, 10) && take(1).is_none());
    assert!(charge.change(1, 0), "less is always granted");
    drop((take(5).unwrap(), other, charge));
    assert!(take(10).is_some());
    assert!(take(u32::MAX).is_none());
}

#[test]
fn places_for_reads_are_what_device_peer_and_domain_have_left() {
    let accounts = Accounts::new(&Limits {
        max_ird_total: 100,
        per_pd: PdLimits {
            max_ird_total: 50,
            ..PdLimits::default()
        },
        per_peer: PeerLimits {
            max_ird_total: 40,
            ..PeerLimits::default()
        },
        ..Limits::default()
    });
    let peers = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|ip| peer(&accounts, ip));
    let domains = [domain(), domain()];
    let take = |peer: usize, pd: usize| ReadPlaces::up_to(30, &peers[peer], &domains[pd]);
    let mut first = take(0, 0);
    let held = [take(0, 0), take(1, 0), take(1, 1), take(2, 1), take(2, 0)];
    // 10 are left for the peer, then 10 for the domain, then all 30, then 20 for the device, and
    // then none for the domain.
    assert_eq!(held.each_ref().map(ReadPlaces::amount), [10, 10, 30, 20, 0]);
    // An amount that one account refused does not stay charged to the others.
    first.shrink_to(4);
    assert_eq!(take(2, 0).amount(), 20);
    drop((first, held));
    let fresh = accounts.peer("192.0.2.9:1".parse().unwrap());
    assert_eq!(ReadPlaces::up_to(1000, &fresh, &domains[0]).amount(), 40);
    assert_eq!(accounts.device.used(What::Ird), 0);
}

#[test]
fn a_device_has_no_more_objects_than_its_limit_and_tells_them_apart() {
    let objects = Objects::new("things", 5..=6);
    let (first, second) = (objects.take(3).unwrap(), objects.take(3).unwrap());
    assert_eq!((first.1.get(), second.1.get()), (5, 6));
    // If no number is free, the place is given back.
    for _ in 0..5 {
        assert!(objects.take(3).is_err());
    }
    drop(first);
    let error = objects.take(1).map(drop).unwrap_err();
    assert_eq!((error.what, error.limit), ("things", 1));
    assert_eq!(objects.take(2).unwrap().1.get(), 5);
}

#[test]
fn a_peer_has_one_reserve_whatever_others_hold() {
    let accounts = accounts();
    let (greedy, other) = (peer(&accounts, "192.0.2.1"), peer(&accounts, "192.0.2.2"));
    let _all = greedy.take_in_any_case(What::ReceiveMemory, 1 << 40);
    let of_greedy = greedy.reserve().unwrap();
    assert!(peer(&accounts, "192.0.2.1").reserve().is_none());
    let _of_other = other.reserve().unwrap();
    drop(of_greedy);
    assert!(greedy.reserve().is_some());
}

#[test]
fn the_defaults_leave_fifteen_sixteenths_to_others() {
    let limits = Limits::default();
    for what in [
        What::HalfOpen,
        What::Connections,
        What::Ird,
        What::ReceiveMemory,
        What::SendMemory,
    ] {
        let [device, peer] = what.limits(&limits);
        assert_eq!(peer, device / 16, "{what}");
    }
}

/// The conformance suite causes some 130 refusals in each run.
#[test]
fn the_default_penalty_lets_a_test_suite_run_twenty_times_in_a_row() {
    let accounts = Accounts::new(&Limits::default());
    let peer = peer(&accounts, "127.0.0.1");
    let now = Instant::now();
    for _ in 0..20 * 130 {
        assert_eq!(peer.admit(now), Ok(()));
        peer.count_stag_error(now);
    }
    assert_eq!(peer.admit(now), Ok(()));
}
