//! The decisions about one segment, without any TCP.

use super::*;

const EMSS: usize = 100;

fn room(in_flight: usize, window: usize) -> Room {
    Room {
        in_flight,
        window,
        largest_window: window.max(1000),
        buffer: 4000,
        emss: EMSS,
    }
}

fn open() -> Room {
    room(0, 4000)
}

/// What one call hands over with all the room there is, segment by segment.
fn segments(aligner: &mut Aligner, base: u64, octets: usize, ends: &[u64]) -> Vec<usize> {
    let mut offer = Offer::new(octets, FpduEnds::new(base, ends));
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
    // The pieces of the first call end within an FPDU that alone does not fit them.
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
    let offer = Offer::new(200, FpduEnds::new(0, &[100, 200]));
    assert_eq!(aligner.next(&offer, &room(950, 1049), Instant::ZERO), 0);
    assert_eq!(aligner.deadline(), None, "one is to come");
    assert_eq!(aligner.next(&offer, &room(950, 1050), Instant::ZERO), 100);
}

#[test]
fn a_segment_that_the_send_buffer_does_not_take_whole_waits_for_an_acknowledgement() {
    let mut aligner = Aligner::default();
    let offer = Offer::new(200, FpduEnds::new(0, &[100, 200]));
    assert_eq!(aligner.next(&offer, &room(3901, 9000), Instant::ZERO), 0);
    assert_eq!(aligner.next(&offer, &room(3900, 9000), Instant::ZERO), 100);
}

#[test]
fn with_nothing_in_flight_fewer_fpdus_fill_a_small_window() {
    let mut aligner = Aligner::default();
    let offer = Offer::new(90, FpduEnds::new(0, &[30, 60, 90]));
    assert_eq!(aligner.next(&offer, &room(0, 89), Instant::ZERO), 60);
    assert_eq!(aligner.next(&offer, &room(1, 89), Instant::ZERO), 0);
}

#[test]
fn half_of_the_largest_window_is_filled_at_once_and_less_after_a_while() {
    let half = Room {
        largest_window: 101,
        ..room(0, 50)
    };
    let offer = Offer::new(90, FpduEnds::new(0, &[90]));
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
        assert_eq!(aligner.deadline(), Some(deadline), "it is not put off");
        aligner.tick(deadline);
        assert_eq!(aligner.next(&offer, &less, deadline), 90);
        assert_eq!(aligner.deadline(), None);
    }
}
