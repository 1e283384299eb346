//! Describes steps and conditions in words, for `--explain` and for reasons of skipped cases.

use std::fmt;

use super::action::{Action, Condition, StartupCheck};
use super::frame_changes::FrameChanges;
use super::segment::OutSegment;
use super::setup::Setup;
use crate::words::many;

/// Maximum number of segments that are described one by one. Of a longer list, only the first and
/// the last segment are described.
const SEGMENTS: usize = 8;

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::TargetReceivesMarkers => write!(f, "the target does not ask for Markers"),
            Condition::DefaultCrc => write!(f, "the run uses no CRCs"),
            Condition::EmssKnown => write!(f, "the EMSS of the target is unknown here"),
            Condition::PrivateDataOf(bytes) => {
                write!(
                    f,
                    "the agent accepts fewer than {bytes} of Private Data",
                    bytes = many(bytes, "byte")
                )
            }
            Condition::CrcInUse => write!(f, "CRCs are not in use"),
            Condition::CrcNotInUse => write!(f, "the target insists on CRCs"),
            Condition::Rfc7306 => write!(f, "the target does not support RFC 7306"),
            Condition::NotRfc7306 => write!(f, "the target supports RFC 7306"),
            Condition::ScopedRegions => {
                write!(f, "the agent cannot register memory for one connection")
            }
            Condition::TargetIrdIsAtLeast(ird) => {
                write!(
                    f,
                    "the target allows fewer than {ird} at once",
                    ird = many(ird, "Read")
                )
            }
            Condition::TargetOrdIsAtLeast(ord) => {
                write!(
                    f,
                    "the target uses fewer than {ord} at once",
                    ord = many(ord, "Read")
                )
            }
            Condition::TargetAccepts => write!(f, "the target does not accept the connection"),
            Condition::TargetOffersRtr(rtr) => {
                write!(f, "the target does not offer the RTR indication {rtr:?}")
            }
            Condition::TargetIsUnenhanced => {
                write!(f, "the target uses enhanced connection setup")
            }
            Condition::TargetLacksIrd(ird) => {
                write!(
                    f,
                    "the target supports {ird} of its peer at once",
                    ird = many(ird, "Read")
                )
            }
            Condition::TargetIrdIsAtMost(ird) => {
                write!(
                    f,
                    "the target allows more than {ird} at once",
                    ird = many(ird, "Read")
                )
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Begin(setup) => write!(f, "a TCP connection{setup}"),
            Action::Establish(setup) => write!(f, "a connection in Full Operation{setup}"),
            Action::Use(number) => write!(f, "use connection {number}"),
            Action::SendStartup(frame) => write!(f, "send {frame}"),
            Action::Propose(setup) => {
                write!(f, "a TCP connection and the suite's startup frame{setup}")
            }
            Action::ExpectStartup => write!(f, "the target's startup frame"),
            Action::ExpectStartupOrEnd => {
                write!(
                    f,
                    "the target's startup frame, or the end of the connection"
                )
            }
            Action::ExpectEnhanced => write!(f, "the target's enhanced startup frame"),
            Action::ExpectEnhancedOrClose => {
                write!(f, "an enhanced Reply, or the end of the TCP connection")
            }
            Action::ReplyOtherRtr => write!(
                f,
                "send a Reply with the RTR indications that the Request does not offer"
            ),
            Action::CheckStartup(check) => write!(f, "in its startup frame: {check}"),
            Action::Operate => write!(f, "Full Operation"),
            Action::Region(region) => write!(
                f,
                "the application registers {} with {}",
                many(region.len, "byte"),
                region.access
            ),
            Action::Deregister(name) => write!(f, "the application deregisters region {name}"),
            Action::Receives(count, len) => {
                write!(
                    f,
                    "the application posts {count} of {len}",
                    count = many(count, "receive"),
                    len = many(len, "byte")
                )
            }
            Action::Post(post) => write!(f, "the application posts {}, {}", post.op, post.data),
            Action::Completion { op, success } => {
                let how = if *success { "succeeds" } else { "fails" };
                write!(f, "a {op} of the application {how}")
            }
            Action::Received(bytes) => {
                write!(
                    f,
                    "a receive of the application completes with {bytes}",
                    bytes = many(bytes, "byte")
                )
            }
            Action::ReceivesPrivateData(data) => write!(
                f,
                "the application receives {} of Private Data",
                many(data.len(), "byte")
            ),
            Action::Delivered(data) => write!(f, "the application receives {data}"),
            Action::Event(event) => write!(f, "the application gets the event {event}"),
            Action::Holds {
                region,
                offset,
                data,
            } => write!(f, "region {region} holds {data} at offset {offset}"),
            Action::ReceivesImmediate(bytes) => write!(
                f,
                "a receive of the application completes with Immediate Data {bytes:02x?}"
            ),
            Action::LearnByteOrder(name) => write!(
                f,
                "a FetchAdd of 0 returns what region {name} holds, in the target's byte order"
            ),
            Action::Disconnect => write!(f, "the application disconnects"),
            Action::Send(segments) => write!(f, "send {}", some(segments)),
            Action::SendInPieces(segment, cuts) => {
                write!(f, "send {segment}, in {}", many(cuts.len() + 1, "piece"))
            }
            Action::SendAcross(segments, cuts) => write!(
                f,
                "send {} in {}",
                many(segments.len(), "FPDU"),
                many(cuts.len() + 1, "piece")
            ),
            Action::SendPart(segment, bytes) => {
                write!(
                    f,
                    "send the first {bytes} of the FPDU of {segment}",
                    bytes = many(bytes, "byte")
                )
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
            Action::Ping => write!(f, "the response to a Read of no bytes"),
            Action::Quiet => write!(f, "nothing for a while"),
            Action::QuietOrEnd => write!(f, "nothing, except perhaps the end of the connection"),
            Action::End(ends) => write!(f, "{ends}"),
            Action::EndWithin(ends, seconds) => write!(f, "within {seconds} s: {ends}"),
            Action::EndNow(ends) => write!(f, "{ends}, and nothing before it"),
            Action::EndOr(ends, want) => write!(f, "{want}; or {ends}"),
            Action::EndOrHeld(ends, _, data) => write!(
                f,
                "{ends}; or nothing, until the application posts a receive, which completes with {data}"
            ),
            Action::Closed { graceful: true } => write!(f, "then a FIN, and nothing else"),
            Action::Closed { graceful: false } => {
                write!(f, "then the end of the TCP connection, and nothing else")
            }
            Action::ReadOrTerminate { size, .. } => write!(
                f,
                "the whole response of {size}, or a Terminate that says how many were sent",
                size = many(size, "byte")
            ),
            Action::Watch(rules) => {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "in everything that the target sends: {}",
                    rules.join("; ")
                )
            }
            Action::Require(condition) => write!(f, "skipped if {condition}"),
        }
    }
}

/// Describes the segments. Describes only the first and the last of a long list.
fn some(segments: &[OutSegment]) -> String {
    let told = |segments: &[OutSegment]| -> String {
        let all: Vec<String> = segments.iter().map(ToString::to_string).collect();
        all.join("; ")
    };
    match segments {
        [first, .., last] if segments.len() > SEGMENTS => {
            let more = segments.len() - 2;
            format!("{first}; {more} more; {last}")
        }
        few => told(few),
    }
}

/// Shows only the values that differ from the default setup.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Setup::default();
        if let Some(frame) = &self.frame {
            write!(f, ", the suite's frame: {frame}")?;
        }
        write!(f, "{}", self.frame_changes)?;
        for (bit, name) in [(self.crc, "C"), (self.markers, "M")] {
            if let Some(set) = bit {
                write!(f, ", the suite's {name} bit {}", u8::from(set))?;
            }
        }
        if let Some(mss) = self.mss {
            write!(f, ", the suite's MSS {mss}")?;
        }
        if self.receives != plain.receives {
            let (count, len) = self.receives;
            write!(
                f,
                ", {count} of {len}",
                count = many(count, "receive"),
                len = many(len, "byte")
            )?;
        }
        if (self.ird, self.ord) != (plain.ird, plain.ord) {
            write!(f, ", the application's IRD {}, ORD {}", self.ird, self.ord)?;
        }
        if !self.private_data.is_empty() {
            let len = self.private_data.len();
            write!(
                f,
                ", {len} of Private Data from the application",
                len = many(len, "byte")
            )?;
        }
        if self.pd != plain.pd {
            write!(f, ", protection domain {}", self.pd)?;
        }
        if self.peer_to_peer {
            write!(f, ", in the peer-to-peer model")?;
        }
        if self.aborted > 0 {
            write!(f, ", after {} that end without a Request", self.aborted)?;
        }
        match self.answer {
            super::setup::Answer::Reject(_) => write!(f, ", which the application rejects"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for FrameChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in self.differences() {
            write!(f, ", {difference}")?;
        }
        Ok(())
    }
}

impl fmt::Display for StartupCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |set: &bool| u8::from(*set);
        match self {
            StartupCheck::Key => write!(f, "the Key matches its role"),
            StartupCheck::ReservedZero => write!(f, "the reserved bits are zero"),
            StartupCheck::Rejected(due) => write!(f, "R is {}", bit(due)),
            StartupCheck::Crc => write!(f, "C is 1"),
            StartupCheck::Rev(rev) => write!(f, "Rev is {rev}"),
            StartupCheck::RevFitsS => write!(f, "Rev is 1 without S, or 2 or higher"),
            StartupCheck::Enhanced(due) => write!(f, "S is {}", bit(due)),
            StartupCheck::PrivateDataWithin512 => write!(f, "PD_Length is at most 512"),
            StartupCheck::PrivateData(bytes) => {
                let len = bytes.len();
                write!(
                    f,
                    "exactly the application's Private Data, {len}",
                    len = many(len, "byte")
                )
            }
            StartupCheck::Depths { ird, ord } => {
                let depths = [("IRD", ird), ("ORD", ord)];
                let due: Vec<String> = depths
                    .iter()
                    .filter_map(|(name, due)| due.map(|due| format!("{name} is {due}")))
                    .collect();
                write!(f, "{}", due.join(", "))
            }
            StartupCheck::OrdAtMost(most) => write!(f, "ORD is at most {most}"),
            StartupCheck::IrdAtLeast(least) => write!(f, "IRD is at least {least}"),
            StartupCheck::IrdAtMost(most) => write!(f, "IRD is at most {most}"),
            StartupCheck::PeerToPeer(due) => write!(f, "A is {}", bit(due)),
            StartupCheck::NoRtr => write!(f, "B, C and D are 0"),
            StartupCheck::SomeRtr => write!(f, "B, C or D is 1"),
            StartupCheck::RtrOfBefore => {
                write!(f, "the same of B, C and D as in its earlier Reply")
            }
        }
    }
}
