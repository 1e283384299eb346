//! RFC 5041 section 6.2: teardown.

use super::sends;
use crate::script::Action::*;
use crate::script::{
    Case, Ends, Post, Region, Setup, Stag, To, may, must, read_request, send, should, terminate,
    write,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        may(
            "ddp/5041-6.2/2",
            &["5041-6.2-02"],
            "A peer may tear down the TCP connection with the stream, gracefully or not: the application gets an event, and the next connection works.",
        )
        .steps([Fin, Reset].into_iter().flat_map(|end| {
            [
                Establish(Setup::default()),
                Ping,
                Send(vec![terminate(&[0, 0, 0, 0])]),
                end,
                Event("disconnected"),
            ]
        }))
        .steps([Establish(Setup::default()), Ping]),
        should(
            "ddp/5041-6.2.1/1",
            &["5041-6.2.1-01"],
            "Messages submitted before a graceful teardown are sent before the connection ends.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::send(100_000)),
            Post(Post::send(7)),
            Disconnect,
            sends(100_000),
            sends(7),
            End(Ends::close()),
        ]),
        should(
            "ddp/5041-6.2.1/4",
            &["5041-6.2.1-04"],
            "After the peer's FIN, the data that it has requested is still sent.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 1 << 20)),
            Send(vec![read_request(
                Stag::Of("r"),
                To::In("r", 0),
                1 << 20,
            )]),
            Fin,
            super::responds(1 << 20),
        ]),
        must(
            "ddp/5041-6.2.1/5",
            &["5041-6.2.1-05"],
            "After the peer's FIN, a graceful teardown closes the other half with a FIN.",
        )
        .steps([
            Establish(Setup::default()),
            Ping,
            Fin,
            Disconnect,
            Closed { graceful: true },
        ]),
        should(
            "ddp/5041-6.2.2/5",
            &["5041-6.2.2-05", "5041-7.1-19"],
            "After an error in a tagged segment, the stream still carries a Terminate.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![write(Stag::Of("r"), To::End("r", 0), 16)]),
            End(Ends::any_term()),
        ]),
        should(
            "ddp/5041-6.2.2/6",
            &["5041-6.2.2-05", "5041-7.1-19"],
            "After an error in an untagged segment, the stream still carries a Terminate.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).qn(7)]),
            End(Ends::any_term()),
        ]),
    ]
}
