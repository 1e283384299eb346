//! What a decoder gives out: a frame with where it was found and what is wrong with it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::finding::Finding;
use super::fpdu::Framing;
use super::segment::Segment;
use super::startup::Startup;
use super::words::many;

/// A startup frame, an FPDU, or what happened to a direction of a connection.
///
/// It displays as one line without the time: connection, addresses, what it is, and what breaks the RFCs behind `**`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The packet with which it was whole, counted from 1 as Wireshark does.
    pub packet: u64,
    /// That packet's time.
    pub time: Duration,
    /// Which connection with MPA, counted from 1.
    pub connection: u64,
    /// Who sent it.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// Where it begins in the sender's stream of bytes.
    pub offset: u64,
    /// What it is.
    pub content: Content,
    /// Its bytes on the wire, Markers included; zeros where they are not in the capture.
    pub octets: Vec<u8>,
    /// All of its bytes are in the capture.
    pub whole: bool,
    /// What it does not keep of the RFCs.
    pub findings: Vec<Finding>,
    /// For FPDUs: how the direction is framed, and where in it this one begins.
    pub(super) framing: Option<(Framing, u64)>,
}

/// What a [`Frame`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An MPA Request or Reply.
    Startup(Startup),
    /// An FPDU.
    Fpdu {
        /// ULPDU_Length.
        ulpdu: u16,
        /// The DDP Segment in it; `None` when it is shorter than its header.
        segment: Option<Segment>,
    },
    /// Bytes that are none of these.
    Octets,
    /// Something that happened to the sender's direction.
    Event(Event),
}

/// What happens to a direction of a connection with MPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// So many bytes are not in the capture.
    Gap(u64),
    /// FIN; so many bytes of a frame that is not whole stand before it.
    Fin(usize),
    /// Reset.
    Reset,
    /// The connection or the capture ends; so many bytes are left that are no whole frame.
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
            f.write_str(" (not all of it is in the capture)")?;
        }
        for finding in &self.findings {
            write!(f, " ** {finding}")?;
        }
        Ok(())
    }
}

impl Content {
    /// What kind of thing it is, in the RFC's words: `MPA Request`, `RDMA Write`, `gap`.
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
            Self::Octets => "bytes".to_owned(),
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
            Self::Octets => f.write_str("bytes that are no MPA frame"),
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
                let octets = many(len, "byte");
                write!(f, "FIN behind {octets} of a frame that is not whole")
            }
            Self::Reset => f.write_str("RST"),
            Self::Unfinished(len) => {
                let octets = many(len, "byte");
                write!(f, "{octets} of a frame that is not whole at the end")
            }
        }
    }
}
