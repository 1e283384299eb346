//! A simulator of software RNICs, without threads and without a clock of its own: whole devices of `uwarp-verbs`, driven
//! by hand ([`Progress::Manual`](uwarp_verbs::Progress::Manual)), with TCP by smoltcp and a switch in memory between them
//! that loses, doubles, delays and damages packets. One seed decides everything: a run that has found something is played
//! again, byte by byte, with the same seed, and tells what happens step by step.
//!
//! `docs/testing.md` describes a run and its checks.

mod atomic;
mod clock;
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
