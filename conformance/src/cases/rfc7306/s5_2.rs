//! RFC 7306 section 5.2: Atomic Requests use the same queue as Read Requests.

use super::{STAG, add, answered, asked_add, asked_swap, begin, done, swap, with_region};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Case, Data, Post, SINK_STAG, SINK_TO, Setup, Stag, To, Want, answer_atomic, answer_read, must,
    read_request,
};

pub(super) fn cases() -> Vec<Case> {
    let read_came = |len| {
        Expect(Want::ReadResponse {
            stag: Stag::Is(SINK_STAG),
            to: SINK_TO,
            data: Data::Bytes(vec![0; len]),
        })
    };
    let read = |size| read_request(Stag::Of("a"), To::In("a", 1024), size);
    vec![
        must(
            "ext/7306-5.2/1",
            &["7306-5.2-01"],
            "An Atomic Request is sent on QN 1, with the MSN after that of the previous Read Request.",
        )
        .steps([Watch(&[Rule::QueueNumber, Rule::Msn])])
        .steps(begin(Setup::default()))
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 1)),
            asked_add(1),
            Send(vec![answer_atomic(0, 3)]),
            done("fadd"),
            Post(Post::read(STAG, 0x1000, 64)),
            Expect(Want::ReadRequest {
                size: 64,
                stag: STAG,
                to: 0x1000,
            }),
            Send(vec![answer_read(0, 64)]),
            done("read"),
            Post(Post::compare_swap(STAG, 0x1000, 1, 2)),
            asked_swap(1, 2),
            Send(vec![answer_atomic(1, 3)]),
            done("cas"),
        ]),
        must(
            "ext/7306-5.2/2",
            &["7306-5.2-01", "7306-5.2.1-03"],
            "Read Requests and Atomic Requests are numbered together on QN 1, and answered in their order.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                add(1, 0, 1),
                read(700),
                add(2, 0, 1),
                swap(3, 0, 2, 9),
                read(9),
                read(0),
                add(4, 0, 1),
            ]),
            answered(1, 0),
            read_came(700),
            answered(2, 1),
            answered(3, 2),
            read_came(9),
            read_came(0),
            answered(4, 9),
            Ping,
        ]),
        must(
            "ext/7306-5.2/3",
            &["7306-5.2-01"],
            "No more Atomic Requests are outstanding than the application is allowed.",
        )
        .steps(begin(Setup::default().depths(16, 2)))
        .steps((0..6).map(|number| Post(Post::fetch_add(STAG, 0x1000 + 8 * number, 1))))
        .steps([AnswerAtomics {
            values: vec![7; 6],
            most: 2,
        }])
        .steps((0..6).map(|_| done("fadd"))),
    ]
}
