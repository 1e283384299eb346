//! Tests of the wires with the kernel, in separate network namespaces, and with each other.

mod frames;
mod raw;
mod rights;
mod tap;
mod unix;

use crate::netns;
