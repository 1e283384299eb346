//! Tests of the neighbour cache, with simulated time.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const MAC: Mac = [2, 0, 0, 0, 0, 9];
const OTHER: Mac = [2, 0, 0, 0, 0, 10];

fn host(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xc000_0200 + number))
}

fn packet() -> Packet {
    Packet::new(1)
}

fn cache(limit: usize) -> (Neighbours, Instant) {
    (Neighbours::new(Timing::default(), limit), Instant::now())
}

fn sent_to(cache: &mut Neighbours, addr: IpAddr, now: Instant) -> Option<Mac> {
    match cache.resolve(addr, packet(), now).0 {
        Resolution::To(mac, _) => Some(mac),
        Resolution::Waits | Resolution::Dropped(_) => None,
    }
}

fn known(cache: &mut Neighbours, addr: IpAddr, now: Instant) {
    assert_eq!(sent_to(cache, addr, now), None);
    let released = cache.record(addr, MAC, Claim::Answer, now).unwrap();
    assert_eq!(released.packets.len(), 1);
    assert_eq!(sent_to(cache, addr, now), Some(MAC));
}

#[test]
fn a_neighbour_that_never_answers_is_asked_three_times_and_is_unreachable_then() {
    let (mut cache, start) = cache(8);
    let everybody = Ask {
        addr: host(1),
        to: None,
    };
    let (resolution, ask) = cache.resolve(host(1), packet(), start);
    assert!(matches!(resolution, Resolution::Waits));
    assert_eq!(ask, Some(everybody));
    for second in 1..3 {
        let now = start + Duration::from_secs(second);
        assert_eq!(cache.deadline(), Some(now));
        assert_eq!(cache.tick(now).asks, [everybody]);
        assert!(cache.tick(now).asks.is_empty());
    }
    let due = cache.tick(start + Duration::from_secs(3));
    assert!(due.asks.is_empty());
    assert_eq!(due.unreachable[0].0, host(1));
    assert_eq!(due.unreachable[0].1.packets.len(), 1);
    assert_eq!((cache.deadline(), cache.incomplete()), (None, 0));
}

#[test]
fn an_answer_releases_what_waited_in_order_and_is_believed_for_thirty_seconds() {
    let (mut cache, start) = cache(8);
    for number in 0..3 {
        let mut packet = packet();
        packet.resize(1).fill(number);
        assert!(matches!(
            cache.resolve(host(1), packet, start).0,
            Resolution::Waits
        ));
    }
    let released = cache.record(host(1), MAC, Claim::Answer, start).unwrap();
    let order: Vec<u8> = released.packets.iter().map(|p| p.bytes()[0]).collect();
    assert_eq!(order, [0, 1, 2]);
    let fresh = start + Duration::from_secs(29);
    assert!(cache.resolve(host(1), packet(), fresh).1.is_none());
    let stale = start + Duration::from_secs(31);
    let (resolution, ask) = cache.resolve(host(1), packet(), stale);
    assert!(
        matches!(resolution, Resolution::To(MAC, _)),
        "the address is still used"
    );
    assert_eq!(ask.unwrap().to, Some(MAC), "and it is confirmed");
}

#[test]
fn a_probe_without_answer_ends_in_asking_everybody_anew() {
    let (mut cache, start) = cache(8);
    known(&mut cache, host(1), start);
    let mut now = start + Duration::from_secs(31);
    assert_eq!(sent_to(&mut cache, host(1), now), Some(MAC));
    for _ in 0..3 {
        now += Duration::from_secs(1);
        assert!(cache.tick(now).unreachable.is_empty());
    }
    let (resolution, ask) = cache.resolve(host(1), packet(), now);
    assert!(matches!(resolution, Resolution::Waits));
    assert_eq!(ask.unwrap().to, None);
}

#[test]
fn connections_hold_back_while_a_neighbour_is_looked_for() {
    let (mut cache, start) = cache(8);
    let sender = Arc::new(Mailbox::alone().unwrap());
    for _ in 0..WAITING {
        assert!(!cache.subscribe_if_full(host(1), &sender));
        cache.resolve(host(1), packet(), start);
    }
    assert!(cache.subscribe_if_full(host(1), &sender) && cache.subscribe_if_full(host(1), &sender));
    for _ in 0..ANSWERS {
        assert!(matches!(
            cache.resolve(host(1), packet(), start).0,
            Resolution::Waits
        ));
    }
    assert!(matches!(
        cache.resolve(host(1), packet(), start).0,
        Resolution::Dropped(_)
    ));
    let released = cache.record(host(1), MAC, Claim::Tells, start).unwrap();
    assert_eq!(released.packets.len(), WAITING + ANSWERS);
    assert_eq!(released.held_back.len(), 1);
    assert!(!cache.subscribe_if_full(host(1), &sender));
}

#[test]
fn made_up_addresses_push_out_nobody_that_we_talk_to() {
    let (mut cache, now) = cache(64);
    for number in 0..8 {
        known(&mut cache, host(number), now);
    }
    for number in 100..100_000 {
        cache.record(host(number), OTHER, Claim::Asks, now);
        cache.record(host(number + 1), OTHER, Claim::Tells, now);
    }
    // Connection attempts from invented addresses make the host ask for the MAC addresses of these
    // neighbours.
    for number in 200_000..201_000 {
        cache.resolve(host(number), packet(), now);
    }
    assert!(cache.entries.len() <= 64 && cache.incomplete() <= 64);
    for number in 0..8 {
        assert_eq!(sent_to(&mut cache, host(number), now), Some(MAC));
    }
}

#[test]
fn what_nobody_asked_for_makes_no_entry_but_a_neighbour_may_move() {
    let (mut cache, now) = cache(8);
    cache.record(host(1), MAC, Claim::Tells, now);
    cache.record(host(1), MAC, Claim::Answer, now);
    assert!(cache.entries.is_empty());
    known(&mut cache, host(1), now);
    cache.record(host(1), OTHER, Claim::AnswerWithoutOverride, now);
    assert_eq!(sent_to(&mut cache, host(1), now), Some(MAC));
    cache.record(host(1), OTHER, Claim::Tells, now);
    let (resolution, ask) = cache.resolve(host(1), packet(), now);
    assert!(matches!(resolution, Resolution::To(OTHER, _)));
    assert_eq!(
        ask.unwrap().to,
        Some(OTHER),
        "and the new address is confirmed"
    );
}

#[test]
fn who_asks_for_us_is_answered_without_a_question() {
    let (mut cache, now) = cache(8);
    let addr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    cache.record(addr, MAC, Claim::Asks, now);
    let (resolution, ask) = cache.resolve(addr, packet(), now);
    assert!(matches!(resolution, Resolution::To(MAC, _)));
    assert_eq!(ask.unwrap().to, Some(MAC));
}
