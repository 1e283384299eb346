//! Replacements for functions of the C library that are cancellation points. Only the code of this
//! library calls them, because a thread must not be cancelled there.
//!
//! `pthread_cancel` unwinds the stack of a thread from within such a call. The process aborts when
//! the unwinding reaches a Rust frame. Most of this library makes its system calls without the C
//! library. But Rust's standard library calls the C library to close descriptors and to write to
//! files. On the data path this happens when a connection ends, and with a capture. Deferring
//! cancellation would cost tens of nanoseconds for each post and each poll. So this module defines
//! these functions again, as hidden symbols, which the linker prefers to those of the C library.
//! Calls of the program itself are not affected. Blocking calls that may be cancelled are in
//! `cancel.rs`.
#![expect(
    unsafe_code,
    reason = "system calls under names that the standard library calls"
)]

use core::ffi::{c_int, c_long, c_void};

use libc::{iovec, msghdr, size_t, ssize_t};

/// Defines `name => function`: a hidden symbol that only this library sees.
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

// SAFETY (for all functions): the system call takes the arguments of the function that it replaces.
// `syscall` sets `errno` in the same way, and is not a cancellation point.

unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: as argued above. The result is 0 or -1.
    (unsafe { libc::syscall(libc::SYS_close, fd) }) as c_int
}

unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_read, fd, to, len) })
}

unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_write, fd, from, len) })
}

unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_writev, fd, from, count) })
}

unsafe extern "C" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let (nobody, none) = (core::ptr::null::<c_void>(), 0);
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, nobody, none) })
}

unsafe extern "C" fn sendmsg(fd: c_int, from: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_sendmsg, fd, from, flags) })
}

unsafe extern "C" fn recvmsg(fd: c_int, to: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as argued above.
    sized(unsafe { libc::syscall(libc::SYS_recvmsg, fd, to, flags) })
}

/// Converts the result of `syscall`. On Linux, a `long` is as wide as an `ssize_t`.
const fn sized(result: c_long) -> ssize_t {
    result as ssize_t
}
