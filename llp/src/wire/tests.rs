//! Tests of the wires. The other end is the kernel or a second wire. Tests with TAP devices and raw
//! sockets run in a network namespace of their own.

mod frames;
mod raw;
mod rights;
mod tap;
mod unix;
