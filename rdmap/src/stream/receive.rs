//! Receiving side of a stream: takes one segment at a time and checks it from the lowest layer up.

use uwarp_ddp::{
    DDP_VERSION, DdpError, Header, STag, TAGGED_HEADER, TaggedHeader, TaggedOffset,
    UNTAGGED_HEADER, UntaggedFault, UntaggedHeader,
};

use super::{Outstanding, Request, Stream};
use crate::HEAD_LEN;
use crate::error::{AccessError, ReadResponseFault, StreamError};
use crate::inbound::{Inbound, SendDelivered};
use crate::memory::Memory;
#[cfg(uwarp_mutants)]
use crate::mutants::filled;
use crate::mutants::mutate;
use crate::opcode::{Opcode, QN_ATOMIC_RESPONSE, QN_SEND, RDMAP_VERSION, split};
use crate::read_request::{READ_REQUEST_HEADER, ReadRequestHeader};
use crate::state::StreamEvent;
use crate::terminate::{MAX_TERMINATE_HEADER, Terminate};

/// A segment of a Write with payload, as [`Stream::write_segment`] reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteSegment {
    /// STag of this side's region.
    pub stag: STag,
    /// TO of the first byte.
    pub to: TaggedOffset,
    /// Length of the payload in bytes: everything after the header, at least one byte.
    pub len: u32,
    /// True if this is the last segment of the message.
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
    /// fewer); `len` is the length in bytes of the whole ULPDU.
    ///
    /// The checks go from the lowest layer up: DDP version and header, Queue Number, RDMAP version,
    /// opcode. The opcode must exist and be in the right kind of segment and on the right queue.
    /// The checks of the message itself follow. If a check fails, nothing of the segment may be
    /// placed.
    ///
    /// # Errors
    /// The error of the first check that fails. This error ends the stream, and every later call
    /// returns it again (5041-7.1-18). After a Terminate Message or a close, the error is
    /// [`StreamError::Ended`]. A `head` that is too short gives [`StreamError::LocalCatastrophic`].
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

    /// Reads a ULPDU of `len` bytes that starts with `head`. Returns the segment if it belongs to a
    /// Write that may be received now, has payload and has no reserved bit set. The stream does not
    /// change.
    ///
    /// If the memory allows the Write, the caller places the payload and calls
    /// [`write_received`](Self::write_received). The effect is the same as that of
    /// [`receive`](Self::receive), but takes less time. Pass every other ULPDU to `receive`: those
    /// for which this returns `None`, and Writes that the memory refuses.
    #[inline]
    #[must_use]
    pub fn write_segment(&self, head: &[u8; TAGGED_HEADER], len: usize) -> Option<WriteSegment> {
        const LAST: u8 = 0x40;
        /// First byte: T is set and DV is 1. Second byte: RV is 1 and the opcode is 0, a Write.
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

    /// Returns true if the ULPDU that starts with `head` is the first segment of a message that
    /// consumes a receive. The stream does not change, so a caller without a receive may hold the
    /// ULPDU back until one is posted. Returns false for a ULPDU that [`receive`](Self::receive)
    /// refuses before it looks for a receive.
    #[must_use]
    pub fn takes_receive(&self, head: &[u8]) -> bool {
        // A tagged segment never consumes a receive, and most segments are tagged.
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
        // Use a reference, because moving a header costs more than reading its fields.
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
        let raw = mutate!(raw, UnknownOpcodeIsSend => if Opcode::from_raw(raw).is_none() { 3 } else { raw });
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
                Err(fault) => {
                    return Err(StreamError::Access(AccessError {
                        opcode: Opcode::Write,
                        fault,
                        stag: header.stag,
                        to: header.to,
                        len: body.len,
                    }));
                }
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
                let refused = |fault| AccessError {
                    opcode,
                    fault,
                    stag,
                    to: TaggedOffset(0),
                    len: 0,
                };
                memory.check_invalidate(stag).map_err(refused)?; // 5040-5.3-10
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
                .map_err(|fault| AccessError::of_read(&request, fault))?;
        }
        self.unanswered.push_back(Request::Read(request));
        Ok(Inbound::ReadRequest)
    }

    /// Checks a Read or Atomic Request against queue 1 and the IRD, and advances the queue.
    pub(super) fn accept_request(
        &mut self,
        opcode: Opcode,
        header: &UntaggedHeader,
        body: &Body<'_>,
        header_len: usize,
    ) -> Result<(), StreamError> {
        // 5040-5.2.2-02, 7306-5.2.2-01: queue 1 has as many buffers as the IRD, each of the size of
        // a header.
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
        // 5040-5.4-04: a Terminate always has a buffer. 5040-5.4-03: one buffer is enough, because
        // the stream ends with the message. 5040-5.4-05: the message is addressed to this layer,
        // which passes it on.
        let buffer = mutate!(Some(MAX_TERMINATE_HEADER as u32), TerminateNeedsBuffer => None);
        self.terminates
            .accept(header, body.len, buffer)
            .map_err(ddp)?;
        is_whole(opcode, header)?;
        Terminate::parse_from(self.peer, body.head)
            .map(Inbound::Terminate)
            // 5040-5.4-i01
            .ok_or_else(|| body.too_short(opcode, Terminate::bytes_needed(body.head)))
    }

    fn read_response<T>(
        &mut self,
        header: &TaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<T>, StreamError> {
        // 5040-5.2.2-04: Responses arrive in the order of the Requests.
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
            // 5041-5.2-11: STag and TO are checked only if there is payload.
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

/// Simulates dropping a segment that is too short for its header: returns an empty Write instead of
/// the error.
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

/// Checks the Last flag of a message of a kind that has only one segment.
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
