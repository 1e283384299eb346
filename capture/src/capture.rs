//! The capture file, shared by every device and connection of the process.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::block::{self, PacketInfo};
use crate::live::LiveFlows;

/// Protocol of the first header in the packets of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// An IPv4 or IPv6 header (LINKTYPE_RAW, 101).
    RawIp,
    /// An Ethernet header, without the frame check sequence (LINKTYPE_ETHERNET, 1).
    Ethernet,
}

impl LinkType {
    /// The number registered at tcpdump.org.
    pub const fn code(self) -> u16 {
        match self {
            Self::RawIp => 101,
            Self::Ethernet => 1,
        }
    }
}

/// Direction of a packet, seen from this process; `epb_flags` in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
    /// Unknown, or neither.
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

/// A pcapng file or pipe that is being written. Clones share it, and any thread may use it.
///
/// * Every packet is passed to the operating system in a single write before the recording call
///   returns. Nothing waits in a buffer of this process: after Ctrl-C or a kill, the file is
///   readable up to the last whole packet.
/// * A failed write (disk full, reader of the pipe gone) ends the capture, not the traffic. Later
///   packets are dropped at the cost of one atomic load, and [`Capture::error`] returns the reason.
/// * A slow reader of a pipe slows the writer down, as with any blocking write.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Mutex<Sink>,
    /// Set once, by the first failed write.
    error: OnceLock<String>,
    live: LiveFlows,
}

struct Sink {
    writer: Box<dyn Write + Send>,
    /// Interface Description Blocks written so far.
    interfaces: u32,
    /// Block that is being built; kept for its capacity.
    block: Vec<u8>,
}

impl Capture {
    /// Creates the file at `path`, or replaces it, and writes the file header.
    ///
    /// `-` means standard output, for use with `| tshark -i -` or `| wireshark -k -i -`. With a
    /// named pipe, the call waits until a reader opens it.
    ///
    /// # Errors
    /// Errors of [`File::create`] and of the first write.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Self::to_writer(Box::new(stdout()?));
        }
        Self::to_writer(Box::new(File::create(path)?))
    }

    /// Writes the capture to `writer` and flushes it after every packet.
    ///
    /// # Errors
    /// Errors of the first write.
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

    /// Adds an interface to the capture. Wireshark shows `name` as the interface name.
    ///
    /// Never fails: after a write error, the interface drops its packets.
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

    /// Text of the write error that ended the capture, if there was one.
    pub fn error(&self) -> Option<String> {
        self.shared.error.get().cloned()
    }

    pub(crate) fn live(&self) -> &LiveFlows {
        &self.shared.live
    }

    /// Builds one block under the lock and writes it. Does nothing after an error.
    fn write(&self, build: impl FnOnce(&mut Sink)) {
        if self.shared.error.get().is_some() {
            return;
        }
        let mut sink = self
            .shared
            .sink
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Another thread may have hit the error while this one waited. A block after an incomplete
        // one would make the file unreadable.
        if self.shared.error.get().is_some() {
            return;
        }
        sink.block.clear();
        build(&mut sink);
        if let Err(error) = sink.write_block() {
            let text = format!("the capture ended early because writing a packet failed: {error}");
            // Only the thread that holds the lock gets here.
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

/// One interface of a [`Capture`]. Clones share it, and any thread may use it.
#[derive(Debug, Clone)]
pub struct Interface {
    capture: Capture,
    index: u32,
    link: LinkType,
}

impl Interface {
    /// Records one packet, the concatenation of `parts`, with the current time.
    pub fn packet(&self, direction: Direction, parts: &[&[u8]]) {
        self.record(direction, None, parts);
    }

    /// Like [`Interface::packet`], with a comment that Wireshark shows with the packet.
    pub fn packet_with_comment(&self, direction: Direction, comment: &str, parts: &[&[u8]]) {
        self.record(direction, Some(comment), parts);
    }

    /// Protocol of the first header in the packets of this interface.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// The capture that this interface belongs to.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    fn record(&self, direction: Direction, comment: Option<&str>, parts: &[&[u8]]) {
        self.capture.write(|sink| {
            // The clock is read under the lock, so that times in the file never run backwards.
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

/// Nanoseconds since 1970. A clock before 1970 gives zero, one past the year 2554 the largest
/// value.
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

/// Standard output. `to_writer` flushes it after every packet.
#[cfg(not(unix))]
fn stdout() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

#[cfg(test)]
#[path = "capture/tests.rs"]
pub(crate) mod tests;
