//! The capture file: one per process, shared by every device and connection.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::block::{self, PacketInfo};
use crate::live::LiveFlows;

/// What the bytes of an interface's packets start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// An IPv4 or IPv6 header (LINKTYPE_RAW, 101).
    RawIp,
    /// An Ethernet header, without the frame check sequence (LINKTYPE_ETHERNET, 1).
    Ethernet,
}

impl LinkType {
    /// The number registered for it at tcpdump.org.
    pub const fn code(self) -> u16 {
        match self {
            Self::RawIp => 101,
            Self::Ethernet => 1,
        }
    }
}

/// Which way a packet went, seen from this process; kept in the file as `epb_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Direction {
    /// It came in.
    Inbound,
    /// It went out.
    Outbound,
    /// Not known, or neither.
    #[default]
    Unknown,
}

impl Direction {
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Inbound => 1,
            Self::Outbound => 2,
        }
    }

    pub(crate) const fn from_flags(flags: u32) -> Self {
        match flags & 3 {
            1 => Self::Inbound,
            2 => Self::Outbound,
            _ => Self::Unknown,
        }
    }
}

/// A pcapng file, or pipe, that is being written. Clones share it; any thread may use it.
///
/// * Every packet is handed to the operating system, whole and in one write, before the call that
///   records it returns. Nothing waits in a buffer of this process: after Ctrl-C or a kill the
///   file is readable up to the last whole packet.
/// * A write that fails (disk full, the reader of the pipe gone) ends the capture, not the traffic:
///   from then on packets are dropped at the cost of one atomic load, and [`Capture::error`] tells
///   what happened.
/// * A pipe whose reader is slow slows the writer down, as any blocking write does.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Mutex<Sink>,
    /// Set once, by the first write that failed.
    error: OnceLock<String>,
    live: LiveFlows,
}

struct Sink {
    writer: Box<dyn Write + Send>,
    /// Interface Description Blocks written so far.
    interfaces: u32,
    /// The block under construction; kept for its capacity.
    block: Vec<u8>,
}

impl Capture {
    /// Creates the file at `path`, replacing one that is there, and writes the file header.
    ///
    /// `-` means standard output, so that `| tshark -i -` or `| wireshark -k -i -` can follow. A
    /// named pipe works too; opening it waits for its reader.
    ///
    /// # Errors
    /// As of [`File::create`] and of the first write.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Self::to_writer(Box::new(stdout()?));
        }
        Self::to_writer(Box::new(File::create(path)?))
    }

    /// Writes the capture to `writer`, which is flushed after every packet.
    ///
    /// # Errors
    /// As of the first write.
    pub fn to_writer(writer: Box<dyn Write + Send>) -> io::Result<Self> {
        let mut sink = Sink {
            writer,
            interfaces: 0,
            block: Vec::new(),
        };
        block::section_header(
            &mut sink.block,
            concat!("uwarp ", env!("CARGO_PKG_VERSION")),
        );
        sink.write_block()?;
        let shared = Shared {
            sink: Mutex::new(sink),
            error: OnceLock::new(),
            live: LiveFlows::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Adds an interface to the capture. `name` is what Wireshark shows as interface name.
    ///
    /// Never fails: when the capture has ended by an error the interface swallows its packets.
    pub fn interface(&self, name: &str, link: LinkType) -> Interface {
        let mut index = 0;
        self.write(|sink| {
            index = sink.interfaces;
            sink.interfaces = sink.interfaces.saturating_add(1);
            block::interface(&mut sink.block, name, link);
        });
        Interface {
            capture: self.clone(),
            index,
            link,
        }
    }

    /// The first write error in words, if one ended the capture.
    pub fn error(&self) -> Option<String> {
        self.shared.error.get().cloned()
    }

    pub(crate) fn live(&self) -> &LiveFlows {
        &self.shared.live
    }

    /// Builds one block under the lock and writes it; does nothing after an error.
    fn write(&self, build: impl FnOnce(&mut Sink)) {
        if self.shared.error.get().is_some() {
            return;
        }
        let mut sink = self
            .shared
            .sink
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Another thread may have met the error while this one waited. A block after a torn one
        // would make the file unreadable.
        if self.shared.error.get().is_some() {
            return;
        }
        sink.block.clear();
        build(&mut sink);
        if let Err(error) = sink.write_block() {
            let text = format!("the capture ended early, writing a packet failed: {error}");
            // Under the lock only one thread gets here.
            let _ = self.shared.error.set(text);
        }
    }
}

impl Sink {
    fn write_block(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.block)?;
        self.writer.flush()
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("error", &self.shared.error.get())
            .finish_non_exhaustive()
    }
}

/// One interface of a [`Capture`]. Clones share it; any thread may use it.
#[derive(Debug, Clone)]
pub struct Interface {
    capture: Capture,
    index: u32,
    link: LinkType,
}

impl Interface {
    /// Records one packet, the concatenation of `parts`, with the time of this call.
    pub fn packet(&self, direction: Direction, parts: &[&[u8]]) {
        self.record(direction, None, parts);
    }

    /// As [`Interface::packet`], with a comment that Wireshark shows beside the packet.
    pub fn packet_with_comment(&self, direction: Direction, comment: &str, parts: &[&[u8]]) {
        self.record(direction, Some(comment), parts);
    }

    /// What packets of this interface start with.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// The capture it belongs to.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    fn record(&self, direction: Direction, comment: Option<&str>, parts: &[&[u8]]) {
        self.capture.write(|sink| {
            // Read under the lock, so that times in the file do not run backwards.
            let info = PacketInfo {
                interface: self.index,
                nanoseconds: now(),
                direction,
                comment,
            };
            block::packet(&mut sink.block, &info, parts);
        });
    }
}

/// Nanoseconds since 1970; zero for a clock before that, the last value past the year 2554.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Standard output without the line buffer of `std::io::stdout`.
#[cfg(unix)]
fn stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Standard output; `to_writer` flushes after every packet.
#[cfg(not(unix))]
fn stdout() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

#[cfg(test)]
#[path = "capture/tests.rs"]
pub(crate) mod tests;
