//! RFC 5040 section 4.4: the RDMA Read Request Header.

use super::*;
use crate::script::{may, must, read_request_to};
use crate::wire::terminate::{D, M};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-4.4/1",
            &["5040-4.4-01"],
            "A Read Request has a header of 28 bytes: SinkSTag, SinkTO, RDMARDSZ, SrcSTag, SrcTO.",
        )
        .steps([Establish(Setup::default()), Watch(&[Rule::HeaderLength])])
        .steps(posts_read(1))
        .steps([
            Post(Post::read(0xfefd_fc00, 0x8070_6050_4030_2010, 4097)),
            Expect(Want::ReadRequest {
                size: 4097,
                stag: 0xfefd_fc00,
                to: 0x8070_6050_4030_2010,
            }),
            Send(vec![answer_read(0, 1), answer_read(1, 4097)]),
            completes("read"),
            completes("read"),
        ]),
        must(
            "rdmap/5040-4.4/2",
            &["5040-4.4-02"],
            "SinkSTag is copied into the Read Response, whatever its value is.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::SameStag]),
            Region(Region::readable("r", 8192)),
        ])
        .steps(
            [0, 1, 0x8000_0000, u32::MAX]
                .into_iter()
                .flat_map(|stag| reads_to(stag, SINK_TO)),
        ),
        must(
            "rdmap/5040-4.4/3",
            &["5040-4.4-i01", "5040-4.4-03"],
            "SinkTO is copied into the Read Response, whatever its value is.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Watch(&[Rule::To]),
            Region(Region::readable("r", 8192)),
        ])
        .steps(
            [0, 1, 0xffff_fffd, 1 << 63, u64::MAX - 0x1_0000]
                .into_iter()
                .flat_map(|to| reads_to(SINK_STAG, to)),
        ),
        may(
            "rdmap/5040-4.4/4",
            &["5040-4.4-04", "5040-5.2.1-09"],
            "A Read may begin at any byte of a region, and read any part of it.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 8192)),
            read("r", 0, 8192),
            response(8192),
        ])
        .steps(
            [1, 3, 4095, 8191]
                .into_iter()
                .flat_map(|at| [read("r", at, 1), response(Data::Pattern(1, at as u64, 1))]),
        ),
        must(
            "rdmap/5040-4.4/5",
            &["5040-4.4-i02"],
            "RDMARDSZ is the length that the application asked for, including zero.",
        )
        .steps([Establish(Setup::default())])
        .steps(posts_read(0))
        .steps(posts_read(1))
        .steps(posts_read(1 << 20))
        .steps([
            Send(vec![answer_read(0, 0), answer_read(1, 1)]),
            completes("read"),
            completes("read"),
        ]),
        must(
            "rdmap/5040-4.4/6",
            &["5040-4.4-i02", "5040-7.2-09"],
            "RDMARDSZ has 32 bits: a Read of 2^32-1 bytes exceeds the region.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 8192)),
            read("r", 0, u32::MAX),
            End(Ends::term(0, 1, 1)),
        ]),
        // No RFC names the code. A Terminate cannot quote the RDMA Header, because the header is
        // incomplete.
        must(
            "rdmap/5040-4.4/7",
            &["5040-4.4-01", "5040-7.2-05"],
            "A Read Request in a ULPDU shorter than its headers of 18 and 28 bytes is an error and is not answered.",
        )
        .steps([27, 24, 12, 1, 0].into_iter().flat_map(|header: usize| {
            [
                Establish(Setup::default()),
                Send(vec![
                    read_request(Stag::Is(0), To::Is(0), 0).cut(18 + header),
                    send(64),
                ]),
                EndNow(Ends::any_term().headers_within(0, M | D)),
            ]
        }))
        .steps([Establish(Setup::default()), Ping])
        .dangerous(),
    ]
}

/// Sends Reads of zero bytes, a few bytes and several segments, with this sink.
fn reads_to(sink_stag: u32, sink_to: u64) -> Vec<Action> {
    let one = |size: u32| {
        let sink = (Stag::Is(sink_stag), To::Is(sink_to));
        [
            Send(vec![read_request_to(
                sink.0,
                sink.1,
                Stag::Of("r"),
                To::In("r", 0),
                size,
            )]),
            Expect(Want::ReadResponse {
                stag: Stag::Is(sink_stag),
                to: sink_to,
                data: Data::len(size as usize),
            }),
        ]
    };
    [0, 5, 8000].into_iter().flat_map(one).collect()
}
