//! The calls of the C library at which a thread could be cancelled, for the code of this library alone, where it cannot be.
//!
//! `pthread_cancel` unwinds the frames of the thread from within such a call, and frames of Rust end the process then. Most of this
//! library makes its system calls without the C library, but the standard library of Rust closes descriptors and writes to files
//! through it: on the data path where a connection ends, and for a capture. To hold a cancellation up there would cost tens of
//! nanoseconds at each post and each poll. So those functions are here once more, hidden, and the linker prefers them to the C
//! library's; the program's own calls go where they went. Blocking calls that may be cancelled are those of `cancel.rs`.
#![expect(
    unsafe_code,
    reason = "system calls, under the names that the standard library calls"
)]

use core::ffi::{c_int, c_long, c_void};

use libc::{iovec, msghdr, size_t, ssize_t};

/// `name => function`: a hidden name that only this library sees.
macro_rules! hidden {
    ($($name:ident => $function:path,)*) => {
        $(
            core::arch::global_asm!(
                concat!(".pushsection .text.uwarp.", stringify!($name), ",\"ax\",@progbits"),
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ",@function"),
                concat!(stringify!($name), ":"),
                concat!($crate::exports::jump!(), " {function}"),
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                ".popsection",
                function = sym $function,
            );
        )*
    };
}

hidden! {
    close => close,
    read => read,
    write => write,
    writev => writev,
    send => send,
    sendmsg => sendmsg,
    recvmsg => recvmsg,
}

// SAFETY (of all of them): the system call takes what the function of the same name takes. `syscall` sets `errno` as that does, and is
// no point of cancellation.

unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: above. What comes back is 0 or -1.
    (unsafe { libc::syscall(libc::SYS_close, fd) }) as c_int
}

unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_read, fd, to, len) })
}

unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_write, fd, from, len) })
}

unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_writev, fd, from, count) })
}

unsafe extern "C" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let (nobody, none) = (core::ptr::null::<c_void>(), 0);
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, nobody, none) })
}

unsafe extern "C" fn sendmsg(fd: c_int, from: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_sendmsg, fd, from, flags) })
}

unsafe extern "C" fn recvmsg(fd: c_int, to: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: above.
    sized(unsafe { libc::syscall(libc::SYS_recvmsg, fd, to, flags) })
}

/// A `long` is as wide as a `ssize_t` on Linux.
const fn sized(result: c_long) -> ssize_t {
    result as ssize_t
}
