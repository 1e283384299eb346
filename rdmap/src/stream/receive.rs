//! Receiving side of a stream: takes one segment at a time and checks it from the bottom layer up.

use uwarp_ddp::{
    DDP_VERSION, DdpError, Header, STag, TAGGED_HEADER, TaggedHeader, TaggedOffset,
    UNTAGGED_HEADER, UntaggedFault, UntaggedHeader,
};

use super::{Outstanding, Request, Stream};
use crate::HEAD_LEN;
use crate::error::{ReadResponseFault, StreamError};
use crate::inbound::{Inbound, SendDelivered};
use crate::memory::Memory;
#[cfg(uwarp_mutants)]
use crate::mutants::filled;
use crate::mutants::mutate;
use crate::opcode::{Opcode, QN_ATOMIC_RESPONSE, QN_SEND, RDMAP_VERSION, split};
use crate::read_request::{READ_REQUEST_HEADER, ReadRequestHeader};
use crate::state::StreamEvent;
use crate::terminate::{MAX_TERMINATE_HEADER, Terminate};

/// A segment of a Write, as [`Stream::write_segment`] reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteSegment {
    /// STag of this side's region.
    pub stag: STag,
    /// TO of the first byte.
    pub to: TaggedOffset,
    /// Length of the payload in bytes: everything after the header, at least one byte.
    pub len: u32,
    /// The segment is the last one of the message.
    pub last: bool,
}

/// A segment whose DDP header was read.
pub(super) struct Body<'a> {
    /// First bytes after the DDP header.
    pub(super) head: &'a [u8],
    /// Length of the DDP header in bytes.
    at: usize,
    /// Number of bytes after the DDP header.
    pub(super) len: u32,
}

impl Stream {
    /// Receives the next ULPDU. `head` holds its first bytes ([`HEAD_LEN`], or all if there are
    /// fewer), `len` is its whole length.
    ///
    /// The checks go from the bottom up. They cover DDP's version and header, the Queue Number,
    /// RDMAP's version, and the opcode, which must exist, be in the right kind of segment and on
    /// its queue. The checks of the message itself follow. If a check fails, nothing of the segment
    /// may be placed.
    ///
    /// # Errors
    /// The first check that fails. It ends the stream, and every later call returns it again
    /// (5041-7.1-18). After a Terminate Message or a close it is [`StreamError::Ended`]. A `head`
    /// that is too short gives [`StreamError::LocalCatastrophic`].
    pub fn receive<M: Memory>(
        &mut self,
        memory: &M,
        head: &[u8],
        len: usize,
    ) -> Result<Inbound<M::Target>, StreamError> {
        if !self.state.receives() {
            return Err(self.error.unwrap_or(StreamError::Ended));
        }
        let inbound = self.segment(memory, head, len);
        match &inbound {
            Ok(Inbound::Terminate(_)) => self.event(StreamEvent::TerminateReceived),
            Ok(_) => {}
            Err(error) => self.fail(*error),
        }
        inbound
    }

    /// Reads a ULPDU of `len` bytes if it is a segment of a Write that may be received now, with
    /// payload and without a reserved bit. Nothing changes.
    ///
    /// If the Write is allowed, the caller places the payload and calls
    /// [`write_received`](Self::write_received). The effect is that of [`receive`](Self::receive),
    /// in less time. Every other ULPDU (`None`), and a Write that is refused, must go to `receive`.
    #[inline]
    #[must_use]
    pub fn write_segment(&self, head: &[u8; TAGGED_HEADER], len: usize) -> Option<WriteSegment> {
        const LAST: u8 = 0x40;
        /// T and DV; RV, and the opcode of a Write, which is 0.
        const WRITE: [u8; 2] = [0x80 | DDP_VERSION, RDMAP_VERSION << 6];
        let [control, ulp, s0, s1, s2, s3, to @ ..] = *head;
        let len = u32::try_from(len.checked_sub(TAGGED_HEADER)?).ok()?;
        let plain = [control & !LAST, ulp] == WRITE && len > 0 && self.state.receives();
        plain.then_some(WriteSegment {
            stag: STag(u32::from_be_bytes([s0, s1, s2, s3])),
            to: TaggedOffset(u64::from_be_bytes(to)),
            len,
            last: control & LAST != 0,
        })
    }

    /// Records that the segment read by [`write_segment`](Self::write_segment) was allowed and
    /// placed.
    #[inline]
    pub fn write_received(&mut self, segment: WriteSegment) {
        self.write_begun = !segment.last;
    }

    /// Returns true if the ULPDU that begins with `head` is the first one of a message that takes a
    /// receive off the queue. Nothing changes: a caller without a receive may leave the ULPDU in
    /// place until one is posted. A ULPDU that [`receive`](Self::receive) refuses before it looks
    /// for a receive takes none.
    #[must_use]
    pub fn takes_receive(&self, head: &[u8]) -> bool {
        // A tagged segment, which most are, never takes a receive.
        let tagged = head.first().is_some_and(|control| control & 0x80 != 0);
        if tagged || !self.state.receives() || self.send_opcode.is_some() {
            return false;
        }
        let Ok((Header::Untagged(header), _)) = Header::parse(head) else {
            return false;
        };
        let (version, raw) = split(header.ulp);
        version == RDMAP_VERSION
            && header.qn == QN_SEND
            && header.msn == self.sends.msn()
            && Opcode::from_raw(raw).is_some_and(|opcode| opcode.queue() == Some(QN_SEND))
    }

    fn segment<M: Memory>(
        &mut self,
        memory: &M,
        head: &[u8],
        len: usize,
    ) -> Result<Inbound<M::Target>, StreamError> {
        let head = head
            .get(..len.min(HEAD_LEN))
            .ok_or(StreamError::LocalCatastrophic)?;
        // By reference, because moving a header costs more than reading one.
        let parsed = &Header::parse(head);
        let (header, at) = match parsed {
            Ok((header, at)) => (header, *at),
            Err(error) => {
                let error = StreamError::from(*error);
                return mutate!(Err(error), ShortSegmentDropped => dropped(error));
            }
        };
        let body = Body {
            head: head.get(at..).unwrap_or(&[]),
            at,
            len: u32::try_from(len - at).map_err(|_| StreamError::LocalCatastrophic)?,
        };
        if let Header::Untagged(header) = header
            && mutate!(header.qn > QN_ATOMIC_RESPONSE, QnNotChecked => false)
        {
            return Err(ddp(UntaggedFault::InvalidQn(header.qn))); // 5041-7.1-01
        }
        let (version, raw) = split(header.ulp());
        if mutate!(version != RDMAP_VERSION, RvNotChecked => false) {
            return Err(StreamError::RdmapVersion(version)); // 5040-7.2-03
        }
        let raw = mutate!(raw, RdmapReservedChecked => header.ulp() & 0x3F);
        let raw = mutate!(raw, UnknownOpcodeIsSend => if raw > 11 { 3 } else { raw });
        // 5040-7.2-02
        let opcode = Opcode::from_raw(raw).ok_or(StreamError::UnexpectedOpcode(raw))?;
        match (header, opcode) {
            (Header::Tagged(header), Opcode::Write) => self.write(memory, header, &body),
            (Header::Tagged(header), Opcode::ReadResponse) => self.read_response(header, &body),
            (Header::Untagged(header), _) if opcode.queue().is_some() => {
                self.untagged(memory, opcode, header, &body)
            }
            (Header::Tagged(header), _) if mutate!(false, TaggedSendIsWrite => true) => {
                self.write(memory, header, &body)
            }
            _ => Err(StreamError::WrongBufferModel { opcode }),
        }
    }

    #[inline]
    fn write<M: Memory>(
        &mut self,
        memory: &M,
        header: &TaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        let target = if mutate!(body.len == 0, ZeroLengthWriteChecked => false) {
            None // 5041-5.2-11
        } else {
            match memory.check_write(header.stag, header.to.0, body.len) {
                Ok(target) => Some(target),
                Err(fault) => return Err(StreamError::Ddp(DdpError::Tagged(fault))),
            }
        };
        self.write_begun = !header.last;
        Ok(Inbound::Write {
            target,
            payload_at: body.at,
            len: body.len,
            last: header.last,
        })
    }

    fn untagged<M: Memory>(
        &mut self,
        memory: &M,
        opcode: Opcode,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        let wrong_queue = opcode.queue() != Some(header.qn);
        let wrong_queue =
            mutate!(wrong_queue, QnNotChecked => header.qn <= QN_ATOMIC_RESPONSE && wrong_queue);
        if mutate!(wrong_queue, SendOnQueue1 => false) {
            return Err(StreamError::WrongQueue {
                opcode,
                got: header.qn,
            });
        }
        match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.send(memory, opcode, header, body),
            Opcode::ReadRequest => self.read_request(memory, header, body),
            Opcode::Terminate => self.terminate(header, body),
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.immediate(memory, opcode, header, body)
            }
            Opcode::AtomicRequest => self.atomic_request(memory, header, body),
            Opcode::AtomicResponse => self.atomic_response(header, body),
            Opcode::Write | Opcode::ReadResponse => Err(StreamError::WrongBufferModel { opcode }),
        }
    }

    fn send<M: Memory>(
        &mut self,
        memory: &M,
        opcode: Opcode,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        // 5040-5.3-08: an empty Send needs a receive as well.
        let place = self
            .sends
            .accept(header, body.len, memory.receive_buffer())
            .map_err(ddp)?;
        let first = self.send_opcode.unwrap_or(opcode);
        if first != opcode {
            return Err(StreamError::OpcodeChanged { first, got: opcode }); // 5041-4.3-04
        }
        let delivered = if place.last {
            self.send_opcode = None;
            let invalidated = opcode.invalidates().then_some(STag(header.ulp_word));
            if let Some(stag) = invalidated {
                memory
                    .check_invalidate(stag)
                    .map_err(StreamError::CannotInvalidate)?; // 5040-5.3-10
            }
            let solicited = opcode.solicits();
            Some(SendDelivered {
                len: place.message_len,
                solicited,
                invalidated,
            })
        } else {
            self.send_opcode = Some(opcode);
            None
        };
        Ok(Inbound::Send {
            payload_at: body.at,
            offset: place.offset,
            len: place.len,
            delivered,
        })
    }

    fn read_request<M: Memory>(
        &mut self,
        memory: &M,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        let opcode = Opcode::ReadRequest;
        self.accept_request(opcode, header, body, READ_REQUEST_HEADER)?;
        let request = mutate!(
            ReadRequestHeader::parse(body.head),
            ShortReadRequestFilled => ReadRequestHeader::parse(&filled::<READ_REQUEST_HEADER>(body.head))
        )
        .ok_or(body.too_short(opcode, READ_REQUEST_HEADER))?;
        if mutate!(request.len > 0, ZeroLengthReadChecked => true) {
            // 5040-5.2.1-12, 5040-5.5-03: the check is made now, at delivery, and only if the
            // length is not 0.
            memory
                .check_read(request.source_stag, request.source_to.0, request.len)
                .map_err(StreamError::Protection)?;
        }
        self.unanswered.push_back(Request::Read(request));
        Ok(Inbound::ReadRequest)
    }

    /// Handles the common part of the two requests of queue 1.
    pub(super) fn accept_request(
        &mut self,
        opcode: Opcode,
        header: &UntaggedHeader,
        body: &Body<'_>,
        header_len: usize,
    ) -> Result<(), StreamError> {
        // 5040-5.2.2-02, 7306-5.2.2-01: queue 1 has as many buffers, each of the size of a header,
        // as IRD.
        let free = self.requests_unanswered() < usize::from(self.config.ird);
        let free = mutate!(free, IrdNotEnforced => true);
        let buffer = free.then_some(header_len as u32);
        self.requests
            .accept(header, body.len, buffer)
            .map_err(|fault| match fault {
                UntaggedFault::NoBuffer { .. } => StreamError::IrdExceeded {
                    ird: self.config.ird,
                }, // 5040-6.1-05
                fault => ddp(fault),
            })?;
        is_whole(opcode, header)
    }

    fn terminate<T>(
        &mut self,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<T>, StreamError> {
        let opcode = Opcode::Terminate;
        // 5040-5.4-04: it always has a buffer. 5040-5.4-03: one is enough, because the stream ends
        // with it. 5040-5.4-05: it is for this layer, which passes it on.
        let buffer = mutate!(Some(MAX_TERMINATE_HEADER as u32), TerminateNeedsBuffer => None);
        self.terminates
            .accept(header, body.len, buffer)
            .map_err(ddp)?;
        is_whole(opcode, header)?;
        Terminate::parse_from(self.peer, body.head)
            .map(Inbound::Terminate)
            // 5040-5.4-i01
            .ok_or_else(|| body.too_short(opcode, Terminate::octets_needed(body.head)))
    }

    fn read_response<T>(
        &mut self,
        header: &TaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<T>, StreamError> {
        // 5040-5.2.2-04: Responses come in the order of the Requests.
        let Some(Outstanding::Read {
            header: read,
            received: so_far,
        }) = self.outstanding.front_mut()
        else {
            return Err(StreamError::ReadResponseUnexpected);
        };
        let mismatch = |fault| Err(StreamError::ReadResponseMismatch(fault)); // 5040-5.2.2-05
        let (offset, expected) = (*so_far, read.len);
        if body.len > 0 {
            // 5041-5.2-11: STag and TO count only if there is payload.
            let sink = read.sink_stag;
            if mutate!(header.stag != sink, ResponseStagNotChecked => false) {
                return mismatch(ReadResponseFault::WrongSTag {
                    expected: sink,
                    got: header.stag,
                });
            }
            let to = read.sink_to.advance(offset);
            if mutate!(header.to != to, ResponseToNotChecked => false) {
                return mismatch(ReadResponseFault::WrongOffset {
                    expected: to,
                    got: header.to,
                });
            }
        }
        let end = u64::from(offset) + u64::from(body.len);
        let received = match u32::try_from(end) {
            Ok(received) if received <= expected => received,
            _ => return mismatch(ReadResponseFault::TooLong { expected, got: end }),
        };
        if header.last && received < expected {
            return mismatch(ReadResponseFault::TooShort {
                expected,
                got: received,
            });
        }
        *so_far = received;
        self.response_begun = !header.last;
        if header.last {
            self.outstanding.pop_front();
        }
        Ok(Inbound::ReadResponse {
            payload_at: body.at,
            offset,
            len: body.len,
            complete: header.last, // 5040-5.5-10
        })
    }
}

/// Replaces the error of a segment that is too short for its header, as if it was dropped: returns
/// an empty Write.
#[cfg(uwarp_mutants)]
fn dropped<T>(error: StreamError) -> Result<Inbound<T>, StreamError> {
    match error {
        StreamError::Ddp(DdpError::TooShort { .. }) => Ok(Inbound::Write {
            target: None,
            payload_at: 0,
            len: 0,
            last: true,
        }),
        error => Err(error),
    }
}

/// Checks that a message of a kind with only one segment has no second one.
pub(super) fn is_whole(opcode: Opcode, header: &UntaggedHeader) -> Result<(), StreamError> {
    if header.last {
        Ok(())
    } else {
        Err(StreamError::NotLast { opcode })
    }
}

impl Body<'_> {
    pub(super) fn too_short(&self, opcode: Opcode, header: usize) -> StreamError {
        let len = self.len as usize + UNTAGGED_HEADER;
        StreamError::TooShort {
            opcode,
            len,
            needed: UNTAGGED_HEADER + header,
        }
    }
}

pub(super) fn ddp(fault: UntaggedFault) -> StreamError {
    StreamError::Ddp(DdpError::Untagged(fault))
}
