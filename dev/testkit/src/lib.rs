//! Tools that the tests of several crates share. The crate depends on no crate of the stack.
//!
//! A published crate uses this one, like the oracle, only as a dev-dependency without a version.
//! Cargo leaves such dependencies out of a package, so the tests run only in this repository.

mod fork;
pub mod frames;
mod memory_file;
pub mod netns;
mod pattern;
mod random;
mod raw;
pub mod tshark;

pub use fork::ends_in_child;
pub use memory_file::MemoryFile;
pub use pattern::{filler, pattern};
pub use random::Random;
pub use raw::{raw_accept, raw_connect};
