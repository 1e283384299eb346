//! Redirects paths of `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`
//! to files that the library `uwarp-dropin` provides (`dropin/src/sysfs`). `uwarp run --preload`
//! preloads this library, so that programs find its functions before those of the C library.
//!
//! It is a library of its own, because a program searches all libraries that it was linked with,
//! and libibverbs comes before the C library. Functions with these names in libibverbs would
//! replace those of every program, preloaded or not.
//!
//! Every function compares the start of the path, and calls the function of the C library for all
//! other paths. That takes no lock, allocates nothing and leaves `errno` alone, so the functions
//! that may be called in a signal handler or after a fork still may be. They find the functions of
//! the C library when this library is loaded. Only constructors that run before look one up at its
//! first call. Code that runs before all constructors is not redirected. A thread that is cancelled
//! in such a call unwinds frames that hold nothing.
//!
//! Not redirected: system calls that a program makes itself, paths relative to a descriptor of `/`
//! or `/sys`, and functions of the C library that open files by themselves (`glob`, `nftw`).

#![cfg(target_os = "linux")]
#![cfg_attr(
    test,
    allow(dead_code, reason = "unit tests keep the functions of the C library")
)]
#![expect(
    unsafe_code,
    reason = "functions of the C library under their own names"
)]

#[cfg(not(test))]
mod functions;
mod mapping;
mod real;
