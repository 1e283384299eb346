//! RFC 5040 section 5.4: the Terminate Message.

use super::*;
use crate::script::{Msn, must, terminate};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        must(
            "rdmap/5040-5.4/1",
            &["5040-5.4-01"],
            "A Terminate is an untagged message.",
        )
        .steps(every_terminate(&[Rule::TaggedFlag])),
        must(
            "rdmap/5040-5.4/2",
            &["5040-5.4-02"],
            "A Terminate uses QN 2, and is the first message there.",
        )
        .steps(every_terminate(&[Rule::QueueNumber, Rule::Msn, Rule::Mo])),
        must(
            "rdmap/5040-5.4/4",
            &["5040-5.4-04"],
            "A Terminate is accepted even if no receive is posted: the connection ends, and no error comes back.",
        )
        .steps([
            Establish(Setup::default().receives(0, 0)),
            Send(vec![terminate(&[0, 0, 0, 0])]),
            Fin,
            End(Ends::close()),
        ]),
        must(
            "rdmap/5040-5.4/5",
            &["5040-5.4-04"],
            "A Terminate with all its headers is accepted: the connection ends, and no error comes back.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16), terminate(&TERMINATED_READ)]),
            Fin,
            End(Ends::close()),
        ]),
        must(
            "rdmap/5040-5.4/7",
            &["5040-5.4-07"],
            "Nothing is sent after a Terminate, even if there are Reads to answer.",
        )
        .steps([
            Watch(&[Rule::SilentAfterTerminate]),
            Establish(Setup::default()),
            Region(Region::readable("r", 1 << 20)),
            Post(Post::send(16)),
            Send(vec![
                read_request(Stag::Of("r"), To::In("r", 0), 1 << 20),
                read_request(Stag::Of("r"), To::In("r", 0), 1 << 20),
                send(16).qn(9),
                read_request(Stag::Of("r"), To::In("r", 0), 64),
                send(16).qn(9),
            ]),
            End(Ends::any_end()),
            Closed { graceful: false },
        ]),
    ];
    let invalid = [
        (10, "with a wrong MSN", terminate(&[0; 4]).msn(Msn::Off(1))),
        (11, "with an MO other than 0", terminate(&[0; 4]).mo(4)),
        (12, "without its header", terminate(&[0; 0])),
        (13, "of 600 bytes", terminate(&[0xff; 600])),
    ];
    for (number, what, segment) in invalid {
        let rule = format!("A Terminate {what} is an error: the connection ends.");
        let id = format!("rdmap/5040-5.4/{number}");
        cases.push(must(&id, &["5040-5.4-i01"], &rule).steps([
            Establish(Setup::default()),
            Send(vec![segment]),
            End(Ends::any_term().or_close()),
            Completion {
                op: "recv",
                success: false,
            },
        ]));
    }
    cases
}

/// Payload of a Terminate about a Read Request with an invalid STag. It quotes the headers of the
/// request.
#[rustfmt::skip]
const TERMINATED_READ: [u8; 52] = [
    0x01, 0x00, 0xe0, 0x00, 0x00, 46,
    0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0,
    1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 16, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0x20, 0,
];
