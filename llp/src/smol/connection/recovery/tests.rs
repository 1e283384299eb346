//! Detection of losses, and the times at which probes are sent.

use super::*;

const SEGMENT: usize = 1000;

fn at(millis: i64) -> Instant {
    Instant::from_millis(1_000 + millis)
}

fn stream(acknowledged: u64, left: u64) -> Stream {
    Stream { acknowledged, left }
}

/// Returns the state after a handshake of 10 ms, with ten segments sent at time 0.
fn with_ten() -> Recovery {
    let mut recovery = Recovery::new(at(-10));
    recovery.established(at(0));
    recovery.sent(stream(0, 10_000), at(0));
    recovery
}

impl Recovery {
    fn hears(&mut self, acknowledged: u64, left: u64, repetitions: u32, now: i64) -> bool {
        for _ in 0..repetitions {
            self.repeated();
        }
        self.arrived(stream(acknowledged, left), SEGMENT, at(now))
    }
}

#[test]
fn the_third_repetition_finds_a_loss_and_only_the_third() {
    let mut recovery = with_ten();
    assert!(!recovery.hears(2_000, 10_000, 2, 10));
    assert!(!recovery.hears(2_000, 10_000, 2, 11));
    assert!(recovery.hears(2_000, 10_000, 1, 12));
    assert_eq!(recovery.phase, Phase::Recovering(10_000));
    assert!(!recovery.hears(2_000, 12_000, 5, 13));
}

#[test]
fn fewer_repetitions_are_enough_where_fewer_segments_are_under_way() {
    for (segments, enough) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3)] {
        let mut recovery = Recovery::new(at(0));
        let left = segments * SEGMENT as u64;
        recovery.sent(stream(0, left), at(0));
        for _ in 1..enough {
            assert!(!recovery.hears(0, left, 1, 10));
        }
        assert!(recovery.hears(0, left, 1, 10), "{segments}");
    }
}

#[test]
fn a_window_that_stays_shut_is_asked_about_once() {
    let mut recovery = with_ten();
    assert_eq!(recovery.window_probe_at(), None);
    recovery.set_shut(true, at(10));
    recovery.set_shut(true, at(20));
    assert_eq!(recovery.window_probe_at(), Some(at(40)));
    recovery.shut = Some((at(40), true));
    recovery.set_shut(true, at(50));
    assert_eq!(recovery.window_probe_at(), None);
    recovery.set_shut(false, at(60));
    recovery.set_shut(true, at(70));
    assert_eq!(recovery.window_probe_at(), Some(at(100)));
}

#[test]
fn each_gap_of_one_recovery_is_filled_once() {
    let mut recovery = with_ten();
    assert!(recovery.hears(0, 10_000, 3, 10));
    assert!(recovery.hears(4_000, 12_000, 0, 20));
    assert!(!recovery.hears(4_000, 12_000, 4, 21));
    assert!(recovery.hears(6_000, 12_000, 0, 30));
    assert!(!recovery.hears(10_000, 14_000, 0, 40));
    assert_eq!(recovery.phase, Phase::Steady);
    assert!(recovery.hears(10_000, 14_000, 3, 41));
}

#[test]
fn a_probe_comes_after_two_round_trips_and_then_ever_later() {
    let mut recovery = with_ten();
    let mut now = 0;
    for pause in [30, 60, 120, 240, 480] {
        let due = recovery.probe_at(stream(0, 10_000), SEGMENT, Duration::ZERO);
        // The first pause is the round trip of 10 ms plus four times its variance of 5 ms.
        assert_eq!(due, Some(at(now + pause)));
        let early = at(now + pause - 1);
        assert!(!recovery.begin_probe_if_due(stream(0, 10_000), SEGMENT, Duration::ZERO, early));
        now += pause;
        assert!(recovery.begin_probe_if_due(stream(0, 10_000), SEGMENT, Duration::ZERO, at(now)));
    }
    let due = recovery.probe_at(stream(0, 10_000), SEGMENT, Duration::ZERO);
    assert_eq!(due, None);
    assert!(!recovery.begin_probe_if_due(
        stream(0, 10_000),
        SEGMENT,
        Duration::ZERO,
        at(now + 999)
    ));
    assert_eq!(recovery.phase, Phase::Probing(10_000));
    assert!(!recovery.begin_probe_if_due(
        stream(0, 10_000),
        SEGMENT,
        Duration::ZERO,
        at(now + 1000)
    ));
    assert_eq!(recovery.phase, Phase::Resending(10_000));
    assert!(!recovery.hears(4_000, 10_000, 0, now + 1010));
}

#[test]
fn less_than_two_segments_may_be_acknowledged_late() {
    let recovery = with_ten();
    let late = Duration::from_millis(200);
    let few = recovery.probe_at(stream(0, 1_999), SEGMENT, late);
    assert_eq!(few, Some(at(230)));
    let more = recovery.probe_at(stream(0, 2_000), SEGMENT, late);
    assert_eq!(more, Some(at(30)));
}

#[test]
fn a_probe_finds_a_loss_when_no_more_than_it_is_acknowledged() {
    for (acknowledged, lost) in [(500, true), (1_000, true), (1_001, false), (9_000, false)] {
        let mut recovery = with_ten();
        assert!(recovery.begin_probe_if_due(stream(0, 10_000), SEGMENT, Duration::ZERO, at(30)));
        assert_eq!(recovery.hears(acknowledged, 10_000, 0, 40), lost);
        let then = if lost {
            Phase::Recovering(10_000)
        } else {
            Phase::Steady
        };
        assert_eq!(recovery.phase, then);
    }
}

#[test]
fn nothing_is_due_when_all_is_acknowledged_or_no_round_trip_is_known() {
    let mut recovery = with_ten();
    assert!(!recovery.hears(10_000, 10_000, 0, 10));
    recovery.sent(stream(10_000, 10_000), at(10));
    assert_eq!(
        recovery.probe_at(stream(10_000, 10_000), SEGMENT, Duration::ZERO),
        None
    );
    let mut unknown = Recovery::new(at(0));
    unknown.sent(stream(0, 10_000), at(5));
    assert_eq!(
        unknown.probe_at(stream(0, 10_000), SEGMENT, Duration::ZERO),
        None
    );
}

#[test]
fn what_was_sent_again_and_a_handshake_of_a_second_are_no_measure() {
    let mut recovery = with_ten();
    let known = recovery.trip.smoothed;
    assert!(recovery.hears(0, 10_000, 3, 10));
    assert!(!recovery.hears(10_000, 10_000, 0, 700));
    assert_eq!(recovery.trip.smoothed, known);
    recovery.sent(stream(10_000, 11_000), at(700));
    assert!(!recovery.hears(11_000, 11_000, 0, 718));
    assert_eq!(recovery.trip.smoothed, Some(Duration::from_millis(11)));
    let mut slow = Recovery::new(at(0));
    slow.established(at(1_000));
    assert_eq!(slow.trip.smoothed, None);
}
