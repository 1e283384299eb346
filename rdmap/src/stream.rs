//! One RDMAP stream: its messages in progress in both directions.

use alloc::collections::VecDeque;

use uwarp_ddp::{Msn, STag, TAGGED_HEADER, TaggedOffset, UNTAGGED_HEADER, UntaggedReceiver};

use crate::error::{OrdExhausted, StreamError};
use crate::message::{self, OutMessage};
use crate::mutants::mutate;
use crate::opcode::{Opcode, QN_ATOMIC_RESPONSE, QN_READ_REQUEST, QN_SEND, QN_TERMINATE};
use crate::peer::Peer;
use crate::read_request::ReadRequestHeader;
use crate::state::{StreamEvent, StreamState};
use crate::terminate::{MAX_TERMINATE_HEADER, Terminate};

mod extensions;
mod receive;
mod sends;

pub use extensions::AtomicJob;
pub use receive::WriteSegment;
pub use sends::SendSegment;

/// Negotiated parameters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamConfig {
    /// IRD: maximum number of unanswered Read and Atomic Requests of the peer.
    pub ird: u16,
    /// ORD: maximum number of outstanding Reads and Atomic Operations of this side.
    pub ord: u16,
}

/// Kind of a Send message. There are four.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendKind {
    /// Requests a solicited event at the receiver.
    pub solicited: bool,
    /// Advertised STag that the receiver invalidates, if any.
    pub invalidate: Option<STag>,
}

impl SendKind {
    /// Returns the opcode of this kind.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match (self.solicited, self.invalidate.is_some()) {
            (false, false) => Opcode::Send,
            (false, true) => Opcode::SendInvalidate,
            (true, false) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }
}

impl SendKind {
    /// Returns the opcode and the STag that are sent for this kind.
    #[inline]
    fn parts(&self) -> (Opcode, Option<STag>) {
        let opcode = mutate!(self.opcode(), SolicitedLost => SendKind { solicited: false, ..*self }.opcode());
        (opcode, mutate!(self.invalidate, InvalidateStagLost => None))
    }
}

/// A Read Request of the peer that has to be answered. Only [`Stream::next_request`] creates one.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a Read Request that was taken has to be answered, in its turn"]
pub struct ReadJob {
    header: ReadRequestHeader,
}

impl ReadJob {
    /// Header of the request. If `len` is 0, the source STag and TO have no meaning.
    pub const fn header(&self) -> &ReadRequestHeader {
        &self.header
    }
}

/// A request of the peer, returned by [`Stream::next_request`]. Requests are answered in the order
/// in which they are returned.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a request that was taken has to be answered, in its turn"]
pub enum Job {
    /// A Read, to be answered by [`Stream::begin_read_response`].
    Read(ReadJob),
    /// An Atomic Operation, to be executed and then answered by [`Stream::begin_atomic_response`].
    Atomic(AtomicJob),
}

/// A request of the peer that the caller has not taken yet.
#[derive(Debug)]
enum Request {
    Read(ReadRequestHeader),
    Atomic(AtomicJob),
}

impl Request {
    /// Number of bytes that the request reads; 0 for an Atomic Request, whose Response has a fixed
    /// length.
    fn bytes(&self) -> u64 {
        match self {
            Self::Read(header) => header.len.into(),
            Self::Atomic(_) => 0,
        }
    }
}

/// A request of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outstanding {
    Read {
        header: ReadRequestHeader,
        /// Number of bytes of the Response received so far.
        received: u32,
    },
    Atomic {
        /// Request Identifier.
        id: u32,
    },
}

/// One RDMAP stream, both directions.
#[derive(Debug)]
pub struct Stream {
    config: StreamConfig,
    peer: Peer,
    state: StreamState,
    /// First error, which ended the stream. Later errors do not replace it (5040-7.1-05).
    error: Option<StreamError>,

    // State of the sending side.
    send_msn: Msn,
    /// Next MSN on queue 1, which Read Requests and Atomic Requests share.
    request_msn: Msn,
    atomic_response_msn: Msn,
    /// Request Identifier of the next Atomic Request.
    atomic_id: u32,
    /// Reads and Atomics without a complete Response, oldest first; at most ORD.
    outstanding: VecDeque<Outstanding>,

    // State of the receiving side.
    sends: UntaggedReceiver,
    requests: UntaggedReceiver,
    terminates: UntaggedReceiver,
    atomic_responses: UntaggedReceiver,
    /// Opcode of the Send in progress.
    send_opcode: Option<Opcode>,
    /// True if a segment of a Write has arrived, but not its last one.
    write_begun: bool,
    /// True if a segment of the Response to this side's oldest Read has arrived, but not its last
    /// one.
    response_begun: bool,
    /// Requests that the caller has not taken yet, oldest first.
    unanswered: VecDeque<Request>,
    /// Number of taken requests whose Response is not completely sent. These requests and those in
    /// `unanswered` are together at most IRD.
    answering: usize,
}

impl Stream {
    /// Creates a stream on which nothing was sent or received yet.
    #[must_use]
    pub fn new(config: StreamConfig) -> Self {
        Stream {
            config,
            peer: Peer::default(),
            state: StreamState::Operational,
            error: None,
            send_msn: mutate!(Msn::FIRST, MsnFromZero => Msn(0)),
            request_msn: Msn::FIRST,
            atomic_response_msn: Msn::FIRST,
            atomic_id: 1,
            outstanding: VecDeque::with_capacity(usize::from(config.ord)), // 5040-6.1-03
            sends: UntaggedReceiver::new(QN_SEND),
            requests: UntaggedReceiver::new(QN_READ_REQUEST),
            terminates: UntaggedReceiver::new(QN_TERMINATE),
            atomic_responses: UntaggedReceiver::new(QN_ATOMIC_RESPONSE),
            send_opcode: None,
            write_begun: false,
            response_begun: false,
            // 5040-6.1-02; 5040-8.1.2-07: each stream has its own queue, with as many places as the
            // IRD.
            unanswered: VecDeque::with_capacity(usize::from(config.ird)),
            answering: 0,
        }
    }

    /// Sets the peer profile, which affects how the stream reads the peer's Terminate Message.
    #[must_use]
    pub fn with_peer(self, peer: Peer) -> Self {
        Stream { peer, ..self }
    }

    /// Returns the state of the stream.
    #[must_use]
    pub const fn state(&self) -> StreamState {
        self.state
    }

    /// Returns the error that ended the stream, if any.
    #[must_use]
    pub const fn error(&self) -> Option<StreamError> {
        self.error
    }

    /// Begins a Send of `len` bytes.
    ///
    /// As for every `begin_*`, the message has no segments if nothing may be sent any more (see
    /// [`StreamState::sends`]).
    #[must_use]
    pub fn begin_send(&mut self, kind: SendKind, len: u32) -> OutMessage {
        if !self.state.sends() {
            return OutMessage::nothing(); // 5040-5.4-07, 5041-6.2.1-02
        }
        let msn = self.send_msn;
        self.send_msn = msn.next();
        let (opcode, invalidate) = kind.parts();
        OutMessage::send(opcode, invalidate, msn, len)
    }

    /// Begins an RDMA Write of `len` bytes to `to` in the peer's memory `stag`.
    #[must_use]
    pub fn begin_write(&mut self, stag: STag, to: TaggedOffset, len: u32) -> OutMessage {
        if !self.state.sends() {
            return OutMessage::nothing();
        }
        OutMessage::write(stag, to, len)
    }

    /// Returns the headers of an RDMA Write that has one segment, for a caller that frames many
    /// small messages itself. A message from [`begin_write`](Self::begin_write) yields the same
    /// headers. `None` if nothing may be sent any more.
    #[inline]
    #[must_use]
    pub fn whole_write(&self, stag: STag, to: TaggedOffset) -> Option<[u8; TAGGED_HEADER]> {
        // 5040-5.4-07, 5041-6.2.1-02
        self.state.sends().then(|| message::whole_write(stag, to))
    }

    /// Returns the headers of a Send that has one segment. A message from
    /// [`begin_send`](Self::begin_send) yields the same headers. The stream does not change until
    /// [`whole_send_framed`](Self::whole_send_framed) is called. `None` if nothing may be sent any
    /// more.
    #[inline]
    #[must_use]
    pub fn whole_send(&self, kind: SendKind) -> Option<[u8; UNTAGGED_HEADER]> {
        let (opcode, invalidate) = kind.parts();
        let header = || message::whole_send(opcode, invalidate, self.send_msn);
        self.state.sends().then(header)
    }

    /// Records that the Send with the headers of [`whole_send`](Self::whole_send) was framed: the
    /// next Send gets the next MSN.
    #[inline]
    pub fn whole_send_framed(&mut self) {
        self.send_msn = self.send_msn.next();
    }

    /// Begins an RDMA Read. It is outstanding until an
    /// [`Inbound::ReadResponse`](crate::Inbound::ReadResponse) has `complete` set.
    ///
    /// # Errors
    /// [`OrdExhausted`] if the number of outstanding Reads and Atomic Operations has reached the
    /// ORD. Nothing changes on error.
    pub fn begin_read(&mut self, header: ReadRequestHeader) -> Result<OutMessage, OrdExhausted> {
        if !self.state.sends() {
            return Ok(OutMessage::nothing());
        }
        let msn = self.begin_request(Outstanding::Read {
            header,
            received: 0,
        })?;
        Ok(OutMessage::headed(
            Opcode::ReadRequest,
            mutate!(QN_READ_REQUEST, ReadRequestOnQueue0 => QN_SEND),
            msn,
            &header.emit(),
        ))
    }

    /// Records an outstanding request. Returns its MSN on queue 1, which Reads and Atomics share.
    fn begin_request(&mut self, request: Outstanding) -> Result<Msn, OrdExhausted> {
        if !self.ord_available() {
            return Err(OrdExhausted {
                ord: self.config.ord,
            }); // 5040-6.1-04
        }
        self.outstanding.push_back(request);
        let msn = self.request_msn;
        self.request_msn = mutate!(msn.next(), RequestMsnStuck => msn);
        Ok(msn)
    }

    /// Returns the number of outstanding Reads and Atomic Operations of this side.
    #[must_use]
    pub fn requests_outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns the number of Reads and Atomic Operations of the peer that are not completely
    /// answered. The IRD limits it.
    #[must_use]
    pub fn requests_unanswered(&self) -> usize {
        self.unanswered.len() + self.answering
    }

    /// Returns the number of outstanding requests that are older than the request with this MSN on
    /// queue 1. `None` if that request is not outstanding. The DDP header in a Terminate Message
    /// contains the MSN of the refused request.
    #[must_use]
    pub fn outstanding_before(&self, msn: Msn) -> Option<usize> {
        let newer = usize::try_from(self.request_msn.0.wrapping_sub(msn.0)).ok()?;
        self.outstanding
            .len()
            .checked_sub(newer)
            .filter(|_| newer > 0)
    }

    /// Returns true if another Read or Atomic Operation may be begun.
    #[must_use]
    pub fn ord_available(&self) -> bool {
        let available = self.outstanding.len() < usize::from(self.config.ord);
        mutate!(available, OrdExceeded => true)
    }

    /// Returns the opcode of a peer's message whose last segment has not arrived yet. An LLP stream
    /// that ends at this point did not end gracefully, whatever the LLP reports (5041-6.2.1-01). A
    /// peer that mixes the segments of messages can have several such messages. Then this returns
    /// the opcode of one of them.
    #[must_use]
    pub fn message_under_way(&self) -> Option<Opcode> {
        let tagged = [
            (self.write_begun, Opcode::Write),
            (self.response_begun, Opcode::ReadResponse),
        ];
        let tagged = tagged.into_iter().find(|(begun, _)| *begun);
        self.send_opcode.or(tagged.map(|(_, opcode)| opcode))
    }

    /// Takes the oldest Read or Atomic Request that was not taken yet. The caller executes and
    /// answers the requests in this order (5040-5.2.2-04, 7306-5.2.1-08, 7306-5.2.2-04). The memory
    /// was checked when the request arrived, and may have been revoked since.
    pub fn next_request(&mut self) -> Option<Job> {
        if !self.state.sends() {
            return None;
        }
        let waiting = &mut self.unanswered;
        let request = mutate!(waiting.pop_front(), ReadsAnsweredBackwards => waiting.pop_back())?;
        self.answering += 1;
        Some(match request {
            Request::Read(header) => Job::Read(ReadJob { header }),
            Request::Atomic(job) => Job::Atomic(job),
        })
    }

    /// Returns true if a request waits to be taken.
    #[must_use]
    pub fn requests_pending(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Returns true if there are requests that were not taken yet, and all are Reads of 0 bytes.
    #[must_use]
    pub fn only_empty_reads_pending(&self) -> bool {
        let is_empty =
            |request: &Request| matches!(request, Request::Read(header) if header.len == 0);
        self.requests_pending() && self.unanswered.iter().all(is_empty)
    }

    /// Returns the total number of bytes requested by the Read Requests that were not taken yet.
    #[must_use]
    pub fn bytes_asked(&self) -> u64 {
        self.unanswered.iter().map(Request::bytes).sum()
    }

    /// Returns the number of bytes requested by the next request to be taken; 0 if it is no Read.
    #[must_use]
    pub fn bytes_asked_next(&self) -> u64 {
        self.unanswered.front().map_or(0, Request::bytes)
    }

    /// Begins the Response to a Read Request. A request for 0 bytes gets an empty Response
    /// (5040-5.2.1-14). Call [`response_sent`](Self::response_sent) after its last segment.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a request is answered once")]
    pub fn begin_read_response(&mut self, job: ReadJob) -> OutMessage {
        if !self.state.sends() {
            return OutMessage::nothing();
        }
        let header = job.header;
        let header = mutate!(header, ReadResponseWrongStag => ReadRequestHeader { sink_stag: header.source_stag, ..header });
        let header = mutate!(header, ReadResponseWrongTo => ReadRequestHeader { sink_to: header.source_to, ..header });
        OutMessage::read_response(header)
    }

    /// Records that the last segment of the oldest begun Response was produced. Afterwards the peer
    /// may send another request.
    pub fn response_sent(&mut self) {
        self.answering = self.answering.saturating_sub(1);
    }

    /// Begins the Terminate Message. `None` if a Terminate Message was sent or received before, or
    /// if this side closed its half: then nothing may be sent.
    pub fn begin_terminate(&mut self, terminate: &Terminate) -> Option<OutMessage> {
        self.state = self.state.next(StreamEvent::TerminateSent)?;
        let mut bytes = [0; MAX_TERMINATE_HEADER];
        let len = terminate.emit(&mut bytes);
        let bytes = bytes.get(..len).unwrap_or(&bytes);
        Some(OutMessage::headed(
            Opcode::Terminate,
            QN_TERMINATE,
            Msn::FIRST,
            bytes,
        ))
    }

    /// Returns the Terminate Message that reports `error` to the peer, with the headers that
    /// RFC 5040 Figure 10 asks for. `offending` is the ULPDU in which the error was found, if any:
    /// its first bytes ([`HEAD_LEN`](crate::HEAD_LEN), or all) and its length.
    ///
    /// `None` only for [`StreamError::Ended`], which is not reported to the peer.
    #[must_use]
    pub fn terminate_for(
        error: &StreamError,
        offending: Option<(&[u8], usize)>,
    ) -> Option<Terminate> {
        Terminate::for_error(error, offending)
    }

    /// Records an error that the caller found, in the LLP or on this side. Nothing is received any
    /// more, and only the Terminate Message may be sent. Errors that [`receive`](Self::receive)
    /// returns are already recorded.
    pub fn fail(&mut self, error: StreamError) {
        self.event(StreamEvent::Error);
        self.error.get_or_insert(error);
    }

    /// Records that this side closes its half of the LLP stream. Nothing is sent any more, but
    /// messages of the peer are still received (5041-6.2.1-06).
    pub fn close(&mut self) {
        self.event(StreamEvent::Close);
    }

    /// Records that the peer closed its half of the LLP stream. Nothing is received any more, but
    /// this side may still send (5041-6.2.1-04).
    pub fn peer_closed(&mut self) {
        self.event(StreamEvent::PeerClose);
    }

    /// Records that the LLP stream is lost.
    pub fn llp_lost(&mut self) {
        self.event(StreamEvent::LlpLost);
    }

    fn event(&mut self, event: StreamEvent) {
        if let Some(state) = self.state.next(event) {
            self.state = state;
        }
    }
}

#[cfg(test)]
mod tests;
