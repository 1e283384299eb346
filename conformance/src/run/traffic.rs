//! Steps that send segments and receive messages.

use std::time::Duration;

use super::atomics::atomic_response;
use super::connection::{Next, SeenRead};
use super::outcome::{Ending, Who};
use super::player::{Player, Step, Stop};
use crate::script::{Data, OutSegment, Rtr, SINK_STAG, Stag, To, Want, read_request};
use crate::wire::segment::{Address, Segment, opcode};
use crate::wire::terminate::Terminate;
use crate::words::many;

/// An RDMA Message, reassembled from its segments.
pub(super) struct Message {
    pub(super) first: Segment,
    pub(super) payload: Vec<u8>,
    pub(super) segments: usize,
}

impl Player<'_> {
    pub(super) fn send_bytes(&mut self, bytes: &[u8], what: &str) -> Step {
        self.record(Who::Suite, what, bytes);
        let connection = self.connection()?;
        if let Err(error) = connection.stream.send(bytes) {
            // The target may have ended the connection because of earlier bytes. The following step
            // reports how.
            self.note(format!("the target accepts no more bytes: {error}"));
        }
        Ok(())
    }

    pub(super) fn send(&mut self, segments: &[OutSegment]) -> Step {
        let mut bytes = Vec::new();
        let mut names = Vec::new();
        for segment in segments {
            let ulpdu = self.ulpdu(segment)?;
            bytes.extend(self.connection()?.tx.seal(&ulpdu, &segment.form));
            names.push(segment.to_string());
        }
        self.send_bytes(&bytes, &names.join("; "))
    }

    pub(super) fn send_in_pieces(&mut self, segments: &[OutSegment], cuts: &[usize]) -> Step {
        let mut bytes = Vec::new();
        let mut names = Vec::new();
        for segment in segments {
            let ulpdu = self.ulpdu(segment)?;
            bytes.extend(self.connection()?.tx.seal(&ulpdu, &segment.form));
            names.push(segment.to_string());
        }
        let text = format!("a piece of {}", names.join("; "));
        let mut from = 0;
        for to in cuts.iter().copied().chain([bytes.len()]) {
            let to = to.min(bytes.len());
            self.send_bytes(&bytes[from..to], &text)?;
            // The pause puts each piece into a TCP segment of its own.
            self.config.network.pause(Duration::from_millis(2));
            from = to;
        }
        Ok(())
    }

    pub(super) fn send_part(&mut self, segment: &OutSegment, len: usize) -> Step {
        let ulpdu = self.ulpdu(segment)?;
        let bytes = self.connection()?.tx.seal(&ulpdu, &segment.form);
        let len = len.min(bytes.len());
        self.send_bytes(
            &bytes[..len],
            &format!("the first {len} of {segment}", len = many(len, "byte")),
        )
    }

    /// Returns the next segment. FIN, reset and the timeout are failures.
    pub(super) fn segment(&mut self, expected: &str) -> Result<Segment, Stop> {
        let fail = |received: String| Stop::Fail {
            expected: expected.to_owned(),
            received,
        };
        let timeout = self.config.timeout;
        let next = self.connection()?.next(timeout)?;
        let fpdu = match next {
            Next::Fpdu(fpdu) => fpdu,
            Next::Fin => {
                self.ending = Some(Ending::Close);
                return Err(fail("the end of the TCP connection (FIN)".into()));
            }
            Next::Reset => {
                self.ending = Some(Ending::Reset);
                return Err(fail("a reset of the TCP connection".into()));
            }
            Next::Nothing => {
                self.ending = Some(Ending::Silence);
                let rest = self.connection()?.rest().len();
                return Err(fail(match rest {
                    0 => format!("nothing within {timeout:?}"),
                    _ => format!(
                        "{rest} that are not a whole FPDU, then nothing within {timeout:?}",
                        rest = many(rest, "byte")
                    ),
                }));
            }
        };
        let Some(segment) = Segment::parse(&fpdu.ulpdu) else {
            self.record(
                Who::Target,
                "an FPDU without a whole DDP Header",
                &fpdu.wire,
            );
            return Err(fail(format!(
                "a ULPDU of {}",
                many(fpdu.ulpdu.len(), "byte")
            )));
        };
        self.record(Who::Target, segment.to_string(), &fpdu.wire);
        Ok(segment)
    }

    /// Returns the next message, reassembled from its segments.
    pub(super) fn message(&mut self, expected: &str) -> Result<Message, Stop> {
        let first = self.segment(expected)?;
        if first.opcode() == opcode::TERMINATE {
            return Err(Stop::Fail {
                expected: expected.to_owned(),
                received: Terminate::parse(&first.payload).map_or_else(
                    || "a Terminate without its header".to_owned(),
                    |terminate| terminate.to_string(),
                ),
            });
        }
        let mut message = Message {
            payload: first.payload.clone(),
            segments: 1,
            first,
        };
        let mut last = message.first.last();
        while !last {
            let segment = self.segment("the rest of a message")?;
            if segment.opcode() != message.first.opcode() {
                return Err(Stop::Fail {
                    expected: format!("the rest of {}", message.first),
                    received: segment.to_string(),
                });
            }
            last = segment.last();
            message.payload.extend_from_slice(&segment.payload);
            message.segments += 1;
        }
        Ok(message)
    }

    /// Returns the next message of this kind. Without an agent, it skips messages of other kinds,
    /// because the application may send anything.
    fn message_of(&mut self, expected: &str, kind: impl Fn(u8) -> bool) -> Result<Message, Stop> {
        loop {
            let message = self.message(expected)?;
            if self.agent.is_some() || kind(message.first.opcode()) {
                return Ok(message);
            }
        }
    }

    pub(super) fn expect(&mut self, want: &Want) -> Step {
        let expected = want.to_string();
        self.connection()?.wants_empty_write = want.is_empty_write();
        let message = self.message_of(&expected, |code| want.is_of(code));
        self.connection()?.wants_empty_write = false;
        let message = message?;
        let wrong = |received: String| {
            Err(Stop::Fail {
                expected: expected.clone(),
                received,
            })
        };
        let code = message.first.opcode();
        if !want.is_of(code) {
            return wrong(message.first.to_string());
        }
        if message.payload.is_empty() && message.segments > 1 {
            // 5041-5.2-09
            let segments = message.segments;
            return wrong(format!(
                "a message of zero length in {segments}",
                segments = many(segments, "segment")
            ));
        }
        match want {
            Want::Send {
                invalidate, data, ..
            } => {
                if let Address::Untagged {
                    invalidate: came, ..
                } = message.first.address
                    && invalidate.is_some_and(|due| due != came)
                {
                    return wrong(format!("it, but with Invalidate STag {came:#010x}"));
                }
                self.same_payload(&expected, &message.payload, data)
            }
            Want::Write { stag, to, data } => {
                self.same_address(&expected, &message, *stag, *to)?;
                self.same_payload(&expected, &message.payload, data)
            }
            Want::ReadResponse { stag, to, data } => {
                let stag = self.stag(*stag)?;
                self.same_address(&expected, &message, stag, *to)?;
                self.same_payload(&expected, &message.payload, data)
            }
            Want::ReadRequest { size, stag, to } => {
                self.read_request(&expected, &message, (*size, *stag, *to))
            }
            Want::Atomic {
                opcode,
                stag,
                to,
                data,
                compare,
            } => self.atomic_request(&expected, &message, (*opcode, *stag, *to, *data, *compare)),
            Want::AtomicResponse { id, value } => {
                let mut due = id.to_be_bytes().to_vec();
                due.extend_from_slice(&value.to_be_bytes());
                self.same_payload(&expected, &message.payload, &Data::Bytes(due))
            }
            Want::Rtr(Rtr::Read) => self.read_request_of_none(&expected, &message),
            Want::Rtr(Rtr::Send | Rtr::Write) => {
                self.same_payload(&expected, &message.payload, &Data::none())
            }
            Want::AnyAtomicResponse { id } => {
                let (came, _) = atomic_response(&expected, &message)?;
                if came != *id {
                    return wrong(format!("one to request {came:#x}"));
                }
                Ok(())
            }
            Want::Immediate { bytes, .. } => {
                self.same_payload(&expected, &message.payload, &Data::Bytes(bytes.to_vec()))
            }
        }
    }

    fn same_address(&self, expected: &str, message: &Message, stag: u32, to: u64) -> Step {
        match message.first.address {
            Address::Tagged { stag: s, to: t } if (s, t) == (stag, to) => Ok(()),
            _ => Err(Stop::Fail {
                expected: expected.to_owned(),
                received: message.first.to_string(),
            }),
        }
    }

    fn same_payload(&mut self, expected: &str, payload: &[u8], data: &Data) -> Step {
        let due = self.bytes(data)?;
        if payload == due {
            return Ok(());
        }
        let received = match payload.iter().zip(&due).position(|(is, due)| is != due) {
            _ if payload.len() != due.len() => many(payload.len(), "byte"),
            Some(at) => format!(
                "other bytes from offset {at} on: {:#04x} instead of {:#04x}",
                payload[at], due[at]
            ),
            None => "other bytes".to_owned(),
        };
        Err(Stop::Fail {
            expected: expected.to_owned(),
            received,
        })
    }

    fn read_request(&mut self, expected: &str, message: &Message, due: (u32, u32, u64)) -> Step {
        let came = self.seen_read_request(expected, message)?;
        if came != due {
            let (size, stag, to) = came;
            return Err(Stop::Fail {
                expected: expected.to_owned(),
                received: format!(
                    "one for {size} at STag {stag:#010x}, TO {to:#x}",
                    size = many(size, "byte")
                ),
            });
        }
        Ok(())
    }

    /// Expects a Read Request of zero length, with any addresses.
    fn read_request_of_none(&mut self, expected: &str, message: &Message) -> Step {
        match self.seen_read_request(expected, message)? {
            (0, ..) => Ok(()),
            (size, ..) => Err(Stop::Fail {
                expected: expected.to_owned(),
                received: format!("one for {size}", size = many(size, "byte")),
            }),
        }
    }

    /// Returns size, source STag and source TO of a Read Request. Stores its sink for later steps.
    pub(super) fn seen_read_request(
        &mut self,
        expected: &str,
        message: &Message,
    ) -> Result<(u32, u32, u64), Stop> {
        let fail = |received: String| Stop::Fail {
            expected: expected.to_owned(),
            received,
        };
        let header: [u8; 28] = message.payload.as_slice().try_into().map_err(|_| {
            let len = message.payload.len();
            fail(format!(
                "a Read Request with a header of {len}",
                len = many(len, "byte")
            ))
        })?;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let came = (word(12), word(16), long(20));
        self.connection()?.reads.push(SeenRead {
            sink_stag: word(0),
            sink_to: long(4),
        });
        Ok(came)
    }

    /// Sends a Read of zero length and expects the response. It needs neither a region nor access
    /// rights (RFC 5040 section 5.2.1).
    pub(super) fn ping(&mut self) -> Step {
        self.send(&[read_request(Stag::Is(0), To::Is(0), 0)])?;
        // Other cases check that the response is empty.
        let expected = "the response to a Read of no bytes";
        let message = self.message_of(expected, |code| code == opcode::READ_RESPONSE)?;
        match message.first.address {
            Address::Tagged { stag, .. }
                if stag == SINK_STAG && message.first.opcode() == opcode::READ_RESPONSE =>
            {
                Ok(())
            }
            _ => Err(Stop::Fail {
                expected: expected.into(),
                received: message.first.to_string(),
            }),
        }
    }

    /// Expects that nothing arrives within the quiet time. If `may_end`, the connection may end
    /// meanwhile.
    pub(super) fn quiet(&mut self, may_end: bool) -> Step {
        if self.agent.is_none() && !self.target_responds {
            return Err(Stop::Skip(
                "the application may send anything: the case needs an agent".into(),
            ));
        }
        let quiet = self.config.quiet;
        let next = self.connection()?.next(quiet)?;
        let received = match next {
            Next::Nothing if self.connection()?.rest().is_empty() => return Ok(()),
            Next::Fin | Next::Reset if may_end && self.connection()?.rest().is_empty() => {
                return Ok(());
            }
            Next::Nothing => {
                let bytes = self.connection()?.rest().to_vec();
                self.record(Who::Target, "bytes", &bytes);
                many(bytes.len(), "byte")
            }
            Next::Fin => "the end of the TCP connection (FIN)".to_owned(),
            Next::Reset => "a reset of the TCP connection".to_owned(),
            Next::Fpdu(fpdu) => {
                let what = Segment::parse(&fpdu.ulpdu).map_or_else(
                    || format!("a ULPDU of {}", many(fpdu.ulpdu.len(), "byte")),
                    |segment| segment.to_string(),
                );
                self.record(Who::Target, what.clone(), &fpdu.wire);
                what
            }
        };
        Err(Stop::Fail {
            expected: format!("nothing for {quiet:?}"),
            received,
        })
    }
}
