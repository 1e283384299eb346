//! The verbs of uwarp behind a small C ABI. It exists to show, by a test, that a C library in the shape of libibverbs
//! and librdmacm can be laid over the engine: `c/uw.h` is the interface, `c/program.c` the program that uses it. It
//! is not a library to build on.
//!
//! Objects are boxes whose address is the handle. Every function takes the handles that it was given by this library
//! and that were not destroyed; that is the C program's promise.
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
    /// `c/program.c`; 0 when all went well.
    ///
    /// # Safety
    /// Called once, by the main thread.
    pub fn program_main() -> core::ffi::c_int;
}
