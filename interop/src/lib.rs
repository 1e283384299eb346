//! What uwarp's interoperability tests stand on: a virtual machine with the Linux siw driver, the
//! agent in it, and the wires between us and it.
//!
//! [`Guest`] is the machine (QEMU without KVM, no rights needed); it runs shell commands. [`Agent`]
//! drives the application under test in it over a channel of its own, whatever carries the data.
//! [`Wire`] says how the two ends reach each other. [`Report`] collects what passed into a matrix.
//!
//! Processes that are started here end with this process, whatever ends it.

mod agent;
mod ethernet;
mod failure;
mod guest;
mod namespace;
mod ours;
mod pattern;
mod process;
pub mod raw;
mod report;
mod tap;
mod tempdir;
mod wire;

pub use agent::{
    Agent, Answer, Completion, Conn, Event, Listen, ListenerNum, Post, QpWish, Region, SrqNum, sge,
    sges,
};
pub use ethernet::EthernetWire;
pub use failure::{Failure, Result};
pub use guest::image::{Image, Unready};
pub use guest::{Guest, GuestProcess, NetDevice, Output};
pub use namespace::enter as enter_namespace;
pub use ours::{Uwarp, uwarp_binary};
pub use pattern::{pattern, pattern_octet};
pub use report::{Outcome, Report};
pub use tap::{HostTap, KernelTap};
pub use wire::{Family, KernelTcp, PATIENCE, Rig, Wire};
