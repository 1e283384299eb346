//! Atomic Operations (RFC 7306): requests and responses of the target, and the byte order of its
//! memory.

use serde_json::json;

use super::connection::Next;
use super::outcome::Who;
use super::player::{Player, Step, Stop};
use super::traffic::Message;
use crate::script::{Name, Stag, To, answer_atomic, fetch_add};
use crate::wire::segment::{Segment, opcode};
use crate::words::many;

/// Fields of an expected Atomic Request: AOpCode, STag, TO, Add or Swap Data, Compare Data.
pub(super) type DueAtomic = (u32, u32, u64, u64, u64);

/// Returns the Request Identifier and the value of an Atomic Response. Any other message is a
/// failure.
pub(super) fn atomic_response(expected: &str, message: &Message) -> Result<(u32, u64), Stop> {
    let fail = |received: String| Stop::Fail {
        expected: expected.to_owned(),
        received,
    };
    if message.first.opcode() != opcode::ATOMIC_RESPONSE {
        return Err(fail(message.first.to_string()));
    }
    let header: [u8; 12] = message.payload.as_slice().try_into().map_err(|_| {
        let len = message.payload.len();
        fail(format!(
            "an Atomic Response with a header of {len}",
            len = many(len, "byte")
        ))
    })?;
    Ok((word(&header, 0), long(&header, 4)))
}

fn word(header: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[at..at + 4]);
    u32::from_be_bytes(bytes)
}

fn long(header: &[u8], at: usize) -> u64 {
    u64::from(word(header, at)) << 32 | u64::from(word(header, at + 4))
}

impl Player<'_> {
    /// Checks an Atomic Request. It does not check the reserved bits and the compare fields of a
    /// FetchAdd, which have rules of their own ([`crate::check`]).
    pub(super) fn atomic_request(
        &mut self,
        expected: &str,
        message: &Message,
        due: DueAtomic,
    ) -> Step {
        let fail = |received: String| Stop::Fail {
            expected: expected.to_owned(),
            received,
        };
        let header: [u8; 52] = message.payload.as_slice().try_into().map_err(|_| {
            let len = message.payload.len();
            fail(format!(
                "an Atomic Request with a header of {len}",
                len = many(len, "byte")
            ))
        })?;
        self.connection()?.atomics.push(word(&header, 4));
        let (code, stag, to, data, compare) = due;
        let came = (
            word(&header, 0) & 15,
            word(&header, 8),
            long(&header, 12),
            long(&header, 20),
        );
        let (mask, compared) = (long(&header, 28), (long(&header, 36), long(&header, 44)));
        // In an addition of 64 bits, a field boundary at the top bit has no effect. The mask may
        // therefore contain this bit.
        let operands = match code {
            0 => mask & !(1 << 63) == 0,
            _ => mask == u64::MAX && compared == (compare, u64::MAX),
        };
        if came != (code, stag, to, data) || !operands {
            return Err(fail(format!("another header: {header:02x?}")));
        }
        Ok(())
    }

    /// Collects Atomic Requests and answers them with `values`. Answers all outstanding requests
    /// together. At most `most` requests may be outstanding.
    pub(super) fn answer_atomics(&mut self, values: &[u64], most: usize) -> Step {
        let expected = format!("{} Atomic Requests, at most {most} at once", values.len());
        let already = self.connection()?.atomics.len();
        let mut answered = 0;
        while answered < values.len() {
            let message = self.message(&expected)?;
            self.saw_atomic(&expected, &message.first)?;
            let mut came = 1;
            // Collects further requests that the target sends before it receives an answer.
            while let Some(segment) = self.within_quiet()? {
                self.saw_atomic(&expected, &segment)?;
                came += 1;
            }
            if came > most || answered + came > values.len() {
                return Err(Stop::Fail {
                    expected,
                    received: format!("{came} at once, after {answered} others"),
                });
            }
            let answers: Vec<_> = (answered..answered + came)
                .map(|number| answer_atomic(already + number, values[number]))
                .collect();
            self.send(&answers)?;
            answered += came;
        }
        Ok(())
    }

    fn saw_atomic(&mut self, expected: &str, segment: &Segment) -> Step {
        let id = segment
            .payload
            .get(4..8)
            .filter(|_| segment.opcode() == opcode::ATOMIC_REQUEST);
        let Some(id) = id.map(|id| word(id, 0)) else {
            return Err(Stop::Fail {
                expected: expected.to_owned(),
                received: segment.to_string(),
            });
        };
        self.connection()?.atomics.push(id);
        Ok(())
    }

    /// Returns the next segment if one arrives within the quiet time. Otherwise returns `None`.
    fn within_quiet(&mut self) -> Result<Option<Segment>, Stop> {
        let quiet = self.config.quiet;
        let Next::Fpdu(fpdu) = self.connection()?.next(quiet)? else {
            return Ok(None);
        };
        let segment = Segment::parse(&fpdu.ulpdu);
        let what = segment.as_ref().map_or_else(
            || format!("a ULPDU of {}", many(fpdu.ulpdu.len(), "byte")),
            ToString::to_string,
        );
        self.record(Who::Target, what.clone(), &fpdu.wire);
        segment.map(Some).ok_or(Stop::Fail {
            expected: "a whole DDP Header".into(),
            received: what,
        })
    }

    /// Learns the byte order of the target. Reads a word of its memory through the agent, and
    /// compares it with the value that a FetchAdd of 0 returns.
    pub(super) fn learn_byte_order(&mut self, name: Name) -> Step {
        const ID: u32 = 0;
        let region = self.named(name)?;
        let members = json!({"mr": region.number, "off": 0, "len": 8});
        let answer = self.agent()?.command("peek", members)?;
        let digits = answer["data"].as_str().unwrap_or_default();
        let big = u64::from_str_radix(digits, 16).map_err(|_| {
            Stop::Infrastructure(format!("the agent violated its protocol: {answer}"))
        })?;
        self.send(&[fetch_add(ID, Stag::Of(name), To::In(name, 0), 0, 0)])?;
        let expected = format!("an Atomic Response with the word {digits} of the memory");
        let message = self.message(&expected)?;
        let (id, value) = atomic_response(&expected, &message)?;
        if id != ID || value != big && value != big.swap_bytes() {
            return Err(Stop::Fail {
                expected,
                received: format!("{value:#018x} to request {id:#x}"),
            });
        }
        self.big_endian = Some(value == big);
        Ok(())
    }
}
