//! Destination of a capture, and how its bytes get there without blocking the traffic.
//!
//! | destination | write | reason |
//! |---|---|---|
//! | regular file, block device | blocks the caller | it waits for the disk only; nothing is lost |
//! | pipe, socket, terminal, other device | never blocks the caller | a reader can stop for ever |
//! | [`std::io::Write`] of the program | as the program wrote it | it may be anything |
//!
//! A write that does not block the caller is tried at once. If the reader has no room, the rest
//! goes to a bounded backlog, which a thread writes. So a killed process loses no packet as long
//! as its reader keeps up.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::capture::{Spawn, Status};

/// Maximum number of bytes that wait for a slow reader, and of the memory that they take. It is 128
/// times what a pipe holds by default.
pub(crate) const BACKLOG: usize = 8 * 1024 * 1024;
/// Maximum number of bytes that the thread takes at a time. They are outside the backlog.
const CHUNK: usize = 64 * 1024;

/// Destination of a capture.
pub(crate) enum Output {
    /// A writer of the program. Its writes may block.
    Writer(Box<dyn Write + Send>),
    /// A regular file or a block device. Writes wait for the disk only.
    File(File),
    /// Anything with a reader, which may stop to read.
    Stream(Arc<Queue>),
}

/// Result of a write.
pub(crate) enum Written {
    /// The system or the backlog has all bytes.
    Whole,
    /// The backlog is full. No byte was written.
    NoRoom,
}

impl Output {
    /// Chooses how to write to `file`. `is_shared`: other descriptors refer to the same open file,
    /// so its flags must not change.
    pub(crate) fn of(
        file: File,
        is_shared: bool,
        status: &Arc<Status>,
        spawn: Spawn,
    ) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        if kind.is_file() || kind.is_block_device() {
            return Ok(Self::File(file));
        }
        let stream = if kind.is_socket() {
            Stream::Socket(file)
        } else if is_shared {
            // The link leads to the same pipe or device, but to an open file of its own. The open
            // fails for a pipe of another user.
            let again = OpenOptions::new()
                .write(true)
                .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
                .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            again.map_or(Stream::Blocking(file), Stream::Nonblocking)
        } else {
            fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
            Stream::Nonblocking(file)
        };
        let queue = Arc::new(Queue {
            stream,
            backlog: Mutex::default(),
            changed: Condvar::new(),
        });
        let (writer, status) = (Arc::clone(&queue), Arc::clone(status));
        spawn(
            "uwarp-capture",
            Box::new(move || writer.write_backlog(&status)),
        )?;
        Ok(Self::Stream(queue))
    }

    /// Writes a whole block. `must`: the block goes to the backlog even if that is full.
    pub(crate) fn write(&mut self, block: &[u8], must: bool) -> io::Result<Written> {
        match self {
            Self::Writer(writer) => {
                writer.write_all(block)?;
                writer.flush()?;
            }
            Self::File(file) => write_or_remove(file, block)?,
            Self::Stream(queue) => return queue.write(block, must),
        }
        Ok(Written::Whole)
    }
}

/// Writes a block. After an error, removes the part that was written, so that the file ends with a
/// whole block, as all readers demand.
fn write_or_remove(file: &mut File, block: &[u8]) -> io::Result<()> {
    let mut rest = block;
    while !rest.is_empty() {
        let error = match file.write(rest) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(written) => {
                rest = rest.get(written..).unwrap_or_default();
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        let part = (block.len() - rest.len()) as u64;
        // Another process may write to the same file, as with `>>`. Its bytes must stay.
        if part > 0
            && let Ok(end) = file.stream_position()
            && file.metadata().is_ok_and(|now| now.len() == end)
            && file.set_len(end.saturating_sub(part)).is_ok()
        {
            let _ = file.seek(SeekFrom::End(0));
        }
        return Err(error);
    }
    Ok(())
}

/// A stream, with the bytes that wait for its reader.
pub(crate) struct Queue {
    stream: Stream,
    backlog: Mutex<Backlog>,
    /// Notified when the backlog grows, when bytes have left it, and when it is closed.
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<u8>,
    /// Number of bytes that the thread has taken and not yet written.
    taken: usize,
    /// The thread ends when it has written the rest.
    closed: bool,
    /// A write has failed. All bytes are discarded.
    failed: bool,
}

impl Backlog {
    fn len(&self) -> usize {
        self.waiting.len() + self.taken
    }

    /// Makes room for `more` bytes. Returns false if there is no memory. The capacity doubles, but
    /// not beyond [`BACKLOG`] unless the bytes need it.
    fn reserve(&mut self, more: usize) -> bool {
        let (len, capacity) = (self.waiting.len(), self.waiting.capacity());
        if len + more <= capacity {
            return true;
        }
        let doubled = (2 * capacity).min(BACKLOG).max(len + more);
        self.waiting.try_reserve_exact(doubled - len).is_ok()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, block: &[u8], must: bool) -> io::Result<Written> {
        let mut backlog = self.lock();
        if backlog.failed {
            return Ok(Written::Whole);
        }
        let mut rest = block;
        if backlog.len() == 0 {
            while !rest.is_empty() {
                match self.stream.try_write(rest)? {
                    0 => break,
                    written => rest = rest.get(written..).unwrap_or_default(),
                }
            }
        }
        if rest.is_empty() {
            return Ok(Written::Whole);
        }
        let is_part = rest.len() < block.len();
        // The rest of a block always fits, because it follows an empty backlog.
        let fits = backlog.len() + rest.len() <= BACKLOG;
        let must = must || is_part;
        if !fits && !must {
            return Ok(Written::NoRoom);
        }
        if !backlog.reserve(rest.len()) {
            // What follows the missing block could not be read.
            return match must {
                true => Err(io::ErrorKind::OutOfMemory.into()),
                false => Ok(Written::NoRoom),
            };
        }
        backlog.waiting.extend(rest);
        drop(backlog);
        self.changed.notify_all();
        Ok(Written::Whole)
    }

    /// Waits until the reader has taken all bytes. Returns false if it takes none for `patience`.
    pub(crate) fn drain(&self, patience: Duration) -> bool {
        let mut backlog = self.lock();
        while backlog.len() > 0 {
            let before = backlog.len();
            let (guard, waited) = self
                .changed
                .wait_timeout(backlog, patience)
                .unwrap_or_else(PoisonError::into_inner);
            backlog = guard;
            if waited.timed_out() && backlog.len() >= before {
                return false;
            }
        }
        true
    }

    /// Lets the thread end when it has written the rest.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Body of the thread: writes what waits, until the queue is closed or a write fails.
    fn write_backlog(&self, status: &Status) {
        let mut chunk = vec![0; CHUNK];
        loop {
            let mut backlog = self.lock();
            while backlog.waiting.is_empty() {
                if backlog.closed {
                    return;
                }
                backlog = self
                    .changed
                    .wait(backlog)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            // A read from memory does not fail.
            let len = backlog.waiting.read(&mut chunk).unwrap_or_default();
            backlog.taken = len;
            if backlog.waiting.is_empty() {
                // Gives the memory back: most readers are slow for a moment only.
                backlog.waiting = VecDeque::new();
            }
            drop(backlog);
            let mut rest = chunk.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                match self.stream.wait_and_write(rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(error) => {
                        let mut backlog = self.lock();
                        (backlog.failed, backlog.taken) = (true, 0);
                        backlog.waiting = VecDeque::new();
                        drop(backlog);
                        self.changed.notify_all();
                        status.fail(&error);
                        return;
                    }
                }
                self.lock().taken = rest.len();
                self.changed.notify_all();
            }
        }
    }
}

/// Descriptor with a reader.
enum Stream {
    /// Its open file has `O_NONBLOCK`, and is not shared with another process.
    Nonblocking(File),
    /// A socket, where each call says that it must not block.
    Socket(File),
    /// Its open file is shared and cannot be opened again. Only the thread writes to it.
    Blocking(File),
}

impl Stream {
    fn file(&self) -> &File {
        match self {
            Self::Nonblocking(file) | Self::Socket(file) | Self::Blocking(file) => file,
        }
    }

    /// Writes what the reader has room for. Returns 0 if it has none.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = match self {
                Self::Nonblocking(file) => rustix::io::write(file, bytes),
                Self::Socket(file) => send(file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Self::Blocking(_) => Ok(0),
            };
            return match written {
                Ok(written) => Ok(written),
                Err(Errno::AGAIN) => Ok(0),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Waits for room and writes a part of `bytes`.
    fn wait_and_write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let mut fds = [PollFd::new(self.file(), PollFlags::OUT)];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let written = match self {
                Self::Blocking(file) => (&*file).write(bytes)?,
                _ => self.try_write(bytes)?,
            };
            if written > 0 {
                return Ok(written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, the buffer doubled to 16 MiB, and the thread held another one of that size.
    #[test]
    fn the_memory_of_the_backlog_is_bounded() {
        let (reader, writer) = io::pipe().unwrap();
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let queue = Queue {
            stream: Stream::Nonblocking(File::from(std::os::fd::OwnedFd::from(writer))),
            backlog: Mutex::default(),
            changed: Condvar::new(),
        };
        let block = [7; 1000];
        while matches!(queue.write(&block, false).unwrap(), Written::Whole) {}
        let backlog = queue.lock();
        assert!(backlog.len() > BACKLOG - block.len());
        assert_eq!(backlog.waiting.capacity(), BACKLOG);
        drop(reader);
    }
}
