//! Compares the reasons for which connections ended with the causes that the run recorded.

use std::time::Duration;

use uwarp_verbs::{EndReason, Qp, QpAttr, QpState, Terminate, TerminateCode};

use super::end_cause::{is_explained, refusal};
use super::{Connection, EndCause, World};
use crate::tally::Tally;
use crate::wrong::Wrong;

/// Code of a side that fails by itself (RFC 5040 section 7.1).
const LOCAL: [u8; 3] = [0, 0, 0];
/// Maximum time that the end of a connection takes if nothing is lost. Programs pause for at most
/// two seconds.
const PROMPT: Duration = Duration::from_secs(30);

impl World {
    /// Checks that the reasons of both ends agree and that the causes explain them.
    pub(crate) fn judge(
        &self,
        number: usize,
        reasons: &[Option<EndReason>; 2],
    ) -> Result<(), String> {
        let connection = &self.connections[number];
        let wrong = |error: String| {
            let [first, second] = describe(reasons);
            Err(format!(
                "connection {number}: {error}; end 0: {first}; end 1: {second}"
            ))
        };
        let orderly =
            |reason: &Option<EndReason>| reason.as_ref().is_some_and(EndReason::is_orderly);
        if !connection.may_fail() && !reasons.iter().all(orderly) {
            return wrong("it ends without a cause".to_owned());
        }
        for end in 0..2 {
            let Some(EndReason::TerminateReceived { terminate, .. }) = &reasons[end] else {
                continue;
            };
            if let Some(error) = disagree(terminate.reason(), &reasons[1 - end]) {
                return wrong(error);
            }
        }
        // After damage that no check can detect, any reason is allowed.
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
                return wrong("no Terminate Message was sent".to_owned());
            }
            if let Some(code) = terminate_code(reason).filter(|code| !may.contains(code)) {
                let may: Vec<_> = may.iter().copied().map(number_of).collect();
                let (code, may) = (number_of(code), may.join(" or "));
                return wrong(format!(
                    "a Terminate carries {code}, but the causes call for {may}"
                ));
            }
        }
        if connection.causes == [EndCause::Rejected] && !self.is_rejected(number, reasons) {
            return wrong("the rejection is not reported, or with other data".to_owned());
        }
        match &connection.refusals[..] {
            [(end, what)]
                if connection.causes == [EndCause::Refusal]
                    && !is_reported(*end, *what, reasons) =>
            {
                wrong(format!("end {end} did {what:?}, but no Terminate says so"))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the initiator reports the private data and the ORD of the rejection, and the
    /// responder had no connection.
    fn is_rejected(&self, number: usize, reasons: &[Option<EndReason>; 2]) -> bool {
        let connection = &self.connections[number];
        let mut said = refusal(number, connection.round);
        // Revision 1 cannot carry an ORD.
        let enhanced = !self.plans[connection.plan.hosts[0]].revision_1;
        said.ord_needed = said.ord_needed.filter(|_| enhanced);
        matches!(reasons, [Some(EndReason::Rejected { private_data, ord_needed, .. }), None]
            if *private_data == said.private_data && *ord_needed == said.ord_needed)
    }

    /// Checks that both ends agree about IRD and ORD, and do not exceed them.
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
                    "connection {number} end {end}: more Reads than IRD and ORD allow: {mine:?}"
                ));
            }
            let Some(theirs) = theirs
                .as_ref()
                .filter(|_| !is_greedy && !connection.causes.contains(&EndCause::StartupDamaged))
            else {
                continue;
            };
            let open = |attr: &QpAttr| attr.state == QpState::Rts;
            // A responder raises its IRD for the initiator; in revision 1 both programs know the
            // values.
            let [first, second] = connection.plan.depths;
            let wanted = [first[1], second[1].min(first[0])][end];
            if open(mine) && open(theirs) && (mine.ord != wanted || mine.ord > theirs.ird) {
                return Err(format!(
                    "connection {number} end {end}: ORD is {}, IRD of the peer {}, expected {wanted}",
                    mine.ord, theirs.ird
                ));
            }
        }
        Ok(())
    }

    /// Codes that Terminate Messages of a connection may carry.
    fn codes(connection: &Connection) -> Vec<[u8; 3]> {
        let mut codes: Vec<_> = (connection.refusals.iter())
            .flat_map(|(_, what)| what.codes().iter().copied())
            .collect();
        codes.extend(connection.causes.iter().flat_map(|cause| cause.codes()));
        codes
    }

    /// Counts the causes of a connection, and how it ended.
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
            self.tally.add(&format!("ends by {}", tally_name(reason)));
        }
    }

    /// Returns the counts of the connections, together with counts that concern the whole run.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        tally.add("runs");
        if tally.of(SPARED) + tally.of(ENDED) == 0 {
            tally.add("runs with nothing that may end a connection");
        }
        if tally.of(ENDED) == 0 {
            tally.add("runs in which all connections end orderly");
        }
        tally
    }

    /// Checks that a connection ended in time.
    pub(crate) fn check_end_time(&self, number: usize, lasted: Duration) -> Result<(), String> {
        if self.quiet && lasted > PROMPT {
            return Err(format!(
                "connection {number} takes {lasted:?} to end, although nothing is lost"
            ));
        }
        Ok(())
    }
}

/// Group of connections in a tally: no cause was recorded.
const CLEAN: &str = "connections without a cause to end";
/// Group of connections in a tally: a cause was recorded, but both ends were graceful.
const SPARED: &str = "connections with a cause to end, and an orderly end";
/// Group of connections in a tally: a cause was recorded, and an end was not graceful.
const ENDED: &str = "connections ended by a cause";

/// Returns the name of a reason in a tally.
fn tally_name(reason: &EndReason) -> String {
    match terminate_code(&Some(reason.clone())) {
        Some(code) => format!("Terminate {}", number_of(code)),
        None => {
            let words = format!("{reason:?}");
            let end = words.find([' ', '(']).unwrap_or(words.len());
            words[..end].to_owned()
        }
    }
}

/// Returns true if the end that posted an invalid request received a Terminate Message with a
/// matching code.
fn is_reported(end: usize, what: Wrong, reasons: &[Option<EndReason>; 2]) -> bool {
    let code = terminate_code(&reasons[1 - end]);
    matches!(&reasons[end], Some(EndReason::TerminateReceived { .. }))
        && code.is_some_and(|code| what.codes().contains(&code))
}

/// Formats the reasons of both ends.
pub(crate) fn describe(reasons: &[Option<EndReason>; 2]) -> [String; 2] {
    reasons.each_ref().map(|reason| match reason {
        Some(reason) => reason.to_string(),
        None => "it never began, or its QP was dropped".to_owned(),
    })
}

/// Returns the code of the Terminate Message that a side sent or received. A local failure counts
/// as code [`LOCAL`].
fn terminate_code(reason: &Option<EndReason>) -> Option<[u8; 3]> {
    match reason {
        Some(EndReason::TerminateSent { terminate, .. }) => {
            terminate.as_ref().map(Terminate::reason).map(bytes)
        }
        Some(EndReason::TerminateReceived { terminate, .. }) => Some(bytes(terminate.reason())),
        Some(EndReason::LocalError { .. } | EndReason::CqOverflow { .. }) => Some(LOCAL),
        _ => None,
    }
}

/// Formats a Terminate code in its usual notation.
fn number_of([layer, etype, code]: [u8; 3]) -> String {
    format!("{layer}/{etype}/{code:02x}")
}

fn bytes(code: TerminateCode) -> [u8; 3] {
    [code.layer, code.etype, code.code]
}

/// Compares a received code with the one that the other side reports. A side that is gone reports
/// no code.
fn disagree(code: TerminateCode, other: &Option<EndReason>) -> Option<String> {
    let reported = match other {
        None | Some(EndReason::Aborted) => return None,
        Some(_) => terminate_code(other),
    };
    (reported != Some(bytes(code))).then(|| {
        format!(
            "one side received {code}, but the other sent {}",
            reported.map_or("nothing".to_owned(), number_of)
        )
    })
}
