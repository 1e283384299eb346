//! Writer of a capture file. All devices and connections of the process share it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;

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
    /// Returns the number of the link type that is registered at tcpdump.org.
    pub const fn code(self) -> u16 {
        match self {
            Self::RawIp => 101,
            Self::Ethernet => 1,
        }
    }
}

/// Direction of a packet as seen from this process. The file records it in `epb_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Direction {
    /// The process received the packet.
    Inbound,
    /// The process sent the packet.
    Outbound,
    /// The direction is not known.
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

/// Creates a file for a capture. See [`Capture::create`].
fn create_file(path: &Path) -> io::Result<File> {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let is_descriptor = folder.is_some_and(|folder| folder.starts_with("/proc"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    if !is_descriptor {
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    options.open(path).map_err(|error| {
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            let words = "it is a symbolic link, which is not followed; name the file itself, or use - for standard output";
            return io::Error::new(error.kind(), words);
        }
        error
    })
}

/// Writer of a pcapng file or pipe. Clones share the file, and any thread may use them.
///
/// * A call that records a packet passes it to the operating system in a single write before it
///   returns. This process buffers nothing: after Ctrl-C or a kill, the file is readable up to the
///   last whole packet.
/// * A failed write (disk full, reader of the pipe gone) ends the capture, but not the traffic.
///   Later packets are dropped at the cost of one atomic load, and [`Capture::error`] returns the
///   reason.
/// * A slow reader of a pipe slows down the threads that record, as with any blocking write.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Mutex<Sink>,
    /// Reason of the first failed write. It is set once.
    error: OnceLock<String>,
    live: LiveFlows,
}

struct Sink {
    writer: Box<dyn Write + Send>,
    /// Number of Interface Description Blocks written so far.
    interfaces: u32,
    /// Buffer for the current block. It is kept to reuse its capacity.
    block: Vec<u8>,
}

impl Capture {
    /// Creates the file at `path`, or replaces the content of an existing one, and writes the file
    /// header. A new file can be read by its owner only, because a capture holds all data.
    ///
    /// A symbolic link is refused. Otherwise a user who may write to a directory could choose which
    /// file is replaced. The links in `/proc/self/fd` (`/dev/fd/3`) are descriptors of this
    /// process, and are accepted.
    ///
    /// The path `-` means standard output, for use with `| tshark -i -` or `| wireshark -k -i -`.
    /// If the path is a named pipe, the call waits until a reader opens it.
    ///
    /// # Errors
    /// Returns the errors of [`File::create`] and of the first write, and an error for a symbolic
    /// link.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Self::to_writer(Box::new(stdout()?));
        }
        Self::to_writer(Box::new(create_file(path)?))
    }

    /// Writes the capture to `writer`, which is flushed after every packet.
    ///
    /// # Errors
    /// Returns the error of the first write.
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

    /// Adds an interface to the capture. Wireshark shows `name` as its name.
    ///
    /// This never fails: after a write error, the packets of the interface are dropped.
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

    /// Returns the text of the write error that ended the capture, if one occurred.
    pub fn error(&self) -> Option<String> {
        self.shared.error.get().cloned()
    }

    pub(crate) fn live(&self) -> &LiveFlows {
        &self.shared.live
    }

    /// Builds one block while holding the lock, and writes it. Does nothing after an error.
    fn write(&self, build: impl FnOnce(&mut Sink)) {
        if self.shared.error.get().is_some() {
            return;
        }
        let mut sink = self
            .shared
            .sink
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Another thread may have recorded an error while this one waited for the lock. A block
        // after an incomplete one would make the file unreadable.
        if self.shared.error.get().is_some() {
            return;
        }
        sink.block.clear();
        build(&mut sink);
        if let Err(error) = sink.write_block() {
            let text = format!("the capture ended early because writing a packet failed: {error}");
            // The lock is held and no error was set above, so this is the first error.
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

/// An interface of a [`Capture`]. Clones share it, and any thread may use them.
#[derive(Debug, Clone)]
pub struct Interface {
    capture: Capture,
    index: u32,
    link: LinkType,
}

impl Interface {
    /// Records a packet with the current time. Its bytes are the concatenation of `parts`.
    pub fn packet(&self, direction: Direction, parts: &[&[u8]]) {
        self.record(direction, None, parts);
    }

    /// Like [`Interface::packet`], with a comment that Wireshark shows with the packet.
    pub fn packet_with_comment(&self, direction: Direction, comment: &str, parts: &[&[u8]]) {
        self.record(direction, Some(comment), parts);
    }

    /// Returns the protocol of the first header in the packets of this interface.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Returns the capture that this interface belongs to.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    fn record(&self, direction: Direction, comment: Option<&str>, parts: &[&[u8]]) {
        self.capture.write(|sink| {
            // The clock is read while the lock is held, so that packets are in the order of their
            // times.
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

/// Returns the time in nanoseconds since 1970. A clock before 1970 gives 0. A clock after the year
/// 2554 gives the maximum value.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Opens standard output without the line buffer of `std::io::stdout`.
#[cfg(unix)]
fn stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Opens standard output. `to_writer` flushes it after every packet.
#[cfg(not(unix))]
fn stdout() -> io::Result<io::Stdout> {
    Ok(io::stdout())
}

#[cfg(test)]
#[path = "capture/tests.rs"]
pub(crate) mod tests;
