//! Causes of the end of a connection that no other file of this module covers.

use std::fmt;

use uwarp_mpa::MpaErrorCode;
use uwarp_rdmap::{Opcode, Requirement, StreamError, TerminateCode};

use super::event::DEEPER;
use super::parts::{Account, Layer, Who};

/// Facts of an [`EndReason`](crate::event::EndReason) for its sentence and hint.
///
/// A flushed completion carries them, so they are small and `Copy`. An `EndReason` cannot be: it
/// owns the private data or the Terminate Message of the peer, and itself contains causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndFacts {
    /// This side closed the connection.
    LocalDisconnect,
    /// The peer closed the connection.
    PeerDisconnect,
    /// This side gave the connection up.
    Aborted,
    /// The peer closed TCP in the middle of this message; `None`: in the middle of an FPDU.
    ClosedMidway(Option<Opcode>),
    /// TCP did not connect in time.
    ConnectTimedOut,
    /// A close made no progress.
    CloseTimedOut {
        /// Bytes that the peer has not acknowledged.
        undelivered: u64,
    },
    /// TCP makes no progress.
    Stalled {
        /// True: the peer does not take this side's data. False: it does not finish an FPDU that it
        /// began.
        sending: bool,
    },
    /// The peer's program rejected the connection.
    Rejected {
        /// Length of the private data in the Reply, in bytes.
        private_data_len: u16,
        /// Number of Reads that the peer needs to have outstanding, if the peer reports it.
        ord_needed: Option<u16>,
    },
    /// The Reply is not acceptable (RFC 6581 sections 9.1 and 9.2).
    ReplyRefused(MpaErrorCode),
    /// The peer does not know RFC 7306 and refused this message.
    PeerLacksRfc7306(Opcode),
    /// The completion of this work request is lost.
    CqOverflow {
        /// Number of the CQ.
        cq_num: u32,
        /// Maximum number of completions that the CQ holds.
        depth: u32,
        /// `wr_id` of the request.
        wr_id: u64,
    },
    /// The peer of a QP that is connected by its number has gone, or never answered.
    PeerGone,
}

impl EndFacts {
    /// Returns the end by the peer's Reply with R = 1.
    pub(crate) fn rejected(private_data: &[u8], ord_needed: Option<u16>) -> Self {
        Self::Rejected {
            private_data_len: u16::try_from(private_data.len()).unwrap_or(u16::MAX),
            ord_needed,
        }
    }

    pub(super) fn account(self) -> Account {
        let lost = TerminateCode {
            layer: 2,
            etype: 0,
            code: MpaErrorCode::ConnectionLost.code(),
        };
        match self {
            Self::LocalDisconnect => Account::new("", Who::Program, Layer::Verbs),
            Self::PeerDisconnect => Account::new("", Who::PeerProgram, Layer::Tcp)
                .hint("if that was too early, check the peer's program: it ended or closed the connection"),
            Self::Aborted => Account::new("", Who::Program, Layer::Verbs).hint(
                "disconnect, then wait for the completions and the end of the connection before dropping the queue pair",
            ),
            Self::ClosedMidway(message) => {
                let layer = message.map_or(Layer::Mpa, |_| Layer::Ddp);
                Account::new("connection lost", Who::PeerProgram, layer)
                    .terminate(Some(lost))
                    .against(lost.requirement())
                    .hint("check the peer's program: it ended while it was sending")
            }
            Self::ConnectTimedOut => Account::new("cannot connect", Who::Network, Layer::Tcp)
                .hint("check the address: the host may be down, or a firewall may drop the packets; the limit is a setting (timeouts.connect)"),
            Self::CloseTimedOut { undelivered: 0 } => Account::new("close timed out", Who::PeerProgram, Layer::Tcp)
                .hint("check whether the peer's program hangs or does not answer requests from before the close; the limit is a setting (timeouts.close)"),
            Self::CloseTimedOut { .. } => Account::new("data lost in close", Who::PeerProgram, Layer::Tcp)
                .hint("check whether the peer's program hangs or reads too slowly; the limit is a setting (timeouts.close)"),
            Self::Stalled { .. } => Account::new("connection stalled", Who::PeerProgram, Layer::Tcp)
                .hint("check whether the peer hangs or stalls on purpose; the limit is a setting (timeouts.stalled), and 2 s while receive memory is at its limit (limits.max_receive_memory)"),
            Self::Rejected {
                ord_needed: Some(_), ..
            } => Account::new("", Who::PeerProgram, Layer::Mpa)
                .against(Some(Requirement::new(
                    "6581-9.1-05",
                    "a responder may reject when the IRD of the initiator is below the ORD it needs",
                )))
                .hint("connect with an ird of that number, if this is why the peer rejects; its private data may say more"),
            Self::Rejected {
                private_data_len,
                ord_needed: None,
            } => Account::new("", Who::PeerProgram, Layer::Mpa)
                .against(Some(Requirement::new(
                    "5044-7.1.2-05",
                    "a responder that does not want the connection answers with R = 1",
                )))
                .hint(if private_data_len == 0 {
                    "check the peer: its program does not want this connection or decided too late, or its device has reached a limit"
                } else {
                    "read its private data, which may say why"
                }),
            Self::ReplyRefused(code) => reply_refused(code),
            Self::PeerLacksRfc7306(_) => {
                let code = StreamError::UnexpectedOpcode(0).terminate_code();
                Account::new("remote operation error", Who::PeerStack, Layer::Rdmap)
                    .terminate(code)
                    .against(Some(Requirement::new(
                        "7306-1.1-i01",
                        "a side that does not know a message of RFC 7306 reports an unexpected opcode",
                    )))
                    .hint("use only Sends, Writes and Reads with this peer; a Send after a Write replaces Immediate Data")
            }
            Self::CqOverflow { .. } => Account::new("completion lost", Who::Program, Layer::Verbs)
                .hint(DEEPER),
            Self::PeerGone => Account::new("peer is gone", Who::PeerProgram, Layer::Verbs).hint(
                "check that the peer's program runs, that its queue pair has this number and is connected to the number of this one, and that no firewall drops TCP to the port (the number of the queue pair divided by 256)",
            ),
        }
    }
}

fn reply_refused(code: MpaErrorCode) -> Account {
    let number = TerminateCode {
        layer: 2,
        etype: 0,
        code: code.code(),
    };
    let hint = match code {
        MpaErrorCode::InsufficientIrd => {
            "raise max_ird in the settings of this device, or set a smaller ord at the peer"
        }
        _ => "enable a common RTR indication on both sides (Settings::rtr)",
    };
    Account::new("startup failed", Who::Program, Layer::Mpa)
        .terminate(Some(number))
        .against(number.requirement())
        .hint(hint)
}

impl fmt::Display for EndFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalDisconnect => "the connection was closed by this side",
            Self::PeerDisconnect => "the connection was closed by the peer",
            Self::Aborted => "this side aborted the connection, or dropped the queue pair with work outstanding",
            Self::ClosedMidway(Some(message)) => {
                return write!(
                    f,
                    "the peer closed the TCP connection in the middle of a message ({message}), the rest of which \
                     never arrived: it died or stopped sending"
                );
            }
            Self::ClosedMidway(None) => {
                "the peer closed the TCP connection in the middle of an FPDU: it died or lost its framing"
            }
            Self::ConnectTimedOut => "TCP did not connect in time",
            Self::CloseTimedOut { undelivered: 0 } => {
                "the close timed out: the peer did not answer requests from before the close, and the connection was reset"
            }
            Self::CloseTimedOut { undelivered } => {
                let bytes = if *undelivered == 1 { "byte" } else { "bytes" };
                return write!(
                    f,
                    "the close timed out: the peer's TCP acknowledged too little for too long, and the connection was reset; {undelivered} {bytes} \
                     may be lost, even from requests that completed with success"
                );
            }
            Self::Stalled { sending: true } => {
                "the peer did not read the data sent to it for too long, and the connection was reset"
            }
            Self::Stalled { sending: false } => {
                "the peer began an FPDU and did not finish it for too long, and the connection was reset"
            }
            Self::Rejected { private_data_len, ord_needed } => return rejection(f, *private_data_len, *ord_needed),
            Self::ReplyRefused(MpaErrorCode::InsufficientIrd) => {
                "the peer wants more RDMA Reads outstanding than max_ird allows"
            }
            Self::ReplyRefused(_) => "the peer and this side have no RTR indication in common",
            Self::PeerLacksRfc7306(message) => {
                return write!(
                    f,
                    "the peer does not know RFC 7306 (atomic operations and Immediate Data): it refused the message {message} as an unexpected opcode"
                );
            }
            Self::CqOverflow {
                cq_num,
                depth,
                wr_id,
            } => {
                return write!(
                    f,
                    "completion queue {cq_num} was full ({depth} completions), and the completion of work request {wr_id} is lost"
                );
            }
            Self::PeerGone => "the peer's queue pair does not answer",
        })
    }
}

fn rejection(
    f: &mut fmt::Formatter<'_>,
    private_data_len: u16,
    ord_needed: Option<u16>,
) -> fmt::Result {
    f.write_str("the peer rejected the connection")?;
    if let Some(ord) = ord_needed {
        write!(f, ", and reports that it needs {ord} Reads outstanding")?;
    }
    match private_data_len {
        0 => Ok(()),
        private_data_len => write!(f, ", with {private_data_len} bytes of private data"),
    }
}
