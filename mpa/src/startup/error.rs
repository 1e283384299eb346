//! Startup errors. The local caller causes a [`ConfigError`]. The peer or the connection causes a
//! [`StartupError`].

use core::fmt;

use thiserror::Error;

use super::frame::MAX_PRIVATE_DATA;
use super::negotiated::Role;
use super::options::NO_AUTO;
use crate::error::MpaErrorCode;

/// Startup parameters that are invalid or cannot be sent in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The Private Data is too long.
    #[error("{len} bytes of private data do not fit: at most {max} do{}", enhanced_note(*.max))]
    PrivateDataTooLong {
        /// Length of the Private Data in bytes.
        len: usize,
        /// Limit in bytes: 512, or 508 after enhanced connection data (6581-6-i02).
        max: usize,
    },
    /// An IRD, ORD or limit is too large for the 14-bit field of a frame.
    #[error("{value} is too deep an RDMA Read queue: the limit is {max}")]
    DepthTooLarge {
        /// The rejected value.
        value: u16,
        /// Largest allowed value. For an IRD or ORD it is [`NO_AUTO`], which means "not
        /// negotiated"; for a limit it is one less.
        max: u16,
    },
    /// The limit of the IRD is below the IRD itself.
    #[error("max_ird {max_ird} is below the IRD of {ird} that is asked for")]
    LimitBelowIrd {
        /// The requested IRD.
        ird: u16,
        /// The limit of the IRD.
        max_ird: u16,
    },
    /// The peer-to-peer model was requested without the enhanced connection data that declares it.
    #[error("the peer-to-peer model needs MPA revision 2 (RFC 6581)")]
    PeerToPeerNeedsRevisionTwo,
    /// No RTR kind was given for the peer-to-peer model, or for enhanced startup as a responder
    /// (6581-9.2-03).
    #[error("at least one kind of RTR indication has to be named")]
    NoRtrKind,
    /// The frame has enhanced connection data, but its revision has none (6581-6-01).
    #[error("enhanced connection data needs MPA revision 2 or higher, not {revision}")]
    EnhancedNeedsRevisionTwo {
        /// The Rev field of the frame.
        revision: u8,
    },
    /// The Responder has no Request to answer.
    #[error("there is no MPA Request to answer: none was received yet, or it was answered before")]
    NothingToAnswer,
}

fn enhanced_note(max: usize) -> &'static str {
    if max < MAX_PRIVATE_DATA {
        " beside the IRD and ORD of MPA revision 2"
    } else {
        ""
    }
}

/// Checks an IRD or ORD.
pub(super) fn check_depth(value: u16) -> Result<(), ConfigError> {
    if value <= NO_AUTO {
        Ok(())
    } else {
        Err(ConfigError::DepthTooLarge {
            value,
            max: NO_AUTO,
        })
    }
}

/// Checks a limit of the IRD, which has to be a number and not [`NO_AUTO`].
pub(super) fn check_limit(value: u16) -> Result<(), ConfigError> {
    if value < NO_AUTO {
        Ok(())
    } else {
        Err(ConfigError::DepthTooLarge {
            value,
            max: NO_AUTO - 1,
        })
    }
}

/// First bytes from a peer that does not speak MPA, for the error message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FirstBytes {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl FirstBytes {
    /// Largest number of bytes that are kept.
    pub const MAX: usize = 24;

    /// Copies the first bytes of `before` followed by `after`.
    pub(super) fn of(before: &[u8], after: &[u8]) -> Self {
        let mut bytes = [0; Self::MAX];
        let mut len = 0;
        for (place, &byte) in bytes.iter_mut().zip(before.iter().chain(after)) {
            *place = byte;
            len += 1;
        }
        Self { bytes, len }
    }

    /// Returns the bytes as received.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Displays the bytes as text in quotes if they start with a line of text, otherwise in
/// hexadecimal.
impl fmt::Display for FirstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.as_slice();
        let printable = bytes
            .iter()
            .take_while(|o| matches!(o, b' '..=b'~'))
            .count();
        let line_end = bytes
            .get(printable)
            .is_none_or(|o| matches!(o, b'\r' | b'\n' | b'\t'));
        // Fewer than four printable bytes count as text only if the line ends after them.
        if printable > 0 && (line_end || printable >= 4) {
            let text = bytes.get(..printable).unwrap_or_default();
            return write!(f, "'{}'", core::str::from_utf8(text).unwrap_or_default());
        }
        f.write_str("bytes")?;
        bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

impl fmt::Debug for FirstBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FirstBytes({self})")
    }
}

/// Reason why startup failed. The TCP connection has to be closed at once, without a Terminate
/// (5044-8-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The received bytes do not begin with an MPA key (5044-7.1.1-02, -04).
    #[error("the peer {} {first}, not an MPA {}", verb(*.peer), frame_of(*.peer))]
    NotMpa {
        /// First bytes received.
        first: FirstBytes,
        /// Role that the peer should have.
        peer: Role,
    },
    /// The peer sent a Request instead of a Reply: both sides are initiators (5044-7.1.2-17).
    #[error(
        "the peer sent an MPA Request, not an MPA Reply: both sides are connecting (initiators), and one has to listen"
    )]
    RequestInsteadOfReply,
    /// The peer sent a Reply instead of a Request.
    #[error(
        "the peer sent an MPA Reply, not an MPA Request: it takes itself for the accepting side (responder)"
    )]
    ReplyInsteadOfRequest,
    /// The Rev field holds a revision that this side does not support (5044-7.1.1-14).
    #[error(
        "the peer speaks MPA revision {revision}; {} spoken here",
        if *.highest == 1 { "only revision 1 is" } else { "revisions 1 and 2 are" }
    )]
    UnsupportedRevision {
        /// The peer's Rev field.
        revision: u8,
        /// Highest revision that this side accepts.
        highest: u8,
    },
    /// `PD_Length` is above 512 (5044-7.1.1-16).
    #[error("the peer announces {len} bytes of private data; MPA allows {MAX_PRIVATE_DATA}")]
    PrivateDataTooLong {
        /// `PD_Length`.
        len: u16,
    },
    /// The frame claims enhanced connection data (S = 1) but is too short to hold it (6581-6-04).
    #[error(
        "the peer's frame claims to begin with IRD and ORD (4 bytes) but holds {len} bytes of private data"
    )]
    EnhancedDataMissing {
        /// `PD_Length`.
        len: u16,
    },
    /// The Reply to an enhanced Request lacks enhanced connection data, or the Reply to an
    /// unenhanced Request has it (6581-10-01, -02).
    #[error(
        "the peer's MPA Reply {} the IRD and ORD of revision 2 although our Request {}",
        if *.reply_enhanced { "has" } else { "lacks" },
        if *.reply_enhanced { "had none" } else { "had them" }
    )]
    EnhancedMismatch {
        /// True if the Reply had enhanced connection data and the Request did not; false for the
        /// opposite.
        reply_enhanced: bool,
    },
    /// Bytes arrived after the Request, although the initiator has no Reply yet. Either `PD_Length`
    /// does not match the Private Data (5044-7.1.1-16), or the initiator did not wait for the Reply
    /// (5044-7.1.2-11). The owner of the stream raises this error.
    #[error(
        "the peer sent {count} bytes after its MPA Request and before our Reply: the length of its private data is wrong, or it does not wait for the Reply"
    )]
    TrailingBytes {
        /// Number of bytes after the Request.
        count: usize,
    },
    /// The initiator sent no first FPDU: neither its RTR indication (RFC 6581 section 9.2) nor
    /// data. The owner of the timer raises this error.
    #[error(
        "the peer has its MPA Reply, but sent no first message (an RTR indication, or data) for too long"
    )]
    RtrMissing,
    /// Too many connections are in startup, so this connection was refused. The owner of the
    /// listener raises this error.
    #[error("refused before the first byte: too many connections in startup ({limit} {})",
        if *.of_peer { "of this peer" } else { "of all peers" }
    )]
    NoPlace {
        /// Maximum number of connections in startup.
        limit: u32,
        /// True if the limit applies to each peer, false if it applies to all peers together.
        of_peer: bool,
    },
    /// All places were taken, and this connection was the oldest in startup. A newer connection
    /// took its place. The owner of the listener raises this error.
    #[error(
        "reset before the peer's MPA Request was whole: a newer connection needed its place, one of {limit} {}",
        if *.of_listener { "of the listener" } else { "for all peers together" }
    )]
    Displaced {
        /// Number of places for connections in startup.
        limit: u32,
        /// True if the limit applies to one listener, false if it applies to all peers together.
        of_listener: bool,
    },
    /// The peer has reached its limit of connections, so its Request was answered with a reject.
    /// The owner of the listener raises this error.
    #[error("rejected: {} already {} {limit} connections, the limit",
        if *.of_peer { "the peer" } else { "all peers together" },
        if *.of_peer { "has" } else { "have" }
    )]
    TooManyConnections {
        /// Maximum number of connections.
        limit: u32,
        /// True if the limit applies to each peer, false if it applies to all peers together.
        of_peer: bool,
    },
    /// Too many connections of the peer ended because it accessed memory without permission, so its
    /// Request was answered with a reject. The owner of the listener raises this error.
    #[error(
        "rejected: more than {limit} connections of the peer have ended because it accessed memory without permission; the next one is accepted in {wait_ms} ms"
    )]
    TooManyStagErrors {
        /// Number of such ends that have no consequence.
        limit: u32,
        /// Time in milliseconds until the next connection of the peer is accepted.
        wait_ms: u32,
    },
    /// The connection ended during startup.
    #[error(
        "the peer {} {}{}",
        if *.reset { "reset the connection" } else { "closed the connection" },
        Progress { peer: *.peer, received: *.received },
        if *.enhanced && *.received == 0 {
            "; it may not know enhanced startup: try again with MPA revision 1"
        } else { "" }
    )]
    Closed {
        /// True if the connection ended by RST, false if by FIN.
        reset: bool,
        /// Number of bytes received of the peer's startup frame.
        received: usize,
        /// True if this side sent an enhanced Request.
        enhanced: bool,
        /// Role that the peer should have.
        peer: Role,
    },
    /// The caller's time limit for startup ran out (5044-7.1.2-18, -22).
    #[error("the peer sent nothing more for too long, {}{}",
        Progress { peer: *.peer, received: *.received },
        if *.received == 0 && matches!(peer, Role::Initiator) {
            "; it may be waiting for us to connect (a responder)"
        } else { "" }
    )]
    TimedOut {
        /// Number of bytes received of the peer's startup frame.
        received: usize,
        /// Role that the peer should have.
        peer: Role,
    },
}

impl StartupError {
    /// Returns the code for the local report (RFC 5044 section 8). It is never sent to the peer.
    #[must_use]
    pub const fn code(&self) -> MpaErrorCode {
        match self {
            Self::Closed { .. } | Self::TimedOut { .. } | Self::RtrMissing => {
                MpaErrorCode::ConnectionLost
            }
            Self::NoPlace { .. }
            | Self::Displaced { .. }
            | Self::TooManyConnections { .. }
            | Self::TooManyStagErrors { .. } => MpaErrorCode::LocalCatastrophic,
            Self::NotMpa { .. }
            | Self::TrailingBytes { .. }
            | Self::RequestInsteadOfReply
            | Self::ReplyInsteadOfRequest
            | Self::UnsupportedRevision { .. }
            | Self::PrivateDataTooLong { .. }
            | Self::EnhancedDataMissing { .. }
            | Self::EnhancedMismatch { .. } => MpaErrorCode::InvalidStartupFrame,
        }
    }

    /// Returns true if the peer closed the connection after an enhanced Request, without any
    /// answer. A peer that knows only RFC 5044 may do this. A new connection with
    /// [`Revision::One`](super::Revision::One) may succeed (6581-10-05).
    #[must_use]
    pub const fn may_retry_with_revision_1(&self) -> bool {
        matches!(
            self,
            Self::Closed {
                received: 0,
                enhanced: true,
                ..
            }
        )
    }
}

const fn verb(peer: Role) -> &'static str {
    match peer {
        Role::Initiator => "sent",
        Role::Responder => "answered",
    }
}

const fn frame_of(peer: Role) -> &'static str {
    match peer {
        Role::Initiator => "Request",
        Role::Responder => "Reply",
    }
}

/// Progress of the peer's startup frame.
struct Progress {
    peer: Role,
    received: usize,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = frame_of(self.peer);
        match self.received {
            0 => write!(f, "before the first byte of its MPA {frame}"),
            1 => write!(f, "after 1 byte of its MPA {frame}"),
            received => write!(f, "after {received} bytes of its MPA {frame}"),
        }
    }
}

#[cfg(test)]
mod tests;
