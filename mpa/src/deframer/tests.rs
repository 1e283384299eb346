use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{
    BEFORE_FIGURE_6, FIGURE_5, FIGURE_6, bytes, chunked, drain, send_header, stream_of, ulpdus,
};

fn all_of(ulpdu: &Ulpdu<'_>) -> Vec<u8> {
    ulpdu.pieces(0, ulpdu.len()).flatten().copied().collect()
}

fn fpdu<'a>(deframer: &mut Deframer, input: &'a [u8]) -> Ulpdu<'a> {
    match deframer.next(input) {
        Ok(Step::Fpdu(ulpdu)) => ulpdu,
        other => panic!("no FPDU: {other:?}"),
    }
}

/// Writes the right CRC to the end of a lone FPDU.
fn seal(fpdu: &mut [u8]) {
    let (body, field) = fpdu.split_last_chunk_mut().unwrap();
    *field = crc32c(body).to_le_bytes();
}

#[test]
fn figures_5_and_6_of_rfc_5044_are_taken() {
    let mut deframer = Deframer::new(true, true);
    let ulpdu = fpdu(&mut deframer, &FIGURE_5);
    assert_eq!(
        (ulpdu.len(), ulpdu.wire_len(), ulpdu.position()),
        (42, 52, 0)
    );
    let mut expected = send_header(1).to_vec();
    expected.resize(42, 0);
    assert_eq!(all_of(&ulpdu), expected);

    let mut stream = stream_of(&[vec![0; BEFORE_FIGURE_6]], true, true);
    stream.extend_from_slice(&FIGURE_6);
    let mut deframer = Deframer::new(true, true);
    let used = fpdu(&mut deframer, &stream).wire_len();
    let ulpdu = fpdu(&mut deframer, &stream[used..]);
    assert_eq!(
        (ulpdu.len(), ulpdu.wire_len(), ulpdu.position()),
        (42, 52, 0x1EC)
    );
    expected[13] = 2;
    assert_eq!(all_of(&ulpdu), expected);
    assert_eq!(deframer.position(), 544);
}

#[test]
fn need_grows_from_the_length_field_to_the_whole_fpdu() {
    for (markers, first) in [(false, 2), (true, 6)] {
        let stream = stream_of(&[bytes(600, 0)], true, markers);
        let mut deframer = Deframer::new(true, markers);
        for len in 0..stream.len() {
            let expected = if len < first { first } else { stream.len() };
            match deframer.next(&stream[..len]) {
                Ok(Step::Need(need)) => assert_eq!(need, expected),
                other => panic!("{len}: {other:?}"),
            }
        }
        assert_eq!(fpdu(&mut deframer, &stream).len(), 600);
    }
}

#[test]
fn head_is_borrowed_unless_a_marker_lies_in_it() {
    // The length field is at 0x1EC, so the Marker follows the 18th byte of the ULPDU.
    let stream = stream_of(&[bytes(BEFORE_FIGURE_6, 0), bytes(42, 5)], true, true);
    let mut deframer = Deframer::new(true, true);
    let used = fpdu(&mut deframer, &stream).wire_len();
    let ulpdu = fpdu(&mut deframer, &stream[used..]);
    let mut scratch = [0xEE; 18];
    assert_eq!(ulpdu.head(&mut scratch), &bytes(42, 5)[..18]);
    assert_eq!(scratch, [0xEE; 18]);
    let mut scratch = [0xEE; 19];
    assert_eq!(ulpdu.head(&mut scratch), &bytes(42, 5)[..19]);
    assert_eq!(scratch, bytes(42, 5)[..19]);
    let mut scratch = [0xEE; 100];
    assert_eq!(ulpdu.head(&mut scratch), &bytes(42, 5)[..]);
}

#[test]
fn pieces_outside_the_ulpdu_are_left_out() {
    let stream = stream_of(&[bytes(10, 0)], true, false);
    let mut deframer = Deframer::new(true, false);
    let ulpdu = fpdu(&mut deframer, &stream);
    assert_eq!(
        ulpdu.pieces(8, usize::MAX).collect::<Vec<_>>(),
        [&bytes(10, 0)[8..]]
    );
    assert_eq!(ulpdu.pieces(10, 1).count(), 0);
    assert_eq!(ulpdu.pieces(usize::MAX, usize::MAX).count(), 0);
}

#[test]
fn a_ulpdu_of_no_bytes_is_passed_on() {
    let mut stream = [0; 8];
    seal(&mut stream);
    let mut deframer = Deframer::new(true, false);
    let ulpdu = fpdu(&mut deframer, &stream);
    assert!(ulpdu.is_empty());
    assert_eq!((ulpdu.wire_len(), ulpdu.pieces(0, 1).count()), (8, 0));
    assert!(ulpdu.head(&mut [0; 18]).is_empty());
}

#[test]
fn bad_crc_is_told_and_is_the_last_word() {
    let mut stream = stream_of(&[bytes(30, 0), bytes(30, 1)], true, false);
    let good = stream.clone();
    stream[9] ^= 1;
    let mut deframer = Deframer::new(true, false);
    let error = deframer.next(&stream).unwrap_err();
    assert!(
        matches!(error, DeframeError::BadCrc { position: 0, .. }),
        "{error:?}"
    );
    assert_eq!(error.code().code(), 2);
    // 5044-8-11
    assert_eq!(deframer.next(&good).unwrap_err(), error);
    assert_eq!(deframer.position(), 0);
}

#[test]
fn without_crc_the_field_may_hold_anything() {
    let mut stream = stream_of(&[bytes(30, 0)], false, true);
    let len = stream.len();
    stream[len - 4..].fill(0x5A);
    assert_eq!(
        all_of(&fpdu(&mut Deframer::new(false, true), &stream)),
        bytes(30, 0)
    );
}

#[test]
fn pad_may_hold_anything_that_the_crc_covers() {
    let mut stream = stream_of(&[bytes(5, 0)], true, false);
    stream[7] = 0x77;
    assert!(Deframer::new(true, false).next(&stream).is_err());
    seal(&mut stream);
    assert_eq!(
        all_of(&fpdu(&mut Deframer::new(true, false), &stream)),
        bytes(5, 0)
    );
}

#[test]
fn a_wrong_marker_behind_a_valid_crc_is_a_mismatch() {
    let good = stream_of(&[bytes(1200, 0)], true, true);
    for (marker, pointer, expected) in [(0, 4, 0), (512, 0, 508), (1024, 1024, 1020)] {
        let mut stream = good.clone();
        stream[marker + 2..marker + 4].copy_from_slice(&u16::to_be_bytes(pointer));
        // Both CRC and Marker are wrong here. The CRC is checked first.
        let error = Deframer::new(true, true).next(&stream).unwrap_err();
        assert!(matches!(error, DeframeError::BadCrc { .. }));
        seal(&mut stream);
        let mismatch = DeframeError::MarkerMismatch {
            expected,
            got: pointer,
            position: marker as u64,
        };
        for crc in [true, false] {
            let mut deframer = Deframer::new(crc, true);
            assert_eq!(deframer.next(&stream).unwrap_err(), mismatch);
            assert_eq!(deframer.next(&good).unwrap_err(), mismatch);
        }
        assert_eq!(mismatch.code().code(), 3);
    }
}

#[test]
fn reserved_parts_of_a_marker_are_ignored() {
    let mut stream = stream_of(&[bytes(600, 0)], true, true);
    stream[0] = 0xFF; // reserved
    stream[513] = 0xFF;
    stream[515] |= 3; // low bits of FPDUPTR
    seal(&mut stream);
    assert_eq!(
        all_of(&fpdu(&mut Deframer::new(true, true), &stream)),
        bytes(600, 0)
    );
}

#[test]
fn a_length_that_no_fpdu_may_have_is_refused_at_once() {
    for len in 64_768..=u16::MAX {
        let step = Deframer::new(true, false)
            .next(&len.to_be_bytes())
            .map(|_| ());
        let expected = match len {
            64_768 => Ok(()),
            _ => Err(DeframeError::LengthTooLong { len, position: 0 }),
        };
        assert_eq!(step, expected);
    }
}

#[test]
fn every_error_has_its_code_and_words() {
    let all = [
        DeframeError::BadCrc {
            expected: 0x1234_5678,
            got: 0x9ABC_DEF0,
            position: 1028,
        },
        DeframeError::MarkerMismatch {
            expected: 20,
            got: 24,
            position: 512,
        },
        DeframeError::LengthTooLong {
            len: 65_000,
            position: 48,
        },
    ];
    let table: Vec<_> = all
        .iter()
        .map(|e| std::format!("2/0/{:02} {}: {e}", e.code().code(), e.code()))
        .collect();
    insta::assert_snapshot!(table.join("\n"));
}

/// Maximum length in bytes of a ULPDU in the tests with cut streams (`CUT`), and of a random stream
/// (`RANDOM`). Under Miri, a ULPDU of length `CUT` has one Marker, and a random stream has none.
const CUT: usize = if cfg!(miri) { 600 } else { 2000 };
const RANDOM: usize = if cfg!(miri) { 30 } else { 5000 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 128 }))]

    #[test]
    fn any_chunking_gives_the_same_ulpdus(
        ulpdus in ulpdus(8),
        sizes in proptest::collection::vec(prop_oneof![1..8usize, 1..2000usize], 1..8),
        crc: bool,
        markers: bool,
    ) {
        let stream = stream_of(&ulpdus, crc, markers);
        let mut deframer = Deframer::new(crc, markers);
        let (mut buffer, mut got) = (Vec::new(), Vec::new());
        for piece in chunked(&stream, &sizes) {
            buffer.extend_from_slice(piece);
            drain(&mut deframer, &mut buffer, &mut got).unwrap();
        }
        prop_assert_eq!(got, ulpdus);
        prop_assert_eq!(deframer.position(), stream.len() as u64);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes, and shorter ones go the same way")]
    fn the_longest_ulpdu_survives(markers: bool, crc: bool, before in 1..600usize) {
        let ulpdus = vec![bytes(before, 1), bytes(MAX_ULPDU, 2)];
        let mut stream = stream_of(&ulpdus, crc, markers);
        let mut got = Vec::new();
        drain(&mut Deframer::new(crc, markers), &mut stream, &mut got).unwrap();
        prop_assert!(got == ulpdus);
    }

    #[test]
    fn any_range_is_the_same_as_cutting_the_ulpdu(
        before in 1..520usize, len in 1..CUT, offset in 0..CUT + 100, wanted in 0..CUT + 100,
    ) {
        let stream = stream_of(&[bytes(before, 1), bytes(len, 2)], true, true);
        let mut deframer = Deframer::new(true, true);
        let used = fpdu(&mut deframer, &stream).wire_len();
        let ulpdu = fpdu(&mut deframer, &stream[used..]);
        let got: Vec<u8> = ulpdu.pieces(offset, wanted).flatten().copied().collect();
        let (from, to) = (offset.min(len), (offset + wanted).min(len));
        prop_assert_eq!(&got[..], &bytes(len, 2)[from..to]);
        let mut scratch = vec![0; wanted];
        prop_assert_eq!(ulpdu.head(&mut scratch), &bytes(len, 2)[..wanted.min(len)]);
    }

    #[test]
    fn one_changed_byte_never_gives_another_ulpdu(
        ulpdus in ulpdus(5), at: prop::sample::Index, flip in 1..=u8::MAX, markers: bool,
    ) {
        let mut stream = stream_of(&ulpdus, true, markers);
        let at = at.index(stream.len());
        stream[at] ^= flip;
        let mut got = Vec::new();
        // The result is an error, or a wait for the bytes that a larger length field requires.
        let mut deframer = Deframer::new(true, markers);
        let _ = drain(&mut deframer, &mut stream, &mut got);
        prop_assert!(got.len() < ulpdus.len());
        prop_assert_eq!(&got[..], &ulpdus[..got.len()]);
    }

    #[test]
    fn random_bytes_end_in_an_error_or_a_wait(
        mut stream in proptest::collection::vec(any::<u8>(), 0..RANDOM), crc: bool, markers: bool,
    ) {
        let _ = drain(&mut Deframer::new(crc, markers), &mut stream, &mut Vec::new());
    }
}

#[test]
fn an_fpdu_that_was_put_back_comes_again_with_its_markers() {
    for markers in [false, true] {
        let stream = stream_of(&[bytes(600, 0), bytes(700, 1)], true, markers);
        let mut deframer = Deframer::new(true, markers);
        let mut at = 0;
        for len in [600, 700] {
            for _ in 0..3 {
                let before = deframer.position();
                let ulpdu = fpdu(&mut deframer, &stream[at..]);
                assert_eq!(ulpdu.len(), len);
                deframer.put_back(&ulpdu);
                assert_eq!(deframer.position(), before);
            }
            let ulpdu = fpdu(&mut deframer, &stream[at..]);
            at += ulpdu.wire_len();
        }
        assert_eq!(at, stream.len());
    }
}
