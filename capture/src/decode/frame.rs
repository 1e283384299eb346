//! Output of the decoder: a frame, its place in the capture, and its findings.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::finding::Finding;
use super::fpdu::Framing;
use super::segment::Segment;
use super::startup::Startup;
use super::words::many;

/// A startup frame, an FPDU, or an event in one direction of a connection.
///
/// Displayed as one line without the time: connection, addresses, content, and each finding after
/// `**`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Number of the packet that completed the frame, counted from 1 as in Wireshark.
    pub packet: u64,
    /// Time of that packet.
    pub time: Duration,
    /// Number of the connection, among those with MPA, counted from 1.
    pub connection: u64,
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Offset of its first byte in the sender's stream.
    pub offset: u64,
    /// Kind of frame.
    pub content: Content,
    /// Its bytes on the wire, with Markers; zeros where the capture lacks bytes.
    pub bytes: Vec<u8>,
    /// True if the capture holds all of its bytes.
    pub whole: bool,
    /// RFC requirements that it violates.
    pub findings: Vec<Finding>,
    /// For FPDUs: the framing of the direction, and the offset of the FPDU in Full Operation.
    pub(super) framing: Option<(Framing, u64)>,
}

/// Content of a [`Frame`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An MPA Request or Reply.
    Startup(Startup),
    /// An FPDU.
    Fpdu {
        /// ULPDU_Length.
        ulpdu: u16,
        /// The DDP Segment in it; `None` if the ULPDU is shorter than its header.
        segment: Option<Segment>,
    },
    /// Bytes that belong to no startup frame or FPDU.
    Bytes,
    /// An event in the sender's direction.
    Event(Event),
}

/// Event in one direction of a connection with MPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// This many bytes are missing from the capture.
    Gap(u64),
    /// FIN, after this many bytes of an incomplete frame.
    Fin(usize),
    /// Reset.
    Reset,
    /// The connection or the capture ends with this many bytes of an incomplete frame.
    Unfinished(usize),
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "#{} {} > {}: {}",
            self.connection, self.from, self.to, self.content
        )?;
        if !self.whole {
            f.write_str(" (incomplete in the capture)")?;
        }
        for finding in &self.findings {
            write!(f, " ** {finding}")?;
        }
        Ok(())
    }
}

impl Content {
    /// Name of the content, as in the RFCs: `MPA Request`, `RDMA Write`, `gap`.
    pub fn name(&self) -> String {
        match self {
            Self::Startup(startup) if startup.reply => "MPA Reply".to_owned(),
            Self::Startup(_) => "MPA Request".to_owned(),
            Self::Fpdu {
                segment: Some(segment),
                ..
            } => segment
                .opcode()
                .map_or("unknown opcode".to_owned(), |opcode| opcode.to_string()),
            Self::Fpdu { .. } => "FPDU".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Event(Event::Gap(_)) => "gap".to_owned(),
            Self::Event(Event::Fin(_)) => "FIN".to_owned(),
            Self::Event(Event::Reset) => "RST".to_owned(),
            Self::Event(Event::Unfinished(_)) => "unfinished".to_owned(),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Startup(startup) => startup.fmt(f),
            Self::Fpdu {
                segment: Some(segment),
                ..
            } => segment.fmt(f),
            Self::Fpdu { ulpdu, .. } => write!(f, "FPDU with ULPDU_Length {ulpdu}"),
            Self::Bytes => f.write_str("bytes that are not an MPA frame"),
            Self::Event(event) => event.fmt(f),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gap(len) => {
                let is = if len == 1 { "is" } else { "are" };
                write!(f, "{} {is} not in the capture", many(len, "byte"))
            }
            Self::Fin(0) => f.write_str("FIN"),
            Self::Fin(len) => {
                let bytes = many(len, "byte");
                write!(f, "FIN after {bytes} of an incomplete frame")
            }
            Self::Reset => f.write_str("RST"),
            Self::Unfinished(len) => {
                let bytes = many(len, "byte");
                write!(f, "{bytes} of an incomplete frame at the end")
            }
        }
    }
}
