//! RFC 5041 section 5.2: segmentation and reassembly.

use super::{STAG, TO, piece, sends, tagged_traffic, untagged_traffic, untouched, writes};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, OutSegment, Post, Region, Rtr, SINK_STAG, SINK_TO, Setup, Stag,
    To, Want, must, read_request, send, write,
};

pub(super) fn cases() -> Vec<Case> {
    [source(), sink(), empty()].concat()
}

fn source() -> Vec<Case> {
    let fits = |traffic: Vec<Action>| -> Vec<Action> {
        let mut steps = traffic;
        steps.insert(1, Require(Condition::EmssKnown));
        steps
    };
    vec![
        must(
            "ddp/5041-5.2/1",
            &["5041-5.2-01", "5041-5.2-04"],
            "A long Send is sent in segments, with all its bytes.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::send(200_001)),
            sends(200_001),
        ]),
        must(
            "ddp/5041-5.2/2",
            &["5041-5.2-02"],
            "No segment is larger than MULPDU.",
        )
        .steps(fits(untagged_traffic(&[Rule::Mulpdu])))
        .steps(fits(tagged_traffic(&[Rule::Mulpdu]))),
        must(
            "ddp/5041-5.2/4",
            &["5041-5.2-01", "5041-5.2-04"],
            "A long RDMA Write is sent in segments, with all its bytes.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::write(STAG, TO, 200_001)),
            writes(200_001),
        ]),
        must(
            "ddp/5041-5.2/3",
            &["5041-5.2-04"],
            "A short message has the bytes of its buffer, even across the end of a page.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("source", 8192)),
        ])
        // At least two of these Reads cross a page boundary, wherever the region starts in a page
        // of 4096 bytes.
        .steps((0..4096 + 32).step_by(13).flat_map(read_of_32)),
        must(
            "ddp/5041-5.2/6",
            &["5041-5.2-06"],
            "MO is the offset of a segment's first byte in the message.",
        )
        .steps(untagged_traffic(&[Rule::Mo])),
        must(
            "ddp/5041-5.2/8",
            &["5041-5.2-08"],
            "TO is the consumer's TO plus the offset of a segment's first byte in the message.",
        )
        .steps(tagged_traffic(&[Rule::To])),
    ]
}

/// Builds a Write with segments of these lengths.
fn write_in(lens: &[usize]) -> Vec<OutSegment> {
    let mut at = 0;
    let mut segments = Vec::new();
    for len in lens {
        let to = To::In("r", 3 + i64::from(at));
        segments.push(write(Stag::Of("r"), to, piece(u64::from(at), *len)).more());
        at += *len as u32;
    }
    if let Some(last) = segments.last_mut() {
        last.last = true;
    }
    segments
}

/// Builds a Send with segments of these lengths.
fn send_in(lens: &[usize]) -> Vec<OutSegment> {
    let mut at = 0;
    let mut segments = Vec::new();
    for (index, len) in lens.iter().enumerate() {
        let segment = send(piece(u64::from(at), *len)).mo(at);
        let is_last = index + 1 == lens.len();
        segments.push(if is_last { segment } else { segment.more() });
        at += *len as u32;
    }
    segments
}

/// Sends a Read of 32 bytes and expects its response.
fn read_of_32(offset: i64) -> [Action; 2] {
    [
        Send(vec![read_request(
            Stag::Of("source"),
            To::In("source", offset),
            32,
        )]),
        Expect(Want::ReadResponse {
            stag: Stag::Is(SINK_STAG),
            to: SINK_TO,
            data: Data::Pattern(1, offset.unsigned_abs(), 32),
        }),
    ]
}

fn sink() -> Vec<Case> {
    let mut untagged = vec![Establish(Setup::default())];
    let mut tagged = vec![
        Establish(Setup::default()),
        Region(Region::writable("r", 4096)),
    ];
    for lens in [
        &[1000][..],
        &[1, 999],
        &[999, 1],
        &[7, 300, 5, 600, 88],
        &[500, 500],
    ] {
        untagged.extend([Send(send_in(lens)), Delivered(Data::len(1000))]);
        tagged.extend([
            Send(write_in(lens)),
            Ping,
            Holds {
                region: "r",
                offset: 3,
                data: Data::len(1000),
            },
            Holds {
                region: "r",
                offset: 0,
                data: untouched(3),
            },
            Holds {
                region: "r",
                offset: 1003,
                data: untouched(100),
            },
            // Clears the region, so that the next message has to write every byte again.
            Send(vec![write(Stag::Of("r"), To::In("r", 0), untouched(1100))]),
        ]);
    }
    vec![
        must(
            "ddp/5041-5.2/5",
            &["5041-5.2-05"],
            "All bytes of an untagged message reach its buffer, however the message is segmented.",
        )
        .steps(untagged),
        must(
            "ddp/5041-5.2/7",
            &["5041-5.2-05"],
            "All bytes of a tagged message reach its buffer, however the message is segmented.",
        )
        .steps(tagged),
    ]
}

fn empty() -> Vec<Case> {
    let nonsense = [
        (Stag::Is(0xdead_beef), To::Is(u64::MAX)),
        (Stag::Is(u32::MAX), To::Is(0)),
        (Stag::Of("r"), To::End("r", 1000)),
        (Stag::Of("r"), To::Is(u64::MAX)),
        (Stag::Near("r", 0xff), To::In("r", -1)),
        (Stag::Of("readable"), To::In("readable", 0)),
    ];
    vec![
        must(
            "ddp/5041-5.2/9",
            &["5041-5.2-09"],
            "A message of zero length is allowed, and is one segment.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::send(0)),
            Post(Post::write(STAG, TO, 0)),
            Post(Post::send(1)),
            sends(0),
            Expect(Want::Rtr(Rtr::Write)),
            sends(1),
            Send(vec![send(0)]),
            Delivered(Data::none()),
            Ping,
        ]),
        must(
            "ddp/5041-5.2/10",
            &["5041-5.2-10"],
            "A tagged segment of zero length has the DDP Control Field and RsvdULP like any other.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[
                Rule::DdpHeader,
                Rule::TaggedFlag,
                Rule::DdpVersion,
                Rule::RdmapVersion,
                Rule::Opcode,
            ]),
            Post(Post::write(STAG, TO, 0)),
            Expect(Want::Rtr(Rtr::Write)),
            Ping,
        ]),
        must(
            "ddp/5041-5.2/11",
            &["5041-5.2-11"],
            "STag and TO of an RDMA Write of zero length are not checked.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Region(Region::readable("readable", 4096)),
        ])
        .steps(
            nonsense
                .into_iter()
                .flat_map(|(stag, to)| [Send(vec![write(stag, to, 0)]), Ping]),
        ),
        must(
            "ddp/5041-5.2/12",
            &["5041-5.2-11"],
            "STag and TO of an RDMA Write of zero length are not checked, even if the STag is no longer valid.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Deregister("r"),
            Send(vec![write(Stag::Of("r"), To::In("r", 0), 0)]),
            Ping,
        ]),
    ]
}
