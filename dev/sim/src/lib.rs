//! Deterministic simulator of software RNICs.
//!
//! A run drives complete devices of `uwarp-verbs` itself
//! ([`Progress::Manual`](uwarp_verbs::Progress::Manual)). TCP is smoltcp, and a switch in memory
//! connects the devices. The switch loses, duplicates, delays and damages packets. There are no
//! threads, and time is virtual.
//!
//! One seed determines everything. A failed run can be replayed exactly with its seed, and each of
//! its steps can be logged.
//!
//! `docs/testing.md` describes a run and its checks.

mod atomic;
mod damage;
mod end;
mod host;
mod lent_region;
mod log;
mod memory;
mod monitor;
mod packet;
mod program;
mod scenario;
mod switch;
mod tally;
mod world;
mod wrong;

pub use log::Log;
pub use tally::Tally;
pub use world::{Options, Outcome, run};
