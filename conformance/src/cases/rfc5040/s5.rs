//! RFC 5040 section 5: the messages and their order.

use crate::script::Action::*;
use crate::script::{
    Case, Data, Post, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want, answer_read, must,
    read_request, write,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.1/1",
            &["5040-5.1-01"],
            "An RDMA Write is sent as a tagged message, with all its octets in order.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::write(0x0102_0300, 0x1000, 10_000)),
            Expect(Want::Write {
                stag: 0x0102_0300,
                to: 0x1000,
                data: Data::len(10_000),
            }),
        ]),
        must(
            "rdmap/5040-5.2.1/1",
            &["5040-5.2-01", "5040-5.2.1-01"],
            "An RDMA Read is one Read Request and one Read Response.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::read(0x0102_0300, 0x1000, 3000)),
            Expect(Want::ReadRequest {
                size: 3000,
                stag: 0x0102_0300,
                to: 0x1000,
            }),
            Send(vec![answer_read(0, 3000)]),
            Completion {
                op: "read",
                success: true,
            },
        ]),
        must(
            "rdmap/5040-5.2.2/1",
            &["5040-5.2.2-01", "5040-5.5-03"],
            "A Read sees what Writes before it have written.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096).access("lw,rw,rr")),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 100), 500),
                read_request(Stag::Of("r"), To::In("r", 100), 500),
            ]),
            Expect(Want::ReadResponse {
                stag: Stag::Is(SINK_STAG),
                to: SINK_TO,
                data: Data::len(500),
            }),
            Ping,
        ]),
    ]
}
