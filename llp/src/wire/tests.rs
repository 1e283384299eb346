//! Tests of the wires, with the kernel or with each other, in separate network namespaces.

mod frames;
mod raw;
mod rights;
mod tap;
mod unix;

use crate::netns;
