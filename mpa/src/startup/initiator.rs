//! The initiator's side of startup.

use alloc::vec::Vec;

use super::assemble::Assembler;
use super::error::{ConfigError, StartupError, check_depth, check_limit};
use super::frame::{Enhanced, FrameKind, StartupFrame};
use super::negotiated::{Negotiated, Outcome, Rejection, Role};
use super::options::{Model, NO_AUTO, Revision, Rtr, RtrKinds};
use crate::error::MpaErrorCode;
use crate::mutants::mutate;

/// Parameters that an [`Initiator`] requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// Revision of the Request. [`Revision::Two`] sends enhanced connection data (IRD, ORD and
    /// model), [`Revision::One`] does not.
    pub revision: Revision,
    /// True if this side wants CRCs (the default of RFC 5044 section 4.4). They are used if either
    /// side wants them.
    pub crc: bool,
    /// True if this side wants to receive Markers.
    pub markers: bool,
    /// Number of inbound RDMA Reads that this side has room for. [`NO_AUTO`] leaves the number to
    /// the ULPs; the local depth is then `max_ird`.
    pub ird: u16,
    /// Number of outbound RDMA Reads that this side would like to have outstanding, or [`NO_AUTO`].
    pub ord: u16,
    /// Upper limit for raising `ird` to suit the responder. It has no meaning in revision 1.
    pub max_ird: u16,
    /// Connection model, with the RTR kinds that this side can generate. Revision 2 only.
    pub model: Model,
    /// Private Data for the responder's ULP: at most 512 bytes, 508 in revision 2.
    pub private_data: Vec<u8>,
}

impl InitiatorConfig {
    fn check(&self) -> Result<(), ConfigError> {
        check_depth(self.ird)?;
        check_depth(self.ord)?;
        check_limit(self.max_ird)?;
        match (self.revision, self.model) {
            (Revision::One, Model::ClientServer) => return Ok(()),
            (Revision::One, Model::PeerToPeer(_)) => {
                return Err(ConfigError::PeerToPeerNeedsRevisionTwo);
            }
            (Revision::Two, Model::PeerToPeer(kinds)) if kinds.is_empty() => {
                return Err(ConfigError::NoRtrKind);
            }
            (Revision::Two, _) => {}
        }
        if self.ird != NO_AUTO && self.ird > self.max_ird {
            return Err(ConfigError::LimitBelowIrd {
                ird: self.ird,
                max_ird: self.max_ird,
            });
        }
        Ok(())
    }

    /// Returns the Request with these parameters.
    fn request(&self) -> Result<Vec<u8>, ConfigError> {
        let enhanced = (self.revision == Revision::Two).then_some(Enhanced {
            model: self.model,
            ird: self.ird,
            ord: self.ord,
        });
        let request = StartupFrame {
            kind: FrameKind::Request,
            markers: self.markers,
            crc: self.crc,
            rejected: false,
            revision: self.revision.code(),
            enhanced,
            private_data: self.private_data.clone(),
        };
        request.emit()
    }

    fn is_enhanced(&self) -> bool {
        self.revision == Revision::Two
    }

    /// Derives the outcome from the Reply.
    fn settle(&self, reply: StartupFrame, revision: Revision) -> Result<Outcome, StartupError> {
        if mutate!(reply.rejected, RejectNotHeeded => false) {
            // A peer that rejects may not understand the enhanced data, so its Reply need not have
            // them.
            let peer_ord = reply.enhanced.map(|e| e.ord);
            return Ok(Outcome::Rejected(Rejection {
                peer_ird: reply.enhanced.map(|e| e.ird),
                peer_ord,
                // `NO_AUTO` is the largest value. So no ORD is above this side's IRD if the IRD is
                // left to the ULPs.
                ord_needed: peer_ord.filter(|ord| *ord != NO_AUTO && *ord > self.ird),
                private_data: reply.private_data,
            }));
        }
        if reply.enhanced.is_some() != self.is_enhanced() {
            // 6581-10-01, 6581-10-02
            let reply_enhanced = reply.enhanced.is_some();
            return Err(StartupError::EnhancedMismatch { reply_enhanced });
        }
        let mut negotiated = Negotiated {
            role: Role::Initiator,
            revision,
            enhanced: self.is_enhanced(),
            // 5044-7.1.1-09, 5044-4.4-02
            crc: mutate!(self.crc || reply.crc, CrcOnlyIfBothAsk => self.crc && reply.crc),
            tx_markers: reply.markers, // 5044-7.1.1-06
            rx_markers: self.markers,
            ird: if self.ird == NO_AUTO {
                self.max_ird
            } else {
                self.ird
            },
            ord: self.ord,
            peer_ird: reply.enhanced.map(|e| e.ird),
            peer_ord: reply.enhanced.map(|e| e.ord),
            rtr: None,
            rtr_offered: RtrKinds::NONE,
            private_data: reply.private_data,
        };
        let problem = reply.enhanced.and_then(|theirs| {
            let depths = self.settle_depths(theirs, &mut negotiated);
            depths
                .and_then(|()| self.settle_model(theirs, &mut negotiated))
                .err()
        });
        Ok(match problem {
            None => Outcome::Accepted(negotiated),
            Some(code) => Outcome::Impossible(negotiated, code),
        })
    }

    fn settle_depths(&self, theirs: Enhanced, ours: &mut Negotiated) -> Result<(), MpaErrorCode> {
        if theirs.ird != NO_AUTO {
            // 6581-9.1-07; else 6581-9.1-11
            ours.ord = mutate!(self.ord.min(theirs.ird), OrdNotLowered => self.ord);
        }
        if theirs.ord != NO_AUTO && theirs.ord > ours.ird {
            if mutate!(theirs.ord > self.max_ird, IrdTooSmallTaken => false) {
                return Err(MpaErrorCode::InsufficientIrd); // 6581-9.1-08
            }
            ours.ird = theirs.ord; // 6581-9.1-07; else 6581-9.1-13
        }
        Ok(())
    }

    fn settle_model(&self, theirs: Enhanced, ours: &mut Negotiated) -> Result<(), MpaErrorCode> {
        let (can, takes) = match (self.model, theirs.model) {
            (Model::ClientServer, Model::ClientServer) => return Ok(()),
            (Model::PeerToPeer(can), Model::PeerToPeer(takes)) => (can, takes),
            // The Reply has to repeat flag A of the Request (6581-9.2-04, -12). Otherwise one side
            // would wait for an RTR indication that the other side never sends.
            _ => return Err(MpaErrorCode::NoMatchingRtr),
        };
        ours.rtr_offered = takes;
        let common = can.and(takes);
        // The RTR Read counts against the responder's IRD like any other Read.
        let room_for_read = theirs.ird > 0;
        let rtr = [Rtr::Write, Rtr::Read, Rtr::Send]
            .into_iter()
            .find(|kind| {
                mutate!(common.contains(*kind), RtrNotTaken => can.contains(*kind) && !takes.contains(*kind))
                    && (*kind != Rtr::Read || room_for_read)
            });
        let rtr = mutate!(rtr, NoRtrTaken => rtr.or(Some(Rtr::Write)))
            .ok_or(MpaErrorCode::NoMatchingRtr)?; // 6581-9.2-10
        if rtr == Rtr::Read {
            // The responder made room for the RTR Read although this side had asked for none
            // (6581-9.1-03).
            ours.ord = ours.ord.max(1);
        }
        ours.rtr = Some(rtr);
        Ok(())
    }
}

/// State of an initiator.
///
/// ```text
///                 reply: accepted
///   AwaitReply ---------------------> FullOperation
///     |  |  |     reply: rejected
///     |  |  +-----------------------> Rejected         (TCP stays open)
///     |  |        reply: impossible
///     |  +--------------------------> TerminateOnly    (Full Operation for one Terminate)
///     |  reply invalid, closed, timed out
///     +-----------------------------> Failed           (close TCP at once)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitReply,
    FullOperation,
    Rejected,
    TerminateOnly,
    Failed,
}

/// Event that changes the state of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    PartOfReply,
    ReplyAccepted,
    ReplyRejected,
    ReplyImpossible,
    ReplyInvalid,
    Closed,
    TimedOut,
}

/// Returns the next state; `None` once startup is over, because no event changes the state then.
const fn next(state: State, event: Event) -> Option<State> {
    match (state, event) {
        (State::AwaitReply, Event::PartOfReply) => Some(State::AwaitReply),
        (State::AwaitReply, Event::ReplyAccepted) => Some(State::FullOperation),
        (State::AwaitReply, Event::ReplyRejected) => Some(State::Rejected),
        (State::AwaitReply, Event::ReplyImpossible) => Some(State::TerminateOnly),
        (State::AwaitReply, Event::ReplyInvalid | Event::Closed | Event::TimedOut) => {
            Some(State::Failed)
        }
        (
            State::FullOperation | State::Rejected | State::TerminateOnly | State::Failed,
            Event::PartOfReply
            | Event::ReplyAccepted
            | Event::ReplyRejected
            | Event::ReplyImpossible
            | Event::ReplyInvalid
            | Event::Closed
            | Event::TimedOut,
        ) => None,
    }
}

/// Performs MPA startup as the initiator: sends one Request, receives one Reply.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    request: Vec<u8>,
    reply: Assembler,
    state: State,
    /// First error. Set if and only if the state is [`State::Failed`].
    error: Option<StartupError>,
}

impl Initiator {
    /// Creates an initiator that has not sent its Request yet.
    ///
    /// # Errors
    /// The configuration cannot be sent in a Request; see [`ConfigError`].
    pub fn new(config: InitiatorConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let request = config.request()?;
        // A Reply of revision 2 without enhanced data means the same as one of revision 1. Both are
        // accepted, whatever the revision of the Request.
        let reply = Assembler::new(FrameKind::Reply, Revision::Two);
        Ok(Self {
            config,
            request,
            reply,
            state: State::AwaitReply,
            error: None,
        })
    }

    /// Returns the Request Frame, to be sent first. Nothing else may follow before the Reply
    /// (5044-7.1.2-11).
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes the next bytes of the stream, in pieces of any size.
    ///
    /// Returns the number of bytes that belonged to the Reply, and the outcome once it is known.
    /// The bytes after the Reply belong to the first FPDU, and are not taken. After the outcome no
    /// more bytes are taken.
    ///
    /// # Errors
    /// The Reply is invalid, and the connection has to be closed. Every later call returns the same
    /// error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Outcome>), StartupError> {
        match self.state {
            State::AwaitReply => {}
            State::FullOperation | State::Rejected | State::TerminateOnly | State::Failed => {
                return self.error.map_or(Ok((0, None)), Err);
            }
        }
        let (taken, outcome) = match self.take(bytes) {
            Ok(taken) => taken,
            Err(error) => return Err(self.fail(Event::ReplyInvalid, error)),
        };
        self.apply(match outcome {
            None => Event::PartOfReply,
            Some(Outcome::Accepted(_)) => Event::ReplyAccepted,
            Some(Outcome::Rejected(_)) => Event::ReplyRejected,
            Some(Outcome::Impossible(..)) => Event::ReplyImpossible,
        });
        Ok((taken, outcome))
    }

    /// Records that the connection ended: by RST if `reset` is true, otherwise by FIN. Returns the
    /// error to report. If startup had already failed, that is the first error.
    pub fn closed(&mut self, reset: bool) -> StartupError {
        let received = self.reply.received();
        let enhanced = self.config.is_enhanced();
        let peer = Role::Responder;
        self.fail(
            Event::Closed,
            StartupError::Closed {
                reset,
                received,
                enhanced,
                peer,
            },
        )
    }

    /// Records that the caller's time limit for startup ran out. Returns the error to report. If
    /// startup had already failed, that is the first error.
    pub fn timed_out(&mut self) -> StartupError {
        let received = self.reply.received();
        self.fail(
            Event::TimedOut,
            StartupError::TimedOut {
                received,
                peer: Role::Responder,
            },
        )
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Outcome>), StartupError> {
        let (taken, reply) = self.reply.push(bytes)?;
        let outcome = match reply {
            None => None,
            Some((reply, revision)) => Some(self.config.settle(reply, revision)?),
        };
        Ok((taken, outcome))
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
