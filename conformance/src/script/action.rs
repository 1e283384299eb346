//! Steps of a case.

use super::segment::OutSegment;
use super::setup::{Post, Region, Rtr, Setup};
use super::value::{Data, Name, To};
use super::want::{Ends, Want};
use crate::check::Rule;
use crate::wire::startup::StartupFrame;

/// Condition that a case requires for its remaining steps. If it does not hold, the case is
/// skipped, and the condition is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The target set M in its startup frame, so the suite sends Markers.
    TargetReceivesMarkers,
    /// CRCs are in use.
    CrcInUse,
    /// CRCs are not in use.
    CrcNotInUse,
    /// The agent reports that the target supports RFC 7306.
    Rfc7306,
    /// The agent does not report that the target supports RFC 7306.
    NotRfc7306,
    /// The agent can register memory that only one connection can access.
    ScopedRegions,
    /// The run uses the default CRC setting: the suite asks for CRCs.
    DefaultCrc,
    /// The suite knows the EMSS of the target. For this, the suite must have chosen its own MSS,
    /// and its TCP must report the effective MSS.
    EmssKnown,
    /// The agent accepts at least this many bytes of Private Data.
    PrivateDataOf(usize),
    /// The startup frame of the target allows at least this many outstanding Reads of the suite.
    TargetIrdIsAtLeast(u16),
    /// The startup frame of the target has at least this ORD.
    TargetOrdIsAtLeast(u16),
    /// The Reply of the target accepts the connection.
    TargetAccepts,
    /// The startup frame of the target offers this RTR indication.
    TargetOffersRtr(Rtr),
    /// The agent reports that the target connects without enhanced connection setup.
    TargetIsUnenhanced,
    /// The agent reports that the target supports fewer outstanding Reads of its peer than this.
    TargetLacksIrd(u16),
    /// The startup frame of the target allows at most this many outstanding Reads of the suite.
    TargetIrdIsAtMost(u16),
}

/// A step of a case.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Makes a TCP connection and sends nothing on it. The application on the target listens or
    /// connects, as the setup specifies.
    Begin(Setup),
    /// Makes a connection and completes startup with correct frames from both sides.
    Establish(Setup),
    /// Selects the connection that the following steps use. Connections are numbered from 0 in the
    /// order in which the case began them.
    Use(usize),
    /// Makes a TCP connection and sends the startup frame of the suite as the setup describes it.
    /// If the target is the Initiator, its Request comes first. Later steps check the reaction.
    Propose(Setup),
    SendStartup(StartupFrame),
    /// Expects a valid startup frame for the role of the target. Then enters Full Operation.
    ExpectStartup,
    /// Expects a valid Reply, or the end of the connection instead.
    ExpectStartupOrEnd,
    /// Checks a field of the received startup frame.
    CheckStartup(StartupCheck),
    /// Expects a startup frame with enhanced connection data (RFC 6581). Skips the case for a
    /// target without enhanced setup.
    ExpectEnhanced,
    /// Expects an enhanced Reply. A target without enhanced setup may close the connection instead.
    ExpectEnhancedOrClose,
    /// Sends a Reply that accepts the peer-to-peer model but offers only the RTR indications that
    /// the Request did not offer.
    ReplyOtherRtr,
    /// Enters Full Operation. The two startup frames determine whether CRCs and Markers are used.
    Operate,

    Region(Region),
    Deregister(Name),
    /// Makes the application post more receives. The values are their number, and the size of each
    /// in bytes.
    Receives(u32, usize),
    Post(Post),
    /// Expects a completion at the application. If `success`, the next completion of `op` must be a
    /// success. Otherwise the next completion of any operation must be an error.
    Completion {
        op: &'static str,
        success: bool,
    },
    /// Expects that the next receive to complete at the application has this many bytes.
    Received(usize),
    /// Expects that the application received this Private Data from the suite, in a request, an
    /// acceptance or a rejection.
    ReceivesPrivateData(Vec<u8>),
    /// Expects that the next receive to complete at the application has exactly this data in its
    /// buffer.
    Delivered(Data),
    /// Expects `established`, `rejected`, `disconnected` or another event (`docs/agent.md`) as the
    /// next event of the connection.
    Event(&'static str),
    /// Expects that a region contains this data at `offset`.
    Holds {
        region: Name,
        offset: usize,
        data: Data,
    },
    /// Expects that a receive completes at the application with this Immediate Data (RFC 7306).
    ReceivesImmediate([u8; 8]),
    /// Learns the byte order in which the target stores a word, by a FetchAdd of 0 to the first
    /// word of a region. [`Data::Word`] uses this order.
    LearnByteOrder(Name),
    Disconnect,

    /// Sends one FPDU for each segment, all in one write.
    Send(Vec<OutSegment>),
    /// Sends the FPDU of a segment in pieces. It is cut at these offsets, and each piece is a TCP
    /// segment of its own.
    SendInPieces(OutSegment, Vec<usize>),
    /// Sends the FPDUs of several segments in pieces. The sequence of FPDUs is cut at these
    /// offsets, and each piece is a TCP segment of its own.
    SendAcross(Vec<OutSegment>, Vec<usize>),
    /// Sends only this many bytes of the FPDU of a segment.
    SendPart(OutSegment, usize),
    /// Sends a FIN.
    Fin,
    Reset,

    Expect(Want),
    /// Expects an RTR indication that both startup frames offer. Answers it if it is a Read.
    ExpectRtr,
    /// Expects one Atomic Request from the target for each of these values, and answers it with the
    /// value. All outstanding requests are answered together. At most `most` may be outstanding.
    AnswerAtomics {
        values: Vec<u64>,
        most: usize,
    },
    /// Checks that the target still works: it answers a Read of zero length. That needs no rights
    /// and no application, so a case can show without a wait that nothing bad has happened.
    Ping,
    /// Expects that nothing arrives within the quiet time.
    Quiet,
    /// Expects that nothing arrives within the quiet time. The target may end the TCP connection.
    QuietOrEnd,
    /// Expects that the connection ends in one of these ways.
    End(Ends),
    /// Like `End`, but within this many seconds instead of the timeout of the run.
    EndWithin(Ends, u64),
    /// Expects that the connection ends in one of these ways, and that no message arrives before.
    EndNow(Ends),
    /// Expects that the connection ends in one of these ways, or that this message arrives instead.
    EndOr(Ends, Want),
    /// Expects that the connection ends in one of these ways. Instead, the target may hold the last
    /// message until a buffer is posted. Then the application posts a receive of this many bytes,
    /// which must complete with this data.
    EndOrHeld(Ends, usize, Data),
    /// Expects that the target ends the TCP connection after a Terminate and sends nothing else. If
    /// `graceful`, it must send a FIN.
    Closed {
        graceful: bool,
    },
    /// Expects the whole response to a Read. Instead, a Terminate may state how much of the Read
    /// was done. The suite sends the segments in `meanwhile` after the first segment of the
    /// response.
    ReadOrTerminate {
        size: u32,
        src_to: To,
        meanwhile: Vec<OutSegment>,
    },
    /// Makes the case fail if the target breaks one of these rules for senders, before or after
    /// this step.
    Watch(&'static [Rule]),
    Require(Condition),
}

/// Check of the startup frame of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupCheck {
    /// The Key matches the role of the target.
    Key,
    /// The reserved bits are zero.
    ReservedZero,
    /// R has this value: whether the frame rejects the connection.
    Rejected(bool),
    /// C is set.
    Crc,
    Rev(u8),
    /// Rev is 1 and S is not set, or Rev is 2 or higher.
    RevFitsS,
    /// S has this value: whether the frame has enhanced connection data.
    Enhanced(bool),
    /// PD_Length is at most 512.
    PrivateDataWithin512,
    /// The Private Data of the application, which follows the enhanced connection data, equals
    /// this.
    PrivateData(&'static [u8]),
    /// The enhanced connection data contains these values for IRD and ORD. `None` accepts any
    /// value.
    Depths {
        ird: Option<u16>,
        ord: Option<u16>,
    },
    /// ORD is at most this. A Reply that rejects the connection may state the ORD that the
    /// application needs instead.
    OrdAtMost(u16),
    /// IRD is at least this.
    IrdAtLeast(u16),
    /// IRD is at most this.
    IrdAtMost(u16),
    /// A has this value: whether the frame asks for the peer-to-peer model.
    PeerToPeer(bool),
    /// B, C and D are zero.
    NoRtr,
    /// At least one of B, C and D is set.
    SomeRtr,
    /// The Reply sets each of B, C and D that an earlier Reply of the target set, on another
    /// connection of the case.
    RtrOfBefore,
}

impl Action {
    /// Returns true if the step needs the application on the target to act.
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
