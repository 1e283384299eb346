//! libibverbs and librdmacm on uwarp: programs that were linked with rdma-core run unmodified.
//! `uwarp run` makes the loader find this library in place of rdma-core. dropin/README.md explains
//! how, and dropin/MATRIX.md lists the functions.

#![cfg(target_os = "linux")]
#![cfg_attr(
    test,
    allow(dead_code, reason = "unit tests do not export the library's symbols")
)]

mod abi;
mod ah;
mod at_exit;
mod cancel;
mod channel;
mod cm;
mod context;
mod cq;
mod cq_ex;
mod device;
mod environment;
mod errno;
mod events;
#[cfg(not(test))]
mod exports;
mod fork;
mod gids;
mod list;
mod log;
mod mr;
mod mw;
mod object;
mod operations;
mod panic_guard;
mod pd;
mod per_process;
mod persona;
mod qp;
mod query;
mod registry;
mod rnic;
mod signals;
mod srq;
mod strings;
mod sysfs;
#[cfg(test)]
mod tests;
#[cfg(not(test))]
mod uncancelled;
mod users;
mod warnings;
mod wc;
