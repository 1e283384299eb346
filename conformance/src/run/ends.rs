//! Checks how a connection ends, and whether the rule of the case allows it.

use std::time::Duration;

use super::connection::Next;
use super::outcome::{Ending, Who};
use super::player::{Player, Step, Stop};
use crate::script::{Data, Ends, OutSegment, SINK_TO, To, Want};
use crate::wire::segment::{Segment, opcode};
use crate::wire::terminate::{D, R, Terminate, is_registered};
use crate::words::many;

/// Messages that are allowed before the end of the connection.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// Any message.
    Anything,
    Nothing,
    /// This message may arrive instead of the end.
    Instead(&'a Want),
}

impl Player<'_> {
    pub(super) fn end(&mut self, ends: &Ends) -> Step {
        self.end_or(ends, self.config.timeout, Before::Anything)
    }

    /// Expects the end of the connection. Each message before it restarts the `timeout`.
    pub(super) fn end_or(&mut self, ends: &Ends, timeout: Duration, before: Before<'_>) -> Step {
        let expected = ends.to_string();
        // Messages in progress may still arrive. The loop continues until a Terminate, FIN, reset
        // or the timeout.
        loop {
            let next = self.connection()?.next(timeout)?;
            match next {
                Next::Fpdu(fpdu) => match Segment::parse(&fpdu.ulpdu) {
                    Some(segment) if segment.opcode() == opcode::TERMINATE => {
                        self.record(Who::Target, segment.to_string(), &fpdu.wire);
                        return self.terminated(ends, &segment.payload);
                    }
                    Some(segment) => {
                        if let Before::Instead(want) = before {
                            self.connection()?.ahead.push_front(fpdu);
                            return self.expect(want);
                        }
                        let received = segment.to_string();
                        self.record(Who::Target, received.clone(), &fpdu.wire);
                        if let Before::Nothing = before {
                            return Err(Stop::Fail { expected, received });
                        }
                    }
                    None => self.record(Who::Target, "an FPDU without a DDP Header", &fpdu.wire),
                },
                Next::Fin => return self.closed(ends, Ending::Close, "the target's FIN"),
                Next::Reset => return self.closed(ends, Ending::Reset, "the target's reset"),
                Next::Nothing if ends.dropped && self.unacknowledged()? > 0 => {
                    self.note("the target does not acknowledge the last segment, so it dropped it");
                    return Ok(());
                }
                Next::Nothing => {
                    self.ending = Some(Ending::Silence);
                    return Err(Stop::Fail {
                        expected,
                        received: format!("nothing within {timeout:?}; the connection stays open"),
                    });
                }
            }
        }
    }

    /// Expects the end of the connection. Instead, the target may hold the last message until a
    /// receive is posted, which RFC 5041 section 7.1 allows.
    pub(super) fn end_or_held(&mut self, ends: &Ends, len: usize, data: &Data) -> Step {
        match self.end(ends) {
            Err(Stop::Fail { .. }) if self.ending == Some(Ending::Silence) => {
                self.ending = None;
                self.note("the connection does not end, so the target may wait for a buffer");
                self.post_receives(1, len)?;
                self.delivered(data)
            }
            ended => ended,
        }
    }

    /// Returns the number of sent bytes that the target has not acknowledged, or 0 if it is not
    /// known.
    fn unacknowledged(&mut self) -> Result<usize, Stop> {
        Ok(self.connection()?.stream.unacknowledged().unwrap_or(0))
    }

    fn closed(&mut self, ends: &Ends, ending: Ending, what: &str) -> Step {
        self.record(Who::Target, what, &[]);
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
            if ends.unjudged {
                return Ok(());
            }
            self.ending = Some(Ending::WrongTerminate);
            return Err(Stop::Fail {
                expected,
                received: format!(
                    "a Terminate of {}, too short for its header",
                    many(payload.len(), "byte")
                ),
            });
        };
        // Both sides may close the connection now. The target may wait for the FIN of the suite.
        if !ends.unanswered {
            let _ = self.connection()?.stream.fin();
        }
        let wrong = if ends.unjudged || allows(ends, &terminate) {
            match self.headers(ends, &terminate) {
                Ok(()) => {
                    self.ending = (!ends.unjudged).then_some(Ending::RightTerminate);
                    return Ok(());
                }
                Err(wrong) => wrong,
            }
        } else {
            Stop::Fail {
                expected,
                received: terminate.to_string(),
            }
        };
        let swapped = terminate.swapped().is_some_and(|swapped| {
            (ends.unjudged || allows(ends, &swapped)) && self.headers(ends, &swapped).is_ok()
        });
        if !swapped {
            self.ending = Some(Ending::WrongTerminate);
            return Err(wrong);
        }
        self.ending = Some(Ending::SwappedTerminate);
        Err(match wrong {
            Stop::Fail { expected, received } => Stop::Fail {
                expected,
                received: format!(
                    "{received} (right if Layer and EType, and the bits M, D and R, are swapped)"
                ),
            },
            other => other,
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
        let Some(back) = ends.names else {
            return Ok(());
        };
        let connection = self.connection()?;
        let Some(sent) = connection.sent.iter().nth_back(back).cloned() else {
            return Err(Stop::Infrastructure(
                "the case has not sent the segment that the Terminate should name".into(),
            ));
        };
        if terminate.hdrct & D == 0 {
            return Ok(());
        }
        let (header, behind) = split(terminate.headers(), sent.header.len());
        if header != sent.header {
            let right = &sent.header;
            return fail(format!(
                "it, but with the DDP Header {header:02x?}; {right:02x?} was sent"
            ));
        }
        let (rdma, _) = split(behind, sent.rdma.len());
        if terminate.hdrct & R != 0 && (rdma != sent.rdma || rdma.is_empty()) {
            let right = &sent.rdma;
            return fail(format!(
                "it, but with the RDMA Header {rdma:02x?}; {right:02x?} was sent"
            ));
        }
        match terminate.segment_length() {
            is if ends.measures && is != Some(sent.length) => fail(format!(
                "it, but with DDP Segment Length {is:?}; the segment had {}",
                many(sent.length, "byte")
            )),
            _ => Ok(()),
        }
    }

    /// Expects the whole response to a Read of `size` bytes at `src_to`. Instead, a Terminate may
    /// state how much of the Read was done (RFC 5040 section 4.8).
    pub(super) fn read_or_terminate(
        &mut self,
        (size, src_to): (u32, To),
        meanwhile: &[OutSegment],
    ) -> Step {
        let expected = "the whole Read Response, or a Terminate that says how far it came";
        let src_to = self.to(src_to)?;
        let mut came = 0;
        loop {
            let segment = self.segment(expected)?;
            match segment.opcode() {
                opcode::READ_RESPONSE => {
                    if came == 0 {
                        self.send(meanwhile)?;
                    }
                    came += segment.payload.len() as u64;
                }
                opcode::TERMINATE => {
                    let position = (SINK_TO + came, u64::from(size) - came, src_to + came);
                    return self.stopped_at(expected, &segment.payload, position);
                }
                _ => {
                    return Err(Stop::Fail {
                        expected: expected.into(),
                        received: segment.to_string(),
                    });
                }
            }
            if segment.last() {
                return Ok(());
            }
        }
    }

    /// Checks SinkTO, size and SrcTO in the Terminated RDMA Header. They describe the remaining
    /// part of the Read.
    fn stopped_at(&mut self, expected: &str, payload: &[u8], due: (u64, u64, u64)) -> Step {
        let terminate = Terminate::parse(payload);
        let _ = self.connection()?.stream.fin();
        let header = terminate
            .filter(|terminate| terminate.hdrct & R != 0)
            .and_then(|terminate| {
                let skip = if terminate.hdrct & D != 0 { 18 } else { 0 };
                Some(*terminate.headers().get(skip..)?.first_chunk::<28>()?)
            });
        let Some(header) = header else {
            return Err(Stop::Fail {
                expected: expected.into(),
                received: "a Terminate without the RDMA Header".into(),
            });
        };
        let long = |at: usize| {
            header[at..at + 8]
                .iter()
                .fold(0, |sum, o| sum << 8 | u64::from(*o))
        };
        let is = (long(4), long(8) & 0xffff_ffff, long(20));
        if is == due {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: format!("{expected}: SinkTO, size and SrcTO {due:#x?}"),
            received: format!("{is:#x?}"),
        })
    }

    /// Expects that the target closes the TCP connection and sends nothing before that.
    pub(super) fn closed_by_target(&mut self, graceful: bool) -> Step {
        let timeout = self.config.timeout;
        let expected = if graceful {
            "the target's FIN"
        } else {
            "the end of the TCP connection"
        };
        let received = match self.connection()?.next(timeout)? {
            Next::Fin => return Ok(()),
            Next::Reset if !graceful => return Ok(()),
            Next::Reset => "a reset".to_owned(),
            Next::Nothing => format!("nothing within {timeout:?}; the connection stays open"),
            Next::Fpdu(fpdu) => {
                self.record(Who::Target, "an FPDU", &fpdu.wire);
                format!("an FPDU of {}", many(fpdu.wire.len(), "byte"))
            }
        };
        Err(Stop::Fail {
            expected: expected.into(),
            received,
        })
    }
}

fn split(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at(at.min(bytes.len()))
}

fn allows(ends: &Ends, terminate: &Terminate) -> bool {
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    if ends.any_terminate {
        return is_registered(layer, etype, code);
    }
    ends.terminates.iter().any(|term| {
        let of_type = (term.layer, term.etype) == (layer, etype);
        of_type
            && term
                .code
                .map_or_else(|| is_registered(layer, etype, code), |due| due == code)
    })
}
