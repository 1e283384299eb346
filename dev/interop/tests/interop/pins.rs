//! Pinned defects of siw: behavior that deviates from the RFCs. A failing test here shows that siw
//! has changed and that a workaround of ours may be obsolete. `errors` pins siw's Terminate
//! Messages.
//!
//! A requirement such as `5044-4.4-15` is named by the RFC, the section and a number in the
//! section. `Q7` is the number of a defect in docs/peers.md.
//!
//! Short Reads that cross a page boundary (Q16) are in `quirks`. These defects are known and not
//! tested:
//! * siw stops listening or answering after a connection that is closed before its MPA Request
//!   (Q10), or after a Request in many pieces (Q9).
//! * The guest's kernel crashes (Q22) after an enhanced MPA Reply with fewer than 4 bytes of
//!   private data, or after an empty Write segment that is not the last.
//!   `engine/src/connection/tests` checks with random sequences of work requests that uwarp never
//!   sends such a frame or segment. [`capture`] checks the bytes that uwarp sent to this guest.
//! * With an IRD of 4, siw accepts or refuses a sixth Read (Q6, inbound). This depends on siw's
//!   progress with the first Read. The outbound half is pinned in `errors`.
//! * siw never probes an idle connection (Q21), which takes hours to observe.
//! * siw's time limits at startup take 5 s and 10 s each.

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
    // A raw peer works only with kernel TCP.
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
