//! Writer of a capture file. All devices and connections of the process share it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::block::{self, PacketInfo};
use crate::live::LiveFlows;
use crate::output::{Output, Written};

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

/// Function that starts a thread with a name. See [`CaptureOptions::spawn`].
pub type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// Function that is told what happened to the capture. See [`CaptureOptions::on_problem`].
type Report = Box<dyn Fn(&str) + Send + Sync>;

/// Starts a thread that has the signal mask of its starter.
fn spawn_plainly(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let named = std::thread::Builder::new().name(name.to_owned());
    named.spawn(run).map(drop)
}

/// Options of a new capture.
pub struct CaptureOptions {
    spawn: Spawn,
    on_problem: Option<Report>,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            spawn: spawn_plainly,
            on_problem: None,
        }
    }
}

impl std::fmt::Debug for CaptureOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureOptions").finish_non_exhaustive()
    }
}

impl CaptureOptions {
    /// Sets how the thread is started that writes to a slow reader, for example with all signals
    /// blocked. Default: [`std::thread::Builder`].
    #[must_use]
    pub fn spawn(mut self, spawn: Spawn) -> Self {
        self.spawn = spawn;
        self
    }

    /// Sets a function that is called with a sentence when the capture ends early, and when its
    /// first packet is dropped: at most once each, when it happens. Threads that record call it, so
    /// it must not block.
    #[must_use]
    pub fn on_problem(mut self, report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_problem = Some(Box::new(report));
        self
    }

    /// Like [`Capture::create`], with these options.
    ///
    /// # Errors
    /// Those of [`Capture::create`], and those of starting a thread.
    pub fn create(self, path: impl AsRef<Path>) -> io::Result<Capture> {
        let path = path.as_ref();
        let is_stdout = path == Path::new("-");
        let file = if is_stdout {
            File::from(io::stdout().as_fd().try_clone_to_owned()?)
        } else {
            create_file(path)?
        };
        let status = Arc::new(Status::new(self.on_problem));
        let output = Output::of(file, is_stdout, &status, self.spawn)?;
        Capture::begin(output, status)
    }
}

/// Writer of a pcapng file or pipe. Clones share the file, and any thread may use them.
///
/// * A call that records a packet passes it to the operating system before it returns: after Ctrl-C
///   or a kill, a file is readable up to the last whole packet. This may wait for the disk.
/// * A pipe, a socket or a terminal never makes a call wait. What its reader has no room for waits
///   in a buffer of 8 MiB. If that is full, packets are dropped. The next packet of the interface
///   has their number (`epb_dropcount`), and [`Capture::finish`] adds an Interface Statistics Block
///   with the sum (`isb_ifdrop`).
/// * A failed write (disk full, reader of the pipe gone) ends the capture, but not the traffic. A
///   file keeps all packets before, and ends with a whole one. Later packets are discarded at the
///   cost of one atomic load, and [`Capture::error`] returns the reason.
/// * [`CaptureOptions::on_problem`] reports both when they happen.
#[derive(Clone)]
pub struct Capture {
    shared: Arc<Shared>,
}

struct Shared {
    sink: Mutex<Sink>,
    status: Arc<Status>,
    live: LiveFlows,
}

/// Problems of a capture so far.
pub(crate) struct Status {
    /// Reason of the first failed write. It is set once.
    error: OnceLock<String>,
    /// Number of packets that were dropped because the reader is too slow.
    dropped: AtomicU64,
    on_problem: Option<Report>,
}

impl Status {
    fn new(on_problem: Option<Report>) -> Self {
        Self {
            error: OnceLock::new(),
            dropped: AtomicU64::new(0),
            on_problem,
        }
    }

    fn report(&self, text: &str) {
        if let Some(report) = &self.on_problem {
            report(text);
        }
    }

    /// Ends the capture because of a failed write, and reports the first one.
    pub(crate) fn fail(&self, error: &io::Error) {
        let text = format!("the capture ended early because writing a packet failed: {error}");
        if self.error.set(text.clone()).is_ok() {
            self.report(&text);
        }
    }

    /// Counts a packet that was dropped, and reports the first one.
    fn drop_packet(&self) {
        if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            self.report(
                "the reader of the capture is too slow: packets are dropped, and the capture has their number",
            );
        }
    }
}

struct Sink {
    output: Output,
    /// Packets dropped of each interface that was described so far.
    interfaces: Vec<Dropped>,
    /// Buffer for the current block. It is kept to reuse its capacity.
    block: Vec<u8>,
}

/// Numbers of dropped packets of an interface.
#[derive(Clone, Copy, Default)]
struct Dropped {
    /// Since the last packet that was recorded.
    since: u64,
    /// Since the start, as the statistics state it.
    total: u64,
    /// Value of `total` in the last Interface Statistics Block.
    stated: u64,
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
        CaptureOptions::default().create(path)
    }

    /// Writes the capture to `writer`, which is flushed after every packet. If a write blocks, so
    /// do all threads that record.
    ///
    /// # Errors
    /// Returns the error of the first write.
    pub fn to_writer(writer: Box<dyn Write + Send>) -> io::Result<Self> {
        Self::begin(Output::Writer(writer), Arc::new(Status::new(None)))
    }

    fn begin(output: Output, status: Arc<Status>) -> io::Result<Self> {
        let mut sink = Sink {
            output,
            interfaces: Vec::new(),
            block: Vec::new(),
        };
        block::section_header(
            &mut sink.block,
            concat!("uwarp ", env!("CARGO_PKG_VERSION")),
        );
        sink.output.write(&sink.block, true)?;
        let shared = Shared {
            sink: Mutex::new(sink),
            status,
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
        self.shared.write(|sink| {
            index = u32::try_from(sink.interfaces.len()).unwrap_or(u32::MAX);
            sink.interfaces.push(Dropped::default());
            block::interface(&mut sink.block, name, link);
            // Without its description, the packets of an interface cannot be read.
            sink.output.write(&sink.block, true).map(|_| true)
        });
        Interface {
            capture: self.clone(),
            index,
            link,
        }
    }

    /// Returns the text of the write error that ended the capture, if one occurred.
    pub fn error(&self) -> Option<String> {
        self.shared.status.error.get().cloned()
    }

    /// Returns the number of packets that were dropped because the reader was too slow.
    pub fn dropped(&self) -> u64 {
        self.shared.status.dropped.load(Ordering::Relaxed)
    }

    /// Adds the numbers of dropped packets to the capture, and waits until the reader of a pipe has
    /// taken everything. Returns false if it takes nothing for `patience`. A file needs no wait.
    ///
    /// A program calls this before it ends.
    pub fn finish(&self, patience: Duration) -> bool {
        self.shared.write(Sink::state_drops);
        let queue = match &self.shared.lock().output {
            Output::Stream(queue) => Arc::clone(queue),
            Output::File(_) | Output::Writer(_) => return true,
        };
        queue.drain(patience)
    }

    pub(crate) fn live(&self) -> &LiveFlows {
        &self.shared.live
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `act` build and write a block while the lock is held. Does nothing after an error.
    /// `act` returns false if it dropped a packet.
    fn write(&self, act: impl FnOnce(&mut Sink) -> io::Result<bool>) {
        if self.status.error.get().is_some() {
            return;
        }
        let mut sink = self.lock();
        // Another thread may have recorded an error while this one waited for the lock. A block
        // after an incomplete one would make the file unreadable.
        if self.status.error.get().is_some() {
            return;
        }
        sink.block.clear();
        let written = act(&mut sink);
        if let Err(error) = &written {
            // Reported with the lock held, so that no other thread writes before.
            self.status.fail(error);
        }
        drop(sink);
        if matches!(written, Ok(false)) {
            self.status.drop_packet();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.write(Sink::state_drops);
        if let Output::Stream(queue) = &self.lock().output {
            queue.close();
        }
    }
}

impl Sink {
    /// Writes a packet. Returns false if it was dropped, for lack of room or of memory.
    fn packet(
        &mut self,
        interface: u32,
        direction: Direction,
        comment: Option<&str>,
        parts: &[&[u8]],
    ) -> io::Result<bool> {
        let Sink {
            output,
            interfaces,
            block,
        } = self;
        let mut none = Dropped::default();
        let dropped = interfaces.get_mut(interface as usize).unwrap_or(&mut none);
        let info = PacketInfo {
            interface,
            nanoseconds: now(),
            direction,
            comment,
            dropped: dropped.since,
        };
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let len = len + comment.map_or(0, str::len) + block::OVERHEAD;
        let mut written = Written::NoRoom;
        if block.try_reserve(len).is_ok() {
            block::packet(block, &info, parts);
            written = output.write(block, false)?;
        }
        match written {
            Written::Whole => dropped.since = 0,
            Written::NoRoom => {
                dropped.since += 1;
                dropped.total += 1;
            }
        }
        Ok(matches!(written, Written::Whole))
    }

    /// Writes an Interface Statistics Block for each interface of which packets were dropped since
    /// the last one.
    fn state_drops(&mut self) -> io::Result<bool> {
        for (index, dropped) in self.interfaces.iter_mut().enumerate() {
            if dropped.total > dropped.stated {
                dropped.stated = dropped.total;
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                block::statistics(&mut self.block, index, now(), dropped.total);
            }
        }
        if !self.block.is_empty() {
            self.output.write(&self.block, true)?;
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("error", &self.shared.status.error.get())
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
        // The clock is read while the lock is held, so that packets are in the order of their
        // times.
        let write = |sink: &mut Sink| sink.packet(self.index, direction, comment, parts);
        self.capture.shared.write(write);
    }
}

/// Returns the time in nanoseconds since 1970. A clock before 1970 gives 0. A clock after the year
/// 2554 gives the maximum value.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "capture/tests.rs"]
pub(crate) mod tests;
