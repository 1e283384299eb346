//! How a connection ends, and whether the rule allows it.

use std::time::Duration;

use super::connection::Next;
use super::outcome::{Ending, Who};
use super::player::{Player, Step, Stop};
use crate::script::{Ends, Want};
use crate::wire::segment::{Segment, opcode};
use crate::wire::terminate::{Terminate, is_registered};

/// What may come before the end.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// What was under way.
    Anything,
    Nothing,
    /// This, and then there is no end.
    Instead(&'a Want),
}

impl Player<'_> {
    pub(super) fn end(&mut self, ends: &Ends) -> Step {
        self.end_or(ends, self.config.timeout, Before::Anything)
    }

    /// The end, within `timeout` of what came last.
    pub(super) fn end_or(&mut self, ends: &Ends, timeout: Duration, before: Before<'_>) -> Step {
        let expected = ends.to_string();
        // What was under way may still come; a Terminate or the end of the connection decides.
        loop {
            let next = self.connection()?.next(timeout)?;
            match next {
                Next::Fpdu(fpdu) => match Segment::parse(&fpdu.ulpdu) {
                    Some(segment) if segment.opcode() == opcode::TERMINATE => {
                        self.said(Who::Target, segment.to_string(), &fpdu.wire);
                        return self.terminated(ends, &segment.payload);
                    }
                    Some(segment) => {
                        if let Before::Instead(want) = before {
                            self.connection()?.ahead.push_front(fpdu);
                            return self.expect(want);
                        }
                        let received = segment.to_string();
                        self.said(Who::Target, received.clone(), &fpdu.wire);
                        if let Before::Nothing = before {
                            return Err(Stop::Fail { expected, received });
                        }
                    }
                    None => self.said(Who::Target, "an FPDU without a DDP Header", &fpdu.wire),
                },
                Next::Fin => return self.closed(ends, Ending::Close, "the target's FIN"),
                Next::Reset => return self.closed(ends, Ending::Reset, "the target's reset"),
                Next::Nothing if ends.dropped && self.unacknowledged()? > 0 => {
                    self.note("the target does not acknowledge what was sent last: it dropped it");
                    return Ok(());
                }
                Next::Nothing => {
                    self.ending = Some(Ending::Silence);
                    return Err(Stop::Fail {
                        expected,
                        received: format!("nothing for {timeout:?}: the connection stays open"),
                    });
                }
            }
        }
    }

    /// Octets that were sent and are not acknowledged.
    fn unacknowledged(&mut self) -> Result<usize, Stop> {
        Ok(self.connection()?.stream.unacknowledged().unwrap_or(0))
    }

    fn closed(&mut self, ends: &Ends, ending: Ending, what: &str) -> Step {
        self.said(Who::Target, what, &[]);
        self.ending = Some(ending);
        if ends.close {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: ends.to_string(),
            received: format!("{what} without a Terminate"),
        })
    }

    fn terminated(&mut self, ends: &Ends, payload: &[u8]) -> Step {
        let expected = ends.to_string();
        let Some(terminate) = Terminate::parse(payload) else {
            self.ending = Some(Ending::WrongTerminate);
            return Err(Stop::Fail {
                expected,
                received: format!(
                    "a Terminate of {} octets, without its header",
                    payload.len()
                ),
            });
        };
        // Both sides may close now; the target may wait for this side to.
        let _ = self.connection()?.stream.fin();
        if allows(ends, &terminate) {
            self.ending = Some(Ending::RightTerminate);
            return self.headers(ends, &terminate);
        }
        let swapped = terminate
            .swapped()
            .is_some_and(|swapped| allows(ends, &swapped));
        self.ending = Some(if swapped {
            Ending::SwappedTerminate
        } else {
            Ending::WrongTerminate
        });
        let note = if swapped {
            " (right, if Layer and EType change places)"
        } else {
            ""
        };
        Err(Stop::Fail {
            expected,
            received: format!("{terminate}{note}"),
        })
    }

    fn headers(&mut self, ends: &Ends, terminate: &Terminate) -> Step {
        let fail = |received: String| {
            Err(Stop::Fail {
                expected: ends.to_string(),
                received,
            })
        };
        if let Some((must, may)) = ends.headers
            && (terminate.hdrct & must != must || terminate.hdrct & !may != 0)
        {
            return fail(terminate.to_string());
        }
        if !ends.names_last {
            return Ok(());
        }
        let named = self.connection()?.last_sent.clone();
        let header = &named[2..];
        if !terminate.headers().starts_with(header) {
            return fail(format!(
                "it, with the DDP Header {:02x?}, and {header:02x?} was sent",
                terminate.headers().get(..header.len()).unwrap_or_default()
            ));
        }
        let length = u16::from_be_bytes([named[0], named[1]]);
        match terminate.segment_length() {
            Some(is) if is != length => fail(format!(
                "it, with DDP Segment Length {is}, and the segment had {length} octets"
            )),
            _ => Ok(()),
        }
    }
}

fn allows(ends: &Ends, terminate: &Terminate) -> bool {
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    if ends.any_terminate {
        return is_registered(layer, etype, code);
    }
    ends.terminates.iter().any(|term| {
        (term.layer, term.etype) == (layer, etype) && term.code.is_none_or(|due| due == code)
    })
}
