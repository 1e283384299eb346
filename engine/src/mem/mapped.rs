//! Mapped memory: files, and memory shared between processes.

use core::ptr::NonNull;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use super::Buffer;
use super::error::MapError;

/// A shared mapping; dropping it unmaps the memory.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    fd: Option<OwnedFd>,
}

impl Mapping {
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    fn new(file: impl AsFd, offset: u64, len: usize, writable: bool) -> Result<Self, MapError> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: without a requested address, the mapping replaces no other mapping. Its bytes are
        // only accessed through the copies of `raw`, which allow for concurrent writes by this or
        // another process.
        let base = unsafe {
            mmap(
                core::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                file,
                offset,
            )
        }
        .map_err(refused("map the file"))?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| refused("map the file")(Errno::NOMEM))?;
        Ok(Self {
            base,
            len,
            writable,
            fd: None,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped only here. The buffer that owned the
        // mapping is gone, and with it every user of the memory.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl Buffer {
    /// Maps the bytes `offset` to `offset + len` of a file, shared with other users of the file.
    ///
    /// Bytes placed here appear in the file, and bytes that others write to the file appear here.
    /// The system decides when they are written to the disk.
    ///
    /// `offset` must be a multiple of the page size. A file that is open only for reading gives a
    /// buffer that cannot be registered for local write. The file may be closed after this call.
    ///
    /// **The file must not become shorter** while the buffer lives. An access of a peer to a byte
    /// after the end of the file then ends the connection (SECURITY.md lists exceptions), and
    /// [`Buffer::read_at`] fails. On processors other than x86-64 and aarch64 it kills the process
    /// by SIGBUS. Map only files that no other program truncates, or memory whose size is sealed,
    /// as that of [`Buffer::shared`] is.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map_file(file: impl AsFd, offset: u64, len: usize) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let page = page_size();
        if !offset.is_multiple_of(page as u64) {
            return Err(MapError::OffsetNotOnPage { offset, page });
        }
        let stat = rustix::fs::fstat(&file).map_err(refused("ask for the size of the file"))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(MapError::BeyondEnd { offset, len, size });
        }
        let flags =
            rustix::fs::fcntl_getfl(&file).map_err(refused("ask how the file was opened"))?;
        let mode = flags & OFlags::RWMODE;
        if mode == OFlags::WRONLY {
            return Err(MapError::NotReadable);
        }
        Mapping::new(file, offset, len, mode == OFlags::RDWR).map(Self::mapped)
    }

    /// Allocates `len` zero bytes of memory that other processes can map too.
    ///
    /// Another process gets the descriptor of [`Buffer::as_fd`] by inheritance, over a Unix socket,
    /// or by opening `/proc/PID/fd/N`. It passes the descriptor to [`Buffer::map_file`] or `mmap`.
    /// The size is sealed: no process can truncate the memory and cause a SIGBUS in another one.
    /// `/proc/PID/maps` shows `name`.
    ///
    /// # Errors
    /// [`MapError`], if `len` is 0 or the system has no memory or descriptor left.
    pub fn shared(name: &str, len: usize) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags)
            .map_err(refused("make memory for several processes"))?;
        rustix::fs::ftruncate(&fd, len as u64)
            .map_err(refused("give memory for several processes its size"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)
            .map_err(refused("seal the size of memory for several processes"))?;
        let mut mapping = Mapping::new(&fd, 0, len, true)?;
        mapping.fd = Some(fd);
        Ok(Self::mapped(mapping))
    }
}

fn refused(op: &'static str) -> impl Fn(Errno) -> MapError {
    move |errno| MapError::System {
        op,
        errno: errno.raw_os_error(),
    }
}

// Miri cannot map files.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;
    use crate::mem::OutOfRange;

    /// Creates a file without a directory entry that contains `content`.
    fn file(content: &[u8]) -> File {
        let flags = MemfdFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::memfd_create("uwarp test", flags).unwrap());
        file.write_all(content).unwrap();
        file
    }

    /// Opens the same file again, for writing only or for reading only.
    fn reopened(file: &File, write: bool) -> File {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        File::options()
            .read(!write)
            .write(write)
            .open(path)
            .unwrap()
    }

    #[test]
    fn a_mapped_file_and_its_buffer_are_the_same_bytes() {
        let mut file = file(&[3; 10_000]);
        let page = page_size() as u64;
        let buffer = Buffer::map_file(&file, page, 5000).unwrap();
        assert!(buffer.is_writable());
        buffer.write_at(4999, b"!").unwrap();
        file.seek(SeekFrom::Start(page + 4998)).unwrap();
        let mut out = [0; 2];
        file.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"\x03!");
        file.seek(SeekFrom::Start(page)).unwrap();
        file.write_all(b"from the file").unwrap();
        drop(file);
        let mut out = [0; 13];
        buffer.read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"from the file");
        assert!(buffer.as_fd().is_none());
        assert_eq!(buffer.into_vec().len(), 5000);
    }

    #[test]
    fn what_cannot_be_mapped_is_said_in_words() {
        let file = file(&[0; 5000]);
        let page = page_size();
        let map = |offset, len| Buffer::map_file(&file, offset, len).unwrap_err();
        assert_eq!(map(0, 0), MapError::Empty);
        assert_eq!(map(5, 10), MapError::OffsetNotOnPage { offset: 5, page });
        let (offset, size) = (page as u64, 5000);
        let len = 5001 - page;
        assert_eq!(map(offset, len), MapError::BeyondEnd { offset, len, size });
        let beyond = map(0, 5001).to_string();
        assert!(
            beyond.contains("beyond the end of the file, which has 5000"),
            "{beyond}"
        );
        let far = u64::MAX - u64::MAX % page as u64;
        assert!(matches!(map(far, page), MapError::BeyondEnd { .. }));
        let blind = Buffer::map_file(reopened(&file, true), 0, 10).unwrap_err();
        assert_eq!(blind, MapError::NotReadable);
    }

    #[test]
    fn a_file_open_for_reading_is_never_written() {
        let file = reopened(&file(b"constant"), false);
        let buffer = Buffer::map_file(file, 0, 8).unwrap();
        assert!(!buffer.is_writable());
        let (offset, len, size) = (0, 1, 0);
        assert_eq!(
            buffer.write_at(0, b"x"),
            Err(OutOfRange { offset, len, size })
        );
        assert_eq!(buffer.into_vec(), b"constant");
    }

    #[test]
    fn two_mappings_of_shared_memory_are_the_same_bytes_and_its_size_stays() {
        let one = Buffer::shared("uwarp test", 3000).unwrap();
        let fd = one.as_fd().unwrap();
        let two = Buffer::map_file(fd, 0, 3000).unwrap();
        assert_ne!(one.addr(), two.addr());
        one.write_at(2990, b"ten octets").unwrap();
        let mut out = [0; 10];
        two.read_at(2990, &mut out).unwrap();
        assert_eq!(&out, b"ten octets");
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(Buffer::shared("none", 0).unwrap_err(), MapError::Empty);
    }
}
