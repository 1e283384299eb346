//! The wires against the kernel, in network namespaces of their own, and against each other.

mod frames;
mod raw;
mod rights;
mod tap;
mod unix;

use crate::netns;
