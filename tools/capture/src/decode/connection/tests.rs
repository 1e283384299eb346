//! Violations of rules that concern both directions, and bytes that are not FPDUs.

use std::io::Cursor;
use std::net::SocketAddr;

use crate::decode::{Content, Decoder, Event, Finding, Frame};
use crate::{Capture, Flow, LinkType, Reader};
use uwarp_oracle::Fpdus;
use uwarp_testkit::frames::{reply, request, tagged, untagged};
use uwarp_testkit::{MemoryFile, filler};

/// Flags of an enhanced startup frame that asks for CRCs.
const FLAGS: u8 = 0x50;
/// Enhanced data with IRD 4 and ORD 4, without RTR.
const DEPTHS: [u8; 4] = [0, 4, 0, 4];

/// Bytes that one side sends.
enum Said {
    Initiator(Vec<u8>),
    Responder(Vec<u8>),
}
use Said::{Initiator, Responder};

/// Returns the frames of a connection in which these bytes are sent in this order.
fn frames(all: &[Said]) -> Vec<Frame> {
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
    let (local, peer): (SocketAddr, SocketAddr) = (
        ([192, 0, 2, 1], 40_000).into(),
        ([192, 0, 2, 2], 7174).into(),
    );
    let mut flow = Flow::new(
        capture.interface("test", LinkType::RawIp),
        local,
        peer,
        1460,
    );
    flow.opened(true);
    for said in all {
        match said {
            Initiator(bytes) => flow.sent(bytes),
            Responder(bytes) => flow.received(bytes),
        }
    }
    drop(flow);
    let bytes = file.bytes();
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for packet in Reader::new(Cursor::new(bytes)).unwrap() {
        frames.extend(decoder.packet(&packet.unwrap()));
    }
    frames.extend(decoder.finish());
    frames
}

/// Returns the index of the frame and the requirement id of each finding.
fn ids(frames: &[Frame]) -> Vec<(usize, &'static str)> {
    let of = |(at, frame): (usize, &Frame)| -> Vec<(usize, &'static str)> {
        let ids = frame.findings.iter().map(Finding::id);
        ids.map(|id| (at, id)).collect()
    };
    frames.iter().enumerate().flat_map(of).collect()
}

/// Returns the frames of a Request and a Reply with this enhanced data, and of the bytes after
/// them.
fn after(asked: [u8; 4], answered: [u8; 4], behind: Vec<Said>) -> Vec<Frame> {
    let mut all = vec![
        Initiator(request(FLAGS, 2, &asked)),
        Responder(reply(FLAGS, 2, &answered)),
    ];
    all.extend(behind);
    frames(&all)
}

fn first_fpdu(ulpdu: &[u8]) -> Vec<u8> {
    Fpdus::new(true, false).seal(ulpdu)
}

fn send() -> Vec<u8> {
    first_fpdu(&untagged(3, 0, 1, &[7; 5]))
}

#[test]
fn what_comes_in_place_of_the_request_or_the_reply_has_its_rule() {
    let (asks, answers) = (request(FLAGS, 2, &DEPTHS), reply(FLAGS, 2, &DEPTHS));
    let other = b"SSH-2.0-none, and so on\r\n".to_vec();
    for (all, found) in [
        (
            [Initiator(asks.clone()), Responder(asks)],
            &[(1, "5044-7.1.1-03")][..],
        ),
        (
            [
                Initiator(request(FLAGS, 2, &DEPTHS)),
                Responder(other.clone()),
            ],
            &[(1, "5044-7.1.1-03")],
        ),
        (
            [Responder(answers), Initiator(other)],
            &[(0, "5044-7.1.2-03"), (1, "5044-7.1.1-01")],
        ),
    ] {
        assert_eq!(ids(&frames(&all)), found);
    }
}

#[test]
fn an_initiator_that_sends_before_the_reply_breaks_5044_7_1_2_11() {
    let (asks, answers) = (request(FLAGS, 2, &DEPTHS), reply(FLAGS, 2, &DEPTHS));
    let early = [
        Initiator(asks.clone()),
        Initiator(send()),
        Responder(answers.clone()),
    ];
    assert_eq!(ids(&frames(&early)), [(2, "5044-7.1.2-11")]);
    let in_one = [
        Initiator([asks.clone(), send()].concat()),
        Responder(answers.clone()),
    ];
    assert_eq!(ids(&frames(&in_one)), [(2, "5044-7.1.2-11")]);
    // Half of the FPDU precedes the Reply.
    let fpdu = send();
    let in_two = [
        Initiator([&asks, &fpdu[..7]].concat()),
        Responder(answers.clone()),
        Initiator(fpdu[7..].to_vec()),
    ];
    assert_eq!(ids(&frames(&in_two)), [(2, "5044-7.1.2-11")]);
    let right = [Initiator(asks), Responder(answers), Initiator(fpdu)];
    assert_eq!(ids(&frames(&right)), []);
}

#[test]
fn bytes_behind_a_request_that_gets_no_reply_break_5044_7_1_2_11() {
    let early = [Initiator([request(FLAGS, 2, &DEPTHS), send()].concat())];
    let found = frames(&early);
    assert_eq!(ids(&found), [(1, "5044-7.1.2-11")]);
    assert!(matches!(
        found[1].content,
        Content::Event(Event::Unfinished(_))
    ));
    assert_eq!(ids(&frames(&[Initiator(request(FLAGS, 2, &DEPTHS))])), []);
}

#[test]
fn a_responder_that_sends_first_breaks_5044_7_1_2_15() {
    let wrong = after(DEPTHS, DEPTHS, vec![Responder(send()), Initiator(send())]);
    assert_eq!(ids(&wrong), [(2, "5044-7.1.2-15")]);
    // The FPDU is in the segment of the Reply.
    let all = [
        Initiator(request(FLAGS, 2, &DEPTHS)),
        Responder([reply(FLAGS, 2, &DEPTHS), send()].concat()),
    ];
    assert_eq!(ids(&frames(&all)), [(2, "5044-7.1.2-15")]);
    let right = after(DEPTHS, DEPTHS, vec![Initiator(send()), Responder(send())]);
    assert_eq!(ids(&right), []);
}

/// Enhanced data of a peer-to-peer connection with these kinds of RTR. Bits A and B are above IRD,
/// and bits C and D above ORD.
fn rtr(send: bool, write: bool, read: bool) -> [u8; 4] {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    [
        0x80 | bit(send, 0x40),
        4,
        bit(write, 0x80) | bit(read, 0x40),
        4,
    ]
}

#[test]
fn a_first_fpdu_that_is_no_rtr_breaks_6581_9_2_09() {
    let empty = [
        untagged(3, 0, 1, &[]),
        tagged(0, &[]),
        untagged(1, 1, 1, &[0; 28]),
    ];
    let others = [
        untagged(3, 0, 1, &[7; 5]),
        tagged(0, &[7; 5]),
        // The messages are a Read of 9 bytes, a Send with Solicited Event and an Atomic Request.
        {
            let mut read = untagged(1, 1, 1, &[0; 28]);
            read[33] = 9;
            read
        },
        untagged(5, 0, 1, &[]),
        untagged(10, 1, 1, &[0; 52]),
    ];
    for agreed in 0..3 {
        let words = rtr(agreed == 0, agreed == 1, agreed == 2);
        let first = |ulpdu| after(words, words, vec![Initiator(first_fpdu(ulpdu))]);
        for (kind, ulpdu) in empty.iter().enumerate() {
            let due: &[_] = match kind == agreed {
                true => &[],
                false => &[(2, "6581-9.2-09")],
            };
            assert_eq!(ids(&first(ulpdu)), due, "{kind} for {agreed}");
        }
        for ulpdu in &others {
            assert_eq!(ids(&first(ulpdu)), [(2, "6581-9.2-09")], "{ulpdu:02x?}");
        }
    }
    // Every message is permitted without RTR, and as the second FPDU.
    assert_eq!(ids(&after(DEPTHS, DEPTHS, vec![Initiator(send())])), []);
    let mut encoder = Fpdus::new(true, false);
    let both = [
        encoder.seal(&tagged(0, &[])),
        encoder.seal(&untagged(3, 0, 1, &[7; 5])),
    ];
    let words = rtr(false, true, false);
    assert_eq!(
        ids(&after(words, words, vec![Initiator(both.concat())])),
        []
    );
}

#[test]
fn a_ulpdu_that_ends_within_the_ddp_header_breaks_5041_4_4_01() {
    let (write, send) = (tagged(0, &[]), untagged(3, 0, 1, &[]));
    for (ulpdu, lens) in [(&write, 0..14), (&send, 1..18)] {
        for len in lens {
            let mut encoder = Fpdus::new(true, false);
            let short = encoder.seal(&ulpdu[..len]);
            // The next FPDU is found after the short one.
            let next = encoder.seal(&untagged(3, 0, 1, &[7; 5]));
            let found = after(DEPTHS, DEPTHS, vec![Initiator([short, next].concat())]);
            assert_eq!(ids(&found), [(2, "5041-4.4-01")], "{len} bytes");
            assert_eq!(found.len(), 4);
            assert!(found[3].to_string().contains("Send MSN 1 5 bytes L"));
        }
    }
}

#[test]
fn a_ulpdu_length_above_64768_breaks_5044_3_05() {
    for (markers, len) in [(false, 64_768), (true, 64_768)] {
        let mut encoder = Fpdus::new(true, markers);
        let flags = FLAGS | if markers { 0x80 } else { 0 };
        let longest = encoder.seal(&tagged(0, &filler(0, len - 14)));
        let all = [
            Initiator(request(FLAGS, 2, &DEPTHS)),
            Responder(reply(flags, 2, &DEPTHS)),
            Initiator(longest),
        ];
        assert_eq!(ids(&frames(&all)), []);
    }
    for len in [64_769, 0xFFFF_u16] {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend(tagged(0, &filler(0, 600)));
        let found = after(DEPTHS, DEPTHS, vec![Initiator(bytes), Responder(send())]);
        // The start of the next FPDU is unknown, so the decoder cannot know whether the responder
        // may send.
        assert_eq!(ids(&found), [(2, "5044-3-05")], "{len} bytes");
        let begins = request(FLAGS, 2, &DEPTHS).len() as u64;
        assert_eq!(found[2].offset, begins, "the shown bytes were not taken");
        assert!(
            found[2]
                .to_string()
                .contains(&format!("ULPDU_Length {len}"))
        );
        assert_eq!(found.len(), 4);
    }
}
