//! The steps of a case.

use std::fmt;

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
    /// The agent takes so many octets of Private Data.
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
    /// More receives: how many, and octets each.
    Receives(u32, usize),
    Post(Post),
    /// The next completion of a send queue or receive queue of the application is (not) a success.
    Completion {
        op: &'static str,
        success: bool,
    },
    /// The next receive of the application is complete, and has so many octets.
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
    /// Learns by a FetchAdd of nothing in which order the target keeps the octets of a word, from what the first word of a
    /// region holds; [`Data::Word`] is in this order.
    LearnByteOrder(Name),
    Disconnect,

    /// Segments, each in its FPDU, in one piece.
    Send(Vec<Out>),
    /// The FPDU of a segment in several pieces, cut at these octets, each sent alone.
    SendInPieces(Out, Vec<usize>),
    /// The FPDUs of several segments as one string of octets, cut at these, each piece sent alone.
    SendAcross(Vec<Out>, Vec<usize>),
    /// Only so many octets of the FPDU of a segment, from its first.
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
    /// The target still serves: a Read of no octets is answered.
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
    /// At most 512 octets of Private Data.
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

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::TargetReceivesMarkers => write!(f, "the target does not ask for Markers"),
            Condition::DefaultCrc => write!(f, "the run is one without CRCs"),
            Condition::EmssKnown => write!(f, "the EMSS of the target cannot be known here"),
            Condition::PrivateDataOf(octets) => {
                write!(
                    f,
                    "the agent takes fewer than {octets} octets of Private Data"
                )
            }
            Condition::CrcInUse => write!(f, "CRCs are not in use"),
            Condition::CrcNotInUse => write!(f, "the target insists on CRCs"),
            Condition::Rfc7306 => write!(f, "the target does not know RFC 7306"),
            Condition::NotRfc7306 => write!(f, "the target knows RFC 7306"),
            Condition::ScopedRegions => {
                write!(f, "the agent cannot register memory for one connection")
            }
            Condition::TargetIrdIsAtLeast(ird) => {
                write!(f, "the target grants fewer than {ird} Reads at once")
            }
            Condition::TargetOrdIsAtLeast(ord) => {
                write!(f, "the target will have fewer than {ord} Reads at once")
            }
            Condition::TargetAccepts => write!(f, "the target does not accept the connection"),
            Condition::TargetOffersRtr(rtr) => {
                write!(f, "the target does not offer the RTR indication {rtr:?}")
            }
            Condition::TargetIsUnenhanced => {
                write!(f, "the target uses enhanced connection setup")
            }
            Condition::TargetLacksIrd(ird) => {
                write!(f, "the target can have {ird} Reads of its peer at once")
            }
            Condition::TargetIrdIsAtMost(ird) => {
                write!(f, "the target grants more than {ird} Reads at once")
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Begin(_) => write!(f, "a TCP connection"),
            Action::Establish(_) => write!(f, "a connection in Full Operation"),
            Action::Use(number) => write!(f, "connection {number}"),
            Action::SendStartup(frame) => {
                write!(f, "send a startup frame of revision {}", frame.rev)
            }
            Action::Propose(_) => write!(f, "a TCP connection and the suite's startup frame"),
            Action::ExpectStartup => write!(f, "the target's startup frame"),
            Action::ExpectStartupOrEnd => {
                write!(
                    f,
                    "the target's startup frame, or the end of the connection"
                )
            }
            Action::ExpectEnhanced => write!(f, "the target's startup frame, an enhanced one"),
            Action::ExpectEnhancedOrClose => {
                write!(f, "an enhanced Reply, or the end of the TCP connection")
            }
            Action::ReplyOtherRtr => write!(
                f,
                "send a Reply with the RTR indications that the Request does not offer"
            ),
            Action::CheckStartup(check) => write!(f, "in its startup frame: {check:?}"),
            Action::Operate => write!(f, "Full Operation"),
            Action::Region(region) => write!(
                f,
                "the application registers {} octets with {}",
                region.len, region.access
            ),
            Action::Deregister(name) => write!(f, "the application deregisters region {name}"),
            Action::Receives(count, len) => {
                write!(f, "the application posts {count} receives of {len} octets")
            }
            Action::Post(post) => write!(f, "the application posts {}, {}", post.op, post.data),
            Action::Completion { op, success } => {
                let how = if *success { "succeeds" } else { "fails" };
                write!(f, "a {op} of the application {how}")
            }
            Action::Received(octets) => {
                write!(
                    f,
                    "a receive of the application is complete, with {octets} octets"
                )
            }
            Action::Told(data) => write!(
                f,
                "the application is told {} octets of Private Data",
                data.len()
            ),
            Action::Delivered(data) => write!(f, "the application receives {data}"),
            Action::Event(event) => write!(f, "the application is told: {event}"),
            Action::Holds {
                region,
                offset,
                data,
            } => write!(f, "region {region} holds {data} at offset {offset}"),
            Action::ReceivesImmediate(octets) => write!(
                f,
                "a receive of the application completes with Immediate Data {octets:02x?}"
            ),
            Action::LearnByteOrder(name) => write!(
                f,
                "a FetchAdd of 0 returns what region {name} holds, in the target's byte order"
            ),
            Action::Disconnect => write!(f, "the application disconnects"),
            Action::Send(segments) => {
                let all: Vec<String> = segments.iter().map(ToString::to_string).collect();
                write!(f, "send {}", all.join("; "))
            }
            Action::SendInPieces(segment, cuts) => {
                write!(f, "send {segment}, in {} pieces", cuts.len() + 1)
            }
            Action::SendAcross(segments, cuts) => write!(
                f,
                "send {} FPDUs in {} pieces",
                segments.len(),
                cuts.len() + 1
            ),
            Action::SendPart(segment, octets) => {
                write!(f, "send the first {octets} octets of the FPDU of {segment}")
            }
            Action::Fin => write!(f, "send a FIN"),
            Action::Reset => write!(f, "send a reset"),
            Action::Expect(want) => write!(f, "{want}"),
            Action::ExpectRtr => write!(f, "a negotiated RTR indication"),
            Action::AnswerAtomics { values, most } => write!(
                f,
                "{} Atomic Requests, at most {most} at once, each answered",
                values.len()
            ),
            Action::Ping => write!(f, "an answer to a Read of no octets"),
            Action::Quiet => write!(f, "nothing for a while"),
            Action::QuietOrEnd => write!(f, "nothing but, perhaps, the end of the connection"),
            Action::End(ends) => write!(f, "{ends}"),
            Action::EndWithin(ends, seconds) => write!(f, "within {seconds} s: {ends}"),
            Action::EndNow(ends) => write!(f, "nothing but {ends}"),
            Action::EndOr(ends, want) => write!(f, "{want}; or {ends}"),
            Action::Closed { graceful: true } => write!(f, "then a FIN, and nothing else"),
            Action::Closed { graceful: false } => {
                write!(f, "then the end of the TCP connection, and nothing else")
            }
            Action::ReadOrTerminate { size, .. } => write!(
                f,
                "the {size} octets that were read, or a Terminate that says how many came"
            ),
            Action::Watch(rules) => write!(f, "{} rules of a sender are kept", rules.len()),
            Action::Require(condition) => write!(f, "skipped if {condition}"),
        }
    }
}
