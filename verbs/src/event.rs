//! What happens to a connection outside of any work request, and why it ended.

use std::fmt;
use std::net::SocketAddr;

use uwarp_llp::LlpError;
use uwarp_mpa::StartupError;
use uwarp_rdmap::{Opcode, StreamError, Terminate};

use crate::cause::Cause;
use crate::event_queue::EventObject;

/// An asynchronous event of a device (`ibv_async_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The connection is open in both directions: for an initiator when the peer has accepted, for a
    /// responder when the peer's first FPDU has come.
    Established {
        /// The QP.
        qp_num: u32,
    },
    /// A connection began to end or has ended. Raised once for each connection, and a second time if the first reason
    /// [is orderly](EndReason::is_orderly) and the close then fails: something that was sent did not arrive.
    Ended {
        /// The QP.
        qp_num: u32,
        /// Why.
        reason: EndReason,
    },
    /// A CQ had no place for a completion, which is lost (`IBV_EVENT_CQ_ERR`). Told once for each CQ: from then on
    /// it takes no more, and every QP that has something to complete to it ends with [`EndReason::CqOverflow`].
    /// What it holds can still be polled.
    CqOverflow {
        /// The CQ.
        cq_num: u32,
        /// Completions it holds at most.
        depth: usize,
        /// The QP whose completion was the first to be lost.
        qp_num: u32,
    },
    /// Fewer receives are left in a shared receive queue than its limit says (`IBV_EVENT_SRQ_LIMIT_REACHED`). Told
    /// once for each arming; [`Srq::modify`](crate::Srq::modify) arms the limit again.
    SrqLimitReached {
        /// The SRQ.
        srq_num: u32,
    },
    /// A QP with a shared receive queue has failed, and takes no receive from it any more
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`): what it took has completed, or was flushed.
    LastWqeReached {
        /// The QP.
        qp_num: u32,
    },
    /// The network below has failed for good (`IBV_EVENT_DEVICE_FATAL`). Told once; every connection
    /// of the device ends, with [`EndReason::LlpLost`] if it stood, and no more can be made: open
    /// another device.
    DeviceFatal {
        /// What happened to the network.
        error: LlpError,
    },
    /// Somebody else, another host or the kernel of this machine, uses an address of the device.
    /// The device works on, but connections may fail until the conflict is gone. Told once for each
    /// address.
    AddressConflict {
        /// Who it is, and what to do about it.
        error: LlpError,
    },
    /// A listener cannot take connections that have come, because this process or machine is short of
    /// something, of descriptors as a rule. It tries again until it can; those that it could not
    /// take were closed, or wait in TCP. Told at most once a minute for each listener.
    ListenerShort {
        /// Where it listens.
        local: SocketAddr,
        /// What there is no more of, and what to do about it.
        error: LlpError,
    },
}

impl AsyncEvent {
    /// Who, which layer, which code, which demand of the RFCs; and a sentence with a hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        Cause::from(self)
    }

    /// What it is about (`element` of `ibv_async_event`): whose destruction waits for its acknowledgement.
    #[must_use]
    pub fn object(&self) -> EventObject {
        match self {
            AsyncEvent::Established { qp_num }
            | AsyncEvent::Ended { qp_num, .. }
            | AsyncEvent::LastWqeReached { qp_num } => EventObject::Qp(*qp_num),
            AsyncEvent::CqOverflow { cq_num, .. } => EventObject::Cq(*cq_num),
            AsyncEvent::SrqLimitReached { srq_num } => EventObject::Srq(*srq_num),
            AsyncEvent::DeviceFatal { .. }
            | AsyncEvent::AddressConflict { .. }
            | AsyncEvent::ListenerShort { .. } => EventObject::Device,
        }
    }
}

/// Why a connection ended (RFC 5040 sections 6.2 and 7).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// The consumer on this side closed it.
    LocalDisconnect,
    /// The peer closed it, behind the last segment of a message. Reads and atomics that it has not begun to answer are flushed.
    PeerDisconnect,
    /// The consumer on this side gave it up: [`Qp::abort`](crate::Qp::abort), a QP moved to Error, or dropped
    /// with work under way.
    Aborted,
    /// The peer (or its lower layers) broke a rule; we sent a Terminate Message.
    TerminateSent {
        /// What was wrong with what the peer sent.
        error: StreamError,
        /// The message that we sent; `None` when nothing may be sent yet
        /// (a responder before its first valid FPDU, RFC 5044 section 7.1.2).
        terminate: Option<Terminate>,
        /// Which region, which bounds, which buffer.
        cause: Cause,
    },
    /// A work request of ours could not be carried out; we sent a Terminate Message.
    LocalError {
        /// What was wrong.
        cause: Cause,
    },
    /// A completion found no place in its CQ and is lost; we sent a Terminate Message.
    CqOverflow {
        /// The CQ.
        cq_num: u32,
        /// Completions it holds at most.
        depth: usize,
        /// The work request whose completion was lost.
        wr_id: u64,
    },
    /// The peer refused something we sent, by a Terminate Message.
    TerminateReceived {
        /// Its message.
        terminate: Terminate,
        /// The same, with the work request that it is about.
        cause: Cause,
    },
    /// The peer does not know RFC 7306 (Atomic Operations and Immediate Data) and ended the stream when
    /// such a message came. Linux siw is such a peer, and so are RNICs made before 2014.
    PeerLacksRfc7306 {
        /// The message that it refused; the first that was sent, if it does not say.
        message: Opcode,
        /// Its Terminate Message.
        terminate: Terminate,
    },
    /// TCP ended without a graceful close.
    LlpLost {
        /// What TCP said.
        error: LlpError,
    },
    /// The peer closed TCP in the middle of a message or of an FPDU: it died, or broke the framing.
    ClosedMidway {
        /// The message that was begun and lacks its last segment (RFC 5041 section 4.1); `None` if all that was known
        /// is the beginning of an FPDU.
        message: Option<Opcode>,
    },
    /// TCP did not connect in time.
    ConnectTimedOut,
    /// A close made no progress for [`Timeouts::close`](crate::Timeouts::close): the peer's TCP did
    /// not acknowledge what it was sent, or work that was posted before the close could not be
    /// done, or a Read of the peer that had arrived before it was not answered whole. The
    /// connection was reset.
    CloseTimedOut {
        /// Number of bytes of the stream that the peer has not acknowledged. Requests of which they are part may have
        /// completed with success, because TCP had taken them.
        undelivered: u64,
    },
    /// The peer is connected, but held up one direction for too long ([`Timeouts::stalled`](crate::Timeouts::stalled)).
    Stalled {
        /// It read nothing of what we had to send. Otherwise: it began an FPDU and did not finish it.
        sending: bool,
    },
    /// MPA startup failed.
    StartupFailed {
        /// What was wrong.
        error: StartupError,
    },
    /// The TCP connection could not be opened.
    ConnectFailed {
        /// What TCP said.
        error: LlpError,
    },
    /// The peer answered the MPA Request with a reject.
    Rejected {
        /// Private data of the Reply.
        private_data: Vec<u8>,
        /// IRD and ORD of an enhanced Reply, as they stand in it (6581-9.1-09).
        peer_ird: Option<u16>,
        /// Likewise.
        peer_ord: Option<u16>,
        /// That ORD, where our IRD is too small for it: the Reads that the peer needs to have outstanding (RFC 6581
        /// section 9.1).
        ord_needed: Option<u16>,
    },
}

impl std::error::Error for EndReason {}

impl EndReason {
    /// Who, which layer, which code, which demand of the RFCs; and a sentence with a hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        Cause::from(self)
    }

    /// Whether the connection ended as one of the two programs wanted it to (RFC 5040 section 6.2).
    #[must_use]
    pub const fn is_orderly(&self) -> bool {
        match self {
            EndReason::LocalDisconnect | EndReason::PeerDisconnect => true,
            EndReason::Aborted
            | EndReason::TerminateSent { .. }
            | EndReason::LocalError { .. }
            | EndReason::CqOverflow { .. }
            | EndReason::TerminateReceived { .. }
            | EndReason::PeerLacksRfc7306 { .. }
            | EndReason::LlpLost { .. }
            | EndReason::ClosedMidway { .. }
            | EndReason::ConnectTimedOut
            | EndReason::CloseTimedOut { .. }
            | EndReason::Stalled { .. }
            | EndReason::StartupFailed { .. }
            | EndReason::ConnectFailed { .. }
            | EndReason::Rejected { .. } => false,
        }
    }
}

/// The sentence and the hint of its [`cause`](EndReason::cause), and what else there is to say.
impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause();
        f.write_str(&cause.sentence())?;
        match self {
            EndReason::TerminateSent {
                terminate: Some(terminate),
                ..
            } => {
                let code = terminate.reason();
                write!(f, "; this side ended the connection with Terminate {code}")?;
            }
            EndReason::TerminateSent {
                terminate: None, ..
            } => write!(
                f,
                "; this side closed the connection (no Terminate may be sent at this point)"
            )?,
            EndReason::PeerLacksRfc7306 { terminate, .. } => {
                write!(f, "; its Terminate Message: {terminate}")?;
            }
            EndReason::TerminateReceived { terminate, .. } => {
                if let Some(means) = terminate.siw_means() {
                    write!(f, ", which means by it: {means}")?;
                }
            }
            EndReason::Rejected { private_data, .. } if !private_data.is_empty() => {
                write!(f, ": \"{}\"", private_data.escape_ascii())?;
            }
            EndReason::LocalDisconnect
            | EndReason::PeerDisconnect
            | EndReason::Aborted
            | EndReason::LocalError { .. }
            | EndReason::CqOverflow { .. }
            | EndReason::LlpLost { .. }
            | EndReason::ClosedMidway { .. }
            | EndReason::ConnectTimedOut
            | EndReason::CloseTimedOut { .. }
            | EndReason::Stalled { .. }
            | EndReason::StartupFailed { .. }
            | EndReason::ConnectFailed { .. }
            | EndReason::Rejected { .. } => {}
        }
        match cause.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}
