//! The steps of a case.

use super::segment::Out;
use super::setup::{Post, Region, Rtr, Setup};
use super::value::{Data, Name, To};
use super::want::{Ends, Want};
use crate::check::Rule;
use crate::wire::startup::StartupFrame;

/// Condition for the rest of a case to make sense. If it does not hold, the case is skipped, and
/// the condition is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The target set M, so it receives Markers.
    TargetReceivesMarkers,
    /// CRCs are in use.
    CrcInUse,
    /// CRCs are not in use.
    CrcNotInUse,
    /// The agent says that the target supports RFC 7306.
    Rfc7306,
    /// The agent does not say that the target supports RFC 7306.
    NotRfc7306,
    /// The agent can register memory for one connection alone.
    ScopedRegions,
    /// The run uses the CRC of the default configuration: neither side asked for none.
    DefaultCrc,
    /// The suite knows the EMSS of the target, because it chose its own MSS, and its TCP reports
    /// the effective one.
    EmssKnown,
    /// The agent accepts this many bytes of Private Data.
    PrivateDataOf(usize),
    /// The target's startup frame allows the suite this many Reads at once.
    TargetIrdIsAtLeast(u16),
    /// The ORD in the target's startup frame is at least this.
    TargetOrdIsAtLeast(u16),
    /// The target's Reply accepts.
    TargetAccepts,
    /// The target's startup frame offers this RTR indication.
    TargetOffersRtr(Rtr),
    /// The agent says that the target opens without enhanced connection setup.
    TargetIsUnenhanced,
    /// The agent says that the target does not support this many Reads of its peer at once.
    TargetLacksIrd(u16),
    /// The target's startup frame allows the suite at most this many Reads at once.
    TargetIrdIsAtMost(u16),
}

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Makes a TCP connection and sends nothing on it. The application on the target is ready for
    /// it.
    Begin(Setup),
    /// Completes startup, with correct frames of both sides.
    Establish(Setup),
    /// Makes later steps refer to this connection, counted from 0 in the order in which they were
    /// begun.
    Use(usize),
    /// Makes a TCP connection and sends the suite's startup frame as this setup describes it. If
    /// the target is the Initiator, the frame follows its Request. The next steps expect the
    /// result.
    Propose(Setup),
    SendStartup(StartupFrame),
    /// Expects a valid frame of the target's role. Full Operation begins.
    ExpectStartup,
    /// Expects a valid Reply, or the end of the connection instead.
    ExpectStartupOrEnd,
    /// Checks a field of the startup frame that arrived.
    CheckStartup(StartupCheck),
    /// Expects a startup frame with enhanced connection data (RFC 6581). The case is skipped for a
    /// target without it.
    ExpectEnhanced,
    /// Expects an enhanced Reply, or the end of the connection, which a target without enhanced
    /// setup chooses.
    ExpectEnhancedOrClose,
    /// Sends a Reply for the peer-to-peer model with exactly the RTR indications that the Request
    /// did not offer.
    ReplyOtherRtr,
    /// Uses CRCs and Markers from here on as both startup frames say.
    Operate,

    Region(Region),
    Deregister(Name),
    /// Posts more receives: their number, and the bytes of each.
    Receives(u32, usize),
    Post(Post),
    /// Expects that the next completion of a send or receive queue of the application is (or is
    /// not) a success.
    Completion {
        op: &'static str,
        success: bool,
    },
    /// Expects that the next receive of the application completes with this many bytes.
    Received(usize),
    /// Expects that this Private Data of the suite reached the application in a request, an
    /// acceptance or a rejection.
    ReceivesPrivateData(Vec<u8>),
    /// Expects that the next receive of the application completes with exactly this in its buffer.
    Delivered(Data),
    /// Expects the next event of its connection: `established`, `rejected`, `disconnected` and so
    /// on (`docs/agent.md`).
    Event(&'static str),
    /// Expects this content of a region.
    Holds {
        region: Name,
        offset: usize,
        data: Data,
    },
    /// Expects that a receive of the application completes with this Immediate Data (RFC 7306).
    ReceivesImmediate([u8; 8]),
    /// Learns the byte order in which the target keeps a word, from a FetchAdd of 0 on the first
    /// word of a region. [`Data::Word`] uses this order.
    LearnByteOrder(Name),
    Disconnect,

    /// Sends segments, each in its own FPDU, in one piece.
    Send(Vec<Out>),
    /// Sends the FPDU of a segment in several pieces, cut at these bytes. Each is sent alone.
    SendInPieces(Out, Vec<usize>),
    /// Sends the FPDUs of several segments as one string of bytes, cut at these positions. Each
    /// piece is sent alone.
    SendAcross(Vec<Out>, Vec<usize>),
    /// Sends only the first bytes of the FPDU of a segment.
    SendPart(Out, usize),
    /// Sends a FIN.
    Fin,
    Reset,

    Expect(Want),
    /// Expects an RTR indication that both startup frames have, and answers it if it is a Read.
    ExpectRtr,
    /// Expects Atomic Requests of the target and answers them with these values, which give their
    /// number. All requests that come before the target waits are answered at once. At most `most`
    /// may be outstanding.
    AnswerAtomics {
        values: Vec<u64>,
        most: usize,
    },
    /// Checks that the target still serves: it answers a Read of no bytes.
    Ping,
    /// Expects that nothing comes for a while.
    Quiet,
    /// Expects that nothing comes for a while. The target may end the TCP connection.
    QuietOrEnd,
    /// Expects that the connection ends in one of these ways.
    End(Ends),
    /// Like `End`, within this many seconds, whatever the timeout of the run is.
    EndWithin(Ends, u64),
    /// Expects that the connection ends this way, and that nothing comes before.
    EndNow(Ends),
    /// Expects that the connection ends this way, or that it stays and this message comes.
    EndOr(Ends, Want),
    /// Expects that the connection ends this way, or that the target waits for a buffer for the
    /// last message. Then the application posts a receive of this many bytes, which must complete
    /// with this data.
    EndOrHeld(Ends, usize, Data),
    /// Expects, after a Terminate, only the target's end of the TCP connection. If `graceful`, it
    /// must be a FIN.
    Closed {
        graceful: bool,
    },
    /// Expects the whole response to a Read, or a Terminate that says how far the Read came. The
    /// segments in `meanwhile` are sent when the response has begun.
    ReadOrTerminate {
        size: u32,
        src_to: To,
        meanwhile: Vec<Out>,
    },
    /// Makes these rules for senders count in this case: any breach is a failure, whenever it
    /// comes.
    Watch(&'static [Rule]),
    Require(Condition),
}

/// Check of the target's startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupCheck {
    /// The Key matches its role.
    Key,
    /// The reserved bits are zero.
    ReservedZero,
    /// R has this value.
    Rejected(bool),
    /// C is set.
    Crc,
    Rev(u8),
    /// Rev is 1 and S is not set, or Rev is 2 or higher.
    RevFitsS,
    /// S has this value.
    Enhanced(bool),
    /// At most 512 bytes of Private Data.
    PrivateDataWithin512,
    /// The Private Data of the application, after the enhanced data, is exactly this.
    PrivateData(&'static [u8]),
    /// With enhanced data, IRD and ORD have these values.
    Depths {
        ird: Option<u16>,
        ord: Option<u16>,
    },
    /// ORD is at most this. A Reply that rejects may state the ORD that the application needs.
    OrdAtMost(u16),
    /// IRD is at least this.
    IrdAtLeast(u16),
    /// IRD is at most this.
    IrdAtMost(u16),
    /// A has this value.
    PeerToPeer(bool),
    /// B, C and D are zero.
    NoRtr,
    /// At least one of B, C, D is set.
    SomeRtr,
    /// B, C and D are the same as in an earlier Reply of the target, on another connection of the
    /// case.
    RtrOfBefore,
}

impl Action {
    /// Returns true if the step needs an action of the application on the target.
    pub(crate) fn needs_agent(&self) -> bool {
        match self {
            Action::Region(_)
            | Action::Deregister(_)
            | Action::Receives(..)
            | Action::Post(_)
            | Action::Completion { .. }
            | Action::Received(_)
            | Action::ReceivesPrivateData(_)
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
