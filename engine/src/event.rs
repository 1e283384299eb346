//! Events of a connection or device outside of work requests, and reasons for the end of a
//! connection.

use std::fmt;
use std::net::SocketAddr;

use crate::llp::LlpError;
use uwarp_mpa::StartupError;
use uwarp_rdmap::{Opcode, StreamError, Terminate};

use crate::cause::{Cause, EndFacts, Happening};

/// An asynchronous event of a device (`ibv_async_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The connection is open in both directions. Raised for an initiator when the peer has
    /// accepted, and for a responder when the peer's first FPDU has arrived.
    Established {
        /// Number of the QP.
        qp_num: u32,
    },
    /// A connection began to end or has ended. Raised once for each connection. Raised a second
    /// time if the first reason [is orderly](EndReason::is_orderly) and the close then fails,
    /// because something that was sent did not arrive.
    Ended {
        /// Number of the QP.
        qp_num: u32,
        /// Reason of the end.
        reason: EndReason,
    },
    /// A CQ had no place for a completion, which is lost (`IBV_EVENT_CQ_ERR`). Raised once for each
    /// CQ, which takes no more completions from then on. Its completions can still be polled. Every
    /// QP that has something to complete to it ends with [`EndReason::CqOverflow`].
    CqOverflow {
        /// Number of the CQ.
        cq_num: u32,
        /// Maximum number of completions that the CQ holds.
        depth: usize,
        /// Number of the QP whose completion was the first to be lost.
        qp_num: u32,
    },
    /// A shared receive queue has fewer receives left than its limit
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`). Raised once for each arming;
    /// `Srq::modify` arms the limit again.
    SrqLimitReached {
        /// Number of the SRQ.
        srq_num: u32,
    },
    /// A QP with a shared receive queue has failed and takes no more receives from it
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`). The receives that it took have completed or were flushed.
    LastWqeReached {
        /// Number of the QP.
        qp_num: u32,
    },
    /// The network has failed permanently (`IBV_EVENT_DEVICE_FATAL`). Raised once. Every connection
    /// of the device ends, an open one with [`EndReason::LlpLost`], and no new one can be made:
    /// open another device.
    DeviceFatal {
        /// Error of the network.
        error: LlpError,
    },
    /// Another host, or the kernel of this machine, uses an address of the device. The device
    /// continues, but connections may fail until the conflict is resolved. Raised once for each
    /// address.
    AddressConflict {
        /// Description of the conflicting user of the address, and what to do.
        error: LlpError,
    },
    /// A listener cannot take connections that have arrived, because this process or machine lacks
    /// a resource, usually descriptors. It tries again until it succeeds. Connections that it could
    /// not take were closed, or wait in TCP. Raised at most once a minute for each listener.
    ListenerShort {
        /// Address of the listener.
        local: SocketAddr,
        /// The missing resource, and what to do.
        error: LlpError,
    },
}

impl AsyncEvent {
    /// Returns the cause: originator, layer, code, violated requirement, and a sentence with a
    /// hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        Cause::from(self)
    }

    /// Returns the object that the event concerns (`element` of `ibv_async_event`). Its destruction
    /// waits until the event is acknowledged.
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

/// Event of a connection. The connection records its events in the order in which they happen, and
/// its driver delivers each one after the turn to the object that it concerns.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
    /// Event for the program.
    Async(AsyncEvent),
    /// MPA startup is done: the peer has accepted, or the program has accepted the peer's request.
    /// `Connection::negotiated` has the parameters. A responder raises
    /// [`AsyncEvent::Established`] later, when the peer's first FPDU has arrived.
    StartupDone,
    /// The connection has ended, all its work is flushed, and the driver has released the LLP
    /// stream. `Connection::end` has the reason.
    Released,
}

/// Object of an [`AsyncEvent`] (`ibv_async_event.element`). Acknowledgements are counted for each
/// object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EventObject {
    /// The device or its port.
    Device,
    /// The QP with this number.
    Qp(u32),
    /// The CQ with this number.
    Cq(u32),
    /// The shared receive queue with this number.
    Srq(u32),
}

/// Reason for the end of a connection (RFC 5040 sections 6.2 and 7).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// The consumer on this side closed the connection.
    LocalDisconnect,
    /// The peer closed the connection after the last segment of a message. Reads and atomics that
    /// it has not begun to answer are flushed.
    PeerDisconnect,
    /// The consumer on this side aborted the connection: by `Qp::abort`, by
    /// moving the QP to Error, or by dropping it with work outstanding.
    Aborted,
    /// The peer (or its lower layers) violated a rule; this side sent a Terminate Message.
    TerminateSent {
        /// The peer's error.
        error: StreamError,
        /// The message that was sent; `None` if none may be sent yet (a responder before its first
        /// valid FPDU, RFC 5044 section 7.1.2).
        terminate: Option<Terminate>,
        /// Details: the region, the bounds or the buffer concerned.
        cause: Cause,
    },
    /// A work request of this side could not be carried out; this side sent a Terminate Message.
    LocalError {
        /// The error.
        cause: Cause,
    },
    /// A completion found no place in its CQ and is lost; this side sent a Terminate Message.
    CqOverflow {
        /// Number of the CQ.
        cq_num: u32,
        /// Maximum number of completions that the CQ holds.
        depth: usize,
        /// `wr_id` of the work request whose completion was lost.
        wr_id: u64,
    },
    /// The peer refused something that this side sent, by a Terminate Message.
    TerminateReceived {
        /// The peer's message.
        terminate: Terminate,
        /// Meaning of the Terminate Message, with the work request concerned.
        cause: Cause,
    },
    /// The peer does not know RFC 7306 (Atomic Operations and Immediate Data) and ended the stream
    /// when such a message arrived. Linux siw is such a peer, and so are RNICs made before 2014.
    PeerLacksRfc7306 {
        /// The refused message; the first one that was sent, if the peer does not report which.
        message: Opcode,
        /// The peer's Terminate Message.
        terminate: Terminate,
    },
    /// TCP ended without a graceful close.
    LlpLost {
        /// Error of TCP.
        error: LlpError,
    },
    /// The peer closed TCP in the middle of a message or an FPDU: it died, or broke the framing.
    ClosedMidway {
        /// The message that lacks its last segment (RFC 5041 section 4.1); `None` if only the
        /// beginning of an FPDU was received.
        message: Option<Opcode>,
    },
    /// TCP did not connect in time.
    ConnectTimedOut,
    /// A close made no progress for `Timeouts::close`, and the connection
    /// was reset. One of these happened:
    /// * The peer's TCP did not acknowledge data.
    /// * Work that was posted before the close could not be done.
    /// * A Read of the peer that had arrived before the close was not answered completely.
    CloseTimedOut {
        /// Bytes of the stream that the peer has not acknowledged. Requests that contain them may
        /// have completed with success, because TCP had taken them.
        undelivered: u64,
    },
    /// The peer is connected, but blocked one direction for too long
    /// (`Timeouts::stalled`, or
    /// `Limits::max_receive_memory`).
    Stalled {
        /// True: the peer did not read what this side had to send. False: it began an FPDU and did
        /// not finish it.
        sending: bool,
    },
    /// MPA startup failed.
    StartupFailed {
        /// The error.
        error: StartupError,
    },
    /// The TCP connection could not be opened.
    ConnectFailed {
        /// Error of TCP.
        error: LlpError,
    },
    /// The peer answered the MPA Request with a reject.
    Rejected {
        /// Private data of the Reply.
        private_data: Vec<u8>,
        /// IRD of an enhanced Reply, as received (6581-9.1-09).
        peer_ird: Option<u16>,
        /// ORD of an enhanced Reply, as received.
        peer_ord: Option<u16>,
        /// `peer_ord`, if the IRD of this side is too small for it: the number of Reads that the
        /// peer needs to have outstanding (RFC 6581 section 9.1).
        ord_needed: Option<u16>,
    },
    /// The peer of a QP that is connected by its number (`Qp::pair`) has gone,
    /// or could not be reached while a send waited for it.
    PeerGone {
        /// How the connection ended, or why the last attempt to connect failed.
        last: Option<Box<EndReason>>,
    },
}

impl std::error::Error for EndReason {}

impl EndReason {
    /// Returns the cause: originator, layer, code, violated requirement, and a sentence with a
    /// hint.
    #[must_use]
    pub fn cause(&self) -> Cause {
        Cause::from(self)
    }

    /// Returns true if one of the two programs closed the connection gracefully (RFC 5040 section
    /// 6.2).
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
            | EndReason::Rejected { .. }
            | EndReason::PeerGone { .. } => false,
        }
    }
}

/// Writes the sentence of the [`cause`](EndReason::cause), details, and the hint.
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
            EndReason::PeerGone { last: Some(last) } => {
                write!(f, ": {}", last.cause().sentence())?;
            }
            EndReason::PeerGone { last: None }
            | EndReason::LocalDisconnect
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

impl From<&EndReason> for Cause {
    fn from(reason: &EndReason) -> Self {
        match reason {
            EndReason::LocalDisconnect => Cause::end(EndFacts::LocalDisconnect),
            EndReason::PeerDisconnect => Cause::end(EndFacts::PeerDisconnect),
            EndReason::Aborted => Cause::end(EndFacts::Aborted),
            EndReason::TerminateSent { cause, .. }
            | EndReason::LocalError { cause }
            | EndReason::TerminateReceived { cause, .. } => *cause,
            EndReason::CqOverflow {
                cq_num,
                depth,
                wr_id,
            } => Cause::end(EndFacts::CqOverflow {
                cq_num: *cq_num,
                depth: u32::try_from(*depth).unwrap_or(u32::MAX),
                wr_id: *wr_id,
            }),
            EndReason::PeerLacksRfc7306 { message, .. } => {
                Cause::end(EndFacts::PeerLacksRfc7306(*message))
            }
            EndReason::LlpLost { error } | EndReason::ConnectFailed { error } => {
                Cause::from(*error)
            }
            EndReason::ClosedMidway { message } => Cause::end(EndFacts::ClosedMidway(*message)),
            EndReason::ConnectTimedOut => Cause::end(EndFacts::ConnectTimedOut),
            &EndReason::CloseTimedOut { undelivered } => {
                Cause::end(EndFacts::CloseTimedOut { undelivered })
            }
            EndReason::Stalled { sending } => Cause::end(EndFacts::Stalled { sending: *sending }),
            EndReason::StartupFailed { error } => Cause::from(*error),
            EndReason::Rejected {
                private_data,
                ord_needed,
                ..
            } => Cause::rejected(private_data, *ord_needed),
            EndReason::PeerGone { .. } => Cause::end(EndFacts::PeerGone),
        }
    }
}

impl From<&AsyncEvent> for Cause {
    fn from(event: &AsyncEvent) -> Self {
        match event {
            AsyncEvent::Established { qp_num } => {
                Cause::event(Happening::Established { qp_num: *qp_num })
            }
            AsyncEvent::Ended { reason, .. } => Cause::from(reason),
            AsyncEvent::CqOverflow {
                cq_num,
                depth,
                qp_num,
            } => Cause::event(Happening::CqOverflow {
                cq_num: *cq_num,
                depth: u32::try_from(*depth).unwrap_or(u32::MAX),
                qp_num: *qp_num,
            }),
            AsyncEvent::SrqLimitReached { srq_num } => {
                Cause::event(Happening::SrqLimit { srq_num: *srq_num })
            }
            AsyncEvent::LastWqeReached { qp_num } => {
                Cause::event(Happening::LastWqe { qp_num: *qp_num })
            }
            AsyncEvent::DeviceFatal { error }
            | AsyncEvent::AddressConflict { error }
            | AsyncEvent::ListenerShort { error, .. } => Cause::from(*error),
        }
    }
}
