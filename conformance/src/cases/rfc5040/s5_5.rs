//! RFC 5040 section 5.5: ordering.

use super::*;
use crate::script::{Condition, Name, may, must};

/// Expects this data in the buffer of a Read of the application.
fn sink_holds(region: Name, data: Data) -> Action {
    let offset = 0;
    Holds {
        region,
        offset,
        data,
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.5/3",
            &["5040-5.5-03"],
            "A Read returns the data of earlier Writes.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096).access("lw,rw,rr")),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 100), 500),
                read_request(Stag::Of("r"), To::In("r", 100), 500),
            ]),
            response(500),
            Ping,
        ]),
        may(
            "rdmap/5040-5.5/4",
            &["5040-5.5-04"],
            "A peer may answer a Read after it has received later Writes and Sends: all of them complete.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::read(STAG, TO, 500).memory("sink")),
            Post(Post::write(STAG, TO, 3000)),
            Post(Post::send(5)),
            wants_read(TO, 500),
            wants_write(TO, Data::len(3000)),
            wants_send(opcode::SEND, 5),
            Send(vec![answer_read(0, 500)]),
            completes("read"),
            completes("write"),
            completes("send"),
            sink_holds("sink", Data::len(500)),
        ]),
        may(
            "rdmap/5040-5.5/9",
            &["5040-5.5-09"],
            "A peer may read the buffers of several Reads in any order: two Reads of the same bytes may return different data, and each sink gets its own.",
        )
        .steps([
            Establish(Setup::default()),
            Require(Condition::TargetOrdIsAtLeast(2)),
            Post(Post::read(STAG, TO, 500).memory("first")),
            Post(Post::read(STAG, TO, 500).memory("second")),
            wants_read(TO, 500),
            wants_read(TO, 500),
            Send(vec![
                answer_read(0, Data::Pattern(2, 0, 500)),
                answer_read(1, Data::Pattern(3, 0, 500)),
            ]),
            completes("read"),
            completes("read"),
            sink_holds("first", Data::Pattern(2, 0, 500)),
            sink_holds("second", Data::Pattern(3, 0, 500)),
        ]),
        must(
            "rdmap/5040-5.5/5",
            &["5040-5.5-05"],
            "Messages of different kinds are sent in the order in which the application posted them.",
        )
        .steps([
            Establish(Setup::default().mss(1460)),
            Post(Post::write(STAG, TO, 20_000)),
            Post(Post::send(1)),
            Post(Post::read(STAG, TO, 64)),
            Post(Post::write(STAG, TO, 3)),
            Post(Post::send(5000).solicited()),
            Post(Post::read(STAG, TO + 64, 1)),
            Post(Post::send_invalidate(0, STAG)),
            Post(Post::write(STAG, TO, 0)),
            wants_write(TO, Data::len(20_000)),
            wants_send(opcode::SEND, 1),
            wants_read(TO, 64),
            wants_write(TO, Data::len(3)),
            wants_send(opcode::SEND_SE, 5000),
            wants_read(TO + 64, 1),
            wants_send(opcode::SEND_INVALIDATE, 0),
            wants_write(TO, Data::none()),
        ]),
    ]
}
