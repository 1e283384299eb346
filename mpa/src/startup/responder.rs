//! The responder's side of startup.

use alloc::vec::Vec;

use super::assemble::Assembler;
use super::error::{ConfigError, StartupError, check_depth, check_limit};
use super::frame::{Enhanced, FrameKind, StartupFrame};
use super::negotiated::{Negotiated, Role};
use super::options::{Model, NO_AUTO, Revision, Rtr, RtrKinds};
use crate::mutants::mutate;

/// Parameters that a [`Responder`] offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// True if this side wants CRCs (the default of RFC 5044 section 4.4). They are used if either
    /// side wants them.
    pub crc: bool,
    /// True if this side wants to receive Markers.
    pub markers: bool,
    /// Highest revision that this side accepts. With [`Revision::One`] this side behaves like a
    /// responder that does not know RFC 6581.
    pub max_revision: Revision,
    /// Maximum depth of a connection's inbound RDMA Read queue.
    pub max_ird: u16,
    /// RTR kinds that this side can accept; at least one unless `max_revision` is [`Revision::One`]
    /// (6581-9.2-03).
    pub rtr: RtrKinds,
}

/// Request of the initiator, for the ULP to accept or reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Revision of the Request, which the Reply repeats.
    pub revision: Revision,
    /// IRD, ORD and connection model, if the Request was an enhanced one. The initiator's `ird`
    /// limits the ORD of this side. The initiator's `ord` is the IRD that it would like this side
    /// to have.
    pub enhanced: Option<Enhanced>,
    /// True if the initiator wants CRCs.
    pub crc: bool,
    /// True if the initiator wants to receive Markers.
    pub markers: bool,
    /// Private Data from the initiator's ULP.
    pub private_data: Vec<u8>,
}

/// The ULP's acceptance of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept<'a> {
    /// Number of inbound RDMA Reads to have room for. An enhanced Request may raise this number to
    /// the one that the initiator wants to have outstanding. It never exceeds
    /// [`ResponderConfig::max_ird`].
    pub ird: u16,
    /// Number of outbound RDMA Reads that this side would like to have outstanding. An enhanced
    /// Request lowers it to the initiator's IRD.
    pub ord: u16,
    /// Private Data for the initiator's ULP: at most 512 bytes, 508 in an enhanced Reply.
    pub private_data: &'a [u8],
}

impl ResponderConfig {
    fn check(&self) -> Result<(), ConfigError> {
        check_limit(self.max_ird)?;
        if self.max_revision >= Revision::Two && self.rtr.is_empty() {
            return Err(ConfigError::NoRtrKind);
        }
        Ok(())
    }

    /// Computes the parameters of an enhanced acceptance. Returns the Reply's data, and the IRD and
    /// ORD of this side.
    fn settle(&self, theirs: Enhanced, ird: u16, ord: u16) -> (Enhanced, u16, u16) {
        let model = mutate!(self.model(theirs.model), ModelNotEchoed => Model::ClientServer);
        let mut ours = Enhanced {
            model,
            ird: NO_AUTO,
            ord: NO_AUTO,
        };
        let mut local_ird = ird.min(self.max_ird);
        let mut local_ord = ord;
        if mutate!(theirs.ord != NO_AUTO, NoAutoIsANumber => true) {
            // 6581-9.1-i02: raise the IRD to the initiator's ORD, up to the limit of this side. If
            // the IRD is still lower, the initiator lowers its ORD.
            local_ird = local_ird.max(theirs.ord.min(self.max_ird));
            if matches!(model, Model::PeerToPeer(kinds) if kinds.read) {
                // 6581-9.1-03: an RTR Read needs a place even if the initiator requested none.
                local_ird = local_ird.max(self.max_ird.min(1));
            }
            ours.ird = local_ird;
        } // else 6581-9.1-10
        if mutate!(theirs.ird != NO_AUTO, NoAutoIsANumber => true) {
            // 6581-9.1-04
            local_ord = mutate!(local_ord.min(theirs.ird), OrdAboveIrd => local_ord);
            ours.ord = local_ord;
        } // else 6581-9.1-12
        (ours, local_ird, local_ord)
    }

    /// Returns the model of the Reply: the initiator's, with the RTR kinds that this side accepts.
    fn model(&self, theirs: Model) -> Model {
        match theirs {
            Model::ClientServer => Model::ClientServer, // 6581-9.2-12
            Model::PeerToPeer(offered) => {
                let mut common = self.rtr.and(offered); // 6581-9.2-05
                if self.max_ird == 0 && common.only() != Some(Rtr::Read) {
                    common.read = false; // no place for it
                }
                // 6581-9.2-08: no common kind; the initiator detects this and sends a Terminate.
                Model::PeerToPeer(if common.is_empty() { self.rtr } else { common })
            }
        }
    }
}

/// State of a responder.
///
/// ```text
///                  request                  accept
///   AwaitRequest -----------> AwaitAnswer -----------> Accepted   (Full Operation)
///     |                          |    |     reject
///     |                          |    +--------------> Rejected   (TCP stays open)
///     | request invalid,         | closed, timed out
///     | closed, timed out        v
///     +-----------------------> Failed                            (close TCP at once)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitRequest,
    AwaitAnswer,
    Accepted,
    Rejected,
    Failed,
}

/// Event that changes the state of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    PartOfRequest,
    Request,
    RequestInvalid,
    Accept,
    Reject,
    Closed,
    TimedOut,
}

/// Returns the next state; `None` if the event does not apply in this state. `None` is an error for
/// an answer of the ULP; other events are then ignored.
const fn next(state: State, event: Event) -> Option<State> {
    match (state, event) {
        (State::AwaitRequest, Event::PartOfRequest) => Some(State::AwaitRequest),
        (State::AwaitRequest, Event::Request) => Some(State::AwaitAnswer),
        (State::AwaitRequest, Event::RequestInvalid) => Some(State::Failed),
        (State::AwaitAnswer, Event::Accept) => Some(State::Accepted),
        (State::AwaitAnswer, Event::Reject) => Some(State::Rejected),
        (State::AwaitRequest | State::AwaitAnswer, Event::Closed | Event::TimedOut) => {
            Some(State::Failed)
        }
        (State::AwaitRequest, Event::Accept | Event::Reject)
        | (State::AwaitAnswer, Event::PartOfRequest | Event::Request | Event::RequestInvalid)
        | (
            State::Accepted | State::Rejected | State::Failed,
            Event::PartOfRequest
            | Event::Request
            | Event::RequestInvalid
            | Event::Accept
            | Event::Reject
            | Event::Closed
            | Event::TimedOut,
        ) => None,
    }
}

/// Performs MPA startup as the responder: receives one Request, sends one Reply.
#[derive(Clone, Debug)]
pub struct Responder {
    config: ResponderConfig,
    assembler: Assembler,
    /// The Request, from [`State::AwaitAnswer`] on.
    request: Option<Request>,
    state: State,
    /// First error. Set if and only if the state is [`State::Failed`].
    error: Option<StartupError>,
}

impl Responder {
    /// Creates a responder that has received nothing yet.
    ///
    /// # Errors
    /// The configuration is invalid; see [`ConfigError`].
    pub fn new(config: ResponderConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let assembler = Assembler::new(FrameKind::Request, config.max_revision);
        Ok(Self {
            config,
            assembler,
            request: None,
            state: State::AwaitRequest,
            error: None,
        })
    }

    /// Takes the next bytes of the stream, in pieces of any size.
    ///
    /// Returns the number of bytes that belonged to the Request, and the Request once it is
    /// complete. Bytes after the Request are never taken.
    ///
    /// # Errors
    /// The Request is invalid, and the connection has to be closed. Every later call returns the
    /// same error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), StartupError> {
        match self.state {
            State::AwaitRequest => {}
            State::AwaitAnswer | State::Accepted | State::Rejected | State::Failed => {
                return self.error.map_or(Ok((0, None)), Err);
            }
        }
        let (taken, request) = match self.assembler.push(bytes) {
            Ok(taken) => taken,
            Err(error) => return Err(self.fail(Event::RequestInvalid, error)),
        };
        let Some((frame, revision)) = request else {
            self.apply(Event::PartOfRequest);
            return Ok((taken, None));
        };
        self.apply(Event::Request);
        // 5044-7.1.1-i02: R has no meaning in a Request.
        let StartupFrame {
            enhanced,
            crc,
            markers,
            private_data,
            ..
        } = frame;
        let request = Request {
            revision,
            enhanced,
            crc,
            markers,
            private_data,
        };
        self.request = Some(request.clone());
        Ok((taken, Some(request)))
    }

    /// Accepts the Request. Returns the Reply Frame to send, and the parameters of Full Operation.
    /// Full Operation begins after the Reply in both directions; see [`Negotiated::send_gate`].
    ///
    /// # Errors
    /// There is no Request to answer, or the answer cannot be sent in a Reply. In the latter case
    /// the caller may try another answer.
    pub fn accept(&mut self, accept: Accept<'_>) -> Result<(Vec<u8>, Negotiated), ConfigError> {
        let (request, accepted) = self.answerable(Event::Accept)?;
        check_depth(accept.ird)?;
        check_depth(accept.ord)?;
        let mut ird = accept.ird.min(self.config.max_ird);
        let mut ord = accept.ord;
        let mut enhanced = None;
        if let Some(theirs) = request.enhanced {
            let ours;
            (ours, ird, ord) = self.config.settle(theirs, ird, ord);
            enhanced = Some(ours);
        }
        let reply = self.reply(request, enhanced, accept.private_data).emit()?;
        let kinds = match enhanced.map(|e| e.model) {
            Some(Model::PeerToPeer(kinds)) => kinds,
            Some(Model::ClientServer) | None => RtrKinds::NONE,
        };
        let negotiated = Negotiated {
            role: Role::Responder,
            revision: request.revision,
            enhanced: enhanced.is_some(),
            crc: self.crc(request),      // 5044-7.1.1-09, 5044-4.4-02
            tx_markers: request.markers, // 5044-7.1.1-05
            rx_markers: self.config.markers,
            ird,
            ord,
            peer_ird: request.enhanced.map(|e| e.ird),
            peer_ord: request.enhanced.map(|e| e.ord),
            rtr: kinds.only(),
            rtr_offered: kinds,
            private_data: request.private_data.clone(),
        };
        self.state = accepted;
        Ok((reply, negotiated))
    }

    /// Lowers [`ResponderConfig::max_ird`] for this connection, for a caller that lacks resources.
    /// A higher value changes nothing.
    pub fn limit_ird(&mut self, max_ird: u16) {
        self.config.max_ird = self.config.max_ird.min(max_ird);
    }

    /// Rejects the Request. Returns the Reply Frame to send. MPA ends with the Reply, and the TCP
    /// connection stays open (5044-7.1.2-07).
    ///
    /// `ord_needed` tells the initiator that its IRD is too small for the ORD that the local ULP
    /// needs (6581-9.1-05). `ord_needed` is sent only if the Request was an enhanced one.
    ///
    /// # Errors
    /// There is no Request to answer, or the answer cannot be sent in a Reply. In the latter case
    /// the caller may try another answer.
    pub fn reject(
        &mut self,
        private_data: &[u8],
        ord_needed: Option<u16>,
    ) -> Result<Vec<u8>, ConfigError> {
        let (request, rejected) = self.answerable(Event::Reject)?;
        check_depth(ord_needed.unwrap_or(0))?;
        let enhanced = request.enhanced.map(|theirs| {
            let (ours, ..) = self.config.settle(theirs, 0, 0);
            // The ORD field contains the needed ORD, not the allowed one, because it is the reason
            // for the rejection. If the initiator leaves its IRD to the ULPs, this side leaves its
            // ORD to them (6581-9.1-12).
            let ord = match ord_needed {
                Some(ord) if theirs.ird != NO_AUTO => ord,
                _ => ours.ord,
            };
            Enhanced { ord, ..ours }
        });
        let mut reply = self.reply(request, enhanced, private_data);
        reply.rejected = mutate!(true, RejectWithoutR => false);
        let bytes = reply.emit()?;
        self.state = rejected;
        Ok(bytes)
    }

    /// Records that the connection ended: by RST if `reset` is true, otherwise by FIN. Returns the
    /// error to report. If startup had already failed, that is the first error.
    pub fn closed(&mut self, reset: bool) -> StartupError {
        let received = self.assembler.received();
        let peer = Role::Initiator;
        let error = StartupError::Closed {
            reset,
            received,
            enhanced: false,
            peer,
        };
        self.fail(Event::Closed, error)
    }

    /// Records that the caller's time limit for startup ran out. Returns the error to report. If
    /// startup had already failed, that is the first error.
    pub fn timed_out(&mut self) -> StartupError {
        let received = self.assembler.received();
        self.fail(
            Event::TimedOut,
            StartupError::TimedOut {
                received,
                peer: Role::Initiator,
            },
        )
    }

    /// Returns the Request, and the state after this answer.
    fn answerable(&self, answer: Event) -> Result<(&Request, State), ConfigError> {
        match (&self.request, next(self.state, answer)) {
            (Some(request), Some(state)) => Ok((request, state)),
            _ => Err(ConfigError::NothingToAnswer),
        }
    }

    fn crc(&self, request: &Request) -> bool {
        let (theirs, ours) = (request.crc, self.config.crc);
        mutate!(theirs || ours, CrcOnlyIfBothAsk => theirs && ours)
    }

    fn reply(
        &self,
        request: &Request,
        enhanced: Option<Enhanced>,
        private_data: &[u8],
    ) -> StartupFrame {
        StartupFrame {
            kind: FrameKind::Reply,
            markers: self.config.markers,
            // The Reply states whether CRCs are used, not only whether this side wants them. Both
            // sides compute the same result from it, and so does a peer that reads only the Reply.
            crc: self.crc(request),
            rejected: false,
            revision: mutate!(request.revision.code(), ReplyAlwaysRevisionTwo => 2),
            enhanced,
            private_data: private_data.to_vec(),
        }
    }

    fn apply(&mut self, event: Event) {
        self.state = next(self.state, event).unwrap_or(self.state);
    }

    fn fail(&mut self, event: Event, error: StartupError) -> StartupError {
        self.apply(event);
        if self.state == State::Failed {
            return *self.error.get_or_insert(error);
        }
        error
    }
}

#[cfg(test)]
mod tests;
