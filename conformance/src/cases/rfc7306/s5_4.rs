//! RFC 7306 sections 5.4 and 7: ordering of messages.

use super::{
    LATER, STAG, add, answered, asked_add, begin, swap, untouched, with_region, wrong_msn,
};
use crate::script::Action::*;
use crate::script::{
    Case, Condition, Data, Ends, Post, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want,
    answer_atomic, immediate, may, must, read_request, send, write,
};
use crate::wire::fpdu::CrcField;
use crate::wire::segment::opcode;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "ext/7306-5.4/1",
            &["7306-5.4-02"],
            "An Atomic Request in an FPDU with a wrong CRC is not delivered, and changes nothing.",
        )
        .steps(with_region())
        .steps([
            Require(Condition::CrcInUse),
            Send(vec![add(1, 0, 1).crc(CrcField::Xor(1))]),
            End(Ends::term(2, 0, 2).or_close()),
            untouched(),
        ]),
        must(
            "ext/7306-5.4/2",
            &["7306-5.4-02"],
            "An Atomic Request with a wrong MSN is not delivered, and changes nothing.",
        )
        .steps(with_region())
        .steps([
            Send(vec![add(1, 0, 1).msn(LATER)]),
            End(wrong_msn()),
            untouched(),
        ]),
        must(
            "ext/7306-5.4/3",
            &["7306-5.4-02", "7306-5.2.1-09"],
            "An Atomic Request that comes in pieces is executed once, when it is complete.",
        )
        .steps(with_region())
        .steps([
            SendInPieces(add(1, 0, 5), vec![1, 20, 40, 60, 75]),
            answered(1, 0),
            SendInPieces(swap(2, 0, 5, 6), vec![2, 19, 73]),
            answered(2, 5),
            Send(vec![add(3, 0, 0)]),
            answered(3, 6),
        ]),
        may(
            "ext/7306-5.4/6",
            &["7306-5.4-03"],
            "A peer may answer an Atomic Request after it has received later Writes and Sends: all of them complete.",
        )
        .steps(begin(Setup::default()))
        .steps([
            Post(Post::fetch_add(STAG, 0x1000, 7)),
            Post(Post::write(STAG, 0x2000, 3000)),
            Post(Post::send(5)),
            asked_add(7),
            Expect(Want::Write {
                stag: STAG,
                to: 0x2000,
                data: Data::len(3000),
            }),
            Expect(Want::Send {
                opcode: opcode::SEND,
                invalidate: Some(0),
                data: Data::len(5),
            }),
            Send(vec![answer_atomic(0, 1)]),
            super::done("fadd"),
            super::done("write"),
            super::done("send"),
        ]),
        must(
            "ext/7306-5.4/4",
            &["7306-5.4-02"],
            "When the response to an Atomic Request comes, the Write before it has been placed, and a Read after it sees both.",
        )
        .steps(with_region())
        .steps([
            Region(Region::writable("w", 65536).access("lw,rw,rr")),
            Send(vec![
                write(Stag::Of("w"), To::In("w", 3), 60_000),
                add(1, 0, 0x7777_7777_7777_7777),
                read_request(Stag::Of("a"), To::In("a", 0), 8),
            ]),
            answered(1, 0),
            Holds {
                region: "w",
                offset: 3,
                data: Data::len(60_000),
            },
            Expect(Want::ReadResponse {
                stag: Stag::Is(SINK_STAG),
                to: SINK_TO,
                data: Data::Bytes(vec![0x77; 8]),
            }),
        ]),
        must(
            "ext/7306-5.4/5",
            &["7306-5.4-02"],
            "Mixed Sends, Immediate Data and Atomic Requests are each executed, in their order.",
        )
        .steps(with_region())
        .steps([
            Send(vec![
                send(100),
                add(1, 0, 1),
                immediate(b"12345678"),
                swap(2, 0, 1, 9),
                send(10),
                add(3, 0, 1),
            ]),
            answered(1, 0),
            answered(2, 1),
            answered(3, 9),
            super::done("recv"),
            ReceivesImmediate(*b"12345678"),
            super::done("recv"),
        ]),
    ]
}
