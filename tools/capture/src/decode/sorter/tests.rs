use super::*;

/// Builds a segment of side `from` with a payload of zeros.
fn segment(from: usize, seq: u32, ack: Option<u32>, len: u32) -> Arrival<'static> {
    Arrival {
        now: Now::default(),
        from,
        seq,
        ack,
        syn: false,
        fin: false,
        rst: false,
        bytes: vec![0; len as usize].into(),
        len,
    }
}

fn syn(from: usize, seq: u32, ack: Option<u32>) -> Arrival<'static> {
    Arrival {
        syn: true,
        ..segment(from, seq, ack, 0)
    }
}

/// Passes segments to a sorter. Returns the released ones: index of the side and sequence number.
fn went(sorter: &mut Sorter, arrivals: Vec<Arrival<'static>>, end: bool) -> Vec<(usize, u32)> {
    let mut went = Vec::new();
    for arrival in arrivals {
        went.extend(sorter.push(arrival));
        went.extend(std::iter::from_fn(|| sorter.due(Some(Duration::ZERO))));
    }
    if end {
        went.extend(std::iter::from_fn(|| sorter.due(None)));
    }
    went.iter().map(|one| (one.from, one.seq)).collect()
}

/// Returns the sorter of a connection after its SYNs. The next sequence numbers are 11 and 21.
fn begun() -> Sorter {
    let mut sorter = Sorter::default();
    let handshake = vec![syn(0, 10, None), syn(1, 20, Some(11))];
    assert_eq!(went(&mut sorter, handshake, false), [(0, 10), (1, 20)]);
    sorter
}

#[test]
fn a_segment_waits_for_what_it_acknowledges() {
    let mut sorter = begun();
    let arrivals = vec![
        segment(1, 21, Some(16), 5),
        segment(1, 26, Some(16), 5),
        segment(0, 11, Some(21), 5),
    ];
    assert_eq!(
        went(&mut sorter, arrivals, false),
        [(0, 11), (1, 21), (1, 26)]
    );
    assert_eq!(sorter.held(), 0);
}

#[test]
fn a_segment_waits_for_those_before_it_and_a_repeated_one_for_nothing() {
    let mut sorter = begun();
    let arrivals = vec![
        segment(0, 16, Some(21), 5),
        segment(0, 11, Some(21), 5),
        segment(0, 11, Some(21), 5),
    ];
    assert_eq!(
        went(&mut sorter, arrivals, false),
        [(0, 11), (0, 16), (0, 11)]
    );
}

#[test]
fn a_connection_without_its_beginning_begins_with_the_lowest_numbers() {
    let near_the_end = u32::MAX - 4;
    let arrivals = vec![
        segment(0, 0, Some(100), 5),
        segment(1, 100, Some(5), 5),
        segment(0, near_the_end, Some(100), 5),
    ];
    assert_eq!(
        went(&mut Sorter::default(), arrivals, true),
        [(0, near_the_end), (0, 0), (1, 100)]
    );
}

#[test]
fn one_direction_alone_waits_for_the_other_once() {
    let mut sorter = Sorter::default();
    let all = (0..2 * PATIENCE as u32).map(|number| segment(0, number, Some(7000 + number), 1));
    let all: Vec<_> = all.collect();
    let numbers = |count: u64| {
        (0..count as u32)
            .map(|number| (0, number))
            .collect::<Vec<_>>()
    };
    let (first, rest) = all.split_at(PATIENCE as usize);
    assert_eq!(went(&mut sorter, first.to_vec(), false), []);
    assert_eq!(
        went(&mut sorter, rest.to_vec(), false),
        numbers(2 * PATIENCE)
    );
    assert!(sorter.is_absent(1) && !sorter.is_absent(0));
    assert_eq!(sorter.held(), 0);
}

#[test]
fn what_the_capture_never_has_is_given_up_after_a_time() {
    let mut sorter = begun();
    assert!(sorter.push(segment(0, 12, Some(21), 5)).is_none());
    assert!(sorter.due(Some(PATIENCE_TIME / 2)).is_none());
    assert!(sorter.due(Some(PATIENCE_TIME)).is_some());
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut sorter = begun();
    let mut random = 1_u32;
    for _ in 0..10_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let from = (random >> 31) as usize;
        let ack = Some(random.rotate_left(7) >> 2);
        sorter.push(segment(from, random >> 2, ack, 5000));
        while sorter.due(Some(Duration::ZERO)).is_some() {}
        assert!(sorter.held() <= MAX_WAITING + 5000 + OVERHEAD);
        assert!(sorter.waiting.len() <= PATIENCE as usize);
    }
    while sorter.due(None).is_some() {}
    assert!(sorter.waiting.is_empty() && sorter.held() == 0);
}
