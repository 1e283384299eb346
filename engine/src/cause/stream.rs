//! Causes for violated rules of DDP, RDMAP or MPA, except refused accesses to memory.

use std::fmt;

use uwarp_ddp::{DdpError, UntaggedFault};
use uwarp_mpa::{DeframeError, MpaErrorCode};
use uwarp_rdmap::{QN_READ_REQUEST, QN_SEND, QN_TERMINATE, StreamError, TerminateCode};

use super::parts::{Account, Layer, Who};

/// Error in the peer's stream, and the wait before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken {
    pub(crate) error: StreamError,
    pub(crate) held: Held,
}

/// Wait of a message for a receive, before it was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// The message did not wait.
    No,
    /// No receive was posted while the message waited for this many milliseconds.
    For(u32),
    /// As `For`, but the wait was cut short because the peer had closed.
    UntilClose(u32),
}

impl From<StreamError> for Broken {
    fn from(error: StreamError) -> Self {
        Broken {
            error,
            held: Held::No,
        }
    }
}

/// Hint for faults of the peer's stack, whatever its program does.
const STACK: &str = "report it to the vendor of the peer's iWARP stack, with a capture (`--pcap`) of the connection";
const CREDITS: &str = "post receives before the peer sends, and agree with it on their number";
const HOLD: &str = "post receives earlier, or let messages wait longer (`OnNoReceive::Hold` in the settings or for the queue pair)";
const EARLIER: &str = "post receives earlier: before the peer sends, or at least before it closes";
const LENGTHS: &str = "post receives that are as long as the peer's longest message";
const READS: &str =
    "the peer's ORD exceeds the agreed value; compare the IRD that both sides stated";
const NEGOTIATE: &str = "if the IRD is too small, raise max_ird in the settings of this device or set a smaller ORD at the peer; otherwise enable a common RTR kind on both sides";
const MEMORY: &str = "compare the peer's address, length and rkey with those that it was given";

impl Broken {
    pub(super) fn account(&self) -> Account {
        let (title, who, layer, hint) = self.row();
        let hint = match self.held {
            Held::For(_) => Some(HOLD),
            Held::UntilClose(_) => Some(EARLIER),
            Held::No => hint,
        };
        let account = Account::new(title, who, layer)
            .terminate(self.error.terminate_code())
            .against(self.error.requirement());
        match hint {
            Some(hint) => account.hint(hint),
            None => account,
        }
    }

    fn row(&self) -> (&'static str, Who, Layer, Option<&'static str>) {
        const PROTOCOL: &str = "protocol error";
        match &self.error {
            StreamError::Ddp(error) => ddp(error),
            StreamError::RdmapVersion(_)
            | StreamError::WrongBufferModel { .. }
            | StreamError::WrongQueue { .. }
            | StreamError::OpcodeChanged { .. }
            | StreamError::ReadResponseUnexpected
            | StreamError::ReadResponseMismatch(_)
            | StreamError::AtomicResponseUnexpected
            | StreamError::AtomicResponseMismatch { .. }
            | StreamError::UnexpectedAtomicOp(_)
            | StreamError::ImmediateLength { .. }
            | StreamError::TooShort { .. }
            | StreamError::NotLast { .. } => (PROTOCOL, Who::PeerStack, Layer::Rdmap, Some(STACK)),
            StreamError::UnexpectedOpcode(_) => (
                PROTOCOL,
                Who::PeerStack,
                Layer::Rdmap,
                Some(
                    "let the peer use only the messages of RFC 5040 and RFC 7306, because this side knows no others",
                ),
            ),
            StreamError::Access(_) => (
                "remote access error",
                Who::PeerProgram,
                Layer::Rdmap,
                Some(MEMORY),
            ),
            StreamError::Misaligned { .. } => (
                "remote operation error",
                Who::PeerProgram,
                Layer::Rdmap,
                Some(
                    "atomic operations need an address that is a multiple of 8: register memory from such an address on, and let the peer use offsets that are multiples of 8",
                ),
            ),
            StreamError::IrdExceeded { .. } => {
                (PROTOCOL, Who::PeerStack, Layer::Rdmap, Some(READS))
            }
            StreamError::Mpa(code) => mpa(*code),
            StreamError::LocalCatastrophic => (
                "local error",
                Who::Program,
                Layer::Rdmap,
                Some("see the event of the queue pair"),
            ),
            StreamError::Ended => ("", Who::PeerStack, Layer::Rdmap, None),
        }
    }
}

fn ddp(error: &DdpError) -> (&'static str, Who, Layer, Option<&'static str>) {
    let (title, who, hint) = match error {
        DdpError::TooShort { .. } | DdpError::Version { .. } => {
            ("protocol error", Who::PeerStack, STACK)
        }
        DdpError::Untagged(UntaggedFault::NoBuffer { qn, .. }) if *qn == QN_SEND => {
            ("no receive posted", Who::Program, CREDITS)
        }
        DdpError::Untagged(UntaggedFault::NoBuffer { qn, .. }) if *qn == QN_READ_REQUEST => {
            ("protocol error", Who::PeerStack, READS)
        }
        DdpError::Untagged(UntaggedFault::MessageTooLong { .. }) => {
            ("local length error", Who::PeerProgram, LENGTHS)
        }
        DdpError::Untagged(
            UntaggedFault::NoBuffer { .. }
            | UntaggedFault::InvalidQn(_)
            | UntaggedFault::MsnRange { .. }
            | UntaggedFault::InvalidMo { .. },
        ) => ("protocol error", Who::PeerStack, STACK),
        DdpError::LocalCatastrophic => (
            "local error",
            Who::Library,
            "see the event of the queue pair",
        ),
    };
    (title, who, Layer::Ddp, Some(hint))
}

/// Classifies the error codes of RFC 5044 section 8 and RFC 6581 section 8.
fn mpa(code: u8) -> (&'static str, Who, Layer, Option<&'static str>) {
    let (title, who, hint) = match MpaErrorCode::from_code(code) {
        Some(MpaErrorCode::ConnectionLost) => (
            "connection lost",
            Who::Network,
            "check whether the peer's program still runs",
        ),
        Some(MpaErrorCode::Crc) => ("damaged stream", Who::Peer, WRONG_CRC),
        Some(MpaErrorCode::MarkerMismatch) => ("damaged stream", Who::Network, DAMAGE),
        Some(MpaErrorCode::InvalidStartupFrame) => ("startup failed", Who::PeerStack, STACK),
        Some(MpaErrorCode::LocalCatastrophic) => (
            "startup failed",
            Who::Library,
            "connect again; if the error remains, report it with a capture (`--pcap`)",
        ),
        Some(MpaErrorCode::InsufficientIrd | MpaErrorCode::NoMatchingRtr) => {
            ("startup failed", Who::PeerStack, NEGOTIATE)
        }
        None => ("protocol error", Who::PeerStack, STACK),
    };
    (title, who, Layer::Mpa, Some(hint))
}

const DAMAGE: &str =
    "look for a middlebox or adapter that changes TCP payload; connect again to continue";

/// Hint for a wrong CRC. TCP has its own checksum, so damage in transit is rarer than a sender that
/// reads its memory twice.
const WRONG_CRC: &str = "check first whether the peer's program writes to memory that is being sent: Linux siw, and uwarp with `send_in_place`, read it once for the CRC and once for TCP; otherwise look for a middlebox or adapter that changes TCP payload; connect again to continue";

/// Classifies a stream that cannot be split into FPDUs: damaged in transit, or never well formed.
pub(super) fn framing(error: &DeframeError) -> Account {
    let (who, hint) = match error {
        DeframeError::BadCrc { .. } => (Who::Peer, WRONG_CRC),
        DeframeError::MarkerMismatch { .. } | DeframeError::LengthTooLong { .. } => {
            (Who::PeerStack, STACK)
        }
    };
    let code = StreamError::Mpa(error.code().code());
    Account::new("damaged stream", who, Layer::Mpa)
        .terminate(code.terminate_code())
        .against(code.requirement())
        .hint(hint)
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            StreamError::Ddp(DdpError::Untagged(fault)) => untagged(f, fault, self.held),
            StreamError::Mpa(code) => {
                let code = TerminateCode {
                    layer: 2,
                    etype: 0,
                    code: *code,
                };
                f.write_str(code.name())
            }
            error => write!(f, "{error}"),
        }
    }
}

/// Writes the fault with the common names of the queues.
fn untagged(f: &mut fmt::Formatter<'_>, fault: &UntaggedFault, held: Held) -> fmt::Result {
    match (fault, held) {
        (UntaggedFault::NoBuffer { msn, .. }, Held::For(waited)) => write!(
            f,
            "the peer's Send number {msn} was held for {waited} ms, and no receive was posted for it in that time"
        ),
        (UntaggedFault::NoBuffer { msn, .. }, Held::UntilClose(waited)) => write!(
            f,
            "the peer's Send number {msn} was held for {waited} ms, the peer closed the connection meanwhile, and no receive was posted for it"
        ),
        (UntaggedFault::NoBuffer { qn, msn }, _) if *qn == QN_SEND => {
            write!(
                f,
                "the peer's Send number {msn} arrived, and no receive is posted for it"
            )
        }
        (UntaggedFault::NoBuffer { qn, .. }, _) if *qn == QN_TERMINATE => {
            write!(f, "a second Terminate arrived")
        }
        (UntaggedFault::MessageTooLong { qn, end, buffer }, _) if *qn == QN_SEND => write!(
            f,
            "the peer's Send has at least {end} bytes, but the receive posted for it takes {buffer}"
        ),
        (fault, _) => write!(f, "{fault}"),
    }
}
