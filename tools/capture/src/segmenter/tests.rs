use proptest::prelude::*;

use super::*;
use uwarp_oracle::Fpdus;
use uwarp_testkit::filler;
use uwarp_testkit::frames::{reply, request, tagged, untagged};

const MARKERS: u8 = 0x80;

/// Passes the bytes of `turns` through a segmenter. Returns the segments in order.
fn segments(turns: &[(Side, &[u8])], mss: usize) -> Vec<(Side, Vec<u8>)> {
    let mut segmenter = Segmenter::default();
    let mut out = Vec::new();
    for (side, bytes) in turns {
        segmenter.push(*side, bytes, mss, &mut |s| out.push((*side, s.to_vec())));
    }
    for side in [Side::Local, Side::Peer] {
        segmenter.flush(side, &mut |s| out.push((side, s.to_vec())));
    }
    out
}

fn lengths(segments: &[(Side, Vec<u8>)], side: Side) -> Vec<usize> {
    let of_side = segments.iter().filter(|segment| segment.0 == side);
    of_side.map(|segment| segment.1.len()).collect()
}

/// Returns the lengths of the segments of `stream`, which the initiator sends in Full Operation.
fn in_full_operation(reply_flags: u8, stream: &[u8], mss: usize) -> Vec<usize> {
    let (request, reply) = (request(0x40, 1, b""), reply(reply_flags, 1, b""));
    let turns = [
        (Side::Local, request.as_slice()),
        (Side::Peer, reply.as_slice()),
        (Side::Local, stream),
    ];
    lengths(&segments(&turns, mss), Side::Local)[1..].to_vec()
}

#[test]
fn whole_fpdus_share_a_segment_and_a_longer_one_begins_its_own() {
    let mut encoder = Fpdus::new(true, false);
    let payloads = [100, 200, 1300, 10, 4000, 10, 10];
    let stream = payloads
        .map(|len| encoder.seal(&untagged(3, 0, 1, &filler(0, len))))
        .concat();
    let [a, b, c, d, e] =
        [100, 200, 1300, 10, 4000_usize].map(|len| (len + 20).next_multiple_of(4) + 4);
    let cut = in_full_operation(0x40, &stream, 1460);
    assert_eq!(cut, [a + b, c + d, 1460, 1460, e - 2920, 2 * d]);
}

#[test]
fn with_markers_every_fpdu_has_one_segment_however_long() {
    let mut encoder = Fpdus::new(true, true);
    let fpdus = [10, 20, 600, 3000, 10].map(|len| encoder.seal(&tagged(0, &filler(0, len))));
    let cut = in_full_operation(0x40 | MARKERS, &fpdus.concat(), 1460);
    assert_eq!(cut, fpdus.map(|fpdu| fpdu.len()));
}

#[test]
fn a_reply_ends_its_segment() {
    let fpdu = Fpdus::new(true, false).seal(&untagged(3, 0, 1, b"early"));
    let (request, reply) = (request(0x40, 1, b""), reply(0x40, 1, &[5; 100]));
    let both = [reply, fpdu].concat();
    let cut = segments(&[(Side::Peer, &request), (Side::Local, &both)], 1460);
    assert_eq!(lengths(&cut, Side::Local), [120, both.len() - 120]);
}

#[test]
fn markers_are_followed_in_the_direction_of_the_side_that_was_asked() {
    // The M bit of the initiator makes the responder send Markers, but not the initiator.
    let mut responder = Fpdus::new(true, true);
    let answers = [10, 500].map(|len| responder.seal(&tagged(2, &filler(0, len))));
    let mut initiator = Fpdus::new(true, false);
    let asked = [10, 500]
        .map(|len| initiator.seal(&tagged(0, &filler(0, len))))
        .concat();
    let (request, reply) = (request(0x40 | MARKERS, 1, b""), reply(0x40, 1, b""));
    let turns = [
        (Side::Local, request.as_slice()),
        (Side::Peer, reply.as_slice()),
        (Side::Local, asked.as_slice()),
        (Side::Peer, &answers.concat()),
    ];
    let cut = segments(&turns, 1460);
    assert_eq!(lengths(&cut, Side::Local), [20, asked.len()]);
    assert_eq!(
        lengths(&cut, Side::Peer),
        [20, answers[0].len(), answers[1].len()]
    );
}

#[test]
fn fewer_bytes_than_wireshark_needs_wait_for_more() {
    let mut segmenter = Segmenter::default();
    let mut out = Vec::new();
    let mut push = |bytes: &[u8]| {
        segmenter.push(Side::Local, bytes, 1460, &mut |s| out.push(s.len()));
        std::mem::take(&mut out)
    };
    let request = request(0x40, 1, &[1; 10]);
    assert_eq!(push(&request[..19]), []);
    assert_eq!(push(&request[19..25]), [25]);
    assert_eq!(push(&request[25..]), [5]);
}

#[test]
fn with_markers_an_fpdu_waits_until_it_is_whole_or_nothing_more_comes() {
    let mut segmenter = Segmenter::default();
    let mut out = Vec::new();
    let mut push = |side, bytes: &[u8]| {
        segmenter.push(side, bytes, 1460, &mut |s| out.push(s.len()));
        std::mem::take(&mut out)
    };
    push(Side::Local, &request(0x40, 1, b""));
    push(Side::Peer, &reply(0x40 | MARKERS, 1, b""));
    let mut encoder = Fpdus::new(true, true);
    let fpdus = [
        encoder.seal(&filler(0, 2000)),
        encoder.seal(&filler(0, 100)),
    ];
    let (stream, first) = (fpdus.concat(), fpdus[0].len());
    assert_eq!(push(Side::Local, &stream[..1000]), []);
    assert_eq!(push(Side::Local, &stream[1000..2000]), []);
    assert_eq!(push(Side::Local, &stream[2000..first + 50]), [first]);
    segmenter.flush(Side::Local, &mut |s| out.push(s.len()));
    assert_eq!(out, [50]);
}

#[test]
fn what_is_not_mpa_is_passed_on_at_once() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request"[..],
        b"M",
        b"MPA ID Req Frame..\xFF\xFF",
        b"MPA ID Rex",
    ] {
        let mut segmenter = Segmenter::default();
        let mut out = Vec::new();
        segmenter.push(Side::Peer, bytes, 1460, &mut |s| out.push(s.to_vec()));
        let waits = bytes == b"M";
        assert_eq!(out.is_empty(), waits);
    }
}

#[test]
fn after_a_rejection_two_requests_or_a_senseless_length_the_mss_decides() {
    let payload = [0; 300];
    let openings = [
        (request(0x40, 1, b""), reply(0x60, 1, b"")),
        (request(0x40, 1, b""), request(0x40, 1, b"")),
    ];
    for (first, second) in openings {
        let turns = [
            (Side::Local, first.as_slice()),
            (Side::Peer, second.as_slice()),
            (Side::Local, &payload),
        ];
        assert_eq!(lengths(&segments(&turns, 200), Side::Local), [20, 200, 100]);
    }
    let mut stream = Fpdus::new(true, false).seal(&untagged(3, 0, 1, b"fine"));
    let fine = stream.len();
    stream.extend([0xFF; 2000]);
    assert_eq!(in_full_operation(0x40, &stream, 1460), [fine, 1460, 540]);
}

#[test]
fn every_state_meets_every_event() {
    let frame = Frame {
        reply: false,
        markers: false,
        rejected: false,
    };
    let chain = Chain::new(false);
    let phases = [
        Phase::Header,
        Phase::Frame { frame, left: 30 },
        Phase::AwaitPeer(frame),
        Phase::Fpdus(chain),
        Phase::Plain,
    ];
    let events = [
        Event::Begins { frame, len: 30 },
        Event::Passed(10),
        Event::Passed(30),
        Event::Answered { markers: true },
        Event::Followed(chain),
        Event::Unfollowable,
    ];
    let word = |debug: String| {
        debug
            .split([' ', '{'])
            .next()
            .unwrap_or("")
            .replace("(Frame", "")
    };
    let mut table = String::new();
    for phase in phases {
        for event in events {
            let event_name = match event {
                Event::Passed(len) => format!("Passed({len} of 30)"),
                _ => word(format!("{event:?}")).replace("(Chain", ""),
            };
            let [from, to] = [phase, next(phase, event)]
                .map(|phase| word(format!("{phase:?}")).replace("(Chain", ""));
            table += &format!("{from:<10} {event_name:<18} {to}\n");
        }
    }
    insta::assert_snapshot!(table);
}

fn stream_of(lens: &[usize], markers: bool) -> (Vec<u8>, Vec<usize>) {
    let mut encoder = Fpdus::new(false, markers);
    let mut begins = Vec::new();
    let mut stream = Vec::new();
    for len in lens {
        begins.push(stream.len());
        stream.extend(encoder.seal(&untagged(3, 0, 1, &filler(0, *len))));
    }
    (stream, begins)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// No byte is lost, added or moved, however the bytes are divided. With Markers, every FPDU is
    /// one segment. Without Markers, the segment in which an FPDU begins contains at least 8 of its
    /// bytes.
    #[test]
    fn any_pieces_keep_the_stream_and_the_beginnings_of_fpdus(
        lens in prop::collection::vec(0..3000usize, 1..12),
        pieces in prop::collection::vec(1..2000usize, 1..20),
        markers in any::<bool>(),
        mss in 20..3000usize,
    ) {
        let (stream, begins) = stream_of(&lens, markers);
        let mut whole = request(0x40, 1, b"private");
        let startup = whole.len();
        whole.extend_from_slice(&stream);
        let reply = reply(0x40 | if markers { MARKERS } else { 0 }, 1, b"");
        let mut turns: Vec<(Side, &[u8])> = vec![(Side::Local, &whole[..startup]), (Side::Peer, &reply)];
        let mut rest = &whole[startup..];
        for len in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*len).min(rest.len()));
            turns.push((Side::Local, piece));
            rest = behind;
        }
        let cut: Vec<_> = segments(&turns, mss).into_iter().filter(|s| s.0 == Side::Local).collect();
        prop_assert_eq!(cut.iter().flat_map(|s| s.1.clone()).collect::<Vec<_>>(), whole);
        let mut at = 0;
        let ranges: Vec<_> = cut.iter().map(|s| { at += s.1.len(); at - s.1.len()..at }).collect();
        prop_assert!(markers || cut.iter().all(|s| s.1.len() <= mss));
        if markers {
            let begins: Vec<_> = begins.iter().map(|begin| begin + startup).collect();
            let startup_ends = ranges.iter().position(|range| range.start == startup).unwrap();
            let starts: Vec<_> = ranges[startup_ends..].iter().map(|range| range.start).collect();
            prop_assert_eq!(starts, begins);
            return Ok(());
        }
        for begin in begins {
            let begin = begin + startup;
            let range = ranges.iter().find(|range| range.contains(&begin)).unwrap();
            prop_assert!(range.end - begin >= 8);
        }
    }

    /// Arbitrary bytes are passed on unchanged, however they are divided and whichever side sends
    /// first.
    #[test]
    fn arbitrary_bytes_are_neither_lost_nor_changed(
        turns in prop::collection::vec((any::<bool>(), prop_oneof![
            prop::collection::vec(any::<u8>(), 0..100),
            Just(request(0xC0, 1, b"abc")),
            Just(reply(0xC0, 1, b"")),
            Just(b"MPA ID Re".to_vec()),
        ]), 0..20),
    ) {
        let turns: Vec<_> = turns.iter().map(|(local, bytes)| {
            (if *local { Side::Local } else { Side::Peer }, bytes.as_slice())
        }).collect();
        let cut = segments(&turns, 50);
        for side in [Side::Local, Side::Peer] {
            let collect = |all: &[(Side, &[u8])]| -> Vec<u8> {
                all.iter().filter(|t| t.0 == side).flat_map(|t| t.1.to_vec()).collect()
            };
            let out: Vec<_> = cut.iter().map(|(side, bytes)| (*side, bytes.as_slice())).collect();
            prop_assert_eq!(collect(&out), collect(&turns));
        }
    }
}
