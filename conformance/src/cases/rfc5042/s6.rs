//! RFC 5042 section 6: attacks by a peer.

use crate::cases::rfc5040::too_many_reads;
use crate::script::Action::*;
use crate::script::{
    Case, Data, Ends, Region, SINK_STAG, SINK_TO, Setup, Stag, To, Want, must, read_request, write,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = guesses();
    cases.extend([
        must(
            "sec/5042-6.3.5/1",
            &["5042-6.3.5-i01"],
            "A Read of no bytes is answered, even if the region has no right to read, or there is no region.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![
                read_request(Stag::Of("r"), To::In("r", 0), 0),
                read_request(Stag::Is(0x0bad_0b00), To::Is(1), 0),
            ]),
            nothing(),
            nothing(),
            Ping,
        ]),
        must(
            "sec/5042-6.4.3.3/1",
            &["5042-6.4.3.3-i01"],
            "Many more Read Requests than agreed end the stream.",
        )
        .steps(too_many_reads(2, 64)),
    ]);
    cases
}

fn nothing() -> crate::script::Action {
    Expect(Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: Data::none(),
    })
}

/// A peer that guesses STags gets only one guess per connection.
fn guesses() -> Vec<Case> {
    let guess = |number: u32, what: &str| {
        must(
            &format!("sec/5042-6.1.1/{number}"),
            &["5042-6.1.1-i01"],
            &format!(
                "A {what} with an invalid STag ends the stream, and messages after it have no effect."
            ),
        )
    };
    vec![
        guess(1, "Write").steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![
                write(Stag::Near("r", 0x0100_0000), To::In("r", 0), 16),
                write(Stag::Of("r"), To::In("r", 0), 16),
            ]),
            End(Ends::any_term()),
            Closed { graceful: false },
            Holds {
                region: "r",
                offset: 0,
                data: Data::Bytes(vec![0; 64]),
            },
        ]),
        guess(2, "Read").steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 64)),
            Send(vec![
                read_request(Stag::Near("r", 0x0100_0000), To::In("r", 0), 16),
                read_request(Stag::Of("r"), To::In("r", 0), 16),
            ]),
            End(Ends::any_term()),
            Closed { graceful: false },
        ]),
    ]
}
