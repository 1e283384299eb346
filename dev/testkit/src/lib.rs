//! Tools that the tests of several crates share. The crate depends on no crate of the stack.

mod fork;
mod pattern;
mod random;
mod raw;

pub use fork::ends_in_child;
pub use pattern::{filler, pattern};
pub use random::Random;
pub use raw::{raw_accept, raw_connect};
