//! Messages of RFC 7306: Immediate Data, Atomic Requests and their Responses.

use uwarp_ddp::{STag, TaggedOffset, UntaggedFault, UntaggedHeader};

use super::receive::{Body, ddp, is_whole};
use super::{Outstanding, Request, Stream};
use crate::atomic::{
    ATOMIC_REQUEST_HEADER, ATOMIC_RESPONSE_HEADER, AtomicOp, AtomicRequestHeader,
    AtomicResponseHeader,
};
use crate::error::{OrdExhausted, StreamError};
use crate::inbound::Inbound;
use crate::memory::Memory;
use crate::message::OutMessage;
#[cfg(uwarp_mutants)]
use crate::mutants::filled;
use crate::mutants::mutate;
use crate::opcode::{Opcode, QN_ATOMIC_RESPONSE, QN_READ_REQUEST, QN_SEND};

/// An Atomic Request of the peer that has to be answered. Only [`Stream::next_request`] creates
/// one.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an Atomic Request that was taken has to be carried out and answered, in its turn"]
pub struct AtomicJob {
    id: u32,
    stag: STag,
    to: TaggedOffset,
    op: AtomicOp,
    /// DDP header of the request.
    ddp: UntaggedHeader,
}

impl AtomicJob {
    /// STag of the memory to operate on.
    pub const fn stag(&self) -> STag {
        self.stag
    }

    /// TO of the first of the 8 bytes.
    pub const fn to(&self) -> TaggedOffset {
        self.to
    }

    /// Operation to execute on the 8 bytes.
    pub const fn op(&self) -> AtomicOp {
        self.op
    }

    /// DDP header of the request.
    pub(crate) const fn ddp_header(&self) -> &UntaggedHeader {
        &self.ddp
    }
}

/// Sending Immediate Data, Atomic Requests and Atomic Responses.
impl Stream {
    /// Begins Immediate Data: 8 bytes that consume one receive of the peer, in order with the
    /// Sends. The message has one segment, and the caller adds no payload to it.
    #[must_use]
    pub fn begin_immediate(&mut self, data: [u8; 8], solicited: bool) -> OutMessage {
        if !self.state.sends() {
            return OutMessage::nothing();
        }
        let msn = self.send_msn; // 7306-6.3-04, 7306-6.3-06: numbered with the Sends
        self.send_msn = mutate!(msn.next(), ImmediateNotCounted => msn);
        let opcode = if solicited {
            Opcode::ImmediateSolicited
        } else {
            Opcode::Immediate
        };
        OutMessage::headed(opcode, QN_SEND, msn, &data)
    }

    /// Begins an Atomic Operation on the 8 bytes at `to` in the peer's memory `stag`. It is
    /// outstanding until an [`Inbound::AtomicResponse`] arrives.
    ///
    /// # Errors
    /// [`OrdExhausted`] if the number of outstanding Reads and Atomic Operations has reached the
    /// ORD. Nothing changes on error.
    pub fn begin_atomic(
        &mut self,
        stag: STag,
        to: TaggedOffset,
        op: AtomicOp,
    ) -> Result<OutMessage, OrdExhausted> {
        if !self.state.sends() {
            return Ok(OutMessage::nothing());
        }
        let id = self.atomic_id;
        let msn = self.begin_request(Outstanding::Atomic { id })?;
        self.atomic_id = id.wrapping_add(1);
        let header = AtomicRequestHeader::new(id, stag, to, op).emit();
        Ok(OutMessage::headed(
            Opcode::AtomicRequest,
            QN_READ_REQUEST, // 7306-5.2-01
            msn,
            &header,
        ))
    }

    /// Begins the Response to an Atomic Request that was executed. `original` is the value of the
    /// word before the operation. Call [`response_sent`](Self::response_sent) after the only
    /// segment.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a request is answered once")]
    pub fn begin_atomic_response(&mut self, job: AtomicJob, original: u64) -> OutMessage {
        if !self.state.sends() {
            return OutMessage::nothing();
        }
        let msn = self.atomic_response_msn;
        self.atomic_response_msn = msn.next();
        let header = AtomicResponseHeader {
            id: mutate!(job.id, AtomicIdNotEchoed => 0), // 7306-5.2.1-i03
            original,
        };
        OutMessage::headed(
            Opcode::AtomicResponse,
            mutate!(QN_ATOMIC_RESPONSE, AtomicResponseOnQueue1 => QN_READ_REQUEST), // 7306-5-04
            msn,
            &header.emit(),
        )
    }
}

/// Receiving Immediate Data, Atomic Requests and Atomic Responses.
impl Stream {
    pub(super) fn immediate<M: Memory>(
        &mut self,
        memory: &M,
        opcode: Opcode,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        // 7306-6.3-02: Immediate Data needs a receive. The length of the receive does not matter,
        // because nothing is placed there.
        let buffer = memory.receive_buffer().map(|_| u32::MAX);
        self.sends.accept(header, body.len, buffer).map_err(ddp)?;
        if let Some(first) = self.send_opcode {
            return Err(StreamError::OpcodeChanged { first, got: opcode }); // 5041-4.3-04
        }
        is_whole(opcode, header)?;
        // 7306-6.3-07
        let length = StreamError::ImmediateLength {
            opcode,
            got: body.len,
        };
        match body.head.first_chunk() {
            Some(data) if body.len == 8 => Ok(Inbound::Immediate {
                data: *data,
                solicited: opcode.solicits(),
            }),
            _ => {
                mutate!(Err(length), ImmediateLengthNotChecked => Ok(Inbound::Immediate { data: [0; 8], solicited: false }))
            }
        }
    }

    pub(super) fn atomic_request<M: Memory>(
        &mut self,
        memory: &M,
        ddp: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<M::Target>, StreamError> {
        let opcode = Opcode::AtomicRequest;
        self.accept_request(opcode, ddp, body, ATOMIC_REQUEST_HEADER)?;
        let header = mutate!(
            AtomicRequestHeader::parse(body.head),
            ShortAtomicFilled => AtomicRequestHeader::parse(&filled::<ATOMIC_REQUEST_HEADER>(body.head))
        )
        .ok_or(body.too_short(opcode, ATOMIC_REQUEST_HEADER))?;
        let op = header.op();
        let op =
            mutate!(op, UnknownAtomicDone => op.or(Some(AtomicOp::FetchAdd { add: 0, mask: 0 })))
                .ok_or(StreamError::UnexpectedAtomicOp(header.code))?; // 7306-5.2.1-06
        // 7306-5.4-02: the check is made now, at delivery, and again when the operation is
        // executed.
        memory
            .check_atomic(header.stag, header.to.0)
            .map_err(|fault| StreamError::of_atomic(header.stag, header.to, fault))?;
        self.unanswered.push_back(Request::Atomic(AtomicJob {
            id: header.id,
            stag: header.stag,
            to: header.to,
            op,
            ddp: *ddp,
        }));
        Ok(Inbound::AtomicRequest)
    }

    pub(super) fn atomic_response<T>(
        &mut self,
        header: &UntaggedHeader,
        body: &Body<'_>,
    ) -> Result<Inbound<T>, StreamError> {
        let opcode = Opcode::AtomicResponse;
        // All Responses arrive in the order of the requests (RFC 7306 section 7), so this MSN
        // belongs to the oldest request (7306-5.2.2-i01). 7306-5.2.2-02: each outstanding Atomic
        // Operation has a buffer for its Response.
        let expected = match self.outstanding.front() {
            Some(Outstanding::Atomic { id }) => Some(*id),
            Some(Outstanding::Read { .. }) | None => None,
        };
        let buffer = expected.map(|_| ATOMIC_RESPONSE_HEADER as u32);
        self.atomic_responses
            .accept(header, body.len, buffer)
            .map_err(|fault| match fault {
                UntaggedFault::NoBuffer { .. } => StreamError::AtomicResponseUnexpected,
                fault => ddp(fault),
            })?;
        is_whole(opcode, header)?;
        let response = mutate!(
            AtomicResponseHeader::parse(body.head),
            ShortAtomicFilled => AtomicResponseHeader::parse(&filled::<ATOMIC_RESPONSE_HEADER>(body.head))
        )
        .ok_or(body.too_short(opcode, ATOMIC_RESPONSE_HEADER))?;
        if let Some(expected) = expected
            && mutate!(expected != response.id, AtomicIdNotChecked => false)
        {
            return Err(StreamError::AtomicResponseMismatch {
                expected,
                got: response.id,
            }); // 7306-5.2.2-i02
        }
        self.outstanding.pop_front();
        Ok(Inbound::AtomicResponse {
            original: response.original,
        })
    }
}
