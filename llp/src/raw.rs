//! System calls that have no safe wrapper.
#![expect(unsafe_code, reason = "system calls")]

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use uwarp_engine::llp::Piece;

/// Maximum number of pieces in one `sendmsg` call: UIO_MAXIOV of Linux.
pub(crate) const MAX_GATHER: usize = 1024;

/// Sends the pieces (only the first [`MAX_GATHER`]) by one system call, without SIGPIPE and without
/// blocking. With `followed`, an incomplete last segment waits for the bytes of the next call.
/// Returns the number of bytes that the kernel accepted.
pub(crate) fn send_gather(
    socket: impl AsFd,
    pieces: &[Piece<'_>],
    followed: bool,
) -> Result<usize, Errno> {
    let more = if followed { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
    if let [piece] = pieces {
        // `send` avoids copying the message header and the gather list into the kernel. This saves
        // 0.15 us for a small message. SAFETY: the descriptor is open for the time of the borrow,
        // and `Piece` promises that its bytes are valid for reads.
        let sent = unsafe {
            let fd = socket.as_fd().as_raw_fd();
            libc::send(fd, piece.as_ptr().cast(), piece.len(), flags)
        };
        return usize::try_from(sent).map_err(|_| last_errno());
    }
    let count = pieces.len().min(MAX_GATHER);
    // SAFETY: all fields of `msghdr` are integers or pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // A `Piece` is a transparent `iovec`. `sendmsg` does not write through `msg_iov`.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    // The field is a `usize` with glibc, and a `c_int` with musl.
    message.msg_iovlen = count as _;
    // SAFETY: the descriptor is open for the time of the borrow; `message` has no address, no
    // control data, and `count` iovecs whose bytes `Piece` keeps valid for reads.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// Returns the number of bytes that the peer of this TCP socket has not acknowledged. The FIN
/// counts as one byte.
pub(crate) fn unacknowledged(socket: impl AsFd) -> Result<usize, Errno> {
    let mut count: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one `int` to the address given.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(usize::try_from(count).unwrap_or(0))
    }
}

/// Limits the window offered to the peer to `bytes` bytes (TCP_WINDOW_CLAMP of `tcp(7)`).
pub(crate) fn clamp_window(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    // SAFETY: the descriptor is open for the time of the borrow; the kernel reads one `int` from
    // the address, and no more.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

/// Returns the size in bytes of the segments that the peer sends, as the kernel estimates it
/// (`tcpi_rcv_mss` of `tcp(7)`). The segments that this end sends may be smaller, because TCP
/// limits them to half of the largest window that the peer has offered.
pub(crate) fn received_mss(socket: impl AsFd) -> Result<u32, Errno> {
    const AT: usize = offset_of!(libc::tcp_info, tcpi_rcv_mss);
    let info: [u8; AT + 4] = option(socket, libc::TCP_INFO)?;
    Ok(info.last_chunk().copied().map_or(0, u32::from_ne_bytes))
}

/// Returns the limit set by [`clamp_window`] in bytes.
#[cfg(test)]
pub(crate) fn window_clamp(socket: impl AsFd) -> Result<u32, Errno> {
    option(socket, libc::TCP_WINDOW_CLAMP).map(u32::from_ne_bytes)
}

/// Returns the first `LEN` bytes of a TCP option's value. Bytes that the kernel does not supply are
/// zero.
fn option<const LEN: usize>(socket: impl AsFd, name: libc::c_int) -> Result<[u8; LEN], Errno> {
    let mut value = [0; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the descriptor is open for the time of the borrow; the kernel writes at most `len`
    // bytes to `value`, which has that length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(value)
    }
}

/// Returns the errno of the call that just failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
