//! Effect of a segment on a stream (RFC 5040, 5041 and 7306). The rules of the lowest layer are
//! checked first.

use std::collections::VecDeque;

pub use super::event::{Asked, Event, Waiting};
use super::memory::{Fault, Region, Right, check};

/// Layer, Error Type and Error Code.
pub type Code = (u8, u8, u8);

/// Maximum length of a Terminate Header: its control fields, the segment length, a DDP header and a
/// Read Request Header.
const TERMINATE: usize = 4 + 2 + 18 + 28;

/// Model of the receiving half of a stream.
#[derive(Clone, Debug)]
pub struct Judge {
    /// Inbound RDMA Read queue depth.
    pub ird: usize,
    /// Next MSN of each queue.
    pub msn: [u32; 4],
    /// Number of bytes received of the current Send, and its opcode.
    pub under_way: Option<(u32, u8)>,
    /// Requests that were sent and have no response yet, oldest first.
    pub waiting: VecDeque<Waiting>,
    /// Requests from the peer that the caller has not taken yet.
    pub asked: VecDeque<Asked>,
    /// Number of requests that the caller has taken and not answered yet.
    pub answering: usize,
    /// Set when no more segments are accepted: `Some(Some(code))` after an error, `Some(None)`
    /// after a Terminate or a close.
    pub ended: Option<Option<Code>>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len]
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Returns the error code of a refused access: a DDP code for a Write, an RDMAP code for a request.
const fn refused(fault: Fault, write: bool) -> Code {
    match (fault, write) {
        (Fault::Invalid | Fault::NotAssociated | Fault::Rights, true) => (1, 1, 0),
        (Fault::Bounds, true) => (1, 1, 1),
        (Fault::Wrap, true) => (1, 1, 3),
        (Fault::Invalid | Fault::NotAssociated, false) => (0, 1, 0),
        (Fault::Bounds, false) => (0, 1, 1),
        (Fault::Rights, false) => (0, 1, 2),
        (Fault::Wrap, false) => (0, 1, 4),
        (Fault::Misaligned, _) => (0, 2, 7),
    }
}

const SHORT: Code = (2, 0, 3);
const UNEXPECTED: Code = (0, 2, 6);
const UNSPECIFIED: Code = (0, 2, 0xFF);

impl Judge {
    /// Creates a stream that has received nothing.
    #[must_use]
    pub fn new(ird: u16) -> Self {
        Self {
            ird: ird.into(),
            msn: [1; 4],
            under_way: None,
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            answering: 0,
            ended: None,
        }
    }

    /// Receives a segment. `receive` is the length of the first posted receive.
    ///
    /// # Errors
    /// The code of the error that ended the stream; `None` if a Terminate or a close has ended it.
    pub fn receive(
        &mut self,
        regions: &[Region],
        receive: Option<u32>,
        ulpdu: &[u8],
    ) -> Result<Event, Option<Code>> {
        if let Some(code) = self.ended {
            return Err(code);
        }
        let event = self.judge(regions, receive, ulpdu);
        match &event {
            Ok(Event::Terminate) => self.ended = Some(None),
            Ok(_) => {}
            Err(code) => self.ended = Some(Some(*code)),
        }
        event.map_err(Some)
    }

    fn judge(
        &mut self,
        regions: &[Region],
        receive: Option<u32>,
        ulpdu: &[u8],
    ) -> Result<Event, Code> {
        let control = *ulpdu.first().ok_or(SHORT)?;
        let tagged = control & 0x80 != 0;
        let last = control & 0x40 != 0;
        if control & 3 != 1 {
            return Err(if tagged { (1, 1, 4) } else { (1, 2, 6) });
        }
        let payload_at = if tagged { 14 } else { 18 };
        if ulpdu.len() < payload_at {
            return Err(SHORT);
        }
        let queue = if tagged { 0 } else { number(ulpdu, 6, 4) };
        if queue > 3 {
            return Err((1, 2, 1));
        }
        if ulpdu[1] >> 6 != 1 {
            return Err((0, 2, 5));
        }
        let opcode = ulpdu[1] & 15;
        let len = (ulpdu.len() - payload_at) as u32;
        match (tagged, opcode) {
            (true, 0) => write(regions, ulpdu, len, last),
            (true, 2) => self.read_response(ulpdu, len, last),
            (false, 3..=6 | 8 | 9) if queue == 0 => self.send(regions, receive, ulpdu, len, last),
            (false, 1 | 10) if queue == 1 => self.request(regions, ulpdu, len, last),
            (false, 7) if queue == 2 => self.terminate(ulpdu, len, last),
            (false, 11) if queue == 3 => self.atomic_response(ulpdu, len, last),
            (false, 1 | 3..=11) => Err((1, 2, 1)),
            _ => Err(UNEXPECTED),
        }
    }

    /// Applies the rules of an untagged queue, in the order MSN, buffer, MO, length.
    fn queue(
        &mut self,
        queue: usize,
        ulpdu: &[u8],
        at: u32,
        len: u32,
        buffer: Result<u32, Code>,
    ) -> Result<(), Code> {
        if number(ulpdu, 10, 4) != u64::from(self.msn[queue]) {
            return Err((1, 2, 3));
        }
        let buffer = buffer?;
        if number(ulpdu, 14, 4) != u64::from(at) {
            return Err((1, 2, 4));
        }
        if u64::from(at) + u64::from(len) > u64::from(buffer) {
            return Err((1, 2, 5));
        }
        Ok(())
    }

    fn send(
        &mut self,
        regions: &[Region],
        receive: Option<u32>,
        ulpdu: &[u8],
        len: u32,
        last: bool,
    ) -> Result<Event, Code> {
        let opcode = ulpdu[1] & 15;
        let immediate = opcode >= 8;
        let at = self.under_way.map_or(0, |(at, _)| at);
        let buffer = receive.ok_or((1, 2, 2));
        // Immediate Data uses a receive, but not its memory.
        let buffer = if immediate {
            buffer.map(|_| u32::MAX)
        } else {
            buffer
        };
        self.queue(0, ulpdu, at, len, buffer)?;
        if self.under_way.is_some_and(|(_, first)| first != opcode) {
            return Err(UNEXPECTED);
        }
        if immediate {
            if !last || len != 8 {
                return Err(UNSPECIFIED);
            }
            self.msn[0] = self.msn[0].wrapping_add(1);
            return Ok(Event::Immediate {
                data: number(ulpdu, 18, 8).to_be_bytes(),
                solicited: opcode == 9,
            });
        }
        let mut delivered = None;
        if last {
            let stag = number(ulpdu, 2, 4) as u32;
            let invalidated = (opcode == 4 || opcode == 6).then_some(stag);
            if invalidated.is_some() && check(regions, stag, 0, 0, Right::Invalidate).is_err() {
                return Err((0, 1, 9));
            }
            delivered = Some((at + len, opcode >= 5, invalidated));
            self.msn[0] = self.msn[0].wrapping_add(1);
            self.under_way = None;
        } else {
            self.under_way = Some((at + len, opcode));
        }
        Ok(Event::Send {
            payload_at: 18,
            offset: at,
            len,
            delivered,
        })
    }

    fn request(
        &mut self,
        regions: &[Region],
        ulpdu: &[u8],
        len: u32,
        last: bool,
    ) -> Result<Event, Code> {
        let atomic = ulpdu[1] & 15 == 10;
        let header = if atomic { 52 } else { 28 };
        let free = self.asked.len() + self.answering < self.ird;
        self.queue(
            1,
            ulpdu,
            0,
            len,
            if free { Ok(header) } else { Err((1, 2, 2)) },
        )?;
        if !last {
            return Err(UNSPECIFIED);
        }
        if len < header {
            return Err(SHORT);
        }
        let field = |at: usize, len: usize| number(ulpdu, 18 + at, len);
        if atomic {
            let code = field(3, 1) & 15;
            if code != 0 && code != 2 {
                return Err(UNEXPECTED);
            }
            let (stag, to) = (field(8, 4) as u32, field(12, 8));
            check(regions, stag, to, 8, Right::Atomic).map_err(|fault| refused(fault, false))?;
            self.asked.push_back(Asked::Atomic {
                id: field(4, 4) as u32,
                stag,
                to,
                data: [20, 28, 36, 44].map(|at| field(at, 8)),
                swap: code == 2,
            });
        } else {
            let (len, stag, to) = (field(12, 4) as u32, field(16, 4) as u32, field(20, 8));
            if len > 0 {
                check(regions, stag, to, len, Right::Read)
                    .map_err(|fault| refused(fault, false))?;
            }
            self.asked.push_back(Asked::Read {
                sink_stag: field(0, 4) as u32,
                sink_to: field(4, 8),
                len,
                stag,
                to,
            });
        }
        self.msn[1] = self.msn[1].wrapping_add(1);
        Ok(if atomic {
            Event::AtomicRequest
        } else {
            Event::ReadRequest
        })
    }

    fn terminate(&mut self, ulpdu: &[u8], len: u32, last: bool) -> Result<Event, Code> {
        self.queue(2, ulpdu, 0, len, Ok(TERMINATE as u32))?;
        if !last {
            return Err(UNSPECIFIED);
        }
        super::terminate::read(&ulpdu[18..], false)
            .map(|_| Event::Terminate)
            .ok_or(SHORT)
    }

    fn atomic_response(&mut self, ulpdu: &[u8], len: u32, last: bool) -> Result<Event, Code> {
        let expected = match self.waiting.front() {
            Some(Waiting::Atomic { id }) => Ok(*id),
            _ => Err(UNEXPECTED),
        };
        self.queue(3, ulpdu, 0, len, expected.map(|_| 12))?;
        if !last {
            return Err(UNSPECIFIED);
        }
        if len < 12 {
            return Err(SHORT);
        }
        if Ok(number(ulpdu, 18, 4) as u32) != expected {
            return Err(UNSPECIFIED);
        }
        self.msn[3] = self.msn[3].wrapping_add(1);
        self.waiting.pop_front();
        Ok(Event::AtomicResponse {
            original: number(ulpdu, 22, 8),
        })
    }

    fn read_response(&mut self, ulpdu: &[u8], len: u32, last: bool) -> Result<Event, Code> {
        let Some(Waiting::Read {
            stag,
            to,
            len: all,
            got,
        }) = self.waiting.front_mut()
        else {
            return Err(UNEXPECTED);
        };
        let offset = *got;
        if len > 0 {
            if number(ulpdu, 2, 4) != u64::from(*stag) {
                return Err((1, 1, 0));
            }
            if number(ulpdu, 6, 8) != to.wrapping_add(u64::from(offset)) {
                return Err((1, 1, 1));
            }
        }
        let end = u64::from(offset) + u64::from(len);
        if end > u64::from(*all) || last && end < u64::from(*all) {
            return Err((1, 1, 1));
        }
        *got = end as u32;
        if last {
            self.waiting.pop_front();
        }
        Ok(Event::ReadResponse {
            payload_at: 14,
            offset,
            len,
            complete: last,
        })
    }
}

fn write(regions: &[Region], ulpdu: &[u8], len: u32, last: bool) -> Result<Event, Code> {
    let mut place = None;
    if len > 0 {
        let (stag, to) = (number(ulpdu, 2, 4) as u32, number(ulpdu, 6, 8));
        let found = check(regions, stag, to, len, Right::Write);
        place = Some(found.map_err(|fault| refused(fault, true))?);
    }
    Ok(Event::Write {
        place,
        payload_at: 14,
        len,
        last,
    })
}
