use super::*;
use crate::segment::Segmenter;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn header(msn: u32, mo: u32, last: bool) -> UntaggedHeader {
    UntaggedHeader {
        last,
        ulp: 0x43,
        ulp_word: 0,
        qn: Qn(0),
        msn: Msn(msn),
        mo,
    }
}

#[test]
fn segments_of_a_message_follow_each_other_into_one_buffer() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    let first = queue.accept(&header(1, 0, false), 100, Some(150));
    assert_eq!(
        first,
        Ok(UntaggedPlacement {
            offset: 0,
            len: 100,
            last: false,
            message_len: 100
        })
    );
    let second = queue.accept(&header(1, 100, true), 50, Some(150));
    assert_eq!(
        second,
        Ok(UntaggedPlacement {
            offset: 100,
            len: 50,
            last: true,
            message_len: 150
        })
    );
    assert_eq!((queue.msn(), queue.received()), (Msn(2), 0));
}

#[test]
fn another_message_than_the_one_whose_turn_it_is_is_out_of_range() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    for msn in [0, 2, u32::MAX] {
        let fault = UntaggedFault::MsnRange {
            expected: Msn(1),
            got: Msn(msn),
        };
        assert_eq!(queue.accept(&header(msn, 0, true), 1, Some(9)), Err(fault));
    }
    // 5041-5.3-03: the message is accepted once, and refused when it arrives again.
    assert!(queue.accept(&header(1, 0, true), 1, Some(9)).is_ok());
    let fault = UntaggedFault::MsnRange {
        expected: Msn(2),
        got: Msn(1),
    };
    assert_eq!(queue.accept(&header(1, 0, true), 1, Some(9)), Err(fault));
}

#[test]
fn a_message_without_a_buffer_is_refused_even_if_it_has_no_bytes() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    let fault = UntaggedFault::NoBuffer {
        qn: Qn(0),
        msn: Msn(1),
    };
    assert_eq!(queue.accept(&header(1, 0, true), 7, None), Err(fault));
    assert_eq!(queue.accept(&header(1, 0, true), 0, None), Err(fault));
}

#[test]
fn a_message_of_no_bytes_takes_its_buffer_and_its_number() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    let placed = queue.accept(&header(1, 0, true), 0, Some(0));
    assert_eq!(
        placed,
        Ok(UntaggedPlacement {
            offset: 0,
            len: 0,
            last: true,
            message_len: 0
        })
    );
    assert_eq!(queue.msn(), Msn(2));
}

#[test]
fn a_gap_and_an_overlap_are_invalid_offsets() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    let fault = UntaggedFault::InvalidMo {
        expected: 0,
        got: 1,
    };
    assert_eq!(queue.accept(&header(1, 1, true), 1, Some(9)), Err(fault));
    assert!(queue.accept(&header(1, 0, false), 4, Some(9)).is_ok());
    for mo in [0, 3, 5, u32::MAX] {
        let fault = UntaggedFault::InvalidMo {
            expected: 4,
            got: mo,
        };
        assert_eq!(queue.accept(&header(1, mo, true), 1, Some(9)), Err(fault));
    }
}

#[test]
fn one_byte_more_than_the_buffer_has_is_too_long() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    assert!(queue.accept(&header(1, 0, false), 4, Some(9)).is_ok());
    let fault = UntaggedFault::MessageTooLong {
        qn: Qn(0),
        end: 10,
        buffer: 9,
    };
    assert_eq!(queue.accept(&header(1, 4, true), 6, Some(9)), Err(fault));
    assert!(queue.accept(&header(1, 4, true), 5, Some(9)).is_ok());
}

#[test]
fn a_message_beyond_four_gigabytes_is_too_long_and_does_not_wrap() {
    let mut queue = UntaggedReceiver::new(Qn(0));
    assert!(
        queue
            .accept(&header(1, 0, false), u32::MAX, Some(u32::MAX))
            .is_ok()
    );
    let fault = UntaggedFault::MessageTooLong {
        qn: Qn(0),
        end: 1 << 32,
        buffer: u32::MAX,
    };
    assert_eq!(
        queue.accept(&header(1, u32::MAX, true), 1, Some(u32::MAX)),
        Err(fault)
    );
}

#[test]
fn segments_of_another_queue_are_refused() {
    let mut queue = UntaggedReceiver::new(Qn(1));
    let fault = UntaggedFault::InvalidQn(Qn(0));
    assert_eq!(queue.accept(&header(1, 0, true), 0, Some(9)), Err(fault));
}

proptest! {
    #[test]
    fn segmenting_and_placing_gives_the_message_again(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..if cfg!(miri) { 20 } else { 2000 }), 1..6),
        mulpdu in 19usize..700,
        spare in 0u32..4,
    ) {
        let mut queue = UntaggedReceiver::new(Qn(0));
        let mut msn = Msn::FIRST;
        for message in &messages {
            let mut buffer = vec![0; message.len() + spare as usize];
            let mut segmenter = Segmenter::new(message.len() as u32);
            let mut delivered = None;
            while let Some(segment) = segmenter.next_segment(18, mulpdu) {
                prop_assert_eq!(delivered, None);
                let header = header(msn.0, segment.offset, segment.last);
                let place = queue.accept(&header, segment.len, Some(buffer.len() as u32))?;
                buffer[place.range()].copy_from_slice(&message[segment.range()]);
                delivered = place.last.then_some(place.message_len);
            }
            prop_assert_eq!(delivered, Some(message.len() as u32));
            prop_assert_eq!(&buffer[..message.len()], &message[..]);
            msn = msn.next();
        }
    }

    /// The model is the list of accepted segments of the message in progress: offset and length.
    #[test]
    fn whatever_arrives_nothing_is_placed_outside_of_the_buffer(
        segments in proptest::collection::vec(
            (0u32..4, 0u32..40, any::<bool>(), 0u32..40, proptest::option::of(0u32..100)), 1..if cfg!(miri) { 10 } else { 60 }),
    ) {
        let mut queue = UntaggedReceiver::new(Qn(0));
        let mut model: Vec<(u32, u32)> = Vec::new();
        let mut msn = 1;
        for (number, mo, last, len, buffer) in segments {
            let before = queue;
            let so_far = model.last().map_or(0, |(offset, len)| offset + len);
            match queue.accept(&header(number, mo, last), len, buffer) {
                Ok(place) => {
                    prop_assert_eq!(number, msn);
                    prop_assert_eq!((place.offset, place.len), (so_far, len));
                    prop_assert!(Some(place.offset + place.len) <= buffer);
                    model.push((place.offset, place.len));
                    if last {
                        msn += 1;
                        model.clear();
                    }
                }
                Err(_) => {
                    prop_assert_eq!(queue, before);
                    prop_assert!(
                        number != msn || mo != so_far || buffer.is_none_or(|b| so_far + len > b)
                    );
                }
            }
        }
    }
}
