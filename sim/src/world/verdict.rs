//! Why connections have ended, held against what was done to them.

use std::time::Duration;

use uwarp_verbs::{EndReason, Qp, QpAttr, QpState, Terminate, TerminateCode};

use super::end_cause::{is_explained, refusal};
use super::{Connection, EndCause, World};
use crate::tally::Tally;
use crate::wrong::Wrong;

/// What a side that cannot go on says of itself (RFC 5040 section 7.1).
const LOCAL: [u8; 3] = [0, 0, 0];
/// An end takes no longer where nothing is lost: a program looks every two seconds at least.
const PROMPT: Duration = Duration::from_secs(30);

impl World {
    /// Whether the two reasons go with each other, and with what was done.
    pub(crate) fn judge(
        &self,
        number: usize,
        reasons: &[Option<EndReason>; 2],
    ) -> Result<(), String> {
        let connection = &self.connections[number];
        let wrong = |error: String| {
            let [first, second] = words(reasons);
            Err(format!(
                "connection {number}: {error}; end 0: {first}; end 1: {second}"
            ))
        };
        let orderly =
            |reason: &Option<EndReason>| reason.as_ref().is_some_and(EndReason::is_orderly);
        if !connection.may_fail() && !reasons.iter().all(orderly) {
            return wrong("it ends, and nothing is wrong".to_owned());
        }
        for end in 0..2 {
            let Some(EndReason::TerminateReceived { terminate, .. }) = &reasons[end] else {
                continue;
            };
            if let Some(error) = disagree(terminate.reason(), &reasons[1 - end]) {
                return wrong(error);
            }
        }
        // Where bytes change on the way and nobody can tell, anything may be said.
        let unseen = [EndCause::Damaged, EndCause::StartupDamaged];
        let [damaged, startup] = unseen.map(|cause| connection.causes.contains(&cause));
        if startup || damaged && !self.crc {
            return Ok(());
        }
        for reason in reasons.iter().flatten() {
            if !is_explained(&connection.causes, reason) && !orderly(&Some(reason.clone())) {
                return wrong(format!("{:?} do not explain it", connection.causes));
            }
        }
        let may = Self::codes(connection);
        for reason in reasons {
            if let Some(EndReason::TerminateSent {
                terminate: None, ..
            }) = reason
                && !damaged
            {
                return wrong("nobody is told why".to_owned());
            }
            if let Some(code) = said(reason).filter(|code| !may.contains(code)) {
                let may: Vec<_> = may.iter().copied().map(number_of).collect();
                let (code, may) = (number_of(code), may.join(" or "));
                return wrong(format!(
                    "a Terminate says {code}, and what was done calls for {may}"
                ));
            }
        }
        if connection.causes == [EndCause::Rejected] && !self.is_rejected(number, reasons) {
            return wrong("it was rejected, and it is not told so, or other bytes".to_owned());
        }
        match &connection.refusals[..] {
            [(end, what)]
                if connection.causes == [EndCause::Refusal] && !is_told(*end, *what, reasons) =>
            {
                wrong(format!("end {end} did {what:?}, and is not told so"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the side that asked is told what the other one has said, which has had no connection.
    fn is_rejected(&self, number: usize, reasons: &[Option<EndReason>; 2]) -> bool {
        let connection = &self.connections[number];
        let mut said = refusal(number, connection.round);
        // Revision 1 has no place for it.
        let enhanced = !self.plans[connection.plan.hosts[0]].revision_1;
        said.ord_needed = said.ord_needed.filter(|_| enhanced);
        matches!(reasons, [Some(EndReason::Rejected { private_data, ord_needed, .. }), None]
            if *private_data == said.private_data && *ord_needed == said.ord_needed)
    }

    /// Whether both ends agree about IRD and ORD, and keep to them.
    pub(crate) fn check_depths(&self, number: usize) -> Result<(), String> {
        let connection = &self.connections[number];
        let attr = (connection.ends.each_ref()).map(|end| end.qp.as_ref().map(Qp::query));
        for end in 0..2 {
            let (Some(mine), theirs) = (&attr[end], &attr[1 - end]) else {
                continue;
            };
            let is_greedy = connection.plan.greedy;
            if mine.ird_used > mine.ird || mine.ord_used > mine.ord {
                return Err(format!(
                    "connection {number} end {end}: more Reads than IRD and ORD say: {mine:?}"
                ));
            }
            let Some(theirs) = theirs
                .as_ref()
                .filter(|_| !is_greedy && !connection.causes.contains(&EndCause::StartupDamaged))
            else {
                continue;
            };
            let open = |attr: &QpAttr| attr.state == QpState::Rts;
            // A responder raises its IRD for the initiator; in revision 1 both know beforehand.
            let [first, second] = connection.plan.depths;
            let wanted = [first[1], second[1].min(first[0])][end];
            if open(mine) && open(theirs) && (mine.ord != wanted || mine.ord > theirs.ird) {
                return Err(format!(
                    "connection {number} end {end}: ORD is {}, IRD of the peer {}, and {wanted} was asked for",
                    mine.ord, theirs.ird
                ));
            }
        }
        Ok(())
    }

    /// All that Terminate Messages of a connection may say.
    fn codes(connection: &Connection) -> Vec<[u8; 3]> {
        let mut codes: Vec<_> = (connection.refusals.iter())
            .flat_map(|(_, what)| what.codes().iter().copied())
            .collect();
        codes.extend(connection.causes.iter().flat_map(|cause| cause.codes()));
        codes
    }

    /// Counts what was done to a connection, and how it has ended.
    pub(crate) fn count(&mut self, number: usize, reasons: &[Option<EndReason>; 2]) {
        let Connection { causes, .. } = &self.connections[number];
        let orderly = (reasons.iter().flatten()).all(EndReason::is_orderly);
        self.tally.add(match (causes.is_empty(), orderly) {
            (true, _) => CLEAN,
            (false, true) => SPARED,
            (false, false) => ENDED,
        });
        for cause in causes {
            self.tally.add(&format!("connections with {cause:?}"));
        }
        for reason in reasons.iter().flatten() {
            self.tally.add(&format!("ends by {}", kind(reason)));
        }
    }

    /// All that was counted, and what the whole run was.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        tally.add("runs");
        if tally.of(SPARED) + tally.of(ENDED) == 0 {
            tally.add("runs with nothing that may end a connection");
        }
        if tally.of(ENDED) == 0 {
            tally.add("runs in which all connections end in order");
        }
        tally
    }

    /// Whether a connection takes no longer to end than the way needs.
    pub(crate) fn ends_in_time(&self, number: usize, lasted: Duration) -> Result<(), String> {
        if self.quiet && lasted > PROMPT {
            return Err(format!(
                "connection {number} takes {lasted:?} to end, and nothing is lost"
            ));
        }
        Ok(())
    }
}

/// What a tally calls connections.
const CLEAN: &str = "connections to which nothing was done";
const SPARED: &str = "connections to which something was done, and that end in order";
const ENDED: &str = "connections that end by what was done";

/// In one word.
fn kind(reason: &EndReason) -> String {
    match said(&Some(reason.clone())) {
        Some(code) => format!("Terminate {}", number_of(code)),
        None => {
            let words = format!("{reason:?}");
            let end = words.find([' ', '(']).unwrap_or(words.len());
            words[..end].to_owned()
        }
    }
}

/// Whether the end that posted a wrong request has heard so, and what is wrong with it.
fn is_told(end: usize, what: Wrong, reasons: &[Option<EndReason>; 2]) -> bool {
    let code = said(&reasons[1 - end]);
    matches!(&reasons[end], Some(EndReason::TerminateReceived { .. }))
        && code.is_some_and(|code| what.codes().contains(&code))
}

/// Why the two ends are over.
pub(crate) fn words(reasons: &[Option<EndReason>; 2]) -> [String; 2] {
    reasons.each_ref().map(|reason| match reason {
        Some(reason) => reason.to_string(),
        None => "it never began, or nobody has it any more".to_owned(),
    })
}

/// What a Terminate Message of a side says, that it sent or received.
fn said(reason: &Option<EndReason>) -> Option<[u8; 3]> {
    match reason {
        Some(EndReason::TerminateSent { terminate, .. }) => {
            terminate.as_ref().map(Terminate::reason).map(octets)
        }
        Some(EndReason::TerminateReceived { terminate, .. }) => Some(octets(terminate.reason())),
        Some(EndReason::LocalError { .. } | EndReason::CqOverflow { .. }) => Some(LOCAL),
        _ => None,
    }
}

/// As Terminate codes are written.
fn number_of([layer, etype, code]: [u8; 3]) -> String {
    format!("{layer}/{etype}/{code:02x}")
}

fn octets(code: TerminateCode) -> [u8; 3] {
    [code.layer, code.etype, code.code]
}

/// One side was told this: whether the other side says that it told it. (One that is gone says nothing.)
fn disagree(code: TerminateCode, other: &Option<EndReason>) -> Option<String> {
    let told = match other {
        None | Some(EndReason::Aborted) => return None,
        Some(_) => said(other),
    };
    (told != Some(octets(code))).then(|| {
        format!(
            "one side was told {code}, and the other told {}",
            told.map_or("nothing".to_owned(), number_of)
        )
    })
}
