//! RFC 5040 section 5.5: order.

use super::*;
use crate::script::must;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-5.5/3",
            &["5040-5.5-03"],
            "A Read sees what Writes before it have written.",
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
