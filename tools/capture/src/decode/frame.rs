//! Output of the decoder: frames, with their position in the capture and their findings.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::finding::Finding;
use super::fpdu::Framing;
use super::segment::Segment;
use super::startup::Startup;
use super::words::many;

/// Output of the decoder: a startup frame, an FPDU, or an event in one direction of a connection.
///
/// `Display` writes one line without the time: connection, addresses, content, and each finding
/// after `**`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Number of the packet that completed the frame, counted from 1 as in Wireshark.
    pub packet: u64,
    /// Time of the packet that completed the frame.
    pub time: Duration,
    /// Number of the connection, counted from 1 among the connections with MPA.
    pub connection: u64,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Address of the receiver.
    pub to: SocketAddr,
    /// Offset of the first byte of the frame in the stream of its sender.
    pub offset: u64,
    /// Decoded content of the frame.
    pub content: Content,
    /// Bytes of the frame on the wire, with Markers. Bytes that the capture lacks are zero.
    pub bytes: Vec<u8>,
    /// True if the capture contains all bytes of the frame.
    pub whole: bool,
    /// Violations of RFC requirements in the frame.
    pub findings: Vec<Finding>,
    /// For an FPDU, the framing of its direction, and its offset in Full Operation.
    pub(super) framing: Option<(Framing, u64)>,
}

/// Content of a [`Frame`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An MPA Request or Reply Frame.
    Startup(Startup),
    /// An FPDU.
    Fpdu {
        /// Value of the ULPDU_Length field.
        ulpdu: u16,
        /// The DDP Segment in the ULPDU. `None` if the ULPDU is shorter than the DDP header.
        segment: Option<Segment>,
    },
    /// Bytes that do not belong to a startup frame or FPDU.
    Bytes,
    /// An event in the direction of the sender.
    Event(Event),
}

/// Event in one direction of a connection that uses MPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The capture lacks this many bytes.
    Gap(u64),
    /// The sender sent a FIN. The value is the number of bytes of an incomplete frame before it.
    Fin(usize),
    /// The sender reset the connection.
    Reset,
    /// The connection or the capture ended. The value is the number of bytes of an incomplete
    /// frame.
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
    /// Returns the name of the content as in the RFCs, such as `MPA Request`, `RDMA Write` or
    /// `gap`.
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
