//! The verbs of uwarp with a small C ABI. A test uses it to show that a C library like libibverbs
//! and librdmacm can be built on the engine. `c/uw.h` is the interface, and `c/program.c` is the
//! program that uses it. This crate is not a library for other programs.
//!
//! Objects are boxes whose address is the handle. The C program guarantees that it passes only
//! handles from this library that were not destroyed.
#![expect(
    unsafe_code,
    reason = "a C ABI: handles and arrays come in as pointers"
)]

mod attributes;
mod connect;
mod error;
mod more;
mod objects;
mod post;
mod queues;

unsafe extern "C" {
    /// Runs `c/program.c`; returns 0 on success.
    ///
    /// # Safety
    /// Called once, by the main thread.
    pub fn program_main() -> core::ffi::c_int;
}
