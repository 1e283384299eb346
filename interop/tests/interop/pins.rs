//! Where siw departs from the RFCs, or breaks: what was seen, pinned. A test here that fails means that siw has
//! changed, and that a workaround of ours may be in vain. Its Terminate Messages are pinned in `errors`.
//!
//! `5044-4.4-15` is a requirement: RFC, section, number in it. `Q7` is the number of a quirk, as they were counted when
//! siw was measured.
//!
//! The numbers Q1 to Q22 are those of docs/peers.md. Short Reads that cross a page (Q16) are in `quirks`. These are known and not tested:
//! * what makes it stop to listen or to answer: a connection that is closed before its MPA Request (Q10), a
//!   Request in many pieces (Q9);
//! * what takes the guest's kernel down (Q22): an enhanced MPA Reply with fewer than 4 bytes of private data, an
//!   empty Write segment that is not the last. That uwarp cannot send them is shown by `verbs/src/engine/tests`
//!   over random sequences of work requests; [`capture`] looks at what it did send to this guest;
//! * the sixth Read where IRD is 4 (Q6, inbound): it depends on how far the first has come; the outbound half is
//!   pinned in `errors`;
//! * that an idle connection is never probed (Q21): it takes hours to see;
//! * its time limits at startup: 5 s and 10 s of waiting for one fact each.

mod capture;
mod extensions;
mod messages;
mod startup;
mod verbs;

use uwarp_interop::{Outcome, Result, Rig};

use crate::Case;

pub(crate) fn cases(wire: &str) -> Vec<Case> {
    let mut cases = verbs::cases();
    cases.extend(extensions::cases());
    // A raw peer knows no network but the kernel's.
    if wire == "kernel_tcp" {
        cases.extend(startup::cases());
        cases.extend(messages::cases());
        cases.extend(capture::cases());
    }
    cases
}

fn case(name: &str, title: &str, run: fn(&mut Rig) -> Result<Outcome>) -> Case {
    Case {
        suite: "pins",
        name: name.to_owned(),
        title: title.to_owned(),
        run: Box::new(run),
    }
}

fn deviation(text: &str) -> Result<Outcome> {
    Ok(Outcome::Deviation(text.to_owned()))
}
