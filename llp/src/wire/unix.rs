//! Attachment by Unix datagrams: each datagram is one Ethernet frame, as with QEMU's `-netdev
//! dgram`.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, sendmsg, sendmsg_addr, socket_with,
};

use super::error::{AttachError, OpenError};
use super::scatter::Overflow;
use super::{HEADER, Received, Wire, random_mac};
use crate::LlpError;
use crate::ethernet::{EthernetNetwork, LinkSettings};
use crate::smol::{Packet, PacketOffload};

/// Default MTU in bytes: the usual MTU of an Ethernet and of a guest.
const DEFAULT_MTU: usize = 1500;

/// Length in bytes of the longest path, or abstract name with its `@`, that fits into a socket
/// address (`unix(7)`).
pub(crate) const MAX_PATH: usize = 107;

impl EthernetNetwork {
    /// Creates a host whose frames are Unix datagrams. It receives at the path `local`, which it
    /// creates, and sends to the path `remote`. The socket at `remote` may be created later, and
    /// may be removed and created again. A path that begins with `@` is a name in the abstract
    /// namespace (`unix(7)`).
    ///
    /// `mac` is the MAC address of the host; `None` means a random one. The MTU is 1500 unless
    /// `settings` specify another.
    ///
    /// # Errors
    /// [`OpenError::Attach`] if another process receives at `local`, if the file at `local` is not
    /// a socket, or if the socket cannot be created.
    pub fn unix(
        local: &Path,
        remote: &Path,
        mac: Option<[u8; 6]>,
        settings: &LinkSettings,
    ) -> Result<Self, OpenError> {
        let wire = UnixWire::open(local, remote, mac, settings.mtu)?;
        Ok(Self::open(Box::new(wire), settings)?)
    }
}

/// Attachment by Unix datagrams.
pub(crate) struct UnixWire {
    socket: OwnedFd,
    /// Address of the other end. `None` for an end of a connected pair.
    remote: Option<SocketAddrUnix>,
    /// Removes the socket file when the wire is dropped. `None` if there is no file.
    _file: Option<SocketFile>,
    name: String,
    mac: [u8; 6],
    mtu: usize,
    overflow: Overflow,
}

impl UnixWire {
    pub(crate) fn open(
        local: &Path,
        remote: &Path,
        mac: Option<[u8; 6]>,
        mtu: Option<usize>,
    ) -> Result<Self, OpenError> {
        let (at, to) = (address(local)?, address(remote)?);
        let socket = datagram_socket()?;
        let mut bound = bind(&socket, &at);
        if bound == Err(Errno::ADDRINUSE) {
            if at.path().is_none() {
                return Err(AttachError::SocketInUse.into());
            }
            remove_stale(local, &at)?;
            bound = bind(&socket, &at);
        }
        bound.map_err(|errno| match errno {
            Errno::ADDRINUSE => OpenError::from(AttachError::SocketInUse),
            Errno::NOENT | Errno::NOTDIR => AttachError::NoDirectory.into(),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => AttachError::SocketDenied.into(),
            errno => LlpError::from_local_errno("bind to the LOCAL path", errno).into(),
        })?;
        let file = at.path().and_then(|_| SocketFile::at(local));
        let name = format!("{} -> {}", local.display(), remote.display());
        Ok(Self::new(socket, Some(to), file, name, mac, mtu))
    }

    /// Creates two ends that are connected to each other, without a path.
    #[cfg(test)]
    pub(crate) fn pair() -> (Self, Self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        let end = |socket| Self::new(socket, None, None, "pair".to_owned(), None, None);
        (end(one), end(other))
    }

    fn new(
        socket: OwnedFd,
        remote: Option<SocketAddrUnix>,
        file: Option<SocketFile>,
        name: String,
        mac: Option<[u8; 6]>,
        mtu: Option<usize>,
    ) -> Self {
        Self {
            socket,
            remote,
            _file: file,
            name,
            mac: mac.unwrap_or_else(random_mac),
            mtu: mtu.unwrap_or(DEFAULT_MTU),
            overflow: Overflow::new(),
        }
    }
}

fn datagram_socket() -> Result<OwnedFd, LlpError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
        .map_err(|errno| LlpError::from_local_errno("open a Unix socket", errno))
}

/// Converts a path or an abstract name to a socket address.
fn address(path: &Path) -> Result<SocketAddrUnix, AttachError> {
    let made = match path.as_os_str().as_bytes() {
        [] | [b'@'] => return Err(AttachError::PathLength),
        // A path of 108 bytes fills the address and leaves no room for the final NUL. The kernel
        // accepts it, but other programs that read the address expect the NUL and would see another
        // path.
        path if path.len() > MAX_PATH => return Err(AttachError::PathLength),
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path => SocketAddrUnix::new(path),
    };
    made.map_err(|_| AttachError::PathLength)
}

/// Removes the socket file of a process that has ended, and no other file.
fn remove_stale(path: &Path, at: &SocketAddrUnix) -> Result<(), OpenError> {
    match fs::symlink_metadata(path) {
        // The file disappeared in the meantime.
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => return Err(AttachError::NotSocket.into()),
        Ok(_) => {}
    }
    match connect(datagram_socket()?, at) {
        Err(Errno::CONNREFUSED) => match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(_) => Err(AttachError::SocketDenied.into()),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(AttachError::SocketDenied.into()),
        // The connection succeeded, or the socket is of another type and in use.
        _ => Err(AttachError::SocketInUse.into()),
    }
}

/// File of a bound socket. Dropping this removes the file, unless another file has replaced it.
struct SocketFile(Arc<Bound>);

struct Bound {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Socket files that this process has created and not removed yet.
static FILES: Mutex<Vec<Arc<Bound>>> = Mutex::new(Vec::new());

/// Removes the socket files of all networks of this process. Peers can then no longer send to these
/// networks.
///
/// A network removes its own file when it is closed. A background thread may do so shortly after
/// the last handle was dropped. A program that exits at once should therefore call this function
/// last. If a file is left over, the next program that uses the path replaces it.
pub fn remove_socket_files() {
    for file in std::mem::take(&mut *FILES.lock()) {
        file.remove();
    }
}

impl SocketFile {
    fn at(path: &Path) -> Option<Self> {
        // The path is made absolute because the process may change its working directory.
        let path = std::path::absolute(path).ok()?;
        let found = fs::symlink_metadata(&path).ok()?;
        let bound = Arc::new(Bound {
            path,
            device: found.dev(),
            inode: found.ino(),
        });
        FILES.lock().push(Arc::clone(&bound));
        Some(Self(bound))
    }
}

impl Bound {
    fn remove(&self) {
        if let Ok(found) = fs::symlink_metadata(&self.path)
            && (found.dev(), found.ino()) == (self.device, self.inode)
        {
            // It does not matter if the file was removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let mut files = FILES.lock();
        if let Some(index) = files.iter().position(|file| Arc::ptr_eq(file, &self.0)) {
            files.swap_remove(index);
            self.0.remove();
        }
    }
}

impl Wire for UnixWire {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        _: PacketOffload,
    ) -> Result<bool, LlpError> {
        let frame = [IoSlice::new(header), IoSlice::new(packet)];
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let sent = match &self.remote {
                Some(to) => sendmsg_addr(&self.socket, to, &frame, &mut control, flags),
                None => sendmsg(&self.socket, &frame, &mut control, flags),
            };
            return match sent {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(false),
                // No process receives at the path now. The frame is lost, as on an unplugged cable.
                Err(
                    Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::CONNREFUSED
                    | Errno::CONNRESET
                    | Errno::NOTCONN,
                ) => Ok(true),
                Err(Errno::NOBUFS | Errno::NOMEM | Errno::MSGSIZE) => Ok(true),
                Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(LlpError::LinkDown {
                    why: "this user may not write to the socket at the REMOTE path",
                    errno: errno.raw_os_error(),
                }),
                Err(errno @ Errno::PROTOTYPE) => Err(LlpError::LinkDown {
                    why: "the socket at the REMOTE path is not one for datagrams",
                    errno: errno.raw_os_error(),
                }),
                Err(errno) => Err(LlpError::from_local_errno("send a Unix datagram", errno)),
            };
        }
    }

    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        let read = |into: &mut [IoSliceMut<'_>]| rustix::io::readv(&self.socket, into);
        match self
            .overflow
            .receive(&mut [], header, packet, self.mtu, read)
        {
            Ok(true) => Ok(Received::Frame),
            Ok(false) | Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            // The other end of a pair was dropped. TCP's timers detect that.
            Err(Errno::CONNRESET | Errno::CONNREFUSED) => Ok(Received::Nothing),
            Err(errno) => Err(LlpError::from_local_errno("receive a Unix datagram", errno)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn describe(&self) -> String {
        format!("Unix datagrams {}", self.name)
    }
}
