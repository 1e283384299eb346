//! The steps of a case.

use super::segment::Out;
use super::setup::{Post, Region, Rtr, Setup};
use super::value::{Data, Name, To};
use super::want::{Ends, Want};
use crate::check::Rule;
use crate::wire::startup::StartupFrame;

/// What must hold for the rest of a case to make sense; where it does not, the case is skipped, with this as the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The target set M: it receives Markers.
    TargetReceivesMarkers,
    /// CRCs are in use.
    CrcInUse,
    /// They are not.
    CrcNotInUse,
    /// The agent says that the target knows RFC 7306.
    Rfc7306,
    /// It does not say so.
    NotRfc7306,
    /// The agent can register memory for one connection alone.
    ScopedRegions,
    /// The run has the CRCs of the default configuration: nobody asked for none.
    DefaultCrc,
    /// The suite knows the EMSS of the target: it chose its own MSS, and its TCP tells what came of it.
    EmssKnown,
    /// The agent takes so many bytes of Private Data.
    PrivateDataOf(usize),
    /// Whether the application may have so many Reads outstanding, by its startup frame.
    TargetIrdIsAtLeast(u16),
    /// Its ORD there is at least this.
    TargetOrdIsAtLeast(u16),
    /// Its Reply accepts.
    TargetAccepts,
    /// Its startup frame offers this RTR indication.
    TargetOffersRtr(Rtr),
    /// The agent says that the target opens without enhanced connection setup.
    TargetIsUnenhanced,
    /// The agent says that the target cannot have so many Reads of its peer at once.
    TargetLacksIrd(u16),
    /// Whether it may have no more than so many.
    TargetIrdIsAtMost(u16),
}

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// The TCP connection and nothing on it, with an application on the target that is ready for it.
    Begin(Setup),
    /// All of startup, both frames right.
    Establish(Setup),
    /// Later steps are about this connection, counted from 0 in the order in which they were begun.
    Use(usize),
    /// A TCP connection, and the suite's startup frame as this setup has it; where the target is the Initiator, behind its
    /// Request. What comes of it is for the next steps.
    Propose(Setup),
    SendStartup(StartupFrame),
    /// A valid frame of the role that the target has. Full Operation begins.
    ExpectStartup,
    /// The same of a Responder, or the end of the connection in its place.
    ExpectStartupOrEnd,
    /// And this is wrong or right with it.
    CheckStartup(StartupCheck),
    /// The same, with enhanced connection data (RFC 6581); the case is skipped for a target without.
    ExpectEnhanced,
    /// An enhanced Reply, or the end of the connection, as it comes from a target without enhanced setup.
    ExpectEnhancedOrClose,
    /// A Reply for the peer-to-peer model with exactly the RTR indications that the Request did not offer.
    ReplyOtherRtr,
    /// FPDUs from here on have CRCs and Markers as both startup frames say.
    Operate,

    Region(Region),
    Deregister(Name),
    /// More receives: how many, and bytes each.
    Receives(u32, usize),
    Post(Post),
    /// The next completion of a send queue or receive queue of the application is (not) a success.
    Completion {
        op: &'static str,
        success: bool,
    },
    /// The next receive of the application is complete, and has so many bytes.
    Received(usize),
    /// This Private Data of the suite reached the application, in a request, an acceptance or a rejection.
    Told(Vec<u8>),
    /// The next receive of the application completes, with exactly this in its buffer.
    Delivered(Data),
    /// The next event of its connection: `established`, `rejected`, `disconnected` and so on (`docs/agent.md`).
    Event(&'static str),
    /// What a region holds now.
    Holds {
        region: Name,
        offset: usize,
        data: Data,
    },
    /// A receive of the application completes with this Immediate Data (RFC 7306).
    ReceivesImmediate([u8; 8]),
    /// Learns by a FetchAdd of nothing in which order the target keeps the bytes of a word, from what the first word of a
    /// region holds; [`Data::Word`] is in this order.
    LearnByteOrder(Name),
    Disconnect,

    /// Segments, each in its FPDU, in one piece.
    Send(Vec<Out>),
    /// The FPDU of a segment in several pieces, cut at these bytes, each sent alone.
    SendInPieces(Out, Vec<usize>),
    /// The FPDUs of several segments as one string of bytes, cut at these, each piece sent alone.
    SendAcross(Vec<Out>, Vec<usize>),
    /// Only so many bytes of the FPDU of a segment, from its first.
    SendPart(Out, usize),
    /// FIN.
    Fin,
    Reset,

    Expect(Want),
    /// One of the RTR indications that both startup frames have, and the answer, if it is a Read.
    ExpectRtr,
    /// So many Atomic Requests of the target come, and are answered with these values: all that come before the target waits
    /// are answered at once. No more than `most` are outstanding.
    AnswerAtomics {
        values: Vec<u64>,
        most: usize,
    },
    /// The target still serves: a Read of no bytes is answered.
    Ping,
    /// Nothing comes for a while.
    Quiet,
    /// Nothing comes for a while, but that the target may end the TCP connection.
    QuietOrEnd,
    /// The connection ends in one of these ways.
    End(Ends),
    /// Within so many seconds, whatever the timeout of the run is.
    EndWithin(Ends, u64),
    /// It ends so, and nothing comes before.
    EndNow(Ends),
    /// Or it does not end, and this comes.
    EndOr(Ends, Want),
    /// Or the target waits until there is a buffer for the message that was sent last: the application posts a receive of so
    /// many bytes, which completes with this.
    EndOrHeld(Ends, usize, Data),
    /// Behind a Terminate: nothing but the target's end of the TCP connection, by a FIN where it has to be graceful.
    Closed {
        graceful: bool,
    },
    /// The whole answer to a Read, or a Terminate that says how far the Read came. These are sent when it has begun.
    ReadOrTerminate {
        size: u32,
        src_to: To,
        meanwhile: Vec<Out>,
    },
    /// These rules of a sender count in this case: a breach of one, whenever it comes, is a failure.
    Watch(&'static [Rule]),
    Require(Condition),
}

/// What is checked of the target's startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupCheck {
    /// The Key of its role.
    Key,
    /// The reserved bits are zero.
    ReservedZero,
    /// R is this.
    Rejected(bool),
    /// C is set.
    Crc,
    Rev(u8),
    /// Revision 1, or 2 and higher with S.
    RevFitsS,
    /// S is this.
    Enhanced(bool),
    /// At most 512 bytes of Private Data.
    PrivateDataWithin512,
    /// The Private Data of the application, behind the enhanced data, is this.
    PrivateData(&'static [u8]),
    /// With enhanced data, IRD and ORD are these.
    Depths {
        ird: Option<u16>,
        ord: Option<u16>,
    },
    /// ORD is not above this; a Reply that rejects may have the ORD that the application needs.
    OrdAtMost(u16),
    /// IRD is not below this.
    IrdAtLeast(u16),
    /// IRD is not above this.
    IrdAtMost(u16),
    /// A is this.
    PeerToPeer(bool),
    /// B, C and D are zero.
    NoRtr,
    /// At least one of B, C, D is set.
    SomeRtr,
    /// Those are set that the target set in a Reply before, on another connection of the case.
    RtrOfBefore,
}

impl Action {
    /// Whether the application on the target has to do something for it.
    pub(crate) fn needs_agent(&self) -> bool {
        match self {
            Action::Region(_)
            | Action::Deregister(_)
            | Action::Receives(..)
            | Action::Post(_)
            | Action::Completion { .. }
            | Action::Received(_)
            | Action::Told(_)
            | Action::Delivered(_)
            | Action::Event(_)
            | Action::Holds { .. }
            | Action::ReceivesImmediate(_)
            | Action::EndOrHeld(..)
            | Action::LearnByteOrder(_)
            | Action::Disconnect
            | Action::Require(
                Condition::Rfc7306
                | Condition::NotRfc7306
                | Condition::ScopedRegions
                | Condition::PrivateDataOf(_)
                | Condition::TargetIsUnenhanced
                | Condition::TargetLacksIrd(_),
            ) => true,
            Action::Begin(setup) | Action::Propose(setup) | Action::Establish(setup) => {
                setup.needs_agent()
            }
            Action::Use(_)
            | Action::SendStartup(_)
            | Action::ExpectStartup
            | Action::ExpectStartupOrEnd
            | Action::ExpectEnhanced
            | Action::ExpectEnhancedOrClose
            | Action::ReplyOtherRtr
            | Action::CheckStartup(_)
            | Action::Operate
            | Action::Send(_)
            | Action::SendInPieces(..)
            | Action::SendAcross(..)
            | Action::SendPart(..)
            | Action::Fin
            | Action::Reset
            | Action::Expect(_)
            | Action::ExpectRtr
            | Action::AnswerAtomics { .. }
            | Action::Ping
            | Action::Quiet
            | Action::QuietOrEnd
            | Action::End(_)
            | Action::EndWithin(..)
            | Action::EndNow(_)
            | Action::EndOr(..)
            | Action::Closed { .. }
            | Action::ReadOrTerminate { .. }
            | Action::Watch(_)
            | Action::Require(_) => false,
        }
    }
}
