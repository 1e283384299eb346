use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{
    BEFORE_FIGURE_6, FIGURE_5, FIGURE_6, bytes, send_header, stream_by_the_text, stream_of, ulpdus,
};

#[test]
fn figure_5_of_rfc_5044_comes_out() {
    let mut out = Vec::new();
    let mut framer = Framer::new(true, true);
    framer
        .frame(&send_header(1), &[0; 24], 0, 24, &mut out)
        .unwrap();
    assert_eq!(out, FIGURE_5);
    assert_eq!(framer.position(), 52);
}

#[test]
fn figure_6_of_rfc_5044_comes_out() {
    let mut framer = Framer::new(true, true);
    let mut out = Vec::new();
    framer
        .frame(
            &send_header(1),
            &[0; 464],
            0,
            BEFORE_FIGURE_6 - 18,
            &mut out,
        )
        .unwrap();
    assert_eq!(framer.position(), 0x1EC);
    out.clear();
    framer
        .frame(&send_header(2), &[0; 24], 0, 24, &mut out)
        .unwrap();
    assert_eq!(out, FIGURE_6);
}

#[test]
fn without_crc_the_field_is_there_and_zero() {
    for markers in [false, true] {
        let stream = stream_of(&[vec![0xFF; 5]], false, markers);
        assert_eq!(stream[stream.len() - 4..], [0; 4]);
    }
}

#[test]
fn a_ulpdu_has_one_to_64768_bytes() {
    let mut framer = Framer::new(true, false);
    let mut out = Vec::new();
    let source = [0; MAX_ULPDU];
    assert_eq!(
        framer.frame(&[], &source, 0, 0, &mut out),
        Err(FrameError::Empty)
    );
    let too_long = Err(FrameError::TooLong { len: 64_769 });
    assert_eq!(
        framer.frame(&[0], &source, 0, MAX_ULPDU, &mut out),
        too_long
    );
    let far_too_long = Err(FrameError::TooLong { len: usize::MAX });
    assert_eq!(
        framer.frame(&[0], &source, 0, usize::MAX, &mut out),
        far_too_long
    );
    assert_eq!(framer.position(), 0);
    assert!(out.is_empty());
    assert_eq!(
        framer.frame(&[0], &source, 0, MAX_ULPDU - 1, &mut out),
        Ok(())
    );
    assert_eq!(out.len(), 64_776);
}

#[test]
fn payload_cannot_stay_in_place_between_markers() {
    let mut framer = Framer::new(true, true);
    let result = framer.frame_in_place(&[1], &[2], 0, 1, &mut Vec::new());
    assert_eq!(result, Err(FrameError::InPlaceWithMarkers));
    assert_eq!(framer.position(), 0);
}

#[test]
fn a_slice_too_short_is_refused_untouched() {
    let mut framer = Framer::new(true, false);
    let mut out = [0xAA; 11];
    let result = framer.frame_into(&[1], &[2, 3], 0, 2, &mut out);
    assert_eq!(
        result,
        Err(FrameError::NoRoom {
            needed: 12,
            room: 11
        })
    );
    assert_eq!((out, framer.position()), ([0xAA; 11], 0));
}

#[test]
fn rewinding_forgets_what_was_not_sent() {
    let mut framer = Framer::new(true, true);
    let mut sent = Vec::new();
    framer.frame(&bytes(300, 1), &[], 0, 0, &mut sent).unwrap();
    let position = framer.position();
    framer
        .frame(&bytes(999, 2), &[], 0, 0, &mut Vec::new())
        .unwrap();
    framer.rewind(position);
    framer.rewind(position + 512); // a later position, which is ignored
    framer.frame(&bytes(400, 3), &[], 0, 0, &mut sent).unwrap();
    assert_eq!(sent, stream_of(&[bytes(300, 1), bytes(400, 3)], true, true));
}

#[test]
fn errors_say_what_was_expected() {
    let all = [
        FrameError::TooLong { len: 70_000 },
        FrameError::Empty,
        FrameError::InPlaceWithMarkers,
        FrameError::NoRoom {
            needed: 52,
            room: 40,
        },
    ];
    let text: Vec<_> = all.iter().map(|e| std::format!("{e}")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

/// Maximum payload lengths in bytes, without and with Markers. They are smaller under Miri, which
/// interprets each byte.
const LONGEST: usize = if cfg!(miri) { 2500 } else { MAX_ULPDU - 70 };
const MARKED: usize = if cfg!(miri) { 1100 } else { 3000 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 128 }))]

    #[test]
    fn streams_are_those_of_the_text(ulpdus in ulpdus(8), crc: bool, markers: bool) {
        let stream = stream_of(&ulpdus, crc, markers);
        prop_assert_eq!(stream, stream_by_the_text(&ulpdus, crc, markers));
    }

    #[test]
    fn every_way_of_framing_gives_the_same_bytes(
        header in 0..71usize,
        len in prop_oneof![0..200usize, 1900..2200usize, 0..LONGEST],
        offset in 0..9usize,
        crc: bool,
    ) {
        prop_assume!(header + len > 0);
        let (header, source) = (bytes(header, 7), bytes(offset + len, 9));
        let (mut staged, mut in_place) = (vec![1, 2, 3], vec![1, 2, 3]);
        let mut framers = [0; 3].map(|_| Framer::new(crc, false));
        let fpdu_len = framers[0].fpdu_len(header.len() + len);
        framers[0].frame(&header, source.as_slice(), offset, len, &mut staged).unwrap();
        prop_assert_eq!(staged.len(), 3 + fpdu_len);

        let trailer = framers[1]
            .frame_in_place(&header, source.as_slice(), offset, len, &mut in_place)
            .unwrap();
        in_place.extend_from_slice(&source[offset..]);
        in_place.extend_from_slice(trailer.as_ref());
        prop_assert!((4..=7).contains(&trailer.as_ref().len()));
        prop_assert!(in_place == staged);

        let mut slice = vec![0xEE; fpdu_len + 1];
        let taken = framers[2].frame_into(&header, &source.as_slice(), offset, len, &mut slice);
        prop_assert_eq!(taken, Ok(fpdu_len));
        prop_assert!(slice[..fpdu_len] == staged[3..]);
        prop_assert_eq!(slice[fpdu_len], 0xEE);
        for framer in framers {
            prop_assert_eq!(framer.position(), fpdu_len as u64);
        }
    }

    #[test]
    fn markers_overwrite_whatever_the_slice_held(len in 1..MARKED, crc: bool) {
        let source = bytes(len, 3);
        let mut slice = vec![0xEE; 4000];
        let taken = Framer::new(crc, true).frame_into(&[], source.as_slice(), 0, len, &mut slice);
        slice.truncate(taken.unwrap());
        prop_assert_eq!(slice, stream_by_the_text(&[source], crc, true));
    }
}
