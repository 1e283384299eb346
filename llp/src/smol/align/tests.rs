//! Lengths of segments and bursts that the aligner chooses, without TCP.

use super::*;

const EMSS: usize = 100;

fn room(in_flight: usize, window: usize) -> Room {
    Room {
        in_flight,
        window,
        largest_window: window.max(1000),
        buffer: 4000,
        emss: EMSS,
        burst: EMSS,
    }
}

fn open() -> Room {
    room(0, 4000)
}

/// Hands over the bytes of one call with ample room. Returns the lengths of the segments.
fn segments(aligner: &mut Aligner, base: u64, bytes: usize, ends: &[u64]) -> Vec<usize> {
    let mut offer = Offer::new(bytes, SendHints::new(base, ends));
    let mut segments = Vec::new();
    loop {
        let next = aligner.next(&offer, &open(), Instant::ZERO);
        if next == 0 {
            return segments;
        }
        aligner.taken(&mut offer, next);
        segments.push(next);
    }
}

#[test]
fn whole_fpdus_are_packed_up_to_emss() {
    let mut aligner = Aligner::default();
    let ends = [40, 80, 100, 196, 204];
    assert_eq!(segments(&mut aligner, 0, 204, &ends), [100, 96, 8]);
}

#[test]
fn an_fpdu_longer_than_emss_is_a_run_of_its_own() {
    let mut aligner = Aligner::default();
    let ends = [20, 270, 280];
    assert_eq!(
        segments(&mut aligner, 0, 280, &ends),
        [20, 100, 100, 50, 10]
    );
}

#[test]
fn the_rest_of_an_fpdu_is_a_segment_by_itself() {
    let mut aligner = Aligner::default();
    // The first call ends within an FPDU that would fit a segment.
    assert_eq!(segments(&mut aligner, 0, 30, &[60, 80]), [30]);
    assert_eq!(segments(&mut aligner, 30, 50, &[60, 80]), [30, 20]);
    assert_eq!(segments(&mut aligner, 80, 40, &[60, 80, 100, 120]), [40]);
}

#[test]
fn an_fpdu_that_is_only_begun_waits_for_the_next_call() {
    let mut aligner = Aligner::default();
    assert_eq!(segments(&mut aligner, 0, 130, &[90, 150]), [90]);
    assert_eq!(segments(&mut aligner, 90, 60, &[90, 150]), [60]);
}

#[test]
fn a_segment_that_the_window_does_not_take_whole_waits_for_an_acknowledgement() {
    let mut aligner = Aligner::default();
    let offer = Offer::new(200, SendHints::new(0, &[100, 200]));
    assert_eq!(aligner.next(&offer, &room(950, 1049), Instant::ZERO), 0);
    assert_eq!(aligner.deadline(), None, "an acknowledgement will arrive");
    assert_eq!(aligner.next(&offer, &room(950, 1050), Instant::ZERO), 100);
}

#[test]
fn a_segment_that_the_send_buffer_does_not_take_whole_waits_for_an_acknowledgement() {
    let mut aligner = Aligner::default();
    let offer = Offer::new(200, SendHints::new(0, &[100, 200]));
    assert_eq!(aligner.next(&offer, &room(3901, 9000), Instant::ZERO), 0);
    assert_eq!(aligner.next(&offer, &room(3900, 9000), Instant::ZERO), 100);
}

#[test]
fn with_nothing_in_flight_fewer_fpdus_fill_a_small_window() {
    let mut aligner = Aligner::default();
    let offer = Offer::new(90, SendHints::new(0, &[30, 60, 90]));
    assert_eq!(aligner.next(&offer, &room(0, 89), Instant::ZERO), 60);
    assert_eq!(aligner.next(&offer, &room(1, 89), Instant::ZERO), 0);
}

#[test]
fn half_of_the_largest_window_is_filled_at_once_and_less_after_a_while() {
    let half = Room {
        largest_window: 101,
        ..room(0, 50)
    };
    let offer = Offer::new(90, SendHints::new(0, &[90]));
    let start = Instant::from_millis(5);
    assert_eq!(Aligner::default().next(&offer, &half, start), 90);
    for window in [0, 49] {
        let less = Room { window, ..half };
        let mut aligner = Aligner::default();
        assert_eq!(aligner.next(&offer, &less, start), 0);
        let deadline = aligner.deadline().unwrap();
        assert_eq!(deadline, start + PATIENCE.into());
        aligner.tick(start);
        assert_eq!(aligner.next(&offer, &less, deadline), 0);
        assert_eq!(aligner.deadline(), Some(deadline), "it does not move");
        aligner.tick(deadline);
        assert_eq!(aligner.next(&offer, &less, deadline), 90);
        assert_eq!(aligner.deadline(), None);
    }
}

/// Hands over the bytes of one call in bursts of at most 350 bytes. Returns each burst's length and
/// the length of its segments.
fn bursts(bytes: usize, ends: &[u64]) -> Vec<(usize, usize)> {
    bursts_of(bytes, SendHints::new(0, ends))
}

fn bursts_of(bytes: usize, hints: SendHints<'_>) -> Vec<(usize, usize)> {
    let room = Room {
        burst: 350,
        ..open()
    };
    let (mut aligner, mut offer) = (Aligner::default(), Offer::new(bytes, hints));
    let mut bursts = Vec::new();
    loop {
        let (bytes, each) = aligner.burst(&offer, &room, Instant::ZERO);
        if bytes == 0 {
            return bursts;
        }
        aligner.taken(&mut offer, bytes);
        bursts.push((bytes, each));
    }
}

#[test]
fn a_burst_has_an_fpdu_at_every_cut() {
    let every = |bytes: u64, count: u64| (1..=count).map(|n| n * bytes).collect::<Vec<_>>();
    // One FPDU in each segment, three in each segment, and a shorter segment at the end.
    assert_eq!(bursts(500, &every(100, 5)), [(300, 100), (200, 100)]);
    assert_eq!(bursts(480, &every(96, 5)), [(288, 96), (192, 96)]);
    assert_eq!(bursts(300, &every(30, 10)), [(300, 90)]);
    assert_eq!(bursts(240, &[100, 200, 240]), [(240, 100)]);
    // A segment that is shorter because the next FPDU does not fit into it also ends the burst.
    assert_eq!(bursts(340, &[100, 140, 240, 340]), [(140, 100), (200, 100)]);
    // The second segment could hold one more FPDU, and would then be longer than the first.
    assert_eq!(
        bursts(260, &[60, 120, 140, 160, 260]),
        [(60, 60), (200, 100)]
    );
}

#[test]
fn what_is_cut_within_an_fpdu_leaves_alone() {
    assert_eq!(
        bursts(350, &[250, 350]),
        [(100, 100), (100, 100), (50, 50), (100, 100)]
    );
}

#[test]
fn where_fpdus_may_go_over_segments_bursts_are_full_wherever_they_end() {
    let over = |bytes, ends| bursts_of(bytes, SendHints::new(0, ends).over_segments());
    // As many full segments as fit into a burst, then the rest.
    assert_eq!(over(350, &[250, 350]), [(350, 100)]);
    assert_eq!(
        over(1000, &[340, 360, 700, 1000]),
        [(300, 100), (300, 100), (300, 100), (100, 100)]
    );
    assert_eq!(over(420, &[420]), [(300, 100), (120, 100)]);
    // One short FPDU before a long one, and another after it.
    assert_eq!(over(450, &[20, 440, 450]), [(300, 100), (150, 100)]);
    // The rest of a long FPDU, then short ones, which are aligned again.
    assert_eq!(
        over(540, &[370, 440, 510, 540]),
        [(300, 100), (70, 70), (70, 70), (100, 100)]
    );
    // Without an FPDU longer than a segment, the hint makes no difference.
    for ends in [
        &[100, 200, 300][..],
        &[60, 120, 140, 160, 260],
        &[40, 80, 100, 196, 204],
    ] {
        let bytes = *ends.last().unwrap() as usize;
        assert_eq!(over(bytes, ends), bursts(bytes, ends));
    }
}

#[test]
fn fpdus_over_segments_begin_and_end_with_segments_where_these_are_not_cut_later() {
    let (mut aligner, ends) = (Aligner::default(), [40, 95, 350, 360, 660]);
    let mut offer = Offer::new(660, SendHints::new(0, &ends).over_segments());
    let mut segments = Vec::new();
    while segments.iter().sum::<usize>() < 660 {
        let (bytes, _) = aligner.burst(&offer, &open(), Instant::ZERO);
        aligner.taken(&mut offer, bytes);
        segments.push(bytes);
    }
    assert_eq!(segments, [95, 100, 100, 55, 10, 100, 100, 100]);
}

#[test]
fn a_burst_over_segments_waits_for_an_acknowledgement_rather_than_to_be_short() {
    let offer = Offer::new(400, SendHints::new(0, &[400]).over_segments());
    for (in_flight, window, bytes) in [
        (0, 150, 100),
        (100, 250, 100),
        (200, 350, 0),
        (200, 599, 300),
    ] {
        let room = Room {
            burst: 350,
            ..room(in_flight, window)
        };
        let next = Aligner::default().burst(&offer, &room, Instant::ZERO);
        assert_eq!(next.0, bytes, "{in_flight} of {window}");
    }
}

#[test]
fn a_burst_is_no_longer_than_the_window() {
    let offer = Offer::new(300, SendHints::new(0, &[100, 200, 300]));
    for (window, bytes) in [(99, 0), (199, 100), (299, 200), (300, 300)] {
        let room = Room {
            burst: 350,
            ..room(1, window + 1)
        };
        let next = Aligner::default().burst(&offer, &room, Instant::ZERO);
        assert_eq!(next.0, bytes, "{window}");
    }
}

proptest::proptest! {
    #[test]
    fn cuts_of_bursts_are_those_of_segments(
        fpdus in proptest::collection::vec(proptest::prelude::prop_oneof![1u64..=100, proptest::prelude::Just(100), proptest::prelude::Just(40)], 1..40),
    ) {
        let ends: Vec<u64> = fpdus.iter().scan(0, |at, fpdu| { *at += fpdu; Some(*at) }).collect();
        let bytes = *ends.last().unwrap();
        let mut cuts = Vec::new();
        let mut at = 0;
        for (burst, each) in bursts(bytes as usize, &ends) {
            for part in (0..burst).step_by(each) {
                cuts.push(at + part as u64);
            }
            at += burst as u64;
        }
        proptest::prop_assert_eq!(at, bytes);
        for cut in &cuts[1..] {
            proptest::prop_assert!(ends.contains(cut), "{} is no end of {:?}", cut, ends);
        }
        // The number of segments on the wire is the same as without bursts.
        let alone = segments(&mut Aligner::default(), 0, bytes as usize, &ends);
        proptest::prop_assert_eq!(cuts.len(), alone.len());
    }
}
