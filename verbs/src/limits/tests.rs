use super::*;
use crate::settings::PeerLimits;

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
        "the peer 192.0.2.1 already has 3 connections in startup, the limit; end some, or raise it in the settings (limits.per_peer.max_half_open)"
    );
    held.extend((0..2).map(|_| other.take(What::HalfOpen, 1).unwrap()));
    let refused = other.take(What::HalfOpen, 1).unwrap_err();
    assert_eq!((refused.peer(), refused.limit()), (None, 5));
    assert_eq!(
        refused.to_string(),
        "all peers together already have 5 connections in startup, the limit; end some, or raise it in the settings (limits.max_half_open)"
    );
    // What was refused was not kept from the device either.
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
    let same = |a: &str, b: &str| peer_key(a.parse().unwrap()) == peer_key(b.parse().unwrap());
    assert!(same("2001:db8::1", "2001:db8::ffff:1234:5678:9abc"));
    assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(same("192.0.2.1", "::ffff:192.0.2.1"));
    assert!(!same("192.0.2.1", "192.0.2.2"));
    // All hosts of a link share this network.
    assert!(!same("fe80::1", "fe80::2"));
    assert!(!same("::1", "::2"));
    let whose = Whose(Some(peer_key("2001:db8::1".parse().unwrap())));
    assert_eq!(whose.to_string(), "the network 2001:db8::/64");
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

#[test]
fn a_protection_domain_has_its_own_limit() {
    let account = Arc::new(PdAccount::default());
    let held: Vec<PdQp> = std::iter::from_fn(|| account.take_qp(3)).collect();
    assert_eq!(held.len(), 3);
    drop(held);
    assert!(account.take_qp(1).is_some());
}
