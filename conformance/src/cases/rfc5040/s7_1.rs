//! RFC 5040 section 7.1: reporting errors to the peer.

use super::*;
use crate::script::{must, read_response, send_invalidate};
use crate::wire::terminate::{D, M, R};

pub(super) fn cases() -> Vec<Case> {
    let mut cases =
        vec![
        must(
            "rdmap/5040-7.1/2",
            &["5040-7.1-02"],
            "If the creation of a message fails, a Terminate without headers is sent instead.",
        )
        .steps([Watch(&[Rule::TerminateHeaders])])
        .steps(super::s4_8::local_error(
            Ends::local_catastrophic().or(1, 0, 0).or(2, 0, 5).or(0, 2, 7).headers(0),
        )),
        must(
            "rdmap/5040-7.1/4",
            &["5040-7.1-04"],
            "The Terminate for an error of a Read Request has the DDP Header and the RDMA Header.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 64),
                read_request(Stag::Of("r"), To::In("r", 0), 64),
            ]),
            End(Ends::term(0, 1, 2).headers(M | D | R).naming_last()),
        ]),
        must(
            "rdmap/5040-7.1/5",
            &["5040-7.1-05"],
            "The Terminate names the first of several wrong messages.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![
                send(16),
                write(Stag::Is(STAG), To::Is(TO), 16),
                send(16).qn(9),
                read_request(Stag::Is(STAG), To::Is(TO), 16),
            ]),
            End(Ends::term(1, 1, 0).headers(M | D).naming_back(2)),
        ]),
        must(
            "rdmap/5040-7.1/6",
            &["5040-7.1-05"],
            "The Terminate names the first of several wrong Read Requests.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![
                read_request(Stag::Is(STAG), To::Is(TO), 16),
                read_request(Stag::Is(STAG), To::Is(TO), 32),
                read_request(Stag::Is(STAG), To::Is(TO), 48),
            ]),
            End(Ends::term(0, 1, 0).headers(M | D | R).naming_back(2)),
        ]),
    ];
    // RDMAP finds these errors in messages that DDP delivered. Quoting the headers in the Terminate
    // is a MUST for these errors, and only a SHOULD for errors of DDP.
    let wrong = [
        (
            10,
            "an RDMA Write",
            write(Stag::Is(0), To::Is(0), 0).rdmap_version(2),
            Ends::term(0, 2, 5),
        ),
        (11, "a Send", send(0).rdmap_version(2), Ends::term(0, 2, 5)),
        (
            12,
            "a Send with Invalidate",
            send_invalidate(Stag::Is(STAG), 16),
            Ends::term(0, 1, 9).or(0, 2, 9).or(0, 1, 0),
        ),
        (
            13,
            "a Read Response",
            read_response(Stag::Is(0), To::Is(0), 0).rdmap_version(2),
            Ends::any_term(),
        ),
    ];
    for (number, what, segment, ends) in wrong {
        let rule = format!("The Terminate for an error of {what} has its DDP Header.");
        let id = format!("rdmap/5040-7.1/{number}");
        cases.push(must(&id, &["5040-7.1-03"], &rule).steps([
            Establish(Setup::default()),
            // The first message is not a Send, because a server without an agent may have posted
            // only one receive.
            Send(vec![write(Stag::Is(0), To::Is(0), 0), segment]),
            End(ends.headers(M | D).naming_last()),
        ]));
    }
    cases
}
