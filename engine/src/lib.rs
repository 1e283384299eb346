//! The parts of uwarp's software RNIC that need no thread, socket or clock: registered memory
//! ([`mem`]), the bytes of a gathering send ([`Piece`]), states of a queue pair ([`state`]), timers
//! ([`timers`], [`close_timer`]), the private data of queue pairs that are connected by their
//! numbers ([`hello`]), the form of datagrams ([`datagram`]), and the guard against use after a
//! fork ([`fork_guard`]).
//!
//! Programs use the crate `uwarp-verbs`, which has the whole interface of a software RNIC and
//! re-exports the types of this crate that belong to it. The rest of this interface may change with
//! every release.
//!
//! # Example
//! A peer's Write is checked against a region and placed:
//! ```
//! use std::sync::Arc;
//! use uwarp_engine::mem::{
//!     Access, Asker, Backing, Buffer, RegionSpec, RegionTable, WriteTargetCache,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let table = RegionTable::new(16, 16, None)?;
//! let region = table.insert(RegionSpec {
//!     memory: Backing::buffer(Arc::new(Buffer::from(vec![0; 64]))),
//!     to_base: Some(0x1000),
//!     pd: 1,
//!     qp: None,
//!     access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
//! })?;
//! let peer = Asker { pd: 1, qp: 2, access: Access::REMOTE_WRITE };
//! let mut targets = WriteTargetCache::default();
//! let landing = targets.check_write(&table, region.stag(), 0x1010, 5, &peer)?;
//! targets.place(landing, 0, b"hello").map_err(|fault| format!("{fault:?}"))?;
//! let mut bytes = [0; 5];
//! region.read_at(0x10, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(()) }
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests have threads, and wait by the clock of the machine"
    )
)]
#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]

pub mod close_timer;
pub mod datagram;
pub mod fork_guard;
pub mod hello;
pub mod mem;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
mod piece;
pub mod state;
pub mod timers;
pub mod times;

pub use piece::Piece;
